"""`coordinator`: finds the command and shows its errors. Imports a command only when it is called."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from muster.jobs.common.program import exit_code, invoke, wants_json

if TYPE_CHECKING:
    import click

FARM, JOBS, LOOK, MACHINES, OF_PROGRAMS = "The farm", "Jobs", "Look", "Machines", ""
Sections = Mapping[str, Mapping[str, str]]
SECTIONS: Sections = {
    JOBS: {
        "run": "Run a command for each item, as GNU Parallel does.",
        "plan": "Show what a job would be, and start nothing.",
        "try": "Run a few shards of a job here, and show how that goes.",
        "submit": "Plan a job and run it.",
        "wait": "Wait until jobs have ended, without a word.",
        "result": "Print where the merged arrays are, or copy them.",
        "verify": "Check a job's merged result, and its inputs.",
        "retry": "Run again what was given up, or whole layers.",
        "cancel": "End jobs; what is merged is kept.",
        "pause": "Grant nothing more of jobs for now.",
        "resume": "Go on with paused jobs.",
        "priority": "Set a job's share of the farm.",
        "enqueue": "Have a search that runs try another configuration.",
        "set": "Change what a job's shards may use, or how often they may fail.",
        "rm": "Delete ended jobs and their results.",
    },
    LOOK: {
        "status": "List the jobs, or show some.",
        "watch": "Follow a job until it ends.",
        "page": "Show the farm live, in a browser.",
        "explain": "Say what a machine, a job or a shard is at, and why.",
        "logs": "Show what failed, with its evidence, and what users' code printed.",
        "report": "Show how jobs went, and draw them.",
        "diff": "Show what makes two jobs differ.",
    },
    MACHINES: {
        "agents": "List the machines.",
        "kick": "Take a shard from its machine, and run it elsewhere.",
        "drain": "Let a machine finish and leave.",
        "drop": "Give up a machine that will not come back.",
    },
    FARM: {
        "serve": "Run the coordinator of a farm.",
        "service": "Let systemd keep the coordinator at work, also after a restart of this machine.",
        "stop": "Stop the coordinator; jobs go on when it is started again.",
        "du": "Show what takes the root's space.",
        "completion": "Print what lets a shell complete commands, jobs and machines.",
        "uploads": "List the arrays that clients have sent.",
        "rebuild": "Make a new store from what lies in the root, if the old one is lost.",
    },
    OF_PROGRAMS: {
        "upload": "Take an array in; run by clients.",
        "fetch": "Send files of a result; run by clients.",
        "stream": "Send shards as they are committed; run by clients.",
        "session": "Carry a session of calls; run by clients.",
        "connect": "Run by sshd for an agent, not by people.",
    },
}
COMMANDS = {name: line for part in SECTIONS.values() for name, line in part.items()}
BESIDE = ("farm", "agent", "deploy")  # what a configuration has beside our commands
MODULES = {"try": "trial"}  # where the name is none for a module
HELP = """Make one farm out of a few machines that share nothing but ssh to this server.

Jobs have the id NAME.N (`weights.1`); NAME alone means the latest of this name, `last` the latest of all.
"""


def main(argv: list[str] | None = None) -> int:
    """The exit code of `coordinator ARGV`."""
    return run("coordinator", SECTIONS, load, argv)


def run(
    name: str,
    sections: Sections,
    load: Callable[[str], click.Command],
    argv: list[str] | None,
    elsewhere: Mapping[str, tuple[str, ...]] | None = None,
) -> int:
    """The exit code of `NAME ARGV`, a program with these commands; `argv` is None for what it was started with.
    `elsewhere`: where in a configuration the options of some stand, if not under their names."""
    args = sys.argv[1:] if argv is None else argv
    if args[:1] == ["connect"]:
        return exit_code(lambda: _connect(args[1:]))
    as_json = args[:1] != ["run"] and wants_json(args)  # what stands there is of the command that is run
    return exit_code(lambda: _call(name, sections, load, args, elsewhere or {}), as_json)


def _connect(args: list[str]) -> int:
    """The one command that a machine waits for: without click."""
    from muster.coordinator.commands import connect

    return connect.run(args)


def _call(
    name: str,
    sections: Sections,
    load: Callable[[str], click.Command],
    args: list[str],
    elsewhere: Mapping[str, tuple[str, ...]],
) -> int:
    from muster.jobs.common.cli import LazyGroup

    return invoke(LazyGroup(name, HELP, sections, load, elsewhere=elsewhere, others=BESIDE), args)


def load(name: str) -> click.Command:
    """The click command called `name`."""
    command: click.Command = import_module(f"muster.coordinator.commands.{MODULES.get(name, name)}").command
    return command
