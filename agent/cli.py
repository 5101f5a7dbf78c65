"""`agent`: finds the command and shows its errors. Imports a command only when it is called."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from muster.jobs.common.program import exit_code, invoke

if TYPE_CHECKING:
    import click

COMMANDS = {
    "join": "Work for a coordinator until told to leave.",
    "doctor": "Try each link of the way to a coordinator, and say what to put right.",
    "pause": "Stop an agent of this machine where it is; nothing is lost.",
    "resume": "Let a paused agent go on.",
    "set": "Change what an agent may use of this machine, at once.",
    "leave": "End an agent of this machine in good order.",
    "status": "Show this machine's agents.",
}
HELP = "Lend this machine's processors to a farm."


def main(argv: list[str] | None = None) -> int:
    """The exit code of `agent ARGV`."""
    args = sys.argv[1:] if argv is None else argv
    return exit_code(lambda: invoke(group(), args))


def group() -> click.Group:
    """All commands in one, which may stand below another."""
    from muster.jobs.common.cli import LazyGroup

    return LazyGroup("agent", HELP, COMMANDS, load)


def load(name: str) -> click.Command:
    """The click command called `name`."""
    command: click.Command = import_module(f"muster.agent.commands.{name}").command
    return command
