"""What a layer's bundles hold: each shard once, where its bytes are, its line in `shards.npy`. Reads indexes only."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from muster.jobs.common.errors import DamagedError, IncompleteError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import Layer, Output
from muster.jobs.parts.part_file import DIGEST_BYTES, Index, Layout, out_digest, read_index

Array = np.ndarray[Any, Any]

TABLE_ROWS = 16_384  # lines handled at a time
UNREADABLE = frozenset({errno.ENOENT, errno.EIO})  # the bundle's fault, unlike a lack of descriptors or memory


class Incomplete(IncompleteError):
    """A layer whose bundles do not have every shard exactly once."""

    def __init__(self, layer: str, missing: RangeSet, double: RangeSet) -> None:
        told = [f"{len(some)} {what}" for what, some in (("missing", missing), ("there twice", double)) if some]
        super().__init__(f"{layer}: shards {', '.join(told)}: {str(missing | double)[:200]}")
        self.missing = missing
        self.double = double


class DamagedBundle(DamagedError):
    """A bundle that is not what it was when it was committed: its shards must run again."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(f"{path.name}: {message}")
        self.path = path


class Source(NamedTuple):
    """A bundle as the merge reads it."""

    path: Path
    summed: bool  # else each shard has its own sums
    sums_at: int
    sum_digest: bytes


class Placed(NamedTuple):
    """Where a shard's bytes are, and what they must be."""

    at: int  # position of its bundle in `Survey.sources`; -1: no bundle has it, and it is a hole in the result
    offset: int
    sizes: list[int]  # of the segments of rows and ragged outputs
    digest: bytes
    sum_digest: bytes
    rows: int


