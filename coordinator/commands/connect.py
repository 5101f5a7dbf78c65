"""`coordinator connect`: an agent's channel. Starts without click, numpy or anything else that takes time."""

from __future__ import annotations

import os
from pathlib import Path

from muster.coordinator.farm_root.paths import find
from muster.jobs.common.errors import RefusedError, UsageError

ROLES = ("control", "push", "pull", "round")
HELP = """Usage: coordinator connect --role control|push|pull|round [--root DIR] [--as NAME] [--files DIR]

  Run for an agent, by sshd or by an agent on this machine; not by people.
  Speaks frames on stdin and stdout.

Options:
  --role ROLE  Which channel this is.
  --root DIR   The farm's root folder; default $MUSTER_ROOT, else ~/.muster.
  --files DIR  Take results that lie in this folder from there, of an agent
               on this machine.
  --as NAME    Accept this agent's name only. As sshd's forced command, the
               role is taken from what the client asked for, and nothing else.
  --submit-as NAME
               Of another person's key: let it submit jobs as NAME, watch them
               and fetch their results, and nothing else.

Example:
  coordinator connect --role control --as lab3

A line of ~/.ssh/authorized_keys that confines a machine's key:
  restrict,command="coordinator connect --as lab3" ssh-ed25519 AAAA... lab3

One that lets ann have her own jobs run here:
  restrict,command="coordinator connect --submit-as ann" ssh-ed25519 AAAA..."""
_VALUES = {"--role": "role", "--root": "root", "--as": "pinned", "--files": "files", "--submit-as": "person"}


def run(args: list[str]) -> int:
    """The exit code of `coordinator connect ARGS`."""
    if "--help" in args or "-h" in args:
        print(HELP)
        return 0
    given = parse(args)
    if given["person"]:
        from muster.coordinator.commands import second_person

        return second_person.run(find(_root(given)), given["person"], os.environ.get("SSH_ORIGINAL_COMMAND"))
    if given["pinned"]:
        given = _confined(given, os.environ.get("SSH_ORIGINAL_COMMAND"))
    if given["role"] not in ROLES:
        raise UsageError(f"--role is {given['role']!r}", f"give one of {', '.join(ROLES)}")
    from muster.coordinator.connect.main import main

    return main(_root(given), given["role"], given["pinned"], given["files"])


def _root(given: dict[str, str]) -> Path:
    return find(Path(given["root"]) if given["root"] else None).path


def _confined(given: dict[str, str], original: str | None) -> dict[str, str]:
    """What may be done with a key that is pinned to a name, given what its holder asked for."""
    from muster.coordinator.connect import forced_command

    if original is None and given["role"]:
        return given
    root, name = _root(given), given["pinned"]
    try:
        asked = parse(forced_command.words_of(original or ""))
        if asked["role"] not in ROLES:
            raise RefusedError(f"there is no role {asked['role'][:64]!r}", f"the roles are {', '.join(ROLES)}")
        forced_command.check(name, given["role"], root, asked, not asked["root"] or _root(asked) == root)
    except (RefusedError, UsageError) as error:
        raise forced_command.refuse(root, name, original, error) from None
    return {**given, "role": asked["role"]}


def parse(args: list[str]) -> dict[str, str]:
    """`--name value` and `--name=value`, nothing else; a launcher may be called with `connect` once more."""
    given = dict.fromkeys(_VALUES.values(), "")
    rest = list(args)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name == "connect" and not equals:
            continue
        if name not in _VALUES or not (equals or rest):
            raise UsageError(f"connect does not know {name!r}" if name not in _VALUES else f"{name} wants a value")
        given[_VALUES[name]] = value if equals else rest.pop(0)
    return given
