"""Committed shards as arrays, made of the bytes that follow a record. Asks nobody for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import xxhash

from muster.coordinator.result_downloads.shard_stream import Cursor, Pieces, Record
from muster.jobs.common.errors import DamagedError, ProtocolError, UsageError
from muster.jobs.contract.plan import Output
from muster.jobs.parts.part_file import SUM_BYTES, Layout, unit_bytes
from muster.jobs.results.open_result import RaggedRows

Array = np.ndarray[Any, Any]
_CURSOR = re.compile(r"(\d{1,15}):(\d{1,15})", re.ASCII)


@dataclass(frozen=True)
class Shard:
    """One committed shard: `rows` rows of a layer, from row `first_row` on. `stream(after=shard.cursor)` goes on after
    it."""

    layer: str
    number: int
    first_row: int
    rows: int
    outputs: Mapping[str, Array | RaggedRows]  # without `sum` outputs: only their total is kept
    cursor: str

    def __repr__(self) -> str:
        what = f"{self.rows:,} rows from {self.first_row:,}, {', '.join(self.outputs)[:40]}"
        return f"<Shard {self.layer[-40:]}/{self.number}: {what}>"


def parse_cursor(text: str | None) -> Cursor:
    """What a shard called its cursor; None is the beginning."""
    if text is None:
        return Cursor()
    match = _CURSOR.fullmatch(text)
    if not match:
        raise UsageError(f"{text[:80]!r} is not a cursor", "pass a shard's own: stream(after=shard.cursor)")
    return Cursor(int(match[1]), int(match[2]))


def assemble(record: Record, pieces: Pieces) -> Shard:
    """The shard, its digest compared where there is one."""
    raw = _gathered(record, pieces)
    outputs: dict[str, Array | RaggedRows] = {}
    for output in record.outputs:
        if output.form == "ragged":
            outputs[output.name] = _ragged(next(raw), next(raw), output)
        else:
            outputs[output.name] = next(raw).view(output.dtype).reshape(record.rows, *output.shape)
    cursor = f"{record.cursor.seq}:{record.cursor.number}"
    return Shard(record.layer, record.number, record.first_row, record.rows, outputs, cursor)


def _gathered(record: Record, pieces: Pieces) -> Iterator[Array]:
    """The bytes of each segment, in arrays of their own."""
    _check_sizes(record)
    try:
        segments = [np.empty(size, np.uint8) for size in record.sizes]
    except (MemoryError, ValueError):
        raise ProtocolError(f"shard {record.layer}/{record.number} has {record.nbytes} bytes, it says") from None
    digest = xxhash.xxh3_128()
    places = iter([segment.data for segment in segments])
    room = memoryview(b"")
    for piece in pieces:
        digest.update(piece)
        left = memoryview(piece)
        while left:
            room = room or next(places)
            taken = min(len(left), len(room))
            room[:taken] = left[:taken]
            room, left = room[taken:], left[taken:]
    if record.digest and digest.digest() != record.digest:
        raise DamagedError(f"shard {record.layer}/{record.number} came otherwise than it was committed")
    return iter(segments)


def _check_sizes(record: Record) -> None:
    """Against what its outputs say: what comes over a link is not trusted."""
    try:
        count = Layout(record.outputs).kept_segments
        sizes = iter(record.sizes)
        fit = len(record.sizes) == count and record.rows >= 0
        for output in record.outputs if fit else ():
            ragged = output.form == "ragged"
            fit = fit and next(sizes) == record.rows * (SUM_BYTES if ragged else unit_bytes(output))
            fit = fit and (not ragged or next(sizes) % unit_bytes(output) == 0)
    except ValueError as error:
        raise ProtocolError(f"a shard that cannot be: {error}") from None
    if not fit:
        raise ProtocolError(f"shard {record.layer}/{record.number} has sizes {record.sizes}")


def _ragged(lengths: Array, values: Array, output: Output) -> RaggedRows:
    counts = lengths.view("<i8")
    shaped = values.view(output.dtype).reshape(-1, *output.shape) if prod(output.shape) else values
    offsets = np.concatenate([np.zeros(1, "<i8"), np.cumsum(counts, dtype="<i8")])
    odd = (counts < 0) | (counts > len(shaped))  # of which some might add up to the right sum, around int64's end
    if bool(odd.any()) or int(offsets[-1]) != len(shaped):
        raise DamagedError(f"the lengths of {output.name} are not those of its values")
    return RaggedRows(offsets, shaped)
