"""Which farm a command line means, here or behind ssh, and a command handed over to a farm elsewhere, as it was typed.
Knows no command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.jobs.common import configuration
from muster.jobs.common.cli import WORDS, configured
from muster.jobs.common.errors import UsageError
from muster.jobs.common.locations import Host, parse

if TYPE_CHECKING:
    from muster.coordinator.client.backends.ssh import Ssh


def farm_meant(at: str | None, root: Path | None) -> Host | Path | None:
    """A host, a root on this machine, or None for the default one."""
    if at is not None and root is not None:
        raise UsageError("--at and --root name a farm each", "give one of the two")
    if root is not None:
        return root
    named = configuration.farm() if at is None else None
    where = named.where if named else at
    if where is None:
        return None
    try:
        place = parse(where)
    except UsageError as error:
        raise UsageError(f"{named.said_by}: {error.message}" if named else error.message, error.hint) from None
    return place if isinstance(place, Host) else place.path


def reached(host: Host) -> Ssh:
    """A farm's server, once it answers. Its connection is kept for the next commands."""
    from muster.coordinator.client.backends.ssh import Ssh

    made = Ssh(host, shared=True)
    made.find()
    return made


def handed_over(host: Host, *, reads: bool = False, last: int = 0) -> int:
    """The exit code of the command that was typed here, run there, with what a configuration here adds to it. `reads`:
    it reads stdin. The `last` so many words are none of its options, whatever they look like."""
    context = click.get_current_context()
    typed = context.meta[WORDS]
    own = len(typed) - last
    words = [*configured(context), *without_at(typed[:own]), *typed[own:]]
    return run_there(reached(host), words, reads=reads)


def run_there(ssh: Ssh, words: Sequence[str], name: str | None = None, *, reads: bool = False) -> int:
    """The exit code of a command there, by default of this one's name. At a terminal it has that terminal."""
    sys.stdout.flush()
    name = name or click.get_current_context().info_name or ""
    return ssh.hand_over(name, *words, reads=reads)


def without_at(words: Sequence[str]) -> list[str]:
    """The same command line for who is there already."""
    kept: list[str] = []
    rest = list(words)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        if word == "--at":
            rest.pop(0)
        elif not word.startswith("--at="):
            kept.append(word)
    return kept + rest