class Survey:
    """Every shard of the layer: where its bytes are, and its line in the table."""

    def __init__(self, layer: Layer, since: float = 0.0) -> None:
        self.layer = layer
        self._since = since  # when its job was made: no shard took longer than until its bundle came
        self.sources: list[Source] = []
        self.layout = Layout(layer.outputs or ())
        self.outputs = layer.outputs
        self._double = RangeSet()
        self._names: dict[str, int] = {}
        self._prints: dict[str, int] = {}
        self._columns = _columns(self.layout)
        self.numbers = np.fromiter(layer.numbers, np.int64, len(layer.numbers))  # that must be there
        self._at = np.full(layer.count, -1, np.int32)  # which bundle has it
        self._lines = np.zeros(layer.count, self._columns)

    def add(self, path: Path) -> None:
        """One more bundle."""
        index = index_of(path)
        self._judge(path, index)
        numbers = np.fromiter((entry.number for entry in index.entries), np.int64, len(index.entries))
        for number in numbers[self._at[numbers] >= 0].tolist():
            self._double.add(number, number + 1)
        self._at[numbers] = len(self.sources)
        self._lines[numbers] = np.array(list(self._lines_of(index, path.stat().st_mtime)), self._columns)
        sums_at = index.body_bytes - sum(index.sum_sizes)
        self.sources.append(Source(path, index.summed, sums_at, index.sum_digest))

    def _judge(self, path: Path, index: Index) -> None:
        if self.outputs is None:
            self._learn(index.outputs)
        if index.layer != self.layer.digest or index.outputs != self.outputs:
            raise DamagedBundle(path, "of another layer, or with other outputs")
        for entry in index.entries:
            if entry.number >= self.layer.count or entry.rows != self.layer.rows_of(entry.number):
                raise DamagedBundle(path, f"shard {entry.number} has {entry.rows} rows, which the plan does not know")

    def _learn(self, outputs: tuple[Output, ...]) -> None:
        """The outputs of a layer that declared none, from its first bundle."""
        self.outputs, self.layout = outputs, Layout(outputs)
        self._columns = _columns(self.layout)
        self._lines = np.zeros(self.layer.count, self._columns)

    def _lines_of(self, index: Index, came: float) -> Iterator[tuple[Any, ...]]:
        kept, most = self.layout.kept_segments, max(0.0, came - self._since)
        print_ = self._prints.setdefault(index.fingerprint, len(self._prints))
        for e, offset, _ in index.spans():
            name = self._names.setdefault(e.agent, len(self._names))
            seconds = max(0.0, min(most, e.seconds))
            told = (e.rows, name, e.boot, e.attempt, e.started, seconds, e.peak, e.in_bytes, e.in_digest)
            yield offset, e.sizes[:kept], e.digest, e.sum_digest, *told, out_digest(e), print_

    def check(self) -> None:
        """Every number exactly once."""
        missing = RangeSet.of(self.numbers[self._at[self.numbers] < 0].tolist())
        if missing or self._double:
            raise Incomplete(self.layer.name, missing, self._double)

    def admit_holes(self) -> None:
        """Every number at most once; what no bundle has is a hole, as long as the plan says."""
        if self._double:
            raise Incomplete(self.layer.name, RangeSet(), self._double)
        missing = self.numbers[self._at[self.numbers] < 0]
        self._lines["rows"][missing] = [self.layer.rows_of(number) for number in missing.tolist()]

    @property
    def rows(self) -> int:
        """Of the result: holes count."""
        return int(self._lines["rows"].sum())

    @property
    def present(self) -> int:
        """Shards that are there."""
        return int(np.count_nonzero(self._at[self.numbers] >= 0))

    @property
    def missing_rows(self) -> tuple[tuple[int, int], ...]:
        """The ranges of the result's rows that are holes."""
        gone = self._at[self.numbers] < 0
        turns = np.flatnonzero(np.diff(gone, prepend=False, append=False))  # where holes begin and end, by turns
        first_rows = np.concatenate([[0], np.cumsum(self._lines["rows"][self.numbers])])
        return tuple((start, stop) for start, stop in first_rows[turns].reshape(-1, 2).tolist())

    @property
    def fingerprints(self) -> tuple[str, ...]:
        return tuple(sorted(self._prints))

    def segment_bytes(self, segment: int) -> int:
        """Over all shards."""
        return int(self._lines["sizes"][:, segment].sum())

    def shards(self) -> Iterator[Placed]:
        """By number."""
        for numbers, lines in self._some():
            at = self._at[numbers].tolist()
            columns = [lines[name].tolist() for name in ("offset", "sizes", "digest", "sum_digest", "rows")]
            yield from map(Placed, at, *columns)

    def _some(self) -> Iterator[tuple[Array, Array]]:
        """Numbers and their lines, by number."""
        for start in range(0, len(self.numbers), TABLE_ROWS):
            numbers = self.numbers[start : start + TABLE_ROWS]
            yield numbers, self._lines[numbers]

    def table(self) -> tuple[np.dtype[Any], Iterator[Array]]:
        """`shards.npy`: its dtype, and its lines some at a time."""
        names = np.array(list(self._names) or [""])
        ranks = np.array([self.fingerprints.index(text) for text in self._prints], np.int32)
        dtype = np.dtype([("shard", "<i8"), *_told_columns(names.dtype.str)])
        return dtype, self._table_blocks(dtype, names, ranks)

    def _table_blocks(self, dtype: np.dtype[Any], names: Array, ranks: Array) -> Iterator[Array]:
        plain = set(dtype.names or ()) - {"shard", "agent", "fingerprint"}
        for numbers, lines in self._some():
            there = self._at[numbers] >= 0
            numbers, lines = numbers[there], lines[there]
            block = np.empty(len(lines), dtype)
            block["shard"] = numbers
            for name in plain:
                block[name] = lines[name]
            block["agent"], block["fingerprint"] = names[lines["agent"]], ranks[lines["fingerprint"]]
            yield block


def blamed(path: Path, error: DamagedError | OSError) -> Exception:
    """What went wrong with reading a bundle: the bundle's fault, or as it was."""
    if isinstance(error, DamagedError):
        return DamagedBundle(path, error.message.removeprefix(f"{path.name}: "))
    return DamagedBundle(path, os.strerror(error.errno)) if error.errno in UNREADABLE else error


def index_of(path: Path) -> Index:
    """What a bundle says that it has."""
    try:
        return read_index(path)
    except (DamagedError, OSError) as error:
        raise blamed(path, error) from None


def _columns(layout: Layout) -> np.dtype[Any]:
    digest = f"V{DIGEST_BYTES}"
    here = [("offset", "<i8"), ("sizes", "<i8", (layout.kept_segments,)), ("digest", digest), ("sum_digest", digest)]
    return np.dtype([*here, *_told_columns("<i4")])


def _told_columns(agent: str) -> list[tuple[str, str]]:
    """What `shards.npy` says of a shard, beside its number."""
    numbers = [("boot", "<i8"), ("attempt", "<i8"), ("started", "<f8"), ("seconds", "<f8"), ("peak", "<i8")]
    digests = [("in_digest", f"V{DIGEST_BYTES}"), ("out_digest", f"V{DIGEST_BYTES}")]
    return [("rows", "<i8"), ("agent", agent), *numbers, ("in_bytes", "<i8"), *digests, ("fingerprint", "<i4")]
