"""`coordinator rm`: delete an ended job."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator import ask
from coordinator import root as roots
from coordinator.admin import Done, Remove
from coordinator.commands.options import job_argument, root_option, say
from jobs.group import example


@click.command(epilog=example("coordinator rm weights.1"))
@job_argument
@root_option
def command(job: str, root: Path | None) -> None:
    """Delete an ended job, with its result.

    Copy the result first if it is wanted: `coordinator result JOB --to DIR`.
    """
    found = roots.existing(root)
    say(ask.ask(found, Remove(roots.resolve_job(found, job)), Done).said)
