"""A user's agents on this machine: which run, which spools there are, and how each was joined.

A file for each spool, in one folder outside of all spools. Whether an agent runs its spool says, not that file.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from muster.agent.spool import owner as owners
from muster.agent.spool.owner import Owner
from muster.jobs.common.durable import read_json, write_private
from muster.jobs.common.errors import NotFoundError, RefusedError
from muster.jobs.common.hashing import of_bytes
from muster.jobs.common.locations import expand


class Registered(msgspec.Struct, frozen=True):
    """A spool, and the `agent join` that last used it."""

    spool: str
    name: str
    where: str
    args: list[str]  # of `agent join`, without --detach
    cwd: str  # what relative paths in them start from
    at: float  # seconds since the epoch
    detached: bool = False


def note(spool: Path, name: str, where: str, args: list[str], *, detached: bool = False) -> None:
    """Remember a join. Where nothing can be written, it is forgotten, and works all the same."""
    folder = owners.register()
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        entry = Registered(str(spool), name, where, args, str(Path.cwd()), time.time(), detached)
        for path, other in _files(folder):
            if not Path(other.spool).is_dir():
                path.unlink()
        write_private(folder / f"{_key(spool)}.json", msgspec.json.encode(entry))


def forget(spool: Path) -> None:
    """Remember nothing of a spool that is deleted. With the last of them the folders go that agents of this machine
    have in common."""
    folder = owners.register()
    with suppress(OSError):
        (folder / f"{_key(spool)}.json").unlink(missing_ok=True)
        folder.rmdir()
        shutil.rmtree(owners.cpu_shares(), ignore_errors=True)


def entries() -> list[Registered]:
    """Every join that is remembered, the latest first."""
    folder = owners.register()
    with suppress(OSError):
        if not owners.is_anothers(folder):  # its words would become a command line of ours
            return sorted((entry for _, entry in _files(folder)), key=lambda entry: -entry.at)
    return []


def entry_of(spool: Path) -> Registered | None:
    """The last join with this spool."""
    return next((entry for entry in entries() if Path(entry.spool) == spool), None)


def spools() -> list[Path]:
    """The folders in the default place and those that are remembered, as far as they are there."""
    default = owners.base()
    found = sorted(path for path in default.iterdir() if path.is_dir()) if default.is_dir() else []
    known = [path for entry in entries() if (path := Path(entry.spool)).is_dir()]
    return list(dict.fromkeys([*found, *known]))


def running(spool: Path | None, name: str | None = None) -> Iterator[tuple[Path, Owner]]:
    """Spools whose owner is alive: the one named, or all that this user has here."""
    folders = [expand(spool).absolute()] if spool else spools()
    for folder in folders:
        owner = owners.owner_of(folder)
        if owner and owner.process() and (name is None or owner.name == name):
            yield folder, owner


def the_one(spool: Path | None, name: str | None) -> tuple[Path, Owner]:
    """The agent that is meant; an error that says how to name it otherwise."""
    found = list(running(spool, name))
    if len(found) > 1:
        names = ", ".join(owner.name for _, owner in found)
        raise RefusedError(f"several agents run on this machine: {names}", "name one with --name or --spool")
    if not found:
        what = f"no agent uses the spool {spool}" if spool else f"no agent {name or ''} runs on this machine"
        raise NotFoundError(" ".join(what.split()), "`agent status` shows those that do; --spool names another spool")
    return found[0]


def _files(folder: Path) -> Iterator[tuple[Path, Registered]]:
    for path in folder.glob("*.json"):
        if (entry := read_json(path, Registered)) is not None:
            yield path, entry


def _key(spool: Path) -> str:
    return of_bytes(os.fsencode(spool))
