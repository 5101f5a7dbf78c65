"""Folders under ROOT/tmp that submitters lay out for the daemon, and others that are in the making: locked by their
makers, swept once those are dead.

The maker holds an flock on its folder from before anything is in it; the lock ends with its process, however that ends.
So whoever gets the lock knows that nobody is at work there: no age, no pid that may be another's. A sweep that comes
between a folder's making and its locking takes it away whole, which the maker sees once it has the lock; it makes
another.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "submit-"


@contextmanager
def locked_folder(tmp: Path, prefix: str = PREFIX) -> Iterator[Path]:
    """A new folder below `tmp`, safe from sweeps for as long as this lasts."""
    path, lock = _made(tmp, prefix)
    try:
        yield path
    finally:
        os.close(lock)


def _made(tmp: Path, prefix: str) -> tuple[Path, int]:
    while True:
        path = tmp / f"{prefix}{secrets.token_hex(8)}"
        path.mkdir(mode=0o700)
        with suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)  # a sweep has it for a moment at most
            if path.exists():
                return path, lock
            os.close(lock)


def sweep(tmp: Path, target: Path, busy: Collection[str] = (), prefix: str = PREFIX) -> list[Path]:
    """Move the folders of dead submitters out of the way, into `target`: where they are now, to be deleted. `busy`:
    names of those that the daemon itself is taking over."""
    moved = []
    for path in tmp.iterdir():
        if not path.name.startswith(prefix) or path.name in busy:
            continue
        with suppress(FileNotFoundError, NotADirectoryError, BlockingIOError), _locked(path):
            moved.append(path.rename(target / path.name))
    return moved


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)
