"""`agent resume`: this machine may compute again."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from muster.agent.commands.options import agent_options, say_done, wish
from muster.jobs.common.cli import example
from muster.jobs.common.units import counted


@click.command(epilog=example("agent resume", "agent resume --name desk"))
@agent_options
def command(name: str | None, spool: Path | None, as_json: bool) -> int:
    """Go on after `agent pause`; a job that is held goes on with `coordinator resume`."""
    state = wish(spool, name, lambda known: msgspec.structs.replace(known, paused=False))
    lent = f"{state.name} goes on with {counted(state.cpus, 'cpu')}"
    say_done(state, lent if state.cpus else f"{state.name}: {state.why_idle}", as_json)
    return 0
