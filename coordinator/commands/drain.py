"""`coordinator drain`: let a machine finish and leave."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator import ask
from coordinator import root as roots
from coordinator.admin import Done, Drain
from coordinator.commands.options import root_option, say
from jobs.group import example
from jobs.names import check_name


@click.command(epilog=example("coordinator drain lab3"))
@click.argument("agent", metavar="AGENT")
@root_option
def command(agent: str, root: Path | None) -> None:
    """Let a machine finish and leave.

    It hands back what it has not started, finishes and pushes the rest, and exits: nothing is computed twice.
    """
    found = roots.existing(root)
    say(ask.ask(found, Drain(check_name(agent, "agent")), Done).said)
