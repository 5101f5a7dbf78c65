"""`coordinator priority`: a job's share of the farm."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.api.requests import Done, Priority
from muster.coordinator.commands.options import farm_option, job_argument, json_option, say_done
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example


@click.command(epilog=example("coordinator priority weights 4"))
@job_argument
@click.argument("weight", type=click.IntRange(1, 1000), metavar="N")
@farm_option
@json_option
def command(job: str, weight: int, root: Path | None, as_json: bool) -> None:
    """Set a job's share of the farm.

    N is 1 to 1000. A job of priority 4 gets four times the slot-seconds of one of priority 1 while both have work.
    `coordinator set` changes what its shards may use.
    """
    found = roots.existing(root)
    name = ask_daemon.job_named(found, job)
    said = ask_daemon.ask(found, Priority(name, weight), Done).said
    say_done(said, as_json, job=name, priority=weight)
