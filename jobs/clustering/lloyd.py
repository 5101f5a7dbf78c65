"""Clustering rows of one feature: sorted Lloyd, many rows at once. Knows arrays alone: no shards, no files.

Each row is sorted once. Lloyd then needs only the edges between centers (a binary search each) and the sums between
edges (differences of running sums), and lands on the fixed point sklearn's Lloyd reaches from the same start.
A row's result depends on that row, its number and the settings alone, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from muster.jobs.clustering import cuts, initial_centers, optimum
from muster.jobs.clustering.sorted_rows import Buffers, Cells, Flags, Floats, Ints, SortedTable

BATCH_ROWS = 256  # worked on at once: enough to spread the cost of a numpy call, few enough for the caches
BATCH_VALUES = 1 << 21  # of a batch at most
BATCH_CELLS = 1 << 15  # of a batch at most: each takes some KiB where cuts are moved
CANCELLED = 2.0**-20  # inertia below this share of the squares is summed again from the values
REST = 1e-3  # a center rests that is no further from the mean of its values than this share of their deviation
MUCH = 0.05  # of a row's inertia
LARGE = 512  # values in a cell: of fewer, one that comes or goes moves the mean further than that


@dataclass(frozen=True)
class LloydSettings:
    """What sklearn.cluster.KMeans calls by the same names, the `density` start, and whether all is to be the best."""

    n_clusters: int
    init: Literal["density", "k-means++", "random"] | Floats = "density"
    n_init: int = 1
    max_iter: int = 300
    tol: float | None = None  # None: until each center rests (REST)
    random_state: int = 0
    exact: bool = False


@dataclass(frozen=True)
class Clusters:
    """The answer, row by row. Centers ascend; labels are indices of centers."""

    centers: Floats  # (rows, k)
    counts: Ints  # (rows, k)
    inertia: Floats  # (rows,)
    iterations: NDArray[np.int32]  # (rows,)
    labels: NDArray[np.int32]  # (rows, n), or (rows, 0) where nobody asked
    ok: NDArray[np.bool_]  # (rows,): of a row that has no answer the numbers above mean nothing


def cluster(rows: NDArray[Any], settings: LloydSettings, first_row: int = 0, labels: bool = False) -> Clusters:
    """Cluster each row of `rows` (count, n) by itself. `first_row` is the absolute number of the first."""
    count, n = rows.shape
    assert count and n >= settings.n_clusters, "callers check shapes"
    step = max(1, min(BATCH_VALUES // n, BATCH_CELLS // settings.n_clusters, BATCH_ROWS))
    buffers = Buffers(min(step, count), n, rows.dtype)
    parts, again = [], []
    for at in range(0, count, step):
        given = rows[at : at + step]
        table = SortedTable(given, first_row + at, buffers)
        part = _cluster_batch(table, settings)
        if not settings.exact and isinstance(settings.init, str) and settings.init == "density":
            again += (at + _doubtful(table, part)).tolist()
        parts.append(_finished(table, part, given if labels else None))
    found = Clusters(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Clusters)))
    for at in range(0, len(again), step):  # together: these are few, and what they need is many calls
        numbers = np.array(again[at : at + step])
        table = SortedTable(rows[numbers], first_row, buffers)
        centers = found.centers[numbers] - table.middle[:, None]
        part = _answer(table, table.everyone, table.bounds(table.everyone, centers), centers, found.iterations[numbers])
        part = _finished(table, _searched_again(table, part, settings), rows[numbers] if labels else None)
        found = _better(found, part, numbers)
    return found


def _cluster_batch(table: SortedTable, settings: LloydSettings) -> Clusters:
    """Centers are relative to the rows' middles."""
    best: Clusters | None = None
    for centers in _starts(table, settings):
        found = _descend(table, table.everyone, centers, settings)
        best = found if best is None else _better(best, found, table.everyone)
    assert best is not None
    return _best(table, best, settings) if settings.exact else best


def _finished(table: SortedTable, found: Clusters, rows: NDArray[Any] | None) -> Clusters:
    """With centers where the rows are. `rows`: as they came in, to be labelled."""
    found = _tidied(found)
    if rows is not None:
        found = replace(found, labels=table.labels(rows, found.centers))
    return replace(found, centers=table.put_back(found.centers, found.counts))


def _starts(table: SortedTable, settings: LloydSettings) -> Iterator[Floats]:
    """The centers (rows, k) of each start, relative to the rows' middles, ascending."""
    if not isinstance(settings.init, str):
        yield initial_centers.given(table, settings.init)
    elif settings.init == "density":
        dense = initial_centers.by_density(table, table.everyone, settings.n_clusters)
        bounds = cuts.settle(table, table.everyone, table.bounds(table.everyone, dense))
        yield table.cells_of(table.everyone, bounds, dense).means
    else:
        yield from initial_centers.drawn(
            table, settings.init, settings.n_clusters, settings.n_init, settings.random_state
        )


