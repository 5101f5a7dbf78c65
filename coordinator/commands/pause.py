"""`coordinator pause`: hold a job."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.api.requests import Done, Pause
from muster.coordinator.commands.options import job_argument, json_option, root_option, say_done
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example


@click.command(epilog=example("coordinator pause weights"))
@job_argument
@root_option
@json_option
def command(job: str, root: Path | None, as_json: bool) -> None:
    """Grant nothing more of a job for now.

    What is running already is finished and committed.
    """
    found = roots.existing(root)
    name = ask_daemon.job_named(found, job)
    say_done(ask_daemon.ask(found, Pause(name), Done).said, as_json, job=name)
