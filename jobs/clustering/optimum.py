"""The best cells there are, by dynamic programming: of a few grains of many rows, or of every value of one row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from muster.jobs.clustering.sorted_rows import Floats, Ints, SortedTable, edges

MORE_GRAINS = 32  # than two for each center
SURELY = 1.25  # roundings are far smaller
COSTS = 1 << 17  # of unions, of several rows at once
TOGETHER = 1 << 16  # lengths of paths: they stay in a core's cache


def grains(k: int) -> int:
    """How many there are of a row at most."""
    return 2 * k + MORE_GRAINS


def few(k: int) -> int:
    """Rows of fewer distinct values get the optimum: of more, it takes long where clusters are many."""
    return min(grains(k), k + 2 * MORE_GRAINS)


def of_grains(table: SortedTable, live: Ints, centers: Floats) -> Ints:
    """The bounds of the best unions of neighbouring grains, as many as there are centers.

    Grains are the values below and above each of these centers, cut further at the row's widest gaps; or, in a row of
    few distinct values, each of these, so that nothing is better. Every row has k distinct values at least.
    """
    k, bounds = centers.shape[1], _grains(table, live, centers)
    used = np.count_nonzero(bounds[:, 1:] > bounds[:, :-1], axis=1)
    found, order = np.empty((len(live), k + 1), np.int64), np.argsort(used)
    while len(order):  # those of most grains first: what they cost grows with the square of the grains beyond k
        most = int(used[order[-1]])
        step = max(1, COSTS // (2 * (most - k + 1) * most))
        some, order = order[-step:], order[:-step]
        found[some] = _of_some(table, live[some], bounds[some, : most + 1], k)
    return found


def _of_some(table: SortedTable, live: Ints, bounds: Ints, k: int) -> Ints:
    counts = bounds[:, 1:] - bounds[:, :-1]
    sums = table.sums(live, bounds)
    means = (sums[:, 1:] - sums[:, :-1]) / np.maximum(counts, 1)
    return np.take_along_axis(bounds, best_unions(counts, means, k, 1, 0).cuts, axis=1)


def _grains(table: SortedTable, live: Ints, centers: Floats) -> Ints:
    """Where grains begin and end, n at last."""
    halves = table.search(live, np.sort(np.concatenate([centers, edges(centers)], axis=1), axis=1))
    most = grains(centers.shape[1])
    bounds = np.full((len(live), most + 1), table.n)
    bounds[:, 0] = 0
    for row, own, given in zip(live.tolist(), bounds, halves, strict=True):
        at = _gaps(table.row(row), most - 1, len(given))
        own[1 : 1 + len(at)] = at
        if len(at) < most - len(given):
            own[most - len(given) : most] = given
    bounds.sort(axis=1)
    np.copyto(bounds[:, 1:], table.n, where=bounds[:, 1:] == bounds[:, :-1])
    bounds.sort(axis=1)
    return bounds


def _gaps(values: Floats, most: int, others: int) -> Ints:
    """Where a sorted row's values change, if not more often than `most`; else its widest gaps, fewer by `others`."""
    gaps = values[1:] - values[:-1]
    at = np.flatnonzero(gaps)
    if len(at) > most:
        wanted = most - others
        least = np.partition(gaps[at], len(at) - wanted)[len(at) - wanted]
        at = at[gaps[at] >= least][:wanted]
    behind: Ints = at + 1
    return behind


@dataclass(frozen=True)
class Unions:
    """Which grain each of k unions begins with, and where the last ends; their inertia beyond that within grains."""

    cuts: Ints  # (rows, k + 1)
    inertia: Floats  # (rows,)
    before: Floats  # (rows,): of unions of `stride` grains each


def best_unions(counts: Ints, means: Floats, k: int, stride: int, reach: int) -> Unions:
    """Of neighbouring grains (rows, grains). Union j begins at most `reach` grains before stride * j.

    And as many after it; or without a reach at any grain.
    """
    rows, grains = counts.shape
    width = 2 * reach + 1 if reach else grains - k + 1
    padded = np.zeros((2, grains + width, rows))  # empty ones cost nothing
    padded[:, reach : reach + grains] = counts.T, means.T
    costs = _costs(padded[0], padded[1], stride, width)
    row, start, item = costs.strides
    ahead = as_strided(costs[width - 1], (k, width, width, rows), (stride * start, start - row, row, item))
    best, end = np.full((width, rows), np.inf), reach or width - 1
    best[reach] = 0
    places, best = shortest(lambda some: ahead[some].copy(), np.zeros((k, 1, 1)), best, end)
    cuts = places + (np.arange(k + 1) * stride - reach)[:, None]
    before = np.cumsum(
        costs[width - 1, reach : reach + stride * k : stride], axis=0
    )  # whose order no number of rows changes
    return Unions(cuts.T, best[end], before[-1])


def _costs(counts: Floats, means: Floats, stride: int, width: int) -> Floats:
    """[length, start, row]: the inertia between so many grains, by adding one to another, so that nothing cancels.

    The first length is that of a union that loses most of its `stride` grains to both sides.
    """
    least = stride - width + 1
    costs = np.empty((2 * width - 1, *counts.shape))
    costs[: 1 - least] = np.inf
    costs[1 - least] = 0
    so_far, mean, cost = counts, means, costs[1 - least]
    for length in range(2, stride + width):
        more, gap, before = counts[length - 1 :], means[length - 1 :] - mean[:-1], so_far[:-1]
        so_far = before + more
        share = more / np.maximum(so_far, 1)
        share *= gap
        mean = mean[:-1] + share
        share *= gap
        share *= before
        cost = np.add(cost[:-1], share, out=costs[length - least, : len(share)])
        costs[length - least, len(share) :] = np.inf
    return costs


