"""`coordinator cancel`: end a job."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.api.requests import Cancel
from muster.coordinator.commands.chosen_jobs import NOT_ENDED, ask_each, choose, jobs_arguments
from muster.coordinator.commands.options import farm_option, json_option
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example


@click.command(
    epilog=example(
        "coordinator cancel weights", "coordinator cancel weights.1 clean.2", "coordinator cancel --state halted"
    )
)
@jobs_arguments
@farm_option
@json_option
def command(jobs: tuple[str, ...], states: tuple[str, ...], root: Path | None, as_json: bool) -> None:
    """End jobs; `all` are those that have not ended.

    What is merged is kept, and `coordinator retry` can go on with a job later. What runs now is
    dropped. `coordinator pause` holds a job, `coordinator rm` deletes one that has ended.
    """
    found = roots.existing(root)
    ask_each(found, choose(found, jobs, states, NOT_ENDED), Cancel, as_json)
