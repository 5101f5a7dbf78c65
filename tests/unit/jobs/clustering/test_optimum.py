"""The optimum: `exact` finds it always, the default where distinct values are few. kmeans1d is the judge."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import kmeans1d
import numpy as np
import pytest

from benchmarks.distributions import DISTRIBUTIONS, sample
from muster.jobs.clustering import lloyd
from muster.jobs.clustering.lloyd import LloydSettings

Array = np.ndarray[Any, Any]
SPREAD = {"20 powers of ten", "one 1e8", "one -999999999", "5% -999999999", "fourteen outliers", "two far lumps"}


def inertia(row: Array, centers: Array) -> float:
    return float(np.square(row.astype(np.float64)[:, None] - centers).min(axis=1).sum())


def judged(row: Array, k: int) -> float:
    return inertia(row, np.array(kmeans1d.cluster(row.astype(np.float64), k).centroids))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize(("n", "k"), [(320, 16), (320, 100), (128, 2)])
def test_exact_is_the_optimum(name: str, n: int, k: int) -> None:
    rows = sample(name, 3, n)
    found = lloyd.cluster(rows, LloydSettings(k, exact=True))
    for row, mine in zip(rows, found.inertia, strict=True):
        if len(np.unique(row)) <= k:
            assert mine == 0
            continue
        best = judged(row, k)
        assert mine <= best * (1 + 1e-9) + 1e-15 * float(np.square(row.astype(np.float64)).sum())
        if name not in SPREAD:  # the judge's sums cancel there
            assert mine == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_exact_beats_every_other_cut_of_a_short_row(seed: int) -> None:
    rng = np.random.default_rng(seed)
    row = np.sort(np.concatenate([rng.standard_normal(5), 1e9 + rng.standard_normal(4), rng.choice([0.0, 1e4], 3)]))
    k = int(rng.integers(2, 7))
    found = lloyd.cluster(row[None], LloydSettings(k, exact=True)).inertia[0]
    parts = (np.split(row, cuts) for cuts in combinations(range(1, len(row)), k - 1))
    best = min(sum(float(np.square(part - part[0] - (part - part[0]).mean()).sum()) for part in cut) for cut in parts)
    assert found == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("k", [3, 16, 100])
@pytest.mark.parametrize("more", [1, 2, 10, 30])
def test_of_few_distinct_values_the_default_finds_the_optimum(k: int, more: int) -> None:
    rng = np.random.default_rng([k, more])
    for places in (rng.standard_normal(k + more), 2.0 ** np.arange(k + more) / 2.0**k, rng.standard_t(1, k + more)):
        rows = rng.choice(places, (4, 1024))
        found = lloyd.cluster(rows, LloydSettings(k))
        for row, mine, counts in zip(rows, found.inertia, found.counts, strict=True):
            best = lloyd.cluster(row[None], LloydSettings(k, exact=True)).inertia[0]
            assert mine == pytest.approx(best, rel=1e-9) and best <= judged(row, k) * (1 + 1e-9) and counts.min() > 0
