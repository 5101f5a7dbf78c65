"""`deploy`: finds the command and shows its errors. Imports a command only when it is called."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from muster.jobs.common.program import exit_code, invoke

if TYPE_CHECKING:
    import click

COMMANDS = {
    "up": "Bring machines to what the inventory says; a second run changes nothing.",
    "status": "Show the inventory beside how machines are.",
    "logs": "Show the log of a machine's agent.",
    "upgrade": "Bring machines and the coordinator to this version, the new beside the old first.",
    "wheels": "Fetch what machines without an index of packages need.",
    "remove": "Let machines finish, and take them out of the farm.",
    "down": "Take all machines down; their homes are as they were.",
}
HELP = """Put agents onto the machines of an inventory over ssh, from the server, and keep them at work.

The inventory is one yaml file, inventory.yaml in the farm's root by default.
"""


def main(argv: list[str] | None = None) -> int:
    """The exit code of `deploy ARGV`."""
    args = sys.argv[1:] if argv is None else argv
    return exit_code(lambda: invoke(group(), args))


def group() -> click.Group:
    """All commands in one, which may stand below another."""
    from muster.jobs.common.cli import LazyGroup

    return LazyGroup("deploy", HELP, COMMANDS, load)


def load(name: str) -> click.Command:
    """The click command called `name`."""
    command: click.Command = import_module(f"muster.deploy.commands.{name}").command
    return command
