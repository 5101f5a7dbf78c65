"""A shard's files where a user's code finds them: in a folder, under their names. Digested on the way; judges stamps.

In place they are links to the source's files; of a copy the bytes are written there.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import xxhash

from muster.jobs.common.errors import DamagedError
from muster.jobs.contract.kind import Items, ShardFailure
from muster.jobs.contract.plan import ItemsWindow, Stamp
from muster.jobs.sources import items
from muster.jobs.sources.discover import stamp_of
from muster.jobs.sources.items import FileItem
from muster.jobs.sources.read_rows import SourceChanged

BLOCK = 1 << 20
GONE = (FileNotFoundError, NotADirectoryError)  # all else is this machine's trouble, and no change
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class LaidOut:
    """The items of one shard in a folder that is emptied first. `close` takes them away again."""

    def __init__(self, window: ItemsWindow, folder: Path) -> None:
        self._window = window
        self._folder = folder
        self._files: list[FileItem] = []
        self.digest = b""
        try:
            self.items = self._filled()
        except DamagedError as error:
            raise SourceChanged(error.message) from None

    def check(self) -> None:
        """After they were used: SourceChanged unless they are still what was planned."""
        if self._window.folder:
            for file in self._files:
                _check(file, self._window.folder)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _filled(self) -> Items:
        self.close()
        self._folder.mkdir(parents=True)
        raw = items.records(self._window)
        digest = xxhash.xxh3_128(raw)
        if self._window.columns:
            found = Items(self._folder, lines=self._lines(raw))
        else:
            found = self._with_files(raw, digest)
        self.digest = digest.digest()
        if self._window.is_copy and self._window.digest not in (b"", self.digest):
            raise SourceChanged("the copy of the shard's files is not what was pulled")
        return found

    def _lines(self, raw: bytes) -> list[dict[str, str]]:
        return [dict(zip(self._window.columns, line, strict=True)) for line in items.lines_in(raw)]

    def _with_files(self, raw: bytes, digest: Any) -> Items:
        self._files = items.files_in(raw)
        for parent in sorted({file.name.rpartition("/")[0] for file in self._files} - {""}):
            (self._folder / parent).mkdir(parents=True, exist_ok=True)
        room = memoryview(bytearray(BLOCK))
        if self._window.folder is None:
            self._unpack(digest, room)
        else:
            self._link(self._window.folder, digest, room)
        return Items(self._folder, names=[file.name for file in self._files])

    def _link(self, source: str, digest: Any, room: memoryview) -> None:
        for file in self._files:
            path = f"{source}/{file.name}"
            _read(path, file, file.stamp, digest, room)
            try:
                os.symlink(path, f"{self._folder}/{file.name}")  # noqa: PTH211
            except FileExistsError:
                raise _twins(file.name) from None

    def _unpack(self, digest: Any, room: memoryview) -> None:
        fd = os.open(self._window.path, _READ)
        try:
            os.lseek(fd, self._window.offset + self._window.listed, os.SEEK_SET)
            for file in self._files:
                self._unpack_file(fd, file, digest, room)
        finally:
            os.close(fd)

    def _unpack_file(self, fd: int, file: FileItem, digest: Any, room: memoryview) -> None:
        try:
            out = os.open(f"{self._folder}/{file.name}", _NEW, 0o600)
        except FileExistsError:
            raise _twins(file.name) from None
        try:
            left = file.stamp.size
            while left:
                count = _some(fd, room[: min(left, BLOCK)], digest, self._window.path)
                os.write(out, room[:count])
                left -= count
        finally:
            os.close(out)


def _some(fd: int, room: memoryview, digest: Any, path: str) -> int:
    count = os.readv(fd, [room])
    if not count:
        raise SourceChanged(f"{path} is shorter than was planned")
    digest.update(room[:count])
    return count


def input_digest(window: ItemsWindow) -> bytes:
    """Of the records and the files as they are now, whenever they were written. SourceChanged where one has another
    length, or is gone."""
    raw = items.records(window)
    digest, room = xxhash.xxh3_128(raw), memoryview(bytearray(BLOCK))
    for file in items.files_in(raw) if window.folder else ():
        _read(f"{window.folder}/{file.name}", file, None, digest, room)
    return digest.digest()


def _read(path: str, file: FileItem, stamp: Stamp | None, digest: Any, room: memoryview) -> None:
    """All of a file in place into the digest."""
    try:
        fd = os.open(path, _READ)
    except GONE as error:
        raise SourceChanged(f"{path}: {error.strerror}") from None
    try:
        found = stamp_of(os.fstat(fd))
        if (found != stamp) if stamp is not None else (found.size != file.stamp.size):
            raise SourceChanged(f"{path} is not the file that was planned")
        left = file.stamp.size
        while left:
            left -= _some(fd, room[: min(left, BLOCK)], digest, path)
    finally:
        os.close(fd)


def _check(file: FileItem, folder: str) -> None:
    path = f"{folder}/{file.name}"
    try:
        same = stamp_of(os.stat(path)) == file.stamp  # noqa: PTH116
    except GONE as error:
        raise SourceChanged(f"{path}: {error.strerror}") from None
    if not same:
        raise SourceChanged(f"{path} was written to while it was read")


def _twins(name: str) -> ShardFailure:
    text = f"{name!r} is there already: this machine's file system takes it for another file of the shard"
    return ShardFailure("exception", text)
