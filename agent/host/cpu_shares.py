"""Which processors of this machine a user's agents lend: a file for each agent, locked while its process lives.

The spools may be anywhere, so the files are not in them. Whose lock is free has gone, however it went.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from muster.jobs.common.hashing import of_bytes

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
GATE = "lock"  # held by whoever reads and writes in one go


class Share(msgspec.Struct, frozen=True):
    """What one agent lends."""

    name: str
    cpus: int


class CpuShare:
    """This agent's, from `take` until the process ends."""

    def __init__(self, folder: Path, key: str) -> None:
        """`folder`: the machine's, for all agents of this user; `key`: this agent's spool, which no other one has."""
        self._folder = folder
        self._path = folder / f"{key}.json"
        self._fd = -1

    def take(self, name: str, wanted: int | None, cores: int) -> tuple[int, list[Share]]:
        """How many processors this agent may lend, as many as are `wanted` or else what others leave of `cores`, at
        least one; and what the others lend. Where nothing can be written nobody knows of anybody."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._gate():
                others = list(self._others())
                cpus = wanted or max(1, cores - sum(other.cpus for other in others))
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                self._write(Share(name, cpus))
        except OSError:
            return wanted or cores, []
        return cpus, others

    def change(self, name: str, cpus: int) -> None:
        """From now on it lends as many."""
        if self._fd >= 0:
            with suppress(OSError), self._gate():
                self._write(Share(name, cpus))

    def _write(self, share: Share) -> None:
        """In place, as the lock is the file's; whoever reads it holds the gate."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, msgspec.json.encode(share), 0)

    def _others(self) -> Iterator[Share]:
        """Of agents that live; the files of those that do not are deleted."""
        for path in sorted(self._folder.glob("*.json")):
            if path == self._path:
                continue
            with suppress(OSError, msgspec.DecodeError):
                if _is_held(path):
                    yield msgspec.json.decode(path.read_bytes(), type=Share)
                else:
                    path.unlink()

    @contextmanager
    def _gate(self) -> Iterator[None]:
        fd = os.open(self._folder / GATE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _is_held(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def machine(boot_id: Path = BOOT_ID) -> str:
    """What tells this machine from all others, to whoever runs on it, also in a container; "" where nothing does."""
    with suppress(OSError):
        return of_bytes(boot_id.read_bytes())
    return ""


def told(cpus: int, others: Sequence[Share], cores: int) -> str:
    """What a person should know of it; "" for an agent that is alone and lends no more than there is."""
    if not others:
        return (
            f"lends {cpus} cpus, and this machine has {cores}: its shards will wait for each other"
            if cpus > cores
            else ""
        )
    names = ", ".join(f"{other.name} ({other.cpus})" for other in others)
    if cpus + sum(other.cpus for other in others) <= cores:
        return f"{cpus} of this machine's {cores} cores, beside {names}"
    return f"shares this machine's {cores} cores with {names}: more is lent than there is; --cpus lends fewer"
