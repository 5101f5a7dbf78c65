"""`coordinator cancel`: end a job."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator import ask
from coordinator import root as roots
from coordinator.admin import Cancel, Done
from coordinator.commands.options import job_argument, root_option, say
from jobs.group import example


@click.command(epilog=example("coordinator cancel weights"))
@job_argument
@root_option
def command(job: str, root: Path | None) -> None:
    """End a job.

    What is merged stays, and `coordinator retry` would go on with it; what runs is dropped.
    """
    found = roots.existing(root)
    say(ask.ask(found, Cancel(roots.resolve_job(found, job)), Done).said)
