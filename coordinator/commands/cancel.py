"""`coordinator cancel`: end a job."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.api.requests import Cancel, Done
from muster.coordinator.commands.options import job_argument, json_option, root_option, say_done
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example


@click.command(epilog=example("coordinator cancel weights"))
@job_argument
@root_option
@json_option
def command(job: str, root: Path | None, as_json: bool) -> None:
    """End a job.

    What is merged is kept, and `coordinator retry` can go on with the job later. What runs now is dropped.
    """
    found = roots.existing(root)
    name = ask_daemon.job_named(found, job)
    say_done(ask_daemon.ask(found, Cancel(name), Done).said, as_json, job=name)
