"""`coordinator connect`: an agent's channel. Starts without click, numpy or anything else that takes time."""

from __future__ import annotations

from pathlib import Path

from coordinator.root import find
from jobs.errors import UsageError

ROLES = ("control", "push", "pull")
HELP = """Usage: coordinator connect --role control|push|pull [--root DIR] [--as NAME]

  Run for an agent, by sshd or by an agent on this machine; not by people.
  Speaks frames on stdin and stdout.

Options:
  --role ROLE  Which channel this is.
  --root DIR   The farm's root folder; default $MUSTER_ROOT, else ~/.muster.
  --as NAME    Accept this agent's name only.

Example:
  coordinator connect --role control --as lab3"""
_VALUES = {"--role": "role", "--root": "root", "--as": "pinned"}


def run(args: list[str]) -> int:
    """The exit code of `coordinator connect ARGS`."""
    if "--help" in args or "-h" in args:
        print(HELP)
        return 0
    given = parse(args)
    if given["role"] not in ROLES:
        raise UsageError(f"--role is {given['role']!r}", f"give one of {', '.join(ROLES)}")
    from coordinator.connect import main

    return main(find(Path(given["root"]) if given["root"] else None).path, given["role"], given["pinned"])


def parse(args: list[str]) -> dict[str, str]:
    """`--name value` and `--name=value`, nothing else."""
    given = dict.fromkeys(_VALUES.values(), "")
    rest = list(args)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name not in _VALUES or not (equals or rest):
            raise UsageError(f"connect does not know {name!r}" if name not in _VALUES else f"{name} wants a value")
        given[_VALUES[name]] = value if equals else rest.pop(0)
    return given
