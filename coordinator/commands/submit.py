"""`coordinator submit`: plan a job here, hand it to the daemon, perhaps wait for it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from coordinator import ask
from coordinator import root as roots
from coordinator.admin import Submit, Submitted
from coordinator.commands.options import example, json_option, root_option, say, say_json
from coordinator.commands.watch import watch
from coordinator.root import Root
from jobs.errors import UsageError


@click.command(epilog=example("coordinator submit job.yaml --wait"))
@click.argument("job_file", metavar="job.yaml", type=click.Path(path_type=Path), required=False)
@click.option("--parcel", is_flag=True, help="Read the job, its code and the names of its uploads from stdin.")
@click.option("--wait", is_flag=True, help="Follow the job until it ends; Ctrl-C leaves it running.")
@root_option
@json_option
def command(job_file: Path | None, parcel: bool, wait: bool, root: Path | None, as_json: bool) -> int:
    """Plan a job and run it; prints its id.

    With --wait, exits with 0 when the job is complete, with 11 when it ends without all of its shards. --parcel is for
    coordinator.client.
    """
    if (job_file is None) != parcel:
        raise UsageError("a job file or --parcel, one of the two", "coordinator submit job.yaml")
    found = roots.existing(root)
    ask.connect(found).close()  # no daemon: said before a long plan, not after it
    job = submit(found, job_file) if job_file else _submit_parcel(found)
    if as_json:
        say_json({"job": job})
    else:
        say(job)
    return watch(found, job) if wait else 0


def _submit_parcel(root: Root) -> str:
    from coordinator import parcel

    return parcel.submit(root, parcel.decode(sys.stdin.buffer.read(parcel.BYTES_LIMIT + 1)))


def submit(root: Root, job_file: Path) -> str:
    """The id of the job."""
    from coordinator.planning import plan_file, submission

    planned = plan_file(job_file)
    with submission(root, planned) as folder:
        return ask.ask(root, Submit(folder), Submitted).job
