"""Sorted Lloyd: sklearn's fixed point from the same start, the quality of its own, rows that never see each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from benchmarks.distributions import DISTRIBUTIONS, sample
from muster.jobs.clustering import lloyd
from muster.jobs.clustering.lloyd import Clusters, LloydSettings
from muster.jobs.clustering.sorted_rows import Buffers, SortedTable, why_none

Array = np.ndarray[Any, Any]
SHAPES = ("normal", "laplace", "t3", "relu", "bimodal", "uniform")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """For sklearn: its bits change with their number, and on a busy machine they wait for each other."""
    with threadpool_limits(1):
        yield


def rows_of(shape: str, count: int, n: int, seed: int = 0) -> Array:
    rng = np.random.default_rng([seed, n])
    if shape == "t3":
        return rng.standard_t(3, (count, n))
    if shape == "laplace":
        return rng.laplace(size=(count, n))
    if shape == "uniform":
        return rng.random((count, n))
    normal = rng.standard_normal((count, n))
    if shape == "relu":
        return np.maximum(normal, 0)
    return normal * 0.3 + rng.choice([-2.0, 2.0], (count, n)) if shape == "bimodal" else normal


def sklearn_fit(row: Array, k: int, init: Any, **more: Any) -> Any:
    return KMeans(k, init=init, n_init=1, **more).fit(np.asarray(row, np.float64)[:, None])


def same(one: Clusters, other: Clusters) -> bool:
    names = ("centers", "counts", "inertia", "iterations", "labels")
    return all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in names)


def by_hand(row: Array, centers: Array) -> tuple[Array, float]:
    """Counts and inertia around `centers`, from every distance."""
    distances = np.abs(row.astype(np.float64)[:, None] - centers)
    return np.bincount(distances.argmin(axis=1), minlength=len(centers)), float((distances.min(axis=1) ** 2).sum())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [300, 5000])
@pytest.mark.parametrize("k", [1, 2, 7, 40])
def test_it_lands_where_sklearn_lands_from_the_same_start(shape: str, n: int, k: int) -> None:
    rows = rows_of(shape, 3, n)
    init = np.random.default_rng(k).choice(rows[0][rows[0] != 0], k, replace=False)
    found = lloyd.cluster(rows, LloydSettings(k, init=init, tol=1e-4), labels=True)
    for i, row in enumerate(rows):
        theirs = sklearn_fit(row, k, init[:, None])
        order = theirs.cluster_centers_[:, 0].argsort()
        np.testing.assert_allclose(found.centers[i], theirs.cluster_centers_[order, 0], rtol=1e-9, atol=1e-12)
        assert abs(found.iterations[i] - theirs.n_iter_) <= (k == 1)
        assert found.inertia[i] == pytest.approx(theirs.inertia_, rel=1e-9)
        np.testing.assert_array_equal(found.labels[i], order.argsort()[theirs.labels_])
        np.testing.assert_array_equal(found.counts[i], np.bincount(found.labels[i], minlength=k))


def test_empty_clusters_move_as_in_sklearn() -> None:
    row = rows_of("t3", 1, 2000)
    init = np.array([0.0, 0.1, 500.0, 600.0, 700.0])
    found = lloyd.cluster(row, LloydSettings(5, init=init, tol=1e-4))
    theirs = sklearn_fit(row[0], 5, init[:, None])
    np.testing.assert_allclose(found.centers[0], np.sort(theirs.cluster_centers_[:, 0]), rtol=1e-9)
    assert found.iterations[0] == theirs.n_iter_ and found.counts.min() > 0


@pytest.mark.parametrize("shape", SHAPES)
def test_one_empty_cluster_moves_in_many_rows_as_in_one(shape: str) -> None:
    rows = rows_of(shape, 40, 60).round(1)
    table = SortedTable(rows, 0, Buffers(40, 60, rows.dtype))
    centers = np.sort(np.random.default_rng(1).standard_normal((40, 6)) * 2, axis=1)
    cells = table.cells(table.everyone, centers)
    one = np.flatnonzero(np.count_nonzero(cells.counts == 0, axis=1) == 1)
    moved = lloyd._one_refilled(table, one, centers[one], cells, one)
    for i, row in zip(one.tolist(), moved, strict=True):
        assert row.tobytes() == lloyd._refilled(table.row(i), centers[i], cells, i).tobytes()


@pytest.mark.parametrize("more", [{"max_iter": 1}, {"max_iter": 3}, {"tol": 0.0}, {"tol": 0.1}])
def test_max_iter_and_tol_stop_where_sklearn_stops(more: dict[str, Any]) -> None:
    row = rows_of("normal", 1, 3000)
    init = np.linspace(-1, 1, 6)
    found = lloyd.cluster(row, LloydSettings(6, init=init, **{"tol": 1e-4, **more}))
    theirs = KMeans(6, init=init[:, None], n_init=1, **more)
    if more.get("max_iter", 300) > 3:
        theirs.fit(row[0][:, None])
        assert found.iterations[0] == theirs.n_iter_
        np.testing.assert_allclose(found.centers[0], theirs.cluster_centers_[:, 0], rtol=1e-9)
    else:
        assert found.iterations[0] == more["max_iter"]
    counts, inertia = by_hand(row[0], found.centers[0])
    assert found.counts[0].tolist() == counts.tolist() and found.inertia[0] == pytest.approx(inertia, rel=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("n", "k", "count"), [(1024, 16, 24), (1024, 128, 5), (16384, 16, 4), (16384, 128, 2)])
def test_the_density_start_is_as_good_as_k_means_plus_plus(shape: str, n: int, k: int, count: int) -> None:
    rows = rows_of(shape, count, n)
    theirs = [sklearn_fit(row, k, "k-means++", random_state=seed).inertia_ for row in rows for seed in (0, 1)]
    assert lloyd.cluster(rows, LloydSettings(k)).inertia.mean() <= 1.01 * np.mean(theirs)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_on_any_data_it_is_close_to_the_best_and_its_centers_are_means(name: str) -> None:
    rows = sample(name, 10, 1024)
    found, best = (lloyd.cluster(rows, LloydSettings(16, exact=exact)) for exact in (False, True))
    least = 1e-12 * rows.astype(np.float64).var(axis=1)
    over = (found.inertia + least) / (best.inertia + least)
    assert over.mean() <= 1.02 and over.max() <= 1.1
    for row, counts, centers in zip(rows, found.counts, found.centers, strict=True):
        distinct = len(np.unique(row))
        assert np.count_nonzero(counts) == min(16, distinct)
        if distinct <= 60:
            assert over.max() <= 1 + 1e-9
        cells = np.split(np.sort(row.astype(np.float64)), counts.cumsum()[:-1])
        for cell, center in zip(cells[: min(16, distinct)], centers, strict=False):
            exact_mean = cell[0] + (cell - cell[0]).mean()
            assert abs(center - exact_mean) <= max(1e-3 * cell.std(), np.spacing(np.abs(cell).max()))


@pytest.mark.parametrize(("n", "k"), [(16384, 4), (65536, 16), (30000, 60)])
def test_large_cells_come_to_rest_too(n: int, k: int) -> None:
    rows = rows_of("t3", 2, n)
    found = lloyd.cluster(rows, LloydSettings(k))
    assert found.iterations.max() < 300
    for row, counts, centers in zip(rows, found.counts, found.centers, strict=True):
        for cell, center in zip(np.split(np.sort(row), counts.cumsum()[:-1]), centers, strict=True):
            assert abs(center - cell.mean()) <= 1e-3 * cell.std() + 1e-12


def test_equal_values_are_their_own_center() -> None:
    rows = np.random.default_rng(2).standard_normal((20, 1024))
    rows[:, :61], rows[:, 61:63] = 3.0, (1e4, -1e4)
    found = lloyd.cluster(rows, LloydSettings(16, init="k-means++"))
    for row, counts, centers in zip(rows, found.counts, found.centers, strict=True):
        for cell, center in zip(np.split(np.sort(row), counts.cumsum()[:-1]), centers, strict=True):
            assert center == pytest.approx(cell.mean(), abs=1e-3 * cell.std() + 1e-12)


@pytest.mark.parametrize("init", ["density", "k-means++", "random", "exact"])
@pytest.mark.parametrize(("n", "k"), [(40, 5), (257, 40), (1024, 16), (5000, 33)])
def test_a_row_never_sees_its_neighbours(init: Any, n: int, k: int) -> None:
    rows = rows_of("t3", 9, n).astype(np.float32)
    rows[3] = np.round(rows[3])
    rows[5:7, :3], rows[8, ::2] = 1e5, 0
    settings = LloydSettings(k, exact=True) if init == "exact" else LloydSettings(k, init=init, n_init=2)
    whole = lloyd.cluster(rows, settings, first_row=70, labels=True)
    for i in range(len(rows)):
        alone = lloyd.cluster(rows[i : i + 1], settings, first_row=70 + i, labels=True)
        assert all(
            getattr(alone, name).tobytes() == getattr(whole, name)[i : i + 1].tobytes()
            for name in ("centers", "counts", "inertia", "iterations", "labels")
        )


@pytest.mark.parametrize("seed", range(12))
def test_rows_full_of_ties_stay_sorted_and_to_themselves(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(20, 200)), int(rng.integers(2, 20))
    rows = np.rint(rng.standard_t(2, (30, n)) * rng.choice([0.7, 3, 30], (30, 1)))
    rows[rng.random(rows.shape) < 0.3] = 0
    found = lloyd.cluster(rows, LloydSettings(k), labels=True)
    assert (np.diff(found.centers) >= 0).all() and (found.counts >= 0).all()
    for i, row in enumerate(rows):
        assert found.inertia[i] == pytest.approx(by_hand(row, found.centers[i])[1], rel=1e-9, abs=1e-12)
        assert np.bincount(found.labels[i], minlength=k).tolist() == found.counts[i].tolist()
        alone = lloyd.cluster(rows[i : i + 1], LloydSettings(k), labels=True)
        assert alone.centers.tobytes() == found.centers[i : i + 1].tobytes()


def test_batches_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of("laplace", 50, 500)
    whole = lloyd.cluster(rows, LloydSettings(12), labels=True)
    for values in (1, 500 * 7, 500 * 49):
        monkeypatch.setattr(lloyd, "BATCH_VALUES", values)
        assert same(lloyd.cluster(rows, LloydSettings(12), labels=True), whole)


def test_alignment_and_strides_do_not_show() -> None:
    rows = rows_of("normal", 4, 1001).astype(np.float32)
    whole = lloyd.cluster(rows, LloydSettings(9), labels=True)
    raw = bytearray(rows.nbytes + 1)
    odd = np.frombuffer(raw, np.float32, offset=0, count=rows.size).reshape(rows.shape)
    odd[:] = rows
    odd = np.ndarray(rows.shape, np.float32, buffer=memoryview(raw), offset=1)
    odd[:] = rows
    assert same(lloyd.cluster(odd, LloydSettings(9), labels=True), whole)
    assert same(lloyd.cluster(np.asfortranarray(rows), LloydSettings(9), labels=True), whole)


def test_the_order_of_values_does_not_show() -> None:
    rows = rows_of("t3", 2, 700)
    mixed = np.random.default_rng(3).permuted(rows, axis=1)
    assert same(lloyd.cluster(rows, LloydSettings(11)), lloyd.cluster(mixed, LloydSettings(11)))


@pytest.mark.parametrize("dtype", ["<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "i1", "u1", ">i2", "<u4", ">i8", "<u8"])
def test_every_dtype_counts_and_sums_right(dtype: str) -> None:
    rows = np.clip(np.random.default_rng(0).standard_normal((3, 900)) * 30 + 60, 0, 127).astype(dtype)
    found = lloyd.cluster(rows, LloydSettings(10), labels=True)
    for i, row in enumerate(rows):
        counts, inertia = by_hand(row, found.centers[i])
        assert found.counts[i].tolist() == counts.tolist() and found.counts[i].sum() == 900
        assert found.inertia[i] == pytest.approx(inertia, rel=1e-11)
        assert (np.diff(found.centers[i]) > 0).all()


def test_byte_order_does_not_show() -> None:
    rows = rows_of("normal", 3, 400).astype("<f4")
    assert same(
        lloyd.cluster(rows, LloydSettings(7), labels=True),
        lloyd.cluster(rows.astype(">f4"), LloydSettings(7), labels=True),
    )


@pytest.mark.parametrize("offset", [1e6, -1e6, 1e9])
def test_inertia_is_right_far_from_zero(offset: float) -> None:
    rows = rows_of("normal", 2, 4096) + offset
    found = lloyd.cluster(rows, LloydSettings(32))
    for i, row in enumerate(rows):
        exact = np.float64(((row - offset - (found.centers[i] - offset)[:, None]) ** 2).min(axis=0).sum())
        assert found.inertia[i] == pytest.approx(exact, rel=1e-9 if abs(offset) < 1e7 else 1e-5)


def test_one_wild_value_spoils_nothing() -> None:
    rows = rows_of("normal", 2, 4097)
    rows[0, 5], rows[1, 5] = -1e38, 1e38
    found = lloyd.cluster(rows, LloydSettings(16, tol=0.0))
    for i, (row, wild) in enumerate(zip(rows, (0, 15), strict=True)):
        assert found.counts[i, wild] == 1
        tame = np.delete(row, 5)
        centers = np.delete(found.centers[i], wild)
        counts, inertia = by_hand(tame, centers)
        assert np.delete(found.counts[i], wild).tolist() == counts.tolist()
        assert found.inertia[i] == pytest.approx(inertia, rel=1e-9)
        means = [part.mean() for part in np.split(np.sort(tame), counts.cumsum()[:-1])]
        np.testing.assert_allclose(centers, means, rtol=1e-9)


def test_running_sums_are_the_sums() -> None:
    for n in (1, 2, 7, 8, 9, 15, 16, 17, 64, 1001, 1024, 33_001):
        rows = np.random.default_rng(n).integers(-50, 50, (3, n)).astype(float)
        table = SortedTable(rows, 0, Buffers(3, n, rows.dtype))
        values = np.array([table.row(row) for row in range(3)])
        before = np.concatenate([np.zeros((3, 1)), values.cumsum(axis=1)], axis=1)
        sums = table.sums(table.everyone, np.arange(n + 1)[None, :].repeat(3, axis=0))
        np.testing.assert_array_equal(sums - sums[:, :1], before)
        np.testing.assert_array_equal(table.squares, (values**2).sum(axis=1))


@pytest.mark.parametrize("n", [1, 5, 8, 1023, 1024, 1031, 8191, 70_001])
def test_search_counts_the_values_at_or_below_an_edge(n: int) -> None:
    rows = np.random.default_rng(n).standard_t(2, (3, n)).astype(np.float32)
    rows[1] = np.round(rows[1])
    table = SortedTable(rows, 0, Buffers(3, n, rows.dtype))
    for live in (table.everyone, np.array([1]), np.array([0, 2])):
        values = np.array([table.row(row) for row in live.tolist()])
        edges = np.sort(np.concatenate([values[:, :: max(1, n // 50)], values[:, -1:], values[:, :1] - 1], axis=1))
        found = table.search(live, np.concatenate([edges, edges[:, -1:] + 1], axis=1))
        for row, wanted, mine in zip(values, edges, found, strict=True):
            assert mine.tolist() == [*row.searchsorted(wanted, "right").tolist(), n]


@pytest.mark.parametrize("init", ["density", "k-means++", "random", np.array([1.0, 5.0, 3.0, 9.0, 2.0])])
def test_fewer_distinct_values_than_clusters(init: Any) -> None:
    row = np.array([[3.0, 1.0, 3.0, 2.5, 1.0, 3.0, 2.5]])
    found = lloyd.cluster(row, LloydSettings(5, init=init), labels=True)
    assert found.centers.tolist() == [[1.0, 2.5, 3.0, 3.0, 3.0]]
    assert found.counts.tolist() == [[2, 2, 3, 0, 0]]
    assert found.inertia.tolist() == [0.0]
    assert found.labels.tolist() == [[2, 0, 2, 1, 0, 2, 1]]


@pytest.mark.parametrize("init", ["density", "k-means++", "random"])
def test_as_many_clusters_as_values(init: Any) -> None:
    row = np.array([[4.0, -1.0, 2.0, 8.0]])
    found = lloyd.cluster(row, LloydSettings(4, init=init))
    assert found.centers.tolist() == [[-1.0, 2.0, 4.0, 8.0]] and found.counts.tolist() == [[1, 1, 1, 1]]


@pytest.mark.parametrize("value", [0.0, 0.1, -7.25, 1e300])
def test_a_constant_row(value: float) -> None:
    found = lloyd.cluster(np.full((2, 50), value), LloydSettings(3))
    assert found.centers.tolist() == [[value] * 3] * 2
    assert found.counts.tolist() == [[50, 0, 0]] * 2 and found.inertia.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("init", ["density", "k-means++"])
def test_rows_without_an_answer_leave_those_beside_them_as_they_are(wrong: float, dtype: Any, init: Any) -> None:
    rows = rows_of("normal", 300, 90).astype(dtype)
    bad = [0, 17, 18, 150, 299]
    settings = LloydSettings(4, init=init)
    good = lloyd.cluster(rows, settings, first_row=1000, labels=True)
    rows[bad, 4] = wrong
    found = lloyd.cluster(rows, settings, first_row=1000, labels=True)
    assert good.ok.all() and np.flatnonzero(~found.ok).tolist() == bad
    for field in fields(Clusters):
        assert np.array_equal(getattr(found, field.name)[found.ok], getattr(good, field.name)[found.ok])


def test_why_a_row_has_no_answer() -> None:
    wide = np.array([[-1e200, 0, 1e200], [1, 2, 3]])
    assert lloyd.cluster(wide, LloydSettings(2)).ok.tolist() == [False, True]
    assert why_none(wide[0]).startswith("has values too far apart")
    assert why_none(np.array([1, np.nan])) == "has a value that is not finite"
    assert why_none(np.array([[np.nan, np.inf], [-np.inf, 1]])) == "has 3 values that are not finite"


def test_random_state_and_row_number_decide_a_drawn_start() -> None:
    row = rows_of("normal", 1, 500).repeat(2, axis=0)
    drawn_starts: tuple[Any, ...] = ("random", "k-means++")
    for init in drawn_starts:
        settings = LloydSettings(9, init=init, max_iter=1)
        drawn = lloyd.cluster(row, settings)
        assert drawn.centers[0].tolist() != drawn.centers[1].tolist()
        again = lloyd.cluster(row[:1], settings, first_row=1)
        assert again.centers[0].tolist() == drawn.centers[1].tolist()
        other = lloyd.cluster(row[:1], replace(settings, random_state=1))
        assert other.centers[0].tolist() != drawn.centers[0].tolist()


def test_more_starts_are_never_worse() -> None:
    rows = rows_of("t3", 6, 400)
    one, many = (lloyd.cluster(rows, LloydSettings(12, init="random", n_init=times)) for times in (1, 6))
    assert (many.inertia <= one.inertia).all() and (many.inertia < one.inertia).any()


def test_k_means_plus_plus_is_as_good_as_sklearns() -> None:
    rows = rows_of("laplace", 16, 1000)
    theirs = [sklearn_fit(row, 16, "k-means++", random_state=seed).inertia_ for row in rows for seed in (0, 1)]
    ours = lloyd.cluster(rows, LloydSettings(16, init="k-means++", n_init=1)).inertia
    assert 0.93 < ours.mean() / np.mean(theirs) < 1.07
