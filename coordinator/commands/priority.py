"""`coordinator priority`: a job's share of the farm."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator import ask
from coordinator import root as roots
from coordinator.admin import Done, Priority
from coordinator.commands.options import job_argument, root_option, say
from jobs.group import example


@click.command(epilog=example("coordinator priority weights 4"))
@job_argument
@click.argument("weight", type=click.IntRange(1, 1000), metavar="N")
@root_option
def command(job: str, weight: int, root: Path | None) -> None:
    """Set a job's share of the farm.

    N is 1 to 1000. A job of priority 4 gets four times the slot-seconds of one of priority 1 while both have work.
    """
    found = roots.existing(root)
    say(ask.ask(found, Priority(roots.resolve_job(found, job), weight), Done).said)
