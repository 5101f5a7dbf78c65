"""`agent resume`: this machine may compute again."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from muster.agent.commands.options import agent_options, wish
from muster.jobs.common.cli import example


@click.command(epilog=example("agent resume", "agent resume --name desk"))
@agent_options
def command(name: str | None, spool: Path | None) -> int:
    """Go on after `agent pause`."""
    state = wish(spool, name, lambda known: msgspec.structs.replace(known, paused=False))
    click.echo(f"{state.name} goes on with {state.cpus} cpus" if state.cpus else f"{state.name}: {state.why_idle}")
    return 0
