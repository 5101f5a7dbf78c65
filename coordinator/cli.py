"""`coordinator`: finds the command and shows its errors. Imports a command only when it is called."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from muster.jobs.common.program import exit_code, invoke, wants_json

if TYPE_CHECKING:
    import click

COMMANDS = {
    "serve": "Run the coordinator of a farm.",
    "service": "Let systemd keep the coordinator at work, also after a restart of this machine.",
    "stop": "Stop the coordinator; jobs go on when it is started again.",
    "plan": "Show what a job would be, and start nothing.",
    "try": "Run a few shards of a job here, and show how that goes.",
    "run": "Run a command for each item, as GNU Parallel does.",
    "submit": "Plan a job and run it.",
    "watch": "Follow a job until it ends.",
    "wait": "Wait until jobs have ended, without a word.",
    "status": "List the jobs, or show one.",
    "agents": "List the machines.",
    "explain": "Say what a machine, a job or a shard is at, and why.",
    "logs": "Show what failed, with its evidence, and what users' code printed.",
    "verify": "Check a job's merged result, and its inputs.",
    "report": "Show how trainings went, and draw them.",
    "result": "Print where the merged arrays are, or copy them.",
    "diff": "Show what makes two jobs differ.",
    "retry": "Run again what was given up, or whole layers.",
    "cancel": "End a job; what is merged is kept.",
    "pause": "Grant nothing more of a job for now.",
    "resume": "Go on with a paused job.",
    "priority": "Set a job's share of the farm.",
    "enqueue": "Have a search that runs try another configuration.",
    "set": "Change what a job's shards may use, or how often they may fail.",
    "kick": "Take a shard from its machine, and run it elsewhere.",
    "drain": "Let a machine finish and leave.",
    "drop": "Give up a machine that will not come back.",
    "rm": "Delete an ended job and its result.",
    "du": "Show what takes the root's space.",
    "uploads": "List the arrays that clients have sent.",
    "upload": "Take an array in; run by clients.",
    "fetch": "Send files of a result; run by clients.",
    "stream": "Send shards as they are committed; run by clients.",
    "rebuild": "Make a new store from what lies in the root, if the old one is lost.",
    "connect": "Run by sshd for an agent, not by people.",
}
MODULES = {"try": "trial"}  # where the name is none for a module
HELP = """Make one farm out of a few machines that share nothing but ssh to this server.

Jobs have the id NAME.N (`weights.1`); NAME alone means the latest of this name, `last` the latest of all.
"""


def main(argv: list[str] | None = None) -> int:
    """The exit code of `coordinator ARGV`."""
    return run("coordinator", COMMANDS, load, argv)


def run(name: str, commands: Mapping[str, str], load: Callable[[str], click.Command], argv: list[str] | None) -> int:
    """The exit code of `NAME ARGV`, a program with these commands; `argv` is None for what it was started with."""
    args = sys.argv[1:] if argv is None else argv
    if args[:1] == ["connect"]:
        return exit_code(lambda: _connect(args[1:]))
    as_json = args[:1] != ["run"] and wants_json(args)  # what stands there is of the command that is run
    return exit_code(lambda: _call(name, commands, load, args), as_json)


def _connect(args: list[str]) -> int:
    """The one command that a machine waits for: without click."""
    from muster.coordinator.commands import connect

    return connect.run(args)


def _call(name: str, commands: Mapping[str, str], load: Callable[[str], click.Command], args: list[str]) -> int:
    from muster.jobs.common.cli import LazyGroup

    return invoke(LazyGroup(name, HELP, commands, load), args)


def load(name: str) -> click.Command:
    """The click command called `name`."""
    command: click.Command = import_module(f"muster.coordinator.commands.{MODULES.get(name, name)}").command
    return command
