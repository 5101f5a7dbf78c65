"""`coordinator resume`: go on with a held job."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.api.requests import Done, Resume
from muster.coordinator.commands.options import job_argument, root_option, say
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example


@click.command(epilog=example("coordinator resume weights"))
@job_argument
@root_option
def command(job: str, root: Path | None) -> None:
    """Go on with a paused job.

    A halted job wants `coordinator retry`.
    """
    found = roots.existing(root)
    say(ask_daemon.ask(found, Resume(ask_daemon.job_named(found, job)), Done).said)
