"""`coordinator submit`: plan a job here, hand it to the daemon, perhaps wait for it."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator import ask
from coordinator import root as roots
from coordinator.admin import Submit, Submitted
from coordinator.commands.options import example, job_file_argument, json_option, root_option, say, say_json
from coordinator.commands.watch import watch
from coordinator.root import Root


@click.command(epilog=example("coordinator submit job.yaml --wait"))
@job_file_argument
@click.option("--wait", is_flag=True, help="Follow the job until it ends; Ctrl-C leaves it running.")
@root_option
@json_option
def command(job_file: Path, wait: bool, root: Path | None, as_json: bool) -> int:
    """Plan a job and run it; prints its id.

    With --wait, exits with 0 when the job is complete, with 11 when it ends without all of its shards.
    """
    found = roots.existing(root)
    ask.connect(found).close()  # no daemon: said before a long plan, not after it
    job = submit(found, job_file)
    if as_json:
        say_json({"job": job})
    else:
        say(job)
    return watch(found, job) if wait else 0


def submit(root: Root, job_file: Path) -> str:
    """The id of the job."""
    from coordinator.planning import plan_file, submission

    planned = plan_file(job_file)
    with submission(root, planned) as folder:
        return ask.ask(root, Submit(folder), Submitted).job
