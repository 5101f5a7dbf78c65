"""Rows of one feature, sorted, with running sums to look up. Owns no clustering: see muster.jobs.clustering.lloyd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

BLOCK_BITS = 3
BLOCK = 1 << BLOCK_BITS  # values per block of the running sums
CACHED_VALUES = 1 << 15  # sorted and summed at once: their float64 copies stay in a core's cache
MARKS_BITS = 13  # a row has fewer marks than 2 to this power: they fit the cache next to a core's first
SHORT = 1024  # rows of fewer values are all marks
SQUARES_LIMIT = 1e300  # of a row: room for what is made of them
LOOKED_AT = 1024  # values of a row, to tell whether it has few distinct ones
ROUNDED = 2.0**-50  # of the summands: more than a sum is off
FAR = 1e300  # above every value: their squares are below this


def why_none(row: NDArray[Any]) -> str:
    """Why a row has no answer, as what is said of it."""
    odd = int(np.count_nonzero(~np.isfinite(row)))
    if not odd:
        return "has values too far apart: their squares overflow float64"
    return f"has {odd:,} values that are not finite" if odd > 1 else "has a value that is not finite"


@dataclass(frozen=True)
class Cells:
    """The values around given centers. Cell j has the sorted values [bounds[j], bounds[j + 1])."""

    bounds: Ints  # (rows, k + 1)
    counts: Ints  # (rows, k)
    sums: Floats  # (rows, k + 1): the running sum before each bound
    totals: Floats  # (rows, k)
    means: Floats  # (rows, k): within the cell's values; an empty cell's is its center, held between its neighbours'


class Buffers:
    """Memory for the tables of one batch after another: fresh pages cost as much as a sort."""

    def __init__(self, count: int, n: int, dtype: np.dtype[Any]) -> None:
        blocks = n // BLOCK + 1  # at least one value of padding: the sum of all n can be looked up
        together = min(count, max(1, CACHED_VALUES // n))
        self.stride_bits = max(BLOCK_BITS, n.bit_length() - MARKS_BITS) if n >= SHORT else 0
        padded = ((n >> self.stride_bits) + 1) << self.stride_bits
        self.ordered = np.empty((count, max(padded, blocks * BLOCK)), _sortable(dtype))
        self.inner: Floats = np.empty((count, BLOCK, blocks))
        self.outer: Floats = np.empty((count, blocks))
        self.halves: Floats = np.empty((2, together * BLOCK * (blocks - blocks // 2)))


class SortedTable:
    """Sorted rows, centred on their medians, and their running sums.

    Sums run outward from the middle of the row, so that the difference of two of them is exact to a few units in the
    last place of the values between them: no far outlier and no offset swamps the others. Only operations that IEEE
    754 rounds correctly are used, in an order that a row's length fixes. In place of a row that has no answer there are
    zeros, and `ok` says so.
    """

    def __init__(self, rows: NDArray[Any], first_row: int, buffers: Buffers) -> None:
        count, self.n = rows.shape
        self.first_row = first_row
        self.everyone: Ints = np.arange(count)
        self.squares: Floats = np.empty(count)  # sum of squared values
        self._ordered = buffers.ordered[:count]  # sorted as they came, then infinite: a value is this minus the middle
        self._inner = buffers.inner[:count]  # (rows, place, block): sums from the block's edge nearer the middle
        self._outer = buffers.outer[:count]  # sums from the middle to that edge
        self.width, self.blocks = self._ordered.shape[1], self._outer.shape[1]
        self._stride_bits = buffers.stride_bits  # of marks
        step = max(1, CACHED_VALUES // self.n)
        with np.errstate(over="ignore", invalid="ignore"):  # of rows that are replaced below
            for at in range(0, count, step):
                self._fill(rows[at : at + step], slice(at, at + step), buffers.halves)
        finite = np.isfinite(self._ordered[:, 0]) & np.isfinite(self._ordered[:, self.n - 1])  # NaN sorts last
        self.ok: NDArray[np.bool_] = finite & (self.squares < SQUARES_LIMIT)
        for at in np.flatnonzero(~self.ok).tolist():
            self._fill(np.zeros((1, self.n), rows.dtype), slice(at, at + 1), buffers.halves)
        self.middle: Floats = self._ordered[:, self.n // 2].astype(np.float64)
        # a sorted value in so many, minus the middle; in short rows each, and then nobody looks at `_ordered`
        self._marks: Floats = self._ordered[:, :: 1 << self._stride_bits] - self.middle[:, None]

    def _fill(self, rows: NDArray[Any], part: slice, halves: Floats) -> None:
        count, half = len(rows), self.blocks // 2
        ordered, inner, outer = self._ordered[part], self._inner[part], self._outer[part]
        ordered[:, : self.n] = rows
        ordered[:, : self.n].sort(axis=1)
        ordered[:, self.n :] = np.inf
        middle = ordered[:, self.n // 2].astype(np.float64)[:, None, None]
        by_place = ordered[:, : self.blocks * BLOCK].reshape(count, self.blocks, BLOCK).transpose(0, 2, 1)
        whole, squares = np.zeros((count, self.blocks)), np.zeros(count)
        for span, sum_up in ((np.s_[:half], _sum_down), (np.s_[half:], _sum_up)):  # a half fits a core's cache
            source = by_place[..., span]
            values, squared = (scratch[: source.size].reshape(source.shape) for scratch in halves)
            values[...] = source
            values -= middle
            if span.stop is None:
                values[:, self.n % BLOCK :, -1] = 0
            np.multiply(values, values, out=squared)
            squares += np.add.reduce(squared.reshape(count, -1), axis=1)
            sum_up(values, inner[..., span], whole[:, span])
        self.squares[part] = squares
        self._sum_blocks(whole, outer)

    def _sum_blocks(self, whole: Floats, outer: Floats) -> None:
        """Fill the running sums: blocks before the middle are summed downwards, the others upwards."""
        half = self.blocks // 2
        outer[:, max(half - 1, 0) : half + 1] = 0
        running = np.zeros((len(outer), self.blocks - 1 - half), np.complex128)  # two chains of additions at once
        running.real = whole[:, half:-1]
        running.imag[:, : max(half - 1, 0)] = whole[:, max(half - 1, 0) : 0 : -1]
        np.cumsum(running, axis=1, out=running)
        outer[:, half + 1 :] = running.real
        if half > 1:
            outer[:, half - 2 :: -1] = running.imag[:, : half - 1]

    def row(self, row: int) -> Floats:
        """Its values, sorted, minus its middle."""
        if not self._stride_bits:
            return self._marks[row, : self.n]
        values: Floats = self._ordered[row, : self.n] - self.middle[row]
        return values

    def search(self, live: Ints, edges: Floats) -> Ints:
        """For each live row: how many of its values are at or below each edge."""
        found = np.empty(edges.shape, np.int64)  # marks at or below the edge
        for i, row in enumerate(live.tolist()):
            found[i] = self._marks[row].searchsorted(edges[i], "right")
        values, bits = self._ordered.ravel(), self._stride_bits
        if not bits:
            return found
        first, middle = (live * self.width)[:, None], self.middle[live][:, None]
        found <<= bits
        found += first - (1 << bits)
        for bit in reversed(range(bits)):  # where there is no such mark, whatever this adds is too little
            reached = values.take(found + (1 << bit)) - middle <= edges
            found += reached * (1 << bit)  # no np.where: it branches
        found -= first - 1
        return np.maximum(found, 0, out=found)

    def sums(self, live: Ints, positions: Ints) -> Floats:
        """The running sum before each position, 0 ≤ position ≤ n. `live` may be shaped as goes with the positions."""
        own = live if live.ndim > 1 else live[:, None]
        block = positions >> BLOCK_BITS
        places = positions & (BLOCK - 1)
        places *= self.blocks
        places += block
        sums: Floats = self._outer.ravel().take(block + own * self.blocks)
        sums += self._inner.ravel().take(places + own * (self.blocks * BLOCK))
        return sums

    def at(self, live: Ints, positions: Ints) -> Floats:
        """The value at each position, 0 ≤ position < n."""
        places = positions + (live * self.width)[:, None]
        values: Floats = (self._ordered if self._stride_bits else self._marks).ravel().take(places)
        return values - self.middle[live][:, None] if self._stride_bits else values

    def bounds(self, live: Ints, centers: Floats) -> Ints:
        """Where each center's values begin and end."""
        bounds = np.empty((len(live), centers.shape[1] + 1), np.int64)
        bounds[:, 0] = 0
        bounds[:, 1:-1] = self.search(live, edges(centers))
        bounds[:, -1] = self.n
        return bounds

    def cells(self, live: Ints, centers: Floats) -> Cells:
        """The values nearest to each center."""
        return self.cells_of(live, self.bounds(live, centers), centers)

    def cells_of(self, live: Ints, bounds: Ints, centers: Floats) -> Cells:
        """The values between bounds. Means are held within these, so that nothing unsorts them."""
        counts, sums = bounds[:, 1:] - bounds[:, :-1], self.sums(live, bounds)
        totals = sums[:, 1:] - sums[:, :-1]
        means = totals / np.maximum(counts, 1)
        np.maximum(means, self.at(live, bounds[:, :-1]), out=means)
        np.minimum(means, self.at(live, bounds[:, 1:] - 1), out=means)
        empty = counts == 0
        if empty.any():
            below, above = np.maximum(bounds[:, :-1] - 1, 0), np.minimum(bounds[:, :-1], self.n - 1)
            between = np.minimum(np.maximum(centers, self.at(live, below)), self.at(live, above))
            np.copyto(means, between, where=empty)
        return Cells(bounds, counts, sums, totals, means)

    def variance(self) -> Floats:
        """Of each row."""
        ends = np.array([[0, self.n]]).repeat(len(self.middle), axis=0)
        mean = np.diff(self.sums(self.everyone, ends), axis=1)[:, 0] / self.n
        variance: Floats = np.maximum(self.squares / self.n - np.square(mean), 0)
        return variance

    def changes(self, row: int) -> int:
        """A row's distinct values, less one."""
        values = self._ordered[row, : self.n]
        return int(np.count_nonzero(values[1:] != values[:-1]))

    def few(self, limit: int) -> Flags:
        """Every row of so many distinct values or fewer, and some others: one value in several is looked at."""
        values = self._ordered[:, : self.n : max(1, self.n // max(LOOKED_AT, 2 * limit))]
        return np.asarray(np.count_nonzero(values[:, 1:] != values[:, :-1], axis=1) < limit)

    def put_back(self, centers: Floats, counts: Ints) -> Floats:
        """Centers as the rows came, those without values last. Rounding takes none out of its own values."""
        ends = np.cumsum(counts, axis=1)
        first, last = (
            np.take_along_axis(self._ordered, np.clip(at, 0, self.n - 1), 1) for at in (ends - counts, ends - 1)
        )
        moved = centers + self.middle[:, None]
        held = np.minimum(np.maximum(moved, first), last)
        rounded = np.abs(held - moved) <= ROUNDED * (np.abs(moved) + np.abs(self.middle)[:, None])
        put: Floats = np.maximum.accumulate(np.where(counts > 0, np.where(rounded, held, moved), -np.inf), axis=1)
        return put

    def inertia(self, row: int, centers: Floats, counts: Ints) -> float:
        """Summed from the values themselves: right where a formula from sums would cancel."""
        offsets = self.row(row) - np.repeat(centers, counts)
        return float(np.add.reduce(offsets * offsets))

    def labels(self, rows: NDArray[Any], centers: Floats) -> NDArray[np.int32]:
        """The index of each value's center, in the order the rows came in."""
        limits = edges(centers)
        labels = np.empty(rows.shape, np.int32)
        for i, row in enumerate(rows):
            labels[i] = limits[i].searchsorted(row.astype(np.float64) - self.middle[i], "left")
        return labels


def _sum_down(values: Floats, inner: Floats, whole: Floats) -> None:
    """The running sums within blocks, from their upper edges, and of whole blocks."""
    np.subtract(0.0, values[:, -1], out=inner[:, -1])  # not np.negative: wrong at some strides (numpy 2.4)
    for place in range(BLOCK - 2, -1, -1):
        np.subtract(inner[:, place + 1], values[:, place], out=inner[:, place])
    whole[...] = inner[:, 0]


def _sum_up(values: Floats, inner: Floats, whole: Floats) -> None:
    """The running sums within blocks, from their lower edges, and of whole blocks."""
    inner[:, 0] = 0
    for place in range(1, BLOCK):
        np.add(inner[:, place - 1], values[:, place - 1], out=inner[:, place])
    np.add(inner[:, -1], values[:, -1], out=whole)


def edges(centers: Floats) -> Floats:
    """Upper edges of all cells but the last; a value on an edge is below it. Of equal centers the first has all."""
    halfway: Floats = (centers[:, 1:] + centers[:, :-1]) * 0.5
    equal = centers[:, 1:] == centers[:, :-1]
    if equal.any():
        halfway = np.minimum.accumulate(np.where(equal, FAR, halfway)[:, ::-1], axis=1)[:, ::-1]
    return halfway


def _sortable(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What to sort in: float32 for what it holds exactly and sorts fast, else float64."""
    return np.dtype(np.float32 if dtype.kind == "f" and dtype.itemsize <= 4 else np.float64)
