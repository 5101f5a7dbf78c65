"""`coordinator retry`: run again what was given up, or whole layers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from muster.coordinator.api.requests import Retry
from muster.coordinator.commands.chosen_jobs import ask_each, choose, jobs_arguments
from muster.coordinator.commands.options import farm_option, json_option
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example
from muster.jobs.common.errors import NotFoundError, UsageError


@click.command(
    epilog=example("coordinator retry weights", "coordinator retry all", "coordinator retry weights --layers conv1 fc")
)
@jobs_arguments
@click.option(
    "--layers",
    "layers",
    multiple=True,
    metavar="LAYER...",
    help="Compute these layers anew, even if merged.",
)
@farm_option
@json_option
def command(
    jobs: tuple[str, ...], states: tuple[str, ...], layers: tuple[str, ...], root: Path | None, as_json: bool
) -> None:
    """Run again the shards of jobs that were given up; their attempts are counted from 0.

    A halted job goes on, and an incomplete one runs again until it is complete or some shards are given up again; `all`
    are those two. The exit code is 7 if that would change nothing, as with a source that changed. With --layers what
    stands behind the job are more layers.
    """
    found = roots.existing(root)
    if layers and (len(jobs) == 0 or states):
        raise UsageError("--layers are of one job", "coordinator retry weights --layers conv1 fc")
    named = [*layers, *jobs[1:]] if layers else None
    try:
        chosen = choose(found, jobs[:1] if layers else jobs, states, {"halted", "incomplete"})
    except NotFoundError as error:
        raise (error if len(jobs) < 2 else NotFoundError(error.message, "name layers after --layers")) from None
    if layers and chosen.several:
        raise UsageError("--layers are of one job", "coordinator retry weights --layers conv1 fc")
    facts = {} if chosen.several else {"layers": named}
    ask_each(found, chosen, partial(Retry, layers=named), as_json, **facts)
