"""Moving centers from where they are idle to where they are missed, several at once. Lloyd itself is in `lloyd`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from muster.jobs.clustering.sorted_rows import Cells, Floats, Ints, SortedTable

Flags = NDArray[np.bool_]

ROUNDS = 2


def improve(table: SortedTable, centers: Floats) -> Floats:
    """A few rounds of one trade and one exchange; rows with nothing to exchange drop out."""
    centers, live = centers.copy(), table.everyone
    for _ in range(ROUNDS):
        moved, changed = _exchange(table, live, _trade(table, live, centers[live]))
        centers[live] = moved
        live = live[changed]
        if not len(live):
            break
    return centers


def _trade(table: SortedTable, live: Ints, centers: Floats) -> Floats:
    """A Lloyd step in which each cell may also give the value at its edge to its neighbour, where inertia falls by it.

    Lloyd alone compares distances to centers as they are; the mean of a cell of few values moves with each of them.
    """
    cells = table.cells(live, centers)
    edges, counts, means = cells.bounds[:, 1:-1], cells.counts, cells.means
    last, first = table.at(live, np.maximum(edges - 1, 0)), table.at(live, np.minimum(edges, table.n - 1))
    up = _given_away(counts[:, :-1], last - means[:, :-1], counts[:, 1:], last - means[:, 1:])
    down = _given_away(counts[:, 1:], first - means[:, 1:], counts[:, :-1], first - means[:, :-1])
    bounds = cells.bounds.copy()
    bounds[:, 1:-1] += ((down > 0) & (down > up)).astype(np.int64) - ((up > 0) & (up >= down))
    return table.cells_of(live, bounds, means).means


def _given_away(counts: Ints, own: Floats, other_counts: Ints, other: Floats) -> Floats:
    """What inertia loses when a value at distance `own` from its mean goes to the cell whose mean is at `other`."""
    loss = counts / np.maximum(counts - 1, 1) * (own * own) - other_counts / (other_counts + 1) * (other * other)
    return np.where(counts > 1, loss, 0)


def _exchange(table: SortedTable, live: Ints, centers: Floats) -> tuple[Floats, Flags]:
    """The cells' means after dropping idle centers and splitting as many costly cells, and which rows did so."""
    cells = table.cells(live, centers)
    below, above, gains = _splits(table, live, cells)
    split, drop = _paired(gains, _drop_costs(cells))
    changed = np.asarray(split.any(axis=1))
    if not changed.any():
        return cells.means, changed
    pooled = (cells.totals[:, 1:] + cells.totals[:, :-1]) / np.maximum(cells.counts[:, 1:] + cells.counts[:, :-1], 1)
    first, second = np.where(split, below, cells.means), np.where(split, above, np.inf)
    np.copyto(first[:, :-1], pooled, where=(drop & (cells.counts > 0))[:, 1:])
    np.copyto(first, np.inf, where=drop)
    moved = np.sort(np.concatenate([first, second], axis=1), axis=1)[:, : centers.shape[1]]
    return moved, changed


def _splits(table: SortedTable, live: Ints, cells: Cells) -> tuple[Floats, Floats, Floats]:
    """The means below and above each cell's own mean, and what inertia would lose by having both."""
    middle = table.search(live, cells.means)
    np.maximum(middle, cells.bounds[:, :-1], out=middle)
    np.minimum(middle, cells.bounds[:, 1:], out=middle)
    sums, low, high = table.sums(live, middle), middle - cells.bounds[:, :-1], cells.bounds[:, 1:] - middle
    below = (sums - cells.sums[:, :-1]) / np.maximum(low, 1)
    above = (cells.sums[:, 1:] - sums) / np.maximum(high, 1)
    return below, above, _between(low, high, above - below)


def _drop_costs(cells: Cells) -> Floats:
    """What inertia would gain by giving a cell's values to the one before; nothing if it is empty.

    Infinite unless cheaper than both neighbours' merges, so that no cell is in two.
    """
    counts, costs = cells.counts, np.full((len(cells.counts), cells.counts.shape[1] + 1), np.inf)
    merges = _between(counts[:, :-1], counts[:, 1:], cells.means[:, 1:] - cells.means[:, :-1])
    costs[:, 1:-1] = np.where((counts[:, :-1] > 0) & (counts[:, 1:] > 0), merges, np.inf)
    least = (costs[:, 1:-1] < costs[:, :-2]) & (costs[:, 1:-1] <= costs[:, 2:])
    drops = np.full(counts.shape, np.inf)
    np.copyto(drops[:, 1:], costs[:, 1:-1], where=least)
    np.copyto(drops, 0, where=counts == 0)
    return drops


def _between(low: Ints, high: Ints, distance: Floats) -> Floats:
    """The inertia between two groups of values whose means are `distance` apart."""
    between: Floats = low * high / np.maximum(low + high, 1) * (distance * distance)
    return between


def _paired(gains: Floats, costs: Floats) -> tuple[Flags, Flags]:
    """Cells to split and cells to drop, equally many: the greatest gain with the least cost, as long as it pays."""
    column = (1 << gains.shape[1].bit_length()) - 1
    best, cheapest = _ranked(gains, column)[:, ::-1], _ranked(costs, column)
    pays = (best & ~column) > (cheapest & ~column)
    split, drop = np.zeros(gains.shape, bool), np.zeros(gains.shape, bool)
    np.put_along_axis(split, best & column, pays, axis=1)
    np.put_along_axis(drop, cheapest & column, pays, axis=1)
    return _without_conflicts(split, drop)


def _ranked(amounts: Floats, column: int) -> Ints:
    """Sorted, each with its column in its last bits: sorted integers rank alike on every machine, argsort need not."""
    keys: Ints = (amounts.view(np.int64) & ~column) | np.arange(amounts.shape[1])
    return np.sort(keys, axis=1)


def _without_conflicts(split: Flags, drop: Flags) -> tuple[Flags, Flags]:
    """A pair to merge of which one is to be split stays as it is, and so does that one. Empty cells are never split."""
    own = drop & split
    before = np.zeros(drop.shape, bool)
    before[:, 1:] = drop[:, 1:] & split[:, :-1] & ~own[:, 1:]
    split &= ~own
    split[:, :-1] &= ~before[:, 1:]
    return split, drop & ~(own | before)
