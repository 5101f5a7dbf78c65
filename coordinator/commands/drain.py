"""`coordinator drain`: let a machine finish and leave."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.api.requests import Done, Drain
from muster.coordinator.commands import complete_names
from muster.coordinator.commands.options import farm_option, json_option, say_done
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example
from muster.jobs.common.names import check_name


@click.command(epilog=example("coordinator drain lab3"))
@click.argument("agent", metavar="AGENT", shell_complete=complete_names.agent)
@farm_option
@json_option
def command(agent: str, root: Path | None, as_json: bool) -> None:
    """Let a machine finish and leave.

    It hands back what it has not started, finishes and pushes the rest, and exits. Nothing is computed twice.
    Whoever sits at that machine says `agent leave`; `coordinator drop` is for one that is gone.
    """
    found = roots.existing(root)
    said = ask_daemon.ask(found, Drain(check_name(agent, "agent")), Done).said
    say_done(said, as_json, agent=agent)
