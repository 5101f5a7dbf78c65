"""`agent status`: this machine's agents, from what they write into their spools."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Set
from pathlib import Path

import click
import msgspec

from muster.agent.display import DisplayState
from muster.agent.spool import register
from muster.jobs.common.cli import example
from muster.jobs.common.durable import read_json
from muster.jobs.common.json_documents import json_text
from muster.jobs.common.units import format_size

STALE_SECONDS = 10.0
DAY_SECONDS = 86400.0
LONG_DAYS = 30


@click.command(epilog=example("agent status", "agent status --json"))
@click.option("--spool", type=click.Path(path_type=Path), default=None, help="Show only the agent with this spool.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(spool: Path | None, as_json: bool) -> int:
    """Show this machine's agents, and the spools that agents of farms long gone left here."""
    found = [(folder, state_of(folder)) for folder, _ in register.running(spool)]
    if as_json:
        states = [{"spool": str(folder), **(msgspec.to_builtins(state) if state else {})} for folder, state in found]
        click.echo(json_text({"agents": states}))
        return 0
    for folder, state in found:
        click.echo(_line(folder, state))
    if not found:
        click.echo("no agent runs on this machine")
    if spool is None:
        for line in _left_behind({folder for folder, _ in found}):
            click.echo(line)
    return 0


def _left_behind(busy: Set[Path]) -> Iterator[str]:
    """Spools whose farm is gone, or that nobody has used for long: they keep their room until someone deletes them."""
    for folder in register.spools():
        if folder in busy or not (folder / "uuid").is_file():
            continue
        entry = register.entry_of(folder)
        where = entry.where if entry else ""
        gone = where.startswith("/") and not (Path(where) / "farm.json").is_file()
        days = (time.time() - _last_used(folder)) / DAY_SECONDS
        if gone or days > LONG_DAYS:
            whose = f" of {where}, {'where no farm is any more, ' if gone else ''}" if where else " "
            size = format_size(sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()))
            text = (
                f"spool {folder}{whose}not used for {days:.0f} days, takes {size}: `rm -r {shlex.quote(str(folder))}`"
            )
            yield f"{text} frees that, and loses finished work that was not handed in"


def _last_used(folder: Path) -> float:
    """When something was last written there."""
    files = [path for path in (folder / "agent.log", folder / "uuid", folder / "state.json") if path.exists()]
    return max((path.stat().st_mtime for path in files), default=0.0)


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
