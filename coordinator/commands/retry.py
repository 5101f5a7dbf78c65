"""`coordinator retry`: run again what was given up, or whole layers."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.api.requests import Done, Retry
from muster.coordinator.commands.options import job_argument, json_option, root_option, say_done
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example
from muster.jobs.common.errors import UsageError


@click.command(epilog=example("coordinator retry weights", "coordinator retry weights --layers conv1 fc"))
@job_argument
@click.option(
    "--layers",
    "layers",
    multiple=True,
    metavar="LAYER...",
    help="Compute these layers anew, even if merged.",
)
@click.argument("more", nargs=-1, metavar="")
@root_option
@json_option
def command(job: str, layers: tuple[str, ...], more: tuple[str, ...], root: Path | None, as_json: bool) -> None:
    """Run again the shards of a job that were given up; their attempts are counted from 0.

    A halted job goes on, and an incomplete one runs again until it is complete or some shards are given up again. The
    exit code is 7 if that would change nothing, as with a source that changed.
    """
    if more and not layers:
        raise UsageError(f"{more[0]!r} is not expected here", "name layers after --layers")
    found = roots.existing(root)
    named = [*layers, *more] or None
    name = ask_daemon.job_named(found, job)
    say_done(ask_daemon.ask(found, Retry(name, named), Done).said, as_json, job=name, layers=named)
