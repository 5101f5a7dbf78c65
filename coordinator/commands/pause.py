"""`coordinator pause`: hold a job."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator import ask
from coordinator import root as roots
from coordinator.admin import Done, Pause
from coordinator.commands.options import job_argument, root_option, say
from jobs.group import example


@click.command(epilog=example("coordinator pause weights"))
@job_argument
@root_option
def command(job: str, root: Path | None) -> None:
    """Grant nothing more of a job for now.

    What is running is finished and committed.
    """
    found = roots.existing(root)
    say(ask.ask(found, Pause(roots.resolve_job(found, job)), Done).said)
