"""Rows of one feature, sorted, with running sums to look up. Owns no clustering: see jobs.lloyd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BLOCK_BITS = 3
BLOCK = 1 << BLOCK_BITS  # values per block of the running sums
CACHED_VALUES = 1 << 15  # sorted and summed at once: their float64 copies stay in a core's cache
SQUARES_LIMIT = 1e300  # of a row: room for what is made of them


class BadRow(ValueError):
    """A row that has no answer: `row` is its absolute number."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row} {reason}")
        self.row = row


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

    def __init__(self, count: int, n: int) -> None:
        blocks = n // BLOCK + 1  # at least one value of padding: the sum of all n can be looked up
        self.values: Floats = np.empty((count, blocks * BLOCK))
        self.inner: Floats = np.empty((count, blocks * BLOCK))
        self.outer: Floats = np.empty((count, blocks))


class Table:
    """Sorted rows, centred on their medians, and their running sums.

    Sums run outward from the middle of the row, so that the difference of two of them is exact to a few units in the
    last place of the values between them: no far outlier and no offset swamps the others. Only operations that IEEE
    754 rounds correctly are used, in an order that a row's length fixes.
    """

    def __init__(self, rows: NDArray[Any], first_row: int, buffers: Buffers) -> None:
        count, self.n = rows.shape
        self.first_row = first_row
        self.everyone: Ints = np.arange(count)
        self.values = buffers.values[:count]  # sorted, minus middle, zeros at the end
        self.middle: Floats = np.empty(count)
        self.squares: Floats = np.empty(count)  # sum of squared values
        self._inner = buffers.inner[:count]  # sums from the block's edge that is nearer the middle
        self._outer = buffers.outer[:count]  # sums from the middle to that edge
        self.width, self.blocks = self.values.shape[1], self._outer.shape[1]
        step = max(1, CACHED_VALUES // self.n)
        for at in range(0, count, step):
            self._fill(rows[at : at + step], slice(at, at + step))

    def _fill(self, rows: NDArray[Any], part: slice) -> None:
        ordered = np.sort(rows.astype(_sortable(rows.dtype), copy=False), axis=1)
        self._refuse_non_finite(ordered, self.first_row + part.start)
        middle = ordered[:, self.n // 2].astype(np.float64)
        values, inner = self.values[part], self._inner[part]
        values[:, : self.n] = ordered
        values[:, : self.n] -= middle[:, None]
        values[:, self.n :] = 0
        self.middle[part] = middle
        with np.errstate(over="ignore"):
            np.multiply(values, values, out=inner)
            self.squares[part] = np.add.reduce(inner, axis=1)
        self._refuse_overflow(self.squares[part], self.first_row + part.start)
        self._sum(values, inner, self._outer[part])

    @staticmethod
    def _refuse_non_finite(ordered: NDArray[Any], first_row: int) -> None:
        """NaN sorts last, infinities to the ends."""
        bad = ~(np.isfinite(ordered[:, 0]) & np.isfinite(ordered[:, -1]))
        if bad.any():
            raise BadRow(first_row + int(bad.argmax()), "has NaN or infinity")

    @staticmethod
    def _refuse_overflow(squares: Floats, first_row: int) -> None:
        bad = ~(squares < SQUARES_LIMIT)
        if bad.any():
            raise BadRow(first_row + int(bad.argmax()), "has values too far apart: their squares overflow float64")

    def _sum(self, values: Floats, inner: Floats, outer: Floats) -> None:
        """Fill the running sums: blocks before the middle are summed downwards, the others upwards."""
        half = self.blocks // 2
        at = half * BLOCK
        np.subtract(0.0, values[:, :at], out=inner[:, :at])  # not np.negative: wrong at some strides (numpy 2.4)
        inner[:, at + 1 :] = values[:, at:-1]
        sums = inner.reshape(-1, self.blocks, BLOCK)
        low, up = sums[:, :half], sums[:, half:]
        up[..., 0] = 0
        for j in range(1, BLOCK):
            low[..., -1 - j] += low[..., -j]
            up[..., j] += up[..., j - 1]
        outer[:, max(half - 1, 0) : half + 1] = 0
        whole = up[:, :-1, -1] + values.reshape(sums.shape)[:, half:-1, -1]
        np.cumsum(whole, axis=1, out=outer[:, half + 1 :])
        if half > 1:
            np.cumsum(low[:, :0:-1, 0], axis=1, out=outer[:, half - 2 :: -1])

    def search(self, live: Ints, edges: Floats) -> Ints:
        """For each live row: how many of its values are at or below each edge."""
        found = np.empty(edges.shape, np.int64)
        for i, row in enumerate(live.tolist()):
            found[i] = self.values[row, : self.n].searchsorted(edges[i], "right")
        return found

    def sums(self, live: Ints, positions: Ints) -> Floats:
        """The running sum before each position, 0 ≤ position ≤ n."""
        sums: Floats = self._outer.ravel().take((positions >> BLOCK_BITS) + live[:, None] * self.blocks)
        sums += self._inner.ravel().take(positions + live[:, None] * self.width)
        return sums

    def at(self, live: Ints, positions: Ints) -> Floats:
        """The value at each position, 0 ≤ position < n."""
        found: Floats = self.values.ravel().take(positions + live[:, None] * self.width)
        return found

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

    def mean(self) -> Floats:
        ends = np.array([[0, self.n]]).repeat(len(self.values), axis=0)
        sums = self.sums(self.everyone, ends)
        mean: Floats = (sums[:, 1] - sums[:, 0]) / self.n
        return mean

    def inertia(self, row: int, centers: Floats, counts: Ints) -> float:
        """Summed from the values themselves: right where a formula from sums would cancel."""
        offsets = self.values[row, : self.n] - np.repeat(centers, counts)
        return float(np.add.reduce(offsets * offsets))

    def labels(self, rows: NDArray[Any], centers: Floats) -> NDArray[np.int32]:
        """The index of each value's center, in the order the rows came in."""
        limits = edges(centers)
        labels = np.empty(rows.shape, np.int32)
        for i, row in enumerate(rows):
            labels[i] = limits[i].searchsorted(row.astype(np.float64) - self.middle[i], "left")
        return labels


def edges(centers: Floats) -> Floats:
    """Upper edges of all cells but the last; a value on an edge is below it. Of equal centers the first has all."""
    halfway: Floats = (centers[:, 1:] + centers[:, :-1]) * 0.5
    equal = centers[:, 1:] == centers[:, :-1]
    if equal.any():
        halfway = np.minimum.accumulate(np.where(equal, np.inf, halfway)[:, ::-1], axis=1)[:, ::-1]
    return halfway


def _sortable(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype to sort in: this machine's byte order, and never half floats, which sort slowly."""
    return np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind == "f" else dtype.newbyteorder("=")
