"""Where a row's cells end: all cuts moved at once to the best places of windows around them, coarse, then fine."""

from __future__ import annotations

import numpy as np

from muster.jobs.clustering import optimum
from muster.jobs.clustering.sorted_rows import Flags, Floats, Ints, SortedTable

REACH = 4  # places on each side of a cut: at first as far as the next cuts, so that any cell may move on
SMALL = 16  # values to a cell, on average: of fewer, half as many places do
FINER = 3  # the next windows reach so many times less far, which is a little farther than one place before
ROUNDS = 16  # with the widest windows, at most
WORTHWHILE = 0.1  # of the inertia: where a round gains as much, or twice a center's share, another one follows


def settle(table: SortedTable, live: Ints, bounds: Ints) -> Ints:
    """Bounds near these around which a few values more or less in some cells would hardly help."""
    reach = REACH if table.n >= SMALL * (bounds.shape[1] - 1) else REACH // 2
    found: Ints = bounds.copy()
    rows = np.arange(len(live))
    for _ in range(ROUNDS):
        if not len(rows):
            break
        found[rows], much = _regrouped(table, live[rows], found[rows], reach)
        rows = rows[much]
    rows, parts = np.arange(len(live)), reach
    while len(rows):
        parts *= FINER
        found[rows] = _refined(table, live[rows], found[rows], parts, reach)
        rows = rows[(found[rows, 1:] - found[rows, :-1]).max(axis=1) >= 2 * parts]
    return found


def _regrouped(table: SortedTable, live: Ints, bounds: Ints, reach: int) -> tuple[Ints, Flags]:
    """The best unions of quarters, or halves, of neighbouring cells, and which rows gain much by them.

    Cells are cut at their means and the halves at theirs, so that a far value or a lump is soon a quarter of its own.
    """
    k, grains = bounds.shape[1] - 1, bounds
    sums = table.sums(live, grains)
    while grains.shape[1] <= reach * k:
        counts = grains[:, 1:] - grains[:, :-1]
        middles = table.search(live, (sums[:, 1:] - sums[:, :-1]) / np.maximum(counts, 1))
        finer = np.empty((len(live), 2 * grains.shape[1] - 1), np.int64)
        finer[:, ::2] = grains
        finer[:, 1::2] = np.minimum(np.maximum(middles, grains[:, :-1]), grains[:, 1:])
        grains = finer
        sums = table.sums(live, grains)
    counts = grains[:, 1:] - grains[:, :-1]
    unions = optimum.best_unions(counts, (sums[:, 1:] - sums[:, :-1]) / np.maximum(counts, 1), k, reach, reach)
    return np.take_along_axis(grains, unions.cuts, axis=1), unions.inertia < (
        1 - min(WORTHWHILE, 2 / k)
    ) * unions.before


def _refined(table: SortedTable, live: Ints, bounds: Ints, parts: int, reach: int) -> Ints:
    """The best bounds in windows whose places are apart by a cell's share of so many parts.

    Values and inertias are relative to the cells as they are, so that nothing cancels: of each place, how many values
    a cell gains by it, and how far their sum is from as many means. A cell whose sum is `d` off its means loses
    d² / count of its inertia when its mean follows.
    """
    now = np.ascontiguousarray(bounds.T)
    places = _places(now, parts, reach)
    sums = table.sums(live[None, None], places)
    totals, counts = np.diff(sums[:, reach], axis=0), np.diff(now, axis=0).astype(np.float64)
    means = totals / np.maximum(counts, 1)
    more, extra = (places - now[:, None]).astype(np.float64), sums - sums[:, reach, None]
    upper, lower = extra[1:] - means[:, None] * more[1:], extra[:-1] - means[:, None] * more[:-1]
    loss = np.zeros(upper.shape)
    loss[:-1] = (means[1:] - means[:-1])[:, None] * (upper[:-1] + lower[1:])
    sizes = counts[:, None] + more[1:]

    def less(some: slice) -> Floats:
        """What inertia loses, below zero, as the means of some cells follow their values."""
        off: Floats = lower[some, :, None] - upper[some, None]
        size = more[:-1][some, :, None] - sizes[some, None]
        off *= off
        off /= np.minimum(size, -1, out=size)  # 0 only of empty cells
        return off

    chosen, _ = optimum.shortest(less, loss, np.zeros(upper.shape[1:]), reach)
    found: Ints = np.take_along_axis(places, chosen[:, None], axis=1)[:, 0].T
    return found


def _places(now: Ints, parts: int, reach: int) -> Ints:
    """(cuts, places, rows): around each cut, so that a cell keeps one of its values; the ends stay."""
    counts, offsets = now[1:] - now[:-1], np.arange(-reach, reach + 1)[:, None]
    steps = np.maximum(counts // parts, 1)[:, None]
    places: Ints = now[:, None].repeat(len(offsets), axis=1)
    places[1:-1, :reach] += steps[:-1] * offsets[:reach]
    places[1:-1, reach:] += steps[1:] * offsets[reach:]
    np.minimum(places[:-1], (now[:-1] + np.maximum(counts - 1, 0) // 2)[:, None], out=places[:-1])
    np.maximum(places[1:], (now[:-1] + (counts + 1) // 2)[:, None], out=places[1:])
    return places
