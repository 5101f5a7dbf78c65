"""The list of a job's items: a plan file of records in order, and reading a run of them. Opens no file it lists.

A record is its length (4 bytes) and msgpack: of a file its name, below the source's folder, and its stamp; of a line of
a table its values. Items are in order of the bytes of their names, lines as they are in the table.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from struct import Struct, error
from typing import TypeVar, overload

import msgspec
import xxhash

from muster.jobs.common.errors import DamagedError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import CUT, ItemsSource, ItemsWindow, Stamp, Window

SUFFIX = "items"  # of the same file under its digest, for those who read it
LAYER = "items"
PART_BYTES = 255  # of a part of a name between two slashes, as the system has it
NAME_BYTES = 2048  # of a name: with the folder it is put into, a path must not be too long for the system
BLOCK = 1 << 20
EACH = 4096  # records in one block
_LENGTH = Struct("<I")


class FileItem(msgspec.Struct, frozen=True, array_like=True):
    """A file, as it was when it was listed."""

    name: str  # relative, in UTF-8
    stamp: Stamp


Line = list[str]
Item = FileItem | Line
T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_files = msgspec.msgpack.Decoder(FileItem)
_lines = msgspec.msgpack.Decoder(Line)


def nbytes_of(item: Item) -> int:
    """Bytes of the item itself, beside its record."""
    return item.stamp.size if isinstance(item, FileItem) else 0


@dataclass(frozen=True)
class ListedItems:
    """A list as it was written: for each item the end of its record, and its own bytes."""

    path: Path
    digest: str
    ends: array[int]
    sizes: array[int]

    def __len__(self) -> int:
        return len(self.ends)


def write_list(path: Path, items: Iterable[Item]) -> ListedItems:
    """Every item's record into a new file."""
    digest, ends, sizes, held, end = xxhash.xxh3_128(), array("Q"), array("Q"), bytearray(), 0
    with path.open("xb") as file:
        for item in items:
            raw = _encoder.encode(item)
            held += _LENGTH.pack(len(raw)) + raw
            end += _LENGTH.size + len(raw)
            ends.append(end)
            sizes.append(nbytes_of(item))
            if len(held) >= BLOCK:
                digest.update(held)
                file.write(held)
                held = bytearray()
        digest.update(held)
        file.write(held)
    return ListedItems(path, digest.hexdigest(), ends, sizes)


def read_list(path: Path, source: ItemsSource) -> ListedItems:
    """A list that was written."""
    raw, ends, at = path.read_bytes(), array("Q"), 0
    while at < len(raw):
        at += _LENGTH.size + _LENGTH.unpack_from(raw, at)[0]
        ends.append(at)
    sizes = [0] * len(ends) if source.columns else map(nbytes_of, files_in(raw))
    return ListedItems(path, source.digest, ends, array("Q", sizes))


def cut(listed: ListedItems, items: int, nbytes: int, apart: RangeSet | None = None) -> tuple[bytes, int, int]:
    """The cuts for shards of at most so many items and, but for a single larger item, so many bytes of them; then the
    most items and the most bytes of input, records too, that any shard has. No shard has items that are `apart` and
    others too."""
    edges = {edge for pair in apart.pairs() for edge in pair} if apart is not None else set()
    bounds = [*_bounds(listed, items, nbytes, edges), len(listed)]
    cuts, most_bytes, record, before = bytearray(CUT.pack(0, 0, 0)), 0, 0, 0
    for first, end in pairwise(bounds):
        own = listed.ends[end - 1] - record + sum(listed.sizes[first:end])
        most_bytes, record, before = max(most_bytes, own), listed.ends[end - 1], before + own
        cuts += CUT.pack(end, record, before)
    return bytes(cuts), max(end - first for first, end in pairwise(bounds)), most_bytes


def _bounds(listed: ListedItems, items: int, nbytes: int, edges: Set[int]) -> Iterator[int]:
    """The first item of each shard; those at `edges` are."""
    first, own = 0, 0
    yield first
    for number, size in enumerate(listed.sizes):
        if number > first and (number - first >= items or own + size > nbytes or number in edges):
            first, own = number, 0
            yield first
        own += size


def each(listed: ListedItems, columns: tuple[str, ...]) -> Iterator[str | dict[str, str]]:
    """The names of files, or lines by columns, a block at a time."""
    start = 0
    with listed.path.open("rb") as file:
        for end in (*listed.ends[EACH - 1 :: EACH], listed.ends[-1] if len(listed) else 0):
            raw = file.read(end - start)
            start = end
            if columns:
                yield from (dict(zip(columns, line, strict=True)) for line in lines_in(raw))
            else:
                yield from (one.name for one in files_in(raw))


@overload
def located(window: ItemsWindow, items: Path | None) -> ItemsWindow: ...
@overload
def located(window: Window | ItemsWindow, items: Path | None) -> Window | ItemsWindow: ...
def located(window: Window | ItemsWindow, items: Path | None) -> Window | ItemsWindow:
    """The window with the list's own path, where it is one of items."""
    if not isinstance(window, ItemsWindow):
        return window
    assert items is not None, "a window of items has a list"
    return msgspec.structs.replace(window, path=str(items))


def records(window: ItemsWindow) -> bytes:
    """The bytes of a run of records; a DamagedError where the file ends before it does."""
    try:
        fd = os.open(window.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise DamagedError(f"{window.path}: there is no list of items") from None
    try:
        raw = os.pread(fd, window.listed, window.offset)
        while len(raw) < window.listed and (more := os.pread(fd, window.listed - len(raw), window.offset + len(raw))):
            raw += more
    finally:
        os.close(fd)
    if len(raw) < window.listed:
        raise DamagedError(f"{window.path}: the list of items is cut short")
    return raw


def files_in(raw: bytes) -> list[FileItem]:
    """The files of a run of records, their names checked."""
    files = _decoded(raw, _files.decode)
    for file in files:
        if not is_path(file.name) or file.stamp.size < 0:
            raise DamagedError(f"a list with a file called {file.name[:80]!r}")
    return files


def lines_in(raw: bytes) -> list[Line]:
    """The lines of a run of records."""
    return _decoded(raw, _lines.decode)


def _decoded(raw: bytes, decode: Callable[[memoryview], T]) -> list[T]:
    view, at, found = memoryview(raw), 0, []
    try:
        while at < len(raw):
            (length,) = _LENGTH.unpack_from(raw, at)
            at += _LENGTH.size
            found.append(decode(view[at : at + length]))
            at += length
    except (msgspec.DecodeError, ValueError, error) as problem:
        raise DamagedError(f"a record of an item that does not decode: {problem}") from None
    if at > len(raw):
        raise DamagedError("a record of an item that is cut short")
    return found


def is_path(name: str) -> bool:
    """Whether a name leads to a file below the folder it is joined to, and to no other place."""
    parts = name.split("/")
    try:
        fits = len(name.encode()) <= NAME_BYTES and all(0 < len(part.encode()) <= PART_BYTES for part in parts)
    except UnicodeEncodeError:
        return False
    return fits and not {".", ".."} & set(parts) and "\0" not in name
