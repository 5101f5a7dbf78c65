"""`coordinator rm`: delete an ended job."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.api.requests import Done, Remove
from muster.coordinator.commands.options import job_argument, json_option, root_option, say_done
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example


@click.command(epilog=example("coordinator rm weights.1"))
@job_argument
@root_option
@json_option
def command(job: str, root: Path | None, as_json: bool) -> None:
    """Delete an ended job, with its result.

    Copy the result first if it is wanted: `coordinator result JOB --to DIR`.
    """
    found = roots.existing(root)
    name = ask_daemon.job_named(found, job, for_good=True)
    say_done(ask_daemon.ask(found, Remove(name), Done).said, as_json, job=name)
