"""Where Lloyd starts on rows of one feature: by density, as k-means++, at random, or as given. Moves nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np

from muster.jobs.clustering.sorted_rows import Floats, Ints, SortedTable

Random = np.random.RandomState

CAPPING_ROUNDS = 2
LEAST_KNOTS = 128


def given(table: SortedTable, centers: Floats) -> Floats:
    """The same centers for every row."""
    return np.sort(centers[None, :] - table.middle[:, None], axis=1)


def drawn(table: SortedTable, init: str, k: int, times: int, random_state: int) -> Iterator[Floats]:
    """`times` starts for each row from its own stream, seeded by (random_state, the row's number)."""
    choose: Callable[[Floats, int, Random], Floats] = _plus_plus if init == "k-means++" else _random
    streams = [stream(random_state, table.first_row + row) for row in table.everyone.tolist()]
    for _ in range(times):
        chosen = [choose(table.row(row), k, own) for row, own in enumerate(streams)]
        yield np.sort(np.array(chosen), axis=1)


def stream(random_state: int, row: int) -> Random:
    """A row's own random numbers, of the kind that numpy promises never to change."""
    return Random(np.random.MT19937(np.random.SeedSequence([random_state, row])))


def _random(values: Floats, k: int, stream: Random) -> Floats:
    """The values at k distinct places."""
    chosen: Floats = values[stream.permutation(len(values))[:k]]
    return chosen


def _plus_plus(values: Floats, k: int, stream: Random) -> Floats:
    """Greedy k-means++: each next center is the best of a few drawn by squared distance, as in sklearn."""
    trials = 2 + int(math.log(k))
    centers = [float(values[stream.randint(len(values))])]
    nearest = np.square(values - centers[0])
    while len(centers) < k:
        running = np.cumsum(nearest)
        places = running.searchsorted(stream.uniform(size=trials) * running[-1])
        candidates = values[np.minimum(places, len(values) - 1)]
        distances = [np.minimum(nearest, np.square(values - candidate)) for candidate in candidates]
        best = min(range(trials), key=lambda i: float(np.add.reduce(distances[i])))
        centers.append(float(candidates[best]))
        nearest = distances[best]
    return np.array(centers)


def by_density(table: SortedTable, live: Ints, k: int) -> Floats:
    """Centers at equal steps of the integral of density^(1/3), the spacing that is best for many centers.

    The density comes from gaps between knots, some of the row's order statistics. No value is given more than one
    center's share: what a lone far value has beyond that goes to the others.
    """
    knots = _knots(table.n, k)
    places = table.at(live, knots[None, :])
    shares = np.zeros(places.shape)
    gaps = _gap_shares(knots, places) * 0.5
    shares[:, :-1] += gaps
    shares[:, 1:] += gaps
    shares = _capped(shares, _room(knots), k)
    running = np.zeros((len(places), len(knots) + 1))
    np.cumsum(shares, axis=1, out=running[:, 1:])
    return _at_equal_steps(running, _limits(places), k)


@cache
def _knots(n: int, k: int) -> Ints:
    """Indices into a sorted row: all of its ends, then ever wider apart, up to 1/128 of the row or less for many k."""
    side, steady = [0], max(n // max(LEAST_KNOTS, k), 1)
    while side[-1] < n // 2:
        side.append(side[-1] + min(max(side[-1] // max(16, k // 8), 1), steady))
    low = np.array(side, np.int64)
    return np.unique(np.concatenate([low, n - 1 - low]).clip(0, n - 1))


def _gap_shares(knots: Ints, places: Floats) -> Floats:
    """The integral over each gap: the cube root of count * gap². Knots at equal places count with the next gap."""
    gaps = places[:, 1:] - places[:, :-1]
    since = np.maximum.accumulate(np.where(gaps[:, :-1] > 0, knots[1:-1], 0), axis=1)
    counts = np.empty(gaps.shape)
    counts[:, :1] = knots[1:2]
    np.subtract(knots[2:], since, out=counts[:, 1:])
    span = places[:, -1:] - places[:, :1]
    gaps /= np.where(span > 0, span, 1)
    return np.where(gaps > 0, _cube_root(counts * gaps * gaps), 0)


def _cube_root(x: Floats) -> Floats:
    """To about 1e-4, by a third of the exponent and a step of Halley's: unlike np.cbrt the same on every machine."""
    guess = (x.view(np.int64) // 3 + 0x2A9F7893782DA1CE).view(np.float64)
    cubed = guess * guess * guess
    root: Floats = guess * ((cubed + 2 * x) / (2 * cubed + x + np.finfo(np.float64).tiny))
    return root


def _room(knots: Ints) -> Floats:
    """How many values, so how many centers at most, belong to each knot."""
    limits = np.concatenate([knots[:1], (knots[1:] + knots[:-1]) * 0.5, knots[-1:]])
    return np.maximum(np.diff(limits), 1)


def _capped(shares: Floats, room: Floats, k: int) -> Floats:
    """No knot with more shares than it has room for."""
    step = np.add.reduce(shares, axis=1, keepdims=True) / k
    for _ in range(CAPPING_ROUNDS):
        step = np.add.reduce(np.minimum(shares, step * room), axis=1, keepdims=True) / k
    return np.minimum(shares, step * room)


def _limits(places: Floats) -> Floats:
    """Halfway between knots, and the row's ends."""
    limits = np.empty((len(places), places.shape[1] + 1))
    limits[:, 0], limits[:, -1] = places[:, 0], places[:, -1]
    limits[:, 1:-1] = (places[:, 1:] + places[:, :-1]) * 0.5
    return limits


def _at_equal_steps(running: Floats, limits: Floats, k: int) -> Floats:
    """Where `running` passes the middle of each of k equal steps."""
    targets = running[:, -1:] * ((np.arange(k) + 0.5) / k)
    return np.array([np.interp(t, r, x) for t, r, x in zip(targets, running, limits, strict=True)])
