"""The pull helper's part for items: records of a list and the files they name, as one run of bytes. Compares stamps.

Small files go together in one write. A file that is not what was planned is told by its name before any byte goes out,
or, if it changes under the transfer, by the end of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Protocol

from muster.coordinator.protocol.transfer import ReadableItems
from muster.jobs.common.errors import DamagedError
from muster.jobs.contract.plan import ItemsWindow, Stamp
from muster.jobs.sources import items
from muster.jobs.sources.items import FileItem

SMALL_BYTES = 64 << 10  # of a file that is read and gathered; larger ones go from the page cache
GATHER_BYTES = 256 << 10
SEND_BYTES = 4 << 20  # in one call, as for arrays
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class Changed(Exception):
    """A file that is not what was planned."""


class ItemsTaker(Protocol):
    """The agent's side."""

    def write(self, data: bytes) -> None: ...
    def send_file(self, fd: int, offset: int, nbytes: int) -> int: ...


class ItemsRun:
    """One run, every file of it as planned when it was made; else Changed."""

    def __init__(self, run: ReadableItems) -> None:
        self._folder = run.folder
        window = ItemsWindow(run.path, "", run.offset, run.listed, 0, run.nbytes, run.folder, ())
        try:
            self._records = items.records(window)
            self._files = items.files_in(self._records) if run.folder else []
        except (OSError, DamagedError) as error:
            raise Changed(f"the list of items: {error}") from None
        for file in self._files:
            self._check(file)
        self._left = run.limit
        self._skip = run.start
        self._held = bytearray()

    def send(self, agent: ItemsTaker) -> Iterator[None]:
        """All of it, a step at a time. Changed where a file is not what it was; then the rest is missing."""
        self._gather(self._records)
        for file in self._files:
            if self._left <= 0:
                break
            if self._skip >= file.stamp.size:
                self._skip -= file.stamp.size
                continue
            yield from self._send_file(agent, file)
        yield from self._flush(agent)

    @property
    def missing(self) -> int:
        """Bytes that were announced and not sent."""
        return self._left + len(self._held)

    def _check(self, file: FileItem) -> None:
        try:
            found = os.stat(f"{self._folder}/{file.name}")  # noqa: PTH116 a million of them
        except OSError as error:
            raise Changed(f"{self._folder}/{file.name}: {error.strerror}") from None
        if _stamp(found) != file.stamp:
            raise Changed(f"{self._folder}/{file.name} is not what was planned")

    def _send_file(self, agent: ItemsTaker, file: FileItem) -> Iterator[None]:
        try:
            fd = os.open(f"{self._folder}/{file.name}", _READ)
        except OSError as error:
            raise Changed(f"{self._folder}/{file.name}: {error.strerror}") from None
        try:
            if _stamp(os.fstat(fd)) != file.stamp:  # put in its place since it was looked at: nothing of it is sent
                raise Changed(f"{self._folder}/{file.name} is not what was planned")
            start, self._skip = self._skip, 0
            end = min(file.stamp.size, start + self._left)
            if end - start <= SMALL_BYTES:
                self._hold(os.pread(fd, end - start, start), end - start)
            else:
                yield from self._flush(agent)
                yield from self._stream(agent, fd, start, end)
            if _stamp(os.fstat(fd)) != file.stamp:
                raise Changed(f"{self._folder}/{file.name} was written to")
        finally:
            os.close(fd)
        if len(self._held) >= GATHER_BYTES:
            yield from self._flush(agent)

    def _stream(self, agent: ItemsTaker, fd: int, start: int, end: int) -> Iterator[None]:
        while start < end:
            sent = agent.send_file(fd, start, min(end - start, SEND_BYTES))
            if not sent:
                raise Changed("a file ended early")
            start, self._left = start + sent, self._left - sent
            yield

    def _gather(self, raw: bytes) -> None:
        """What of it is wanted."""
        wanted = raw[self._skip : self._skip + self._left]
        self._skip = max(0, self._skip - len(raw))
        self._hold(wanted, len(wanted))

    def _hold(self, raw: bytes, wanted: int) -> None:
        if len(raw) < wanted:
            raise Changed("a file ended early")
        self._held += raw
        self._left -= len(raw)

    def _flush(self, agent: ItemsTaker) -> Iterator[None]:
        if self._held:
            held, self._held = bytes(self._held), bytearray()
            agent.write(held)
            yield


def _stamp(found: os.stat_result) -> Stamp:
    return Stamp(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
