"""`agent pause`: this machine is wanted for something else."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from muster.agent.commands.options import agent_options, say_done, wish
from muster.jobs.common.cli import example
from muster.jobs.common.units import counted


@click.command(epilog=example("agent pause", "agent pause --name desk"))
@agent_options
def command(name: str | None, spool: Path | None, as_json: bool) -> int:
    """Stop computing now, without losing anything.

    Your code is stopped where it is, with what it has in memory, and goes on from there at `agent resume`. A built-in
    kind first finishes its current batch, as all do on a Ray cluster. What is finished is handed in, and what was not
    begun is handed back. `coordinator pause` holds a job, on all machines.
    """
    state = wish(spool, name, lambda known: msgspec.structs.replace(known, paused=True))
    shards = counted(state.running, "shard")
    became = f"{shards} on its cluster to end" if state.elsewhere else f"{shards} stopped where they are"
    say_done(state, f"{state.name} is paused, {became}; `agent resume` goes on", as_json)
    return 0
