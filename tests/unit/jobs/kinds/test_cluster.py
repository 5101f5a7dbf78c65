"""The kind `cluster`: what its parameters may be, what it declares, and that a shard's cut never shows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from muster.jobs.clustering.initial_centers import stream
from muster.jobs.clustering.params import ClusterParams
from muster.jobs.common.errors import JobFileError
from muster.jobs.contract.kind import Bench, Result, Shape, Shard, ShardFailure, Site
from muster.jobs.contract.plan import Output
from muster.jobs.kinds import registry
from muster.jobs.kinds.cluster import Cluster
from muster.jobs.results.outputs import settle

Array = np.ndarray[Any, Any]
ONE, SEVERAL = Shape((64,), "<f4"), Shape((64, 3), "<f4")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """For sklearn: its bits change with their number, and on a busy machine they wait for each other."""
    with threadpool_limits(1):
        yield


def params(**given: Any) -> ClusterParams:
    return msgspec.convert(given, ClusterParams, strict=False)


def run(rows: Array, first_row: int = 0, **given: Any) -> dict[str, Array]:
    typed = params(**given)
    shape = Shape(rows.shape[1:], rows.dtype.str)
    Cluster().check(typed, shape)
    runner = Cluster().open(Bench(typed, cpus=1, timeout=None, scratch=Path()))
    try:
        result: Result = runner.run(Shard("layer", 0, first_row, rows))
    finally:
        runner.close()
    settle(result, Cluster().declare(typed, shape), len(rows))
    return {name: value for name, value in result.items() if isinstance(value, np.ndarray)}


def blobs(count: int, n: int, dtype: Any = np.float32) -> Array:
    rng = np.random.default_rng(5)
    made: Array = (rng.standard_normal((count, n, 3)) + rng.choice([-5, 5], (count, n, 3))).astype(dtype)
    return made


def test_it_is_found_by_its_name() -> None:
    kind = registry.load("cluster")
    assert isinstance(kind, Cluster) and kind.kernel == 3 and not kind.wants_code


def test_defaults_are_sklearns() -> None:
    ours, theirs = msgspec.to_builtins(params()), KMeans().get_params()
    for name in ("n_clusters", "n_init", "max_iter", "algorithm"):
        assert ours[name] == theirs[name]


@pytest.mark.parametrize(
    ("given", "shape", "text"),
    [
        ({}, Shape((), "<f4"), "source: cluster cannot read rows of shape ()"),
        ({}, Shape((2, 3, 4), "<f4"), "source: cluster cannot read rows of shape (2, 3, 4)"),
        ({}, Shape((0,), "<f4"), "source: cluster cannot read rows of shape (0,)"),
        ({}, Shape((64,), "<c8"), "source: cluster cannot read <c8"),
        ({}, Shape((64,), "|b1"), "source: cluster cannot read |b1"),
        ({}, None, "source: cluster needs the rows of an array"),
        ({"n_clusters": 65}, ONE, "params.n_clusters: expected at most 64, the values of a row, got 65"),
        ({"n_clusters": 65}, SEVERAL, "params.n_clusters: expected at most 64"),
        ({"tol": float("inf")}, ONE, "params.tol"),
        ({"algorithm": "exact"}, SEVERAL, "params.algorithm: exact is for rows of one feature"),
        ({"algorithm": "exact", "n_clusters": 300}, Shape((1 << 20,), "<f4"), "params.algorithm: exact takes 4 bytes"),
        ({"init": "density"}, SEVERAL, "params.init: density is for rows of one feature"),
        ({"init": [1, 2]}, ONE, "params.init: expected 8 numbers"),
        ({"init": [[1], [2]], "n_clusters": 2}, ONE, "params.init: expected 2 numbers"),
        ({"init": [1, float("nan")], "n_clusters": 2}, ONE, "params.init: expected finite numbers"),
        ({"init": [1, 2], "n_clusters": 2}, SEVERAL, "params.init: expected 2 centers of 3 numbers"),
        ({"init": [[1, 2, 3], [4, 5]], "n_clusters": 2}, SEVERAL, "params.init: expected 2 centers of 3 numbers"),
    ],
)
def test_what_could_never_run_is_refused_at_submit(given: dict[str, Any], shape: Shape | None, text: str) -> None:
    with pytest.raises(JobFileError) as caught:
        Cluster().check(params(**given), shape)
    assert text in str(caught.value) and caught.value.hint


@pytest.mark.parametrize(
    "given",
    [
        {"n_clusters": 0},
        {"init": "kmeans"},
        {"n_init": 0},
        {"n_init": "many"},
        {"max_iter": 0},
        {"tol": -1.0},
        {"random_state": -1},
        {"random_state": 1 << 32},
        {"clusters": 3},
        {"algorithm": "fast"},
    ],
)
def test_wrong_values_are_refused_by_their_types(given: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        params(**given)


def test_parameters_survive_being_stored() -> None:
    for given in ({}, {"init": [1, 2.5], "n_clusters": 2}, {"init": [[1, 2], [3, 4]]}, {"n_init": 3, "init": "random"}):
        typed = params(**given)
        assert params(**msgspec.json.decode(msgspec.json.encode(typed))) == typed


@pytest.mark.parametrize(
    ("dtype", "centers"),
    [("<f2", "<f4"), (">f4", "<f4"), ("<f8", "<f8"), ("|i1", "<f8"), ("<u2", "<f8"), (">i8", "<f8")],
)
def test_what_it_declares(dtype: str, centers: str) -> None:
    scalars = (Output("inertia", "rows", "<f8"), Output("iterations", "rows", "<i4"))
    common = (Output("counts", "rows", "<i8", (8,)), *scalars)
    assert Cluster().declare(params(), Shape((64,), dtype)) == (Output("centers", "rows", centers, (8,)), *common)
    declared = Cluster().declare(params(labels=True), Shape((64, 3), dtype))
    assert declared == (Output("centers", "rows", centers, (8, 3)), *common, Output("labels", "rows", "<i4", (64,)))


@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8", ">i2", "u1"])
@pytest.mark.parametrize("several", [False, True])
def test_results_are_as_declared(dtype: str, several: bool) -> None:
    rows = (blobs(3, 40) * 5 + 60).astype(dtype)
    result = run(rows if several else rows[..., 0].copy(), n_clusters=4, labels=True)
    assert sorted(result) == ["centers", "counts", "inertia", "iterations", "labels"]
    assert (result["counts"].sum(axis=1) == 40).all() and (result["iterations"] >= 1).all()
    for counts, labels in zip(result["counts"], result["labels"], strict=True):
        assert np.bincount(labels, minlength=4).tolist() == counts.tolist()


@pytest.mark.parametrize("init", [None, "k-means++", "random"])
@pytest.mark.parametrize("several", [False, True])
def test_the_cut_does_not_show(init: str | None, several: bool) -> None:
    rows = blobs(6, 50)
    rows = rows if several else rows[..., 0].copy()
    whole = run(rows, 10, n_clusters=5, init=init, n_init=2, labels=True)
    pieces = [
        run(rows[a:b], 10 + a, n_clusters=5, init=init, n_init=2, labels=True) for a, b in ((0, 1), (1, 4), (4, 6))
    ]
    for name, value in whole.items():
        assert value.tobytes() == b"".join(piece[name].tobytes() for piece in pieces)


def test_the_input_is_left_alone() -> None:
    rows = blobs(2, 30)[..., 0].copy()
    before = rows.copy()
    rows.flags.writeable = False
    run(rows, n_clusters=3)
    np.testing.assert_array_equal(rows, before)


def test_several_features_are_sklearns() -> None:
    rows = blobs(2, 80)
    result = run(rows, 7, n_clusters=4, random_state=3, labels=True)
    for i, row in enumerate(rows):
        theirs = KMeans(4, random_state=stream(3, 7 + i)).fit(row)
        np.testing.assert_array_equal(result["centers"][i], theirs.cluster_centers_)
        np.testing.assert_array_equal(result["labels"][i], theirs.labels_)
        assert result["inertia"][i] == theirs.inertia_ and result["iterations"][i] == theirs.n_iter_


@pytest.mark.parametrize("more", [{"algorithm": "elkan"}, {"max_iter": 1}, {"init": [[5, 5, 5], [-5, -5, -5]]}])
def test_several_features_take_sklearns_parameters(more: dict[str, Any]) -> None:
    rows = blobs(1, 60, np.float64)
    result = run(rows, n_clusters=2, **more)
    given = {**more, "init": np.array(more["init"], float)} if "init" in more else more
    theirs = KMeans(2, random_state=stream(0, 0), **({"n_init": 1} if "init" in more else {}), **given).fit(rows[0])
    np.testing.assert_array_equal(result["centers"][0], theirs.cluster_centers_)


def test_exact_is_an_algorithm() -> None:
    rows = np.random.default_rng(1).standard_t(2, (30, 300)).astype(np.float32)
    best, default = (run(rows, n_clusters=20, algorithm=name, init="random", n_init=1) for name in ("exact", "lloyd"))
    assert (best["inertia"] <= default["inertia"] * (1 + 1e-12)).all()
    assert best["inertia"].sum() < 0.98 * default["inertia"].sum()


def test_fewer_distinct_points_than_clusters_is_no_failure() -> None:
    rows = np.zeros((1, 10, 3), np.float32)
    rows[0, :5] = 1
    result = run(rows, n_clusters=3)
    assert result["inertia"].tolist() == [0.0] and result["counts"].sum() == 10


@pytest.mark.parametrize("several", [False, True])
def test_a_row_without_an_answer_fails_its_shard_by_its_number(several: bool) -> None:
    rows = blobs(4, 20)
    rows[2, 3, 0] = np.nan
    named = "row 102 of layer layer has a value that is not finite; `on_item_error: record` keeps the others"
    with pytest.raises(ShardFailure, match=named) as caught:
        run(rows if several else rows[..., 0].copy(), 100, n_clusters=3)
    assert caught.value.code == "data"
    rows[3, :4, 0] = np.inf
    with pytest.raises(ShardFailure, match="not finite, and 1 more of its shard have no answer; "):
        run(rows if several else rows[..., 0].copy(), 100, n_clusters=3)


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
@pytest.mark.parametrize("several", [False, True])
def test_rows_without_an_answer_are_recorded_and_the_others_have_theirs(several: bool, dtype: str) -> None:
    given: dict[str, Any] = {"n_clusters": 3, "labels": True, "init": "k-means++"}
    whole = blobs(6, 20, dtype)
    rows = whole.copy()
    rows[0, 3, 0], rows[4, :, 0] = np.inf, np.nan
    whole, rows = (one if several else one[..., 0].copy() for one in (whole, rows))
    expected, found = run(whole, 100, **given), run(rows, 100, on_item_error="record", **given)
    assert found["ok"].tolist() == [False, True, True, True, False, True]
    for name, array in expected.items():
        assert np.array_equal(found[name][found["ok"]], array[found["ok"]])
        left_out = found[name][~found["ok"]]
        assert np.isnan(left_out).all() if array.dtype.kind == "f" else not left_out.any()


def test_a_shard_of_which_no_row_has_an_answer_is_recorded_too() -> None:
    found = run(np.full((2, 9), np.nan), n_clusters=3, on_item_error="record")
    assert not found["ok"].any() and np.isnan(found["centers"]).all()


def test_a_plan_says_only_that_rows_are_recorded() -> None:
    site = Site(Path(), (ONE,), 1, has_code=False, python=None)
    stored = [
        msgspec.to_builtins(Cluster().prepare(params(**given), site).params)
        for given in ({}, {"on_item_error": "fail"}, {"on_item_error": "record"})
    ]
    assert stored[0] == stored[1] and "on_item_error" not in stored[0]
    assert stored[2] == {**stored[0], "on_item_error": "record"}
    assert Cluster().declare(params(**stored[2]), ONE)[-1] == Output("ok", "rows", "|b1")


def test_random_takes_ten_starts_by_itself() -> None:
    rows = np.random.default_rng(0).standard_t(3, (3, 300))
    auto, ten, one = (run(rows, n_clusters=9, init="random", n_init=times) for times in ("auto", 10, 1))
    assert auto["inertia"].tolist() == ten["inertia"].tolist()
    assert (auto["inertia"] <= one["inertia"]).all()


def test_one_feature_imports_numpy_alone() -> None:
    code = """if True:
        import sys
        import numpy as np
        from pathlib import Path
        from muster.jobs.kinds import Bench, Shard
        from muster.jobs.kinds.cluster import Cluster, ClusterParams
        assert "numpy.linalg" in sys.modules and "muster.jobs.clustering.lloyd" not in sys.modules
        runner = Cluster().open(Bench(ClusterParams(n_clusters=2), 1, None, Path()))
        runner.run(Shard("x", 0, 0, np.arange(12.0).reshape(2, 6)))
        print([name for name in ("sklearn", "scipy", "threadpoolctl", "ray") if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")
