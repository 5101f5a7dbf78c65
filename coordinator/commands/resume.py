"""`coordinator resume`: go on with a held job."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator import ask
from coordinator import root as roots
from coordinator.admin import Done, Resume
from coordinator.commands.options import job_argument, root_option, say
from jobs.group import example


@click.command(epilog=example("coordinator resume weights"))
@job_argument
@root_option
def command(job: str, root: Path | None) -> None:
    """Go on with a paused job.

    A halted job wants `coordinator retry`.
    """
    found = roots.existing(root)
    say(ask.ask(found, Resume(roots.resolve_job(found, job)), Done).said)
