"""`coordinator pause`: hold a job."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.api.requests import Done, Pause
from muster.coordinator.commands.options import job_argument, root_option, say
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example


@click.command(epilog=example("coordinator pause weights"))
@job_argument
@root_option
def command(job: str, root: Path | None) -> None:
    """Grant nothing more of a job for now.

    What is running is finished and committed.
    """
    found = roots.existing(root)
    say(ask_daemon.ask(found, Pause(ask_daemon.job_named(found, job)), Done).said)
