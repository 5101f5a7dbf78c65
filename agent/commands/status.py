"""`agent status`: this machine's agents, from what they write into their spools."""

from __future__ import annotations

import time
from pathlib import Path

import click
import msgspec

from muster.agent.display import DisplayState
from muster.agent.spool import owner as owners
from muster.jobs.common.cli import example
from muster.jobs.common.durable import read_json
from muster.jobs.common.json_documents import json_text

STALE_SECONDS = 10.0


@click.command(epilog=example("agent status", "agent status --json"))
@click.option("--spool", type=click.Path(path_type=Path), default=None, help="Show only the agent with this spool.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(spool: Path | None, as_json: bool) -> int:
    """Show this machine's agents."""
    found = [(folder, state_of(folder)) for folder, _ in owners.running(spool)]
    if as_json:
        states = [{"spool": str(folder), **(msgspec.to_builtins(state) if state else {})} for folder, state in found]
        click.echo(json_text({"agents": states}))
        return 0
    for folder, state in found:
        click.echo(_line(folder, state))
    if not found:
        click.echo("no agent runs on this machine")
    return 0


def state_of(folder: Path) -> DisplayState | None:
    """What the agent last wrote of itself."""
    return read_json(folder / "state.json", DisplayState)


def _line(folder: Path, state: DisplayState | None) -> str:
    if state is None:
        return f"{folder}: starting"
    age = time.time() - state.at
    stale = f" · silent for {age:.0f} s" if age > STALE_SECONDS else ""
    limits = f" · {state.limits}" if state.limits else ""
    return f"{state}{limits} · {state.where} · process {state.pid} · spool {folder}{stale}"
