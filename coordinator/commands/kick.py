"""`coordinator kick`: run a shard elsewhere."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.api.requests import Done, Kick
from muster.coordinator.commands.logs import split
from muster.coordinator.commands.options import farm_option, json_option, say_done
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example
from muster.jobs.common.errors import UsageError
from muster.jobs.common.names import parse_shard


@click.command(epilog=example("coordinator kick weights.1/conv1/17"))
@click.argument("shard", metavar="JOB/LAYER/N")
@farm_option
@json_option
def command(shard: str, root: Path | None, as_json: bool) -> None:
    """Take a shard from the machine where it runs, and run it elsewhere.

    What it has computed so far is thrown away. This does not count as a failure, and the machine gets the shard again
    only if no other one can run it. A shard that is finished there and not sent yet is run elsewhere as well; the first
    result to arrive counts. `coordinator drop` gives up all of a machine.
    """
    found = roots.existing(root)
    job, rest = split(shard, None)
    if rest is None:
        raise UsageError(f"{shard!r} is not a shard", "write JOB/LAYER/NUMBER, such as weights.1/conv1/17")
    layer, number = parse_shard(rest)
    name = ask_daemon.job_named(found, job)
    said = ask_daemon.ask(found, Kick(name, layer, number), Done).said
    say_done(said, as_json, job=name, layer=layer, number=number)
