"""A copy of a farm's sources that this machine's user has named: the bytes it has of a shard's input. Only reads.

What the server calls a file leads to one below the folder, by a checked name and through no symbolic link, or to none.
Nothing read here is believed: whoever asks compares digests with the server.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from muster.coordinator.protocol.values import PIECE_BYTES
from muster.jobs.contract.plan import ItemsWindow, Window
from muster.jobs.sources import items

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC

Run = tuple[str, int, int]  # path on the server, offset, bytes


class OwnCopy:
    """A source lies in the copy under the last parts of its path on the server: as many of them as lead to a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def pieces(self, runs: list[Run], start: int, nbytes: int) -> Iterator[tuple[bytes, bool]]:
        """`nbytes` of an input from byte `start` on, a piece at a time, and whether any of it is here; what is not is
        zeros."""
        held, is_here, at, end = bytearray(), False, 0, start + nbytes
        for path, offset, size in runs:
            first, last = max(start, at), min(end, at + size)
            for data, found in self._read(path, offset + first - at, last - first) if first < last else ():
                held += data
                is_here |= found
                if len(held) >= PIECE_BYTES:
                    yield bytes(held[:PIECE_BYTES]), is_here
                    held, is_here = held[PIECE_BYTES:], found
            at += size
        if held:
            yield bytes(held), is_here

    def _read(self, path: str, offset: int, nbytes: int) -> Iterator[tuple[bytes, bool]]:
        fd = self._open(path)
        try:
            for at in range(offset, offset + nbytes, PIECE_BYTES):
                wanted = min(PIECE_BYTES, offset + nbytes - at)
                data = b"" if fd is None else _some(fd, wanted, at)
                yield data.ljust(wanted, b"\0"), bool(data)
        finally:
            if fd is not None:
                os.close(fd)

    def _open(self, path: str) -> int | None:
        parts = [part for part in path.split("/") if part]
        for left_out in range(len(parts)):
            name = parts[left_out:]
            if items.is_path("/".join(name)) and (fd := _open_below(self._folder, name)) is not None:
                return fd
        return None


def runs_of(window: Window | ItemsWindow, records: bytes) -> list[Run]:
    """Where an input lies on the server. `records`: what an input of items begins with, which is in no file."""
    if isinstance(window, Window):
        return [(window.path, window.offset, window.nbytes)]
    files = items.files_in(records)
    return [("", 0, len(records)), *((f"{window.folder}/{file.name}", 0, file.stamp.size) for file in files)]


def _open_below(folder: Path, parts: list[str]) -> int | None:
    """A regular file, opened to be read, or None."""
    with suppress(OSError):
        fd = os.open(folder, _FOLDER & ~os.O_NOFOLLOW)
        for part, how in zip(parts, [*[_FOLDER] * (len(parts) - 1), _FILE], strict=True):
            try:
                inner = os.open(part, how, dir_fd=fd)
            finally:
                os.close(fd)
            fd = inner
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
    return None


def _some(fd: int, nbytes: int, offset: int) -> bytes:
    try:
        return os.pread(fd, nbytes, offset)
    except (OSError, OverflowError):  # the server says where to read
        return b""