def _searched_again(table: SortedTable, found: Clusters, settings: LloydSettings) -> Clusters:
    """As found, but rows with a better answer that begins with grains have that one."""
    k = settings.n_clusters
    changes = np.array([table.changes(row) for row in table.everyone.tolist()])
    live = np.flatnonzero(changes >= k)
    if not len(live):
        return found
    bounds = optimum.of_grains(table, live, found.centers[live])
    some = np.flatnonzero(changes[live] >= optimum.grains(k))  # of the others that is the optimum
    bounds[some] = cuts.settle(table, live[some], bounds[some])
    start = table.cells_of(live, bounds, found.centers[live]).means
    return _better(found, _descend(table, live, start, settings), live)


def _best(table: SortedTable, found: Clusters, settings: LloydSettings) -> Clusters:
    """The best there is. What was found says how good it is at least."""
    k = settings.n_clusters
    live = np.array([row for row in table.everyone.tolist() if table.changes(row) >= k], np.int64)
    if not len(live):
        return found
    known = zip(live.tolist(), found.inertia[live].tolist(), strict=True)
    bounds = np.array([optimum.of_values(table.row(row), k, inertia) for row, inertia in known])
    return _better(
        found, _descend(table, live, table.cells_of(live, bounds, found.centers[live]).means, settings), live
    )


def _doubtful(table: SortedTable, found: Clusters) -> Ints:
    """Rows of few distinct values, and those where one value had much better be alone and two cells one."""
    counts, centers, ends = found.counts, found.centers, np.cumsum(found.counts, axis=1)
    lowest = table.at(table.everyone, np.minimum(ends - counts, table.n - 1))
    highest = table.at(table.everyone, np.maximum(ends - 1, 0))
    off = np.maximum(centers - lowest, highest - centers)
    alone = np.where(counts > 1, counts / np.maximum(counts - 1, 1) * (off * off), 0).max(axis=1)
    both = np.maximum(counts[:, 1:] + counts[:, :-1], 1)
    united = counts[:, 1:] * counts[:, :-1] / both * np.square(centers[:, 1:] - centers[:, :-1])
    few = table.few(optimum.few(counts.shape[1]))
    return np.flatnonzero(few | (alone - united.min(axis=1, initial=np.inf) > MUCH * found.inertia))


def _descend(table: SortedTable, rows: Ints, start: Floats, settings: LloydSettings) -> Clusters:
    """Lloyd until each of `rows` rests. Resting labels are centers that do not move."""
    shared = None if settings.tol is None else settings.tol * table.variance()[rows]
    centers, iterations = start.copy(), np.full(len(start), settings.max_iter, np.int32)
    bounds, live, now = np.zeros((len(start), start.shape[1] + 1), np.int64), np.arange(len(rows)), start
    for iteration in range(1, settings.max_iter + 1):
        moved, cells = _step(table, rows[live], now)
        shift = moved - now
        if shared is None:
            done, resting = _resting(table, rows[live], cells, shift)
            np.copyto(moved, now, where=resting[:, None])
            bounds[live[done]] = cells.bounds[done]
        else:
            done = np.add.reduce(shift * shift, axis=1) <= shared[live]
        centers[live], now = moved, moved
        if done.any():
            iterations[live[done]] = iteration
            live, now = live[~done], moved[~done]
        if not len(live):
            break
    moving = np.flatnonzero(bounds[:, -1] == 0)
    bounds[moving] = table.bounds(rows[moving], centers[moving])
    return _answer(table, rows, bounds, centers, iterations)


def _resting(table: SortedTable, live: Ints, cells: Cells, shift: Floats) -> tuple[Flags, Flags]:
    """Rows whose centers rest, and those of them that would move a little yet: what they are now is what was judged."""
    done = ~np.asarray(shift.any(axis=1))
    large = np.flatnonzero(~done & (cells.counts.max(axis=1) >= LARGE))
    if not len(large):
        return done, np.zeros_like(done)
    part, counts, bounds = live[large], cells.counts[large], cells.bounds[large]
    quarter = counts >> 2
    middle_half = table.at(part, np.maximum(bounds[:, 1:] - 1 - quarter, 0)) - table.at(
        part, np.minimum(bounds[:, :-1] + quarter, table.n - 1)
    )
    little = np.zeros_like(done)
    little[large] = (np.abs(shift[large]) <= REST * 8**-0.5 * middle_half).all(axis=1)  # no deviation is less than that
    return done | little, little


