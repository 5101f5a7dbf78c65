"""Level 1: wanted shards of several parts of one layer as one body, streamed from the parts without a second copy.

`rows` and `ragged` bytes go untouched; `sum` outputs are added up exactly into one segment at the body's end.
Sends nothing by itself and deletes nothing.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash

from muster.jobs.common.errors import DamagedError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.parts.part_file import CHUNK, Index, Layout, PartEntry

BUNDLE_BYTES = 256 << 20
BUNDLE_SHARDS = 8_192


@dataclass(frozen=True)
class HeldPart:
    """A part on disk, and which of its shards are wanted."""

    path: Path
    index: Index
    wanted: RangeSet


class Span(NamedTuple):
    """Bytes of a part's file. The descriptor is open until the next span is asked for."""

    fd: int
    offset: int
    length: int


class _Piece(NamedTuple):
    entry: PartEntry
    path: Path
    offset: int
    kept: int  # bytes of rows and ragged outputs; the sums follow them


class Bundle:
    """Wanted shards of some parts, which `take` found to fit together. Any grouping merges to the same bytes."""

    def __init__(self, held: Iterable[HeldPart]) -> None:
        parts = list(held)
        _check_alike(parts)
        first = parts[0].index
        self._layout = Layout(first.outputs)
        self._pieces = _pieces(parts, self._layout)
        self._sums = _added(self._pieces, self._layout)
        self.index = Index(
            farm=first.farm,
            layer=first.layer,
            outputs=first.outputs,
            fingerprint=first.fingerprint,
            entries=tuple(_without_sums(piece.entry, self._layout) for piece in self._pieces),
            summed=bool(self._layout.sums),
            sum_sizes=self._layout.sum_sizes,
            sum_digest=xxhash.xxh3_128_digest(self._sums) if self._layout.sums else b"",
        )
        self.nbytes = self.index.body_bytes

    @property
    def numbers(self) -> RangeSet:
        return RangeSet.of(piece.entry.number for piece in self._pieces)

    def spans(self) -> Iterator[Span | bytes | memoryview]:
        """The body in order: runs of the parts' files, for sendfile, then the sums as bytes."""
        with _Files() as files:
            for path, offset, length in _runs(self._pieces):
                yield Span(files.open(path), offset, length)
        if self._sums:
            yield self._sums

    def write_body(self, send: Callable[[bytes | memoryview], object]) -> None:
        """The body through `send`, in chunks of at most 1 MiB."""
        for span in self.spans():
            for chunk in _chunks(span):
                send(chunk)


def take(held: Iterable[HeldPart], nbytes: int = BUNDLE_BYTES, shards: int = BUNDLE_SHARDS) -> list[HeldPart]:
    """Of parts of one layer, in their order, what fits with the first into one bundle: at least one shard."""
    taken: list[HeldPart] = []
    seen = RangeSet()
    for part in held:
        if taken and _kin(part.index) != _kin(taken[0].index):
            continue
        chosen = RangeSet()
        for entry in part.index.entries:
            if entry.number not in part.wanted or entry.number in seen:
                continue
            nbytes, shards = nbytes - sum(entry.sizes), shards - 1
            if (nbytes < 0 or shards < 0) and (taken or chosen):
                return [*taken, replace(part, wanted=chosen)] if chosen else taken
            chosen.add(entry.number, entry.number + 1)
        if chosen:
            taken.append(replace(part, wanted=chosen))
            seen.update(chosen)
    return taken


def _kin(index: Index) -> tuple[object, ...]:
    """What parts of one bundle have in common."""
    return index.farm, index.layer, index.outputs, index.fingerprint


def _check_alike(parts: list[HeldPart]) -> None:
    if not parts or any(_kin(part.index) != _kin(parts[0].index) for part in parts):
        raise ValueError("parts of one bundle share farm, layer, outputs and fingerprint")
    if any(part.index.summed for part in parts):
        raise ValueError("a bundle is not made of bundles")


def _pieces(parts: list[HeldPart], layout: Layout) -> list[_Piece]:
    found = [
        _Piece(entry, part.path, offset, sum(entry.sizes[: layout.kept_segments]))
        for part in parts
        for entry, offset, _ in part.index.spans()
        if entry.number in part.wanted
    ]
    found.sort(key=lambda piece: piece.entry.number)
    if any(one.entry.number == next_.entry.number for one, next_ in pairwise(found)):
        raise ValueError("a shard is wanted from two parts")
    return found


def _without_sums(entry: PartEntry, layout: Layout) -> PartEntry:
    return msgspec.structs.replace(entry, sizes=entry.sizes[: layout.kept_segments]) if layout.sums else entry


def _runs(pieces: list[_Piece]) -> Iterator[tuple[Path, int, int]]:
    """Kept bytes in order of shards, neighbours in one file as one run."""
    path, start, end = None, 0, 0
    for piece in pieces:
        if piece.path == path and piece.offset == end:
            end += piece.kept
            continue
        if path is not None and end > start:
            yield path, start, end - start
        path, start, end = piece.path, piece.offset, piece.offset + piece.kept
    if path is not None and end > start:
        yield path, start, end - start


class _Files:
    """The file asked for last, open: a bundle may have more parts than a process may have files."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._fd = -1

    def open(self, path: Path) -> int:
        if path != self._path:
            self.close()
            self._fd, self._path = os.open(path, os.O_RDONLY | os.O_CLOEXEC), path
        return self._fd

    def close(self) -> None:
        fd, self._fd, self._path = self._fd, -1, None
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _chunks(span: Span | bytes | memoryview) -> Iterator[bytes | memoryview]:
    if isinstance(span, bytes | memoryview):
        view = memoryview(span)
        yield from (view[i : i + CHUNK] for i in range(0, len(view), CHUNK))
        return
    fd, offset, left = span
    while left:
        chunk = os.pread(fd, min(left, CHUNK), offset)
        if not chunk:
            raise DamagedError("a part was cut short while it was sent")
        yield chunk
        offset, left = offset + len(chunk), left - len(chunk)


def _mapped(fd: int, nbytes: int, offset: int) -> memoryview:
    """Bytes of a part without a copy: parts are ours, and never written again or cut."""
    if os.fstat(fd).st_size < offset + nbytes:
        raise DamagedError("a part was cut short while it was sent")
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    whole = mmap.mmap(fd, offset + nbytes - start, prot=mmap.PROT_READ, offset=start)
    return memoryview(whole)[offset - start :]


def _added(pieces: list[_Piece], layout: Layout) -> bytes | memoryview:
    """The sum segments of all pieces, each checked by its digest, added up."""
    if not layout.sums:
        return b""
    from muster.jobs.results.outputs import Sums

    sums = Sums(layout)
    with _Files() as files:
        for piece in pieces:
            raw = _mapped(files.open(piece.path), sums.nbytes, piece.offset + piece.kept)
            if xxhash.xxh3_128_digest(raw) != piece.entry.sum_digest:
                raise DamagedError(f"{piece.path.name}: the sums of shard {piece.entry.number} are damaged")
            sums.add(raw)
    return sums.raw()
