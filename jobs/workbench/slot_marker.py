"""The mark: which shard a slot is running now, in a small mapped file that outlives a kill -9 of its writer."""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path
from zlib import crc32

import msgspec

_FIELDS = struct.Struct("<?7xqqqdd")  # running, number, boot, attempt, started, monotonic
_CHECK = struct.Struct("<I")
SIZE = 64
_TRIES = 3


class Marked(msgspec.Struct, frozen=True):
    """What a slot was doing when it was last heard of."""

    running: bool  # else `number` is the last it ran
    number: int
    boot: int
    attempt: int
    started: float  # wall clock
    monotonic: float  # the same moment on this machine's monotonic clock


class Mark:
    """The writer's side: one per slot. Opening it forgets what the writer before it did: read first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = _mapped(path)
        self._last = (0, 0, 0, 0.0, 0.0)
        self.idle()

    def start(self, number: int, boot: int, attempt: int) -> None:
        """The slot begins this shard."""
        self._last = (number, boot, attempt, time.time(), time.monotonic())
        self._put(True)

    def idle(self) -> None:
        """The slot has nothing in hand."""
        self._put(False)

    def close(self) -> None:
        self._map.close()

    def _put(self, running: bool) -> None:
        fields = _FIELDS.pack(running, *self._last)
        self._map[: _FIELDS.size + _CHECK.size] = fields + _CHECK.pack(crc32(fields))


def read(path: Path) -> Marked | None:
    """What the file says; None where there is none, or it was torn by its writer's death."""
    for _ in range(_TRIES):  # a reader may meet the writer halfway
        raw = _bytes_of(path)
        fields, check = raw[: _FIELDS.size], raw[_FIELDS.size : _FIELDS.size + _CHECK.size]
        if len(check) == _CHECK.size and _CHECK.unpack(check)[0] == crc32(fields):
            return Marked(*_FIELDS.unpack(fields))
    return None


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()[:SIZE]
    except FileNotFoundError:
        return b""


def _mapped(path: Path) -> mmap.mmap:
    """The file as shared memory. Its bytes are written first: a map over a hole would be SIGBUS on a full disk."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, bytes(SIZE), 0)
        return mmap.mmap(fd, SIZE)
    finally:
        os.close(fd)