def _step(table: SortedTable, live: Ints, centers: Floats) -> tuple[Floats, Cells]:
    """The next centers: the means, and new places for centers that have no values. And the cells of those given."""
    cells = table.cells(live, centers)
    means = cells.means
    empty = np.count_nonzero(cells.counts == 0, axis=1)
    some = np.flatnonzero(empty)
    if len(some):
        plenty = np.array([table.changes(row) >= means.shape[1] for row in live[some].tolist()])
        one = some[plenty & (empty[some] == 1)]
        means[one] = _one_refilled(table, live[one], centers[one], cells, one)
        for i in np.setdiff1d(some, one).tolist():
            means[i] = _refilled(table.row(int(live[i])), centers[i], cells, i)
    return means, cells


def _one_refilled(table: SortedTable, live: Ints, centers: Floats, cells: Cells, at: Ints) -> Floats:
    """What `_refilled` gives for rows with one empty cell and more distinct values than centers, all rows at once."""
    bounds, counts, totals, rows = cells.bounds[at], cells.counts[at], cells.totals[at], np.arange(len(at))
    ends = np.stack([table.at(live, bounds[:, :-1]), table.at(live, bounds[:, 1:] - 1)], axis=2)
    reach = np.where((counts > 0)[..., None], np.abs(ends - centers[..., None]), -1)
    flat = len(at), 2 * counts.shape[1]
    far = reach.reshape(flat).argmax(axis=1)
    values, owners, empty = ends.reshape(flat)[rows, far], far >> 1, counts.argmin(axis=1)
    counts[rows, owners] -= 1
    totals[rows, owners] -= values
    counts[rows, empty], totals[rows, empty] = 1, values
    biggest = counts.argmax(axis=1)
    instead = (totals[rows, biggest] / counts[rows, biggest])[:, None]
    return np.sort(np.where(counts > 0, totals / np.maximum(counts, 1), instead), axis=1)


def _refilled(values: Floats, centers: Floats, cells: Cells, i: int) -> Floats:
    """Row i's next centers where some cells are empty: each such center moves to one of the farthest values.

    As sklearn does it; of equally far values the lowest goes first. With no more distinct values than centers, those
    values are the centers and the last is repeated.
    """
    k, first = len(centers), np.flatnonzero(values[1:] != values[:-1]) + 1
    if len(first) < k:
        distinct = np.concatenate([[0], first])
        return values.take(distinct[np.minimum(np.arange(k), len(first))])
    counts, totals = cells.counts[i].copy(), cells.totals[i].copy()
    empty = np.flatnonzero(counts == 0)
    far, owners = _farthest(values, centers, cells.bounds[i], len(empty))
    np.subtract.at(counts, owners, 1)
    np.subtract.at(totals, owners, values[far])
    counts[empty], totals[empty] = 1, values[far]
    biggest = counts.argmax()
    return np.sort(np.where(counts > 0, totals / np.maximum(counts, 1), totals[biggest] / counts[biggest]))


def _farthest(values: Floats, centers: Floats, bounds: Ints, wanted: int) -> tuple[Ints, Ints]:
    """The values farthest from their centers, farthest first, and whose they are. In a cell they are at its ends."""
    reach, low, high = np.arange(wanted), bounds[:-1, None], bounds[1:, None]
    first, last = low + reach, high - 1 - reach
    places = np.sort(np.concatenate([first[first < high], last[last >= low + wanted]]))
    owners = bounds[1:].searchsorted(places, "right")
    order = np.argsort(-np.abs(values[places] - centers[owners]), kind="stable")[:wanted]
    return places[order], owners[order]


def _answer(table: SortedTable, rows: Ints, bounds: Ints, centers: Floats, iterations: NDArray[np.int32]) -> Clusters:
    """Counts and inertia around the final centers, whose cells have these bounds."""
    sums, squares = table.sums(rows, bounds), table.squares[rows]
    counts, totals = bounds[:, 1:] - bounds[:, :-1], sums[:, 1:] - sums[:, :-1]
    inertia = squares - np.add.reduce((2 * totals - counts * centers) * centers, axis=1)
    for i in np.flatnonzero(inertia <= CANCELLED * squares).tolist():
        inertia[i] = table.inertia(int(rows[i]), centers[i], counts[i])
    no_labels = np.empty((len(centers), 0), np.int32)
    return Clusters(centers, counts, inertia, iterations, no_labels, table.ok[rows])


def _tidied(found: Clusters) -> Clusters:
    """Centers without values come last, as repeats of the last one that has some."""
    for row in np.flatnonzero((found.counts == 0).any(axis=1)):
        used = found.counts[row] > 0
        have = np.count_nonzero(used)
        found.centers[row, :have], found.counts[row, :have] = found.centers[row, used], found.counts[row, used]
        found.centers[row, have:], found.counts[row, have:] = found.centers[row, have - 1], 0
    return found


def _better(old: Clusters, new: Clusters, rows: Ints) -> Clusters:
    """The older, but where they are of lower inertia the new ones, which are of `rows`."""
    wins = new.inertia < old.inertia[rows]
    for name in ("centers", "counts", "inertia", "iterations", "labels"):
        getattr(old, name)[rows[wins]] = getattr(new, name)[wins]
    return old