def shortest(lengths: Callable[[slice], Floats], tolls: Floats, best: Floats, end: int) -> tuple[Ints, Floats]:
    """Which place (cuts, rows) each cut has on the shortest path to `end` of the last, and all lengths to that one.

    Steps are [a, b, row], from a cut's place a to the next one's place b, where a toll is due; `best` is how long it is
    to the first cut's places. Of equal paths that from the first place counts: empty grains come last, and so none of
    them is left a union.
    """
    steps, (width, rows) = len(tolls), best.shape
    together = max(1, TOGETHER // (width * width * rows))
    behind, chosen = np.arange(width)[::-1, None, None].astype(np.min_scalar_type(width)), []
    for at in range(0, steps, together):
        paths = lengths(slice(at, at + together))
        tops = np.empty((len(paths), width, rows))
        for path, top, toll in zip(paths, tops, tolls[at : at + together], strict=True):
            path += best[:, None]
            best = np.minimum.reduce(path, axis=0, out=top) + toll
        chosen.extend(width - 1 - np.maximum.reduce((paths == tops[:, None]) * behind, axis=1))
    places, column = np.full((steps + 1, rows), end), np.arange(rows)
    for j in range(steps - 1, -1, -1):
        places[j] = chosen[j].ravel().take(places[j + 1] * rows + column)
    return places, best


def of_values(values: Floats, k: int, known: float) -> Ints:
    """Where the best k cells of a sorted row of as many distinct values begin, and where the last ends.

    `known` is an inertia that can be had. No cell of the best reaches over a gap whose ends alone would cost more. So
    the values between two such gaps are summed from their own middle, and lumps far apart cost no precision.
    """
    first = np.append(0, np.flatnonzero(values[1:] != values[:-1]) + 1)
    distinct, ends = values[first], np.append(first, len(values))
    apart = np.square(distinct[1:] - distinct[:-1]) > SURELY * 2 * known
    lumps = np.concatenate([[0], np.flatnonzero(apart) + 1, [len(first)]])
    sizes = lumps[1:] - lumps[:-1]
    near = distinct - np.repeat(distinct[(lumps[1:] + lumps[:-1]) // 2], sizes)
    weighted = (ends[1:] - ends[:-1]) * near
    sums, squares = (np.append(0.0, np.cumsum(part)) for part in (weighted, weighted * near))
    lumped = _Lumped(ends.astype(np.float64), sums, squares, np.append(0, np.repeat(lumps[:-1], sizes)))
    bounds: Ints = ends[_best_cuts(lumped, len(first), k)]
    return bounds


@dataclass(frozen=True)
class _Lumped:
    """Running sums before each of a row's distinct values, and after the last."""

    counts: Floats
    sums: Floats
    squares: Floats
    least: Ints  # the first value of the lump of the one before

    def cost(self, start: Ints, end: Ints) -> Floats:
        """The inertia of the values from `start` to before `end`; infinite if they are of several lumps."""
        total, squares = self.sums[end] - self.sums[start], self.squares[end] - self.squares[start]
        cost = np.maximum(squares - total * total / (self.counts[end] - self.counts[start]), 0)
        return np.where(start < self.least[end], np.inf, cost)


def _best_cuts(lumped: _Lumped, distinct: int, k: int) -> Ints:
    """Which values the best k cells begin with, and where the last ends.

    With j cells, as many values at least are covered, and enough are left for the others: `surplus` is what is covered
    beyond j, of distinct - k at most.
    """
    surplus = np.arange(distinct - k + 1)
    best, chosen = lumped.cost(np.zeros_like(surplus), surplus + 1), np.empty((k - 1, len(surplus)), np.int32)
    for j in range(1, k):
        best, chosen[j - 1] = _layer(lumped, best, j)
    cuts = [distinct]
    for j in range(k - 1, 0, -1):
        cuts.append(j + int(chosen[j - 1, cuts[-1] - j - 1]))
    return np.array([0, *cuts[::-1]])


def _layer(lumped: _Lumped, before: Floats, j: int) -> tuple[Floats, Ints]:
    """For each surplus the least inertia with one cell more than j, and the surplus of those j.

    The latter never falls as the surplus grows. So each found one bounds its neighbours', and all are found in rounds:
    of the surpluses halfway between those that are known, at once.
    """
    size = len(before)
    best, chosen = np.empty(size), np.empty(size + 2, np.int64)
    chosen[0], chosen[1:] = 0, size - 1  # of surplus t at t + 1
    half = 1 << size.bit_length() >> 1
    while half:
        ends = np.arange(half, size + 1, 2 * half)
        low, high = chosen[ends - half], np.minimum(chosen[np.minimum(ends + half, size + 1)], ends - 1)
        lengths = high - low + 1
        starts = np.cumsum(lengths) - lengths
        owner = np.repeat(np.arange(len(ends)), lengths)
        tried = np.arange(len(owner)) + (low - starts)[owner]
        costs = before[tried] + lumped.cost(tried + j, (ends + j)[owner])
        best[ends - 1] = np.minimum.reduceat(costs, starts)
        least = np.flatnonzero(costs == best[ends - 1][owner])
        chosen[ends[owner[least]]] = tried[least]  # the last of equal ones
        half >>= 1
    return best, chosen[1:-1]
