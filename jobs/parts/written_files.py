"""The `files` output of a shard: which files were written and for which items, as bytes of a part, and back.

Two segments: the table, msgpack of a `WrittenFile` for each file in order, and their bytes one after the other. Files
that belong to an item come in the order of the items, those of none after them.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import xxhash
from msgspec import Meta

from muster.jobs.common.errors import DamagedError
from muster.jobs.contract.kind import ShardFailure, Written
from muster.jobs.sources.items import is_path

NOBODY = -1  # in place of an item
HELD_BYTES = 64 << 20  # of the files of a shard, in memory; more of them are gathered in a file
BLOCK = 1 << 20
SEPARATORS = frozenset(".-_/ ")
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class WrittenFile(msgspec.Struct, frozen=True, array_like=True):
    """One file of a shard."""

    item: Annotated[int, Meta(ge=NOBODY, le=1 << 53)]  # of the shard, from 0
    name: str
    nbytes: Annotated[int, Meta(ge=0, le=1 << 53)]
    digest: Annotated[bytes, Meta(min_length=16, max_length=16)]  # xxh3_128


class Packed(NamedTuple):
    """The two segments."""

    table: memoryview
    contents: memoryview


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[WrittenFile])


def pack(written: Written) -> Packed:
    """The files' bytes, digested on the way. What is no regular file is a failure that names the item."""
    sizes = [_size(written.folder / name, name) for _, name in written.files]
    room = _Gathered(sum(sizes), written.folder)
    table = []
    for (item, name), size in zip(written.files, sizes, strict=True):
        table.append(WrittenFile(item, name, size, room.take(written.folder / name, name, size)))
    return Packed(memoryview(_encoder.encode(table)), room.view)


def decode_table(raw: bytes | bytearray, rows: int, nbytes: int) -> list[WrittenFile]:
    """What another process wrote; a DamagedError unless it can be, for a shard of so many items and bytes of files."""
    try:
        table = _decoder.decode(raw)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DamagedError(f"a table of files that does not decode: {error}") from None
    for file in table:
        if not is_path(file.name) or file.item >= rows:
            raise DamagedError(f"a table of files with {file.name[:80]!r} of item {file.item}")
    if sum(file.nbytes for file in table) != nbytes:
        raise DamagedError("a table of files that does not fit their bytes")
    return table


class _Gathered:
    """All bytes of a shard's files, in memory or, where they are many, in a file without a name."""

    def __init__(self, nbytes: int, beside: Path) -> None:
        self._at = 0
        if not nbytes:
            self.view = memoryview(b"")
            return
        if nbytes <= HELD_BYTES:
            self.view = memoryview(bytearray(nbytes))
            return
        path = beside.with_name(f"{beside.name}.packed")
        with path.open("w+b") as file:
            path.unlink()
            if hasattr(os, "posix_fallocate"):  # a disk that is too small says so here, not as a signal
                os.posix_fallocate(file.fileno(), 0, nbytes)
            file.truncate(nbytes)
            self.view = memoryview(mmap.mmap(file.fileno(), nbytes))

    def take(self, path: Path, name: str, size: int) -> bytes:
        """A file's bytes; their digest."""
        target = self.view[self._at : self._at + size]
        self._at += size
        digest, done = xxhash.xxh3_128(), 0
        fd = os.open(path, _READ)
        try:
            while done < size:
                count = os.readv(fd, [target[done : done + BLOCK]])
                if not count:
                    raise ShardFailure("output", f"{name!r} became shorter while it was read")
                digest.update(target[done : done + count])
                done += count
        finally:
            os.close(fd)
        return digest.digest()


def _size(path: Path, name: str) -> int:
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a regular file"
        raise ShardFailure("output", f"it wrote {name!r}, which is {what}")
    return found.st_size


# --- what a function left in its folder -------------------------------------------------------------------


def collected(folder: Path, names: Sequence[str]) -> Written:
    """Every file below `folder`, each with the item it is named after: it has the item's name, or begins with that
    name without its suffix."""
    owners = _Owners(names)
    found = [(owners.of(name), name) for name in _walk(folder, "")]
    found.sort(key=lambda one: (one[0] == NOBODY, one[0], one[1]))
    return Written(folder, found)


class _Owners:
    """Which item a file is named after: the longest name counts."""

    def __init__(self, names: Sequence[str]) -> None:
        self._whole = {name: i for i, name in enumerate(names)}
        self._stems: dict[str, int] = {}
        for i, name in enumerate(names):
            self._stems.setdefault(stem_of(name), i)

    def of(self, name: str) -> int:
        if name in self._whole:
            return self._whole[name]
        for end in range(len(name), 0, -1):
            if end == len(name) or name[end] in SEPARATORS:
                found = self._whole.get(name[:end], self._stems.get(name[:end]))
                if found is not None:
                    return found
        return NOBODY


def stem_of(name: str) -> str:
    """A name without its last suffix: GNU Parallel's {.}"""
    head, slash, last = name.rpartition("/")
    dot = last.rfind(".")
    return f"{head}{slash}{last[:dot]}" if dot > 0 else name


def _walk(folder: Path, prefix: str) -> Iterator[str]:
    with os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        name = f"{prefix}{entry.name}"
        if not is_path(name):
            raise ShardFailure("output", f"it wrote {name[:200]!r}, which is too long or not a name in UTF-8")
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(folder / entry.name, f"{name}/")
        else:
            yield name
