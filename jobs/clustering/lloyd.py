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

from muster.jobs.clustering import exchanges, initial_centers
from muster.jobs.clustering.sorted_rows import Buffers, Cells, Floats, Ints, SortedTable

BATCH_ROWS = 128  # worked on at once: enough to spread the cost of a numpy call, few enough for the caches
BATCH_VALUES = 1 << 21  # of a batch at most
CANCELLED = 2.0**-20  # inertia below this share of the squares is summed again from the values


@dataclass(frozen=True)
class LloydSettings:
    """What sklearn.cluster.KMeans calls by the same names, and the `density` start."""

    n_clusters: int
    init: Literal["density", "k-means++", "random"] | Floats = "density"
    n_init: int = 1
    max_iter: int = 300
    tol: float = 1e-4
    random_state: int = 0


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
    step = max(1, min(BATCH_VALUES // n, BATCH_ROWS))
    buffers = Buffers(min(step, count), n, rows.dtype)
    tables = ((at, SortedTable(rows[at : at + step], first_row + at, buffers)) for at in range(0, count, step))
    parts = [_cluster_batch(table, rows[at : at + step] if labels else None, settings) for at, table in tables]
    return Clusters(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Clusters)))


def _cluster_batch(table: SortedTable, rows: NDArray[Any] | None, settings: LloydSettings) -> Clusters:
    """`rows`: as they came in, to be labelled."""
    best: Clusters | None = None
    for centers in _starts(table, settings):
        found = _tidied(_descend(table, centers, settings))
        best = found if best is None else _better(best, found)
    assert best is not None
    if rows is not None:
        best = replace(best, labels=table.labels(rows, best.centers))
    return replace(best, centers=best.centers + table.middle[:, None])


def _starts(table: SortedTable, settings: LloydSettings) -> Iterator[Floats]:
    """The centers (rows, k) of each start, relative to the rows' middles, ascending."""
    if not isinstance(settings.init, str):
        yield initial_centers.given(table, settings.init)
    elif settings.init == "density":
        yield exchanges.improve(table, initial_centers.by_density(table, settings.n_clusters))
    else:
        yield from initial_centers.drawn(
            table, settings.init, settings.n_clusters, settings.n_init, settings.random_state
        )


def _descend(table: SortedTable, start: Floats, settings: LloydSettings) -> Clusters:
    """Lloyd until each row's centers move less than `tol` allows. Resting labels are centers that do not move."""
    variance = table.squares / table.n - np.square(table.mean())
    rest = settings.tol * np.maximum(variance, 0)
    centers, iterations = start.copy(), np.full(len(start), settings.max_iter, np.int32)
    live, now = table.everyone, start
    for iteration in range(1, settings.max_iter + 1):
        moved = _step(table, live, now)
        shift = moved - now
        done = np.add.reduce(shift * shift, axis=1) <= rest[live]
        centers[live], now = moved, moved
        if done.any():
            iterations[live[done]] = iteration
            live, now = live[~done], moved[~done]
        if not len(live):
            break
    return _answer(table, centers, iterations)


def _step(table: SortedTable, live: Ints, centers: Floats) -> Floats:
    """The next centers: the means, and new places for centers that have no values."""
    cells = table.cells(live, centers)
    means = cells.means
    empty = np.count_nonzero(cells.counts == 0, axis=1)
    some = np.flatnonzero(empty)
    if len(some):
        plenty = np.array([_changes(table, row) >= means.shape[1] for row in live[some].tolist()])
        one = some[plenty & (empty[some] == 1)]
        means[one] = _one_refilled(table, live[one], centers[one], cells, one)
        for i in np.setdiff1d(some, one).tolist():
            means[i] = _refilled(table.row(int(live[i])), centers[i], cells, i)
    return means


def _changes(table: SortedTable, row: int) -> int:
    """Distinct values, less one."""
    values = table.row(row)
    return int(np.count_nonzero(values[1:] != values[:-1]))


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


def _answer(table: SortedTable, centers: Floats, iterations: NDArray[np.int32]) -> Clusters:
    """Counts and inertia around the final centers."""
    cells = table.cells(table.everyone, centers)
    inertia = table.squares - np.add.reduce((2 * cells.totals - cells.counts * centers) * centers, axis=1)
    for row in np.flatnonzero(inertia <= CANCELLED * table.squares).tolist():
        inertia[row] = table.inertia(row, centers[row], cells.counts[row])
    return Clusters(centers, cells.counts, inertia, iterations, np.empty((len(centers), 0), np.int32), table.ok)


def _tidied(found: Clusters) -> Clusters:
    """Centers without values come last, as repeats of the last one that has some."""
    for row in np.flatnonzero((found.counts == 0).any(axis=1)):
        used = found.counts[row] > 0
        have = np.count_nonzero(used)
        found.centers[row, :have], found.counts[row, :have] = found.centers[row, used], found.counts[row, used]
        found.centers[row, have:], found.counts[row, have:] = found.centers[row, have - 1], 0
    return found


def _better(old: Clusters, new: Clusters) -> Clusters:
    """Row by row the one of lower inertia, the older on a tie."""
    wins = new.inertia < old.inertia
    return Clusters(
        centers=np.where(wins[:, None], new.centers, old.centers),
        counts=np.where(wins[:, None], new.counts, old.counts),
        inertia=np.where(wins, new.inertia, old.inertia),
        iterations=np.where(wins, new.iterations, old.iterations),
        labels=old.labels,
        ok=old.ok,
    )
