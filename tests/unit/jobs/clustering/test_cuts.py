"""Moving all cuts at once: what is gained, that a bad start is left behind, that far values cost no precision."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from benchmarks.distributions import sample
from muster.jobs.clustering import cuts, lloyd, optimum
from muster.jobs.clustering.lloyd import LloydSettings
from muster.jobs.clustering.sorted_rows import Buffers, SortedTable

Array = np.ndarray[Any, Any]


def table_of(rows: Array) -> SortedTable:
    return SortedTable(rows, 0, Buffers(len(rows), rows.shape[1], rows.dtype))


def inertia(row: Array, bounds: Array) -> float:
    parts = np.split(np.sort(row.astype(np.float64)), bounds[1:-1])
    return sum(float(np.square(part - part[0] - (part - part[0]).mean()).sum()) for part in parts if len(part))


@pytest.mark.parametrize("name", ["normal", "t3", "one 1e8", "1% outliers", "two far lumps", "lognormal 3", "pareto 1"])
@pytest.mark.parametrize("full", [0, 7, 15])
def test_the_worst_start_is_left_behind(name: str, full: int) -> None:
    rows = sample(name, 5, 1024)
    bounds = np.zeros((5, 17), np.int64)
    bounds[:, full + 1 :] = 1024  # all values in one cell
    found = cuts.settle(table_of(rows), np.arange(5), bounds)
    best = lloyd.cluster(rows, LloydSettings(16, exact=True)).inertia
    assert np.mean([inertia(row, own) for row, own in zip(rows, found, strict=True)] / best) < 1.05


@pytest.mark.parametrize(("n", "share"), [(1024, 1e-12), (20_000, 1e-4)])
def test_no_value_at_a_cut_had_much_better_be_in_the_other_cell(n: int, share: float) -> None:
    rows = sample("laplace", 4, n)
    found = cuts.settle(table_of(rows), np.arange(4), np.tile(np.arange(9) * (n // 8), (4, 1)))
    for row, bounds in zip(rows, found, strict=True):
        least = inertia(row, bounds)
        for cut in range(1, 8):
            for way in (-1, 1):
                other = bounds.copy()
                other[cut] += way
                assert inertia(row, other) >= least * (1 - share)


def test_settled_rows_do_not_see_each_other() -> None:
    rows = np.concatenate([sample(name, 3, 1024) for name in ("normal", "cauchy", "relu")])
    bounds = np.tile(np.arange(17) * 64, (9, 1))
    whole = cuts.settle(table_of(rows), np.arange(9), bounds)
    for i in range(9):
        assert (cuts.settle(table_of(rows[i : i + 1]), np.arange(1), bounds[:1]) == whole[i]).all()


@pytest.mark.parametrize("seed", range(10))
def test_unions_of_grains_are_the_best_within_reach(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts, means = rng.integers(0, 4, (3, 12)), np.sort(rng.standard_cauchy((3, 12)), axis=1)
    for stride, reach in ((4, 4), (4, 2), (1, 0)):
        k = 12 // stride if reach else 4
        found = optimum.best_unions(counts, means, k, stride, reach)
        for i in range(3):
            row = np.repeat(means[i], counts[i])
            after = np.append(0, counts[i].cumsum())
            ways = [np.array([0, *way, 12]) for way in combinations(range(1, 12), k - 1)]
            within = [way for way in ways if not reach or (np.abs(way - np.arange(k + 1) * stride) <= reach).all()]
            best = min(inertia(row, after[way]) for way in within)
            assert inertia(row, after[found.cuts[i]]) == pytest.approx(best, rel=1e-9, abs=1e-12)
            assert found.inertia[i] == pytest.approx(best, rel=1e-9, abs=1e-12)
