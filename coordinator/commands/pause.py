"""`coordinator pause`: hold a job."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.api.requests import Pause
from muster.coordinator.commands.chosen_jobs import ask_each, choose, jobs_arguments
from muster.coordinator.commands.options import farm_option, json_option
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example


@click.command(epilog=example("coordinator pause weights", "coordinator pause all"))
@jobs_arguments
@farm_option
@json_option
def command(jobs: tuple[str, ...], states: tuple[str, ...], root: Path | None, as_json: bool) -> None:
    """Grant nothing more of jobs for now; `all` are those that run.

    What is running already is finished and committed. `agent pause` stops a machine, whatever it runs.
    """
    found = roots.existing(root)
    ask_each(found, choose(found, jobs, states, {"running"}), Pause, as_json)
