"""`coordinator resume`: go on with a held job."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.api.requests import Resume
from muster.coordinator.commands.chosen_jobs import ask_each, choose, jobs_arguments
from muster.coordinator.commands.options import farm_option, json_option
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example


@click.command(epilog=example("coordinator resume weights", "coordinator resume all"))
@jobs_arguments
@farm_option
@json_option
def command(jobs: tuple[str, ...], states: tuple[str, ...], root: Path | None, as_json: bool) -> None:
    """Go on with paused jobs.

    A job that was halted goes on with `coordinator retry`, a machine that its user paused with `agent resume`.
    """
    found = roots.existing(root)
    ask_each(found, choose(found, jobs, states, {"paused"}), Resume, as_json)
