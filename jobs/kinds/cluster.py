"""The kind `cluster`: every row is a clustering problem of its own. One feature is clustered by `lloyd`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from muster.jobs.clustering.params import ClusterParams
from muster.jobs.common.errors import JobFileError
from muster.jobs.contract.kind import (
    Answers,
    Bench,
    JobPlace,
    Kind,
    KindReport,
    Prepared,
    Result,
    Runner,
    Shape,
    Shard,
    ShardFailure,
    Site,
)
from muster.jobs.contract.plan import Output, Work
from muster.jobs.contract.shard_size import RowCost

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from muster.jobs.clustering.lloyd import Clusters, LloydSettings

RANDOM_STARTS = 10  # sklearn's `auto` of `n_init`, where starts are drawn blindly; 1 elsewhere
VALUE_SECONDS = 6e-9
CENTER_SECONDS = 5e-7
DISTANCE_SECONDS = 3e-8  # of all iterations together
EXACT_LIMIT = 1 << 28
SHAPES_HINT = "rows of one feature are (rows, values), of several (rows, values, features)"


class Cluster(Kind[ClusterParams]):
    """Centers, counts, inertia and iterations of each row; labels on request."""

    name = "cluster"
    kernel = 3
    Params = ClusterParams

    def check(self, params: ClusterParams, shape: Shape | None) -> None:
        if shape is None:
            raise JobFileError("source: cluster needs the rows of an array", SHAPES_HINT)
        if len(shape.row) not in (1, 2) or 0 in shape.row:
            raise JobFileError(f"source: cluster cannot read rows of shape {shape.row}", SHAPES_HINT)
        if shape.dtype[-2] not in "fiu":
            raise JobFileError(f"source: cluster cannot read {shape.dtype}", "use floats or integers")
        n = shape.row[0]
        if params.n_clusters > n:
            wrong = f"params.n_clusters: expected at most {n}, the values of a row, got {params.n_clusters}"
            raise JobFileError(wrong, "ask for fewer clusters, or choose the `layers` whose rows are long enough")
        if params.tol is not None and not math.isfinite(params.tol):
            raise JobFileError("params.tol: expected a finite number", "sklearn's default is 1e-4")
        _check_init(params, shape.row)
        if params.algorithm == "exact":
            _check_exact(params, shape.row)

    def known_answers(self) -> Answers:
        from muster.jobs.kinds import known_answers

        return known_answers.cluster()

    def repeats(self, params: ClusterParams, shape: Shape | None, threads: int, has_code: bool) -> bool:
        """Rows of several features are scikit-learn's, whose threads add up as they come."""
        return threads == 1 or (shape is not None and len(shape.row) == 1)

    def row_cost(self, params: ClusterParams, shape: Shape, work: Work) -> RowCost:
        """As measured on one core: of one feature a sort and cheap steps, of several scikit-learn's distances."""
        values, features = shape.row[0], math.prod(shape.row[1:])
        starts = params.n_init if params.n_init != "auto" else RANDOM_STARTS if params.init == "random" else 1
        if len(shape.row) == 1:
            return RowCost(VALUE_SECONDS * values + CENTER_SECONDS * params.n_clusters * starts)
        return RowCost(DISTANCE_SECONDS * values * features * params.n_clusters * starts)

    def declare(self, params: ClusterParams, shape: Shape | None) -> tuple[Output, ...]:
        assert shape is not None, "checked"
        k, features = params.n_clusters, shape.row[1:]
        outputs = [
            Output("centers", "rows", _center_dtype(shape.dtype), (k, *features)),
            Output("counts", "rows", "<i8", (k,)),
            Output("inertia", "rows", "<f8"),
            Output("iterations", "rows", "<i4"),
        ]
        if params.labels:
            outputs.append(Output("labels", "rows", "<i4", shape.row[:1]))
        if params.on_item_error == "record":
            outputs.append(Output("ok", "rows", "|b1"))
        return tuple(outputs)

    def prepare(self, params: ClusterParams, site: Site) -> Prepared[ClusterParams]:
        """A plan in which it is not `record` does not speak of it: older agents run it, and older digests hold."""
        said = params.on_item_error if params.on_item_error == "record" else msgspec.UNSET
        return Prepared(msgspec.structs.replace(params, on_item_error=said))

    def report(self, places: Mapping[str, JobPlace], target: float | None) -> KindReport:
        from muster.jobs.clustering.report import side_by_side

        return side_by_side(places)

    def open(self, bench: Bench) -> Runner:
        return ClusterRunner(bench.params, bench.cpus)


def _check_init(params: ClusterParams, row: tuple[int, ...]) -> None:
    """Refuse a start that cannot be one for rows of this shape."""
    several = len(row) == 2
    if params.init == "density" and several:
        raise JobFileError("params.init: density is for rows of one feature", "use k-means++, sklearn's default")
    if not isinstance(params.init, list):
        return
    wanted = f"{params.n_clusters} centers of {row[1]} numbers" if several else f"{params.n_clusters} numbers"
    centers = [center if isinstance(center, list) else [center] for center in params.init]
    fits = all(isinstance(center, list) == several for center in params.init)
    fits = fits and all(len(center) == (row[1] if several else 1) for center in centers)
    if not fits or len(centers) != params.n_clusters:
        raise JobFileError(f"params.init: expected {wanted}", "as an array it has one entry per cluster")
    if not all(math.isfinite(number) for center in centers for number in center):
        raise JobFileError("params.init: expected finite numbers", f"give {wanted}")


def _check_exact(params: ClusterParams, row: tuple[int, ...]) -> None:
    if len(row) == 2:
        raise JobFileError("params.algorithm: exact is for rows of one feature", "use lloyd")
    if row[0] * params.n_clusters > EXACT_LIMIT:
        wrong = f"params.algorithm: exact takes 4 bytes for each value and cluster, here {row[0]} * {params.n_clusters}"
        raise JobFileError(wrong, f"use lloyd where their product passes {EXACT_LIMIT}")


def _center_dtype(dtype: str) -> str:
    """float32 for float16 and float32, float64 for float64 and integers."""
    return "<f4" if dtype[-2:] in ("f2", "f4") else "<f8"


class ClusterRunner(Runner):
    """Clusters the rows of a shard; a row's result knows its absolute number, never its shard."""

    def __init__(self, params: ClusterParams, cpus: int) -> None:
        self._params = params
        self._cpus = cpus

    def run(self, shard: Shard) -> Result:
        from muster.jobs.results.outputs import blank

        assert shard.rows is not None, "cluster runs on rows"
        found = self._one_feature(shard) if shard.rows.ndim == 2 else self._several_features(shard)
        record = self._params.on_item_error == "record"
        if not record:
            _refuse_bad_rows(shard, found)
        result: dict[str, np.ndarray[Any, Any]] = {
            "centers": found.centers.astype(_center_dtype(shard.rows.dtype.str)),
            "counts": found.counts,
            "inertia": found.inertia,
            "iterations": found.iterations,
        }
        if self._params.labels:
            result["labels"] = found.labels
        for output in result.values():
            output[~found.ok] = blank(output.dtype)
        return {**result, "ok": found.ok} if record else result

    def _one_feature(self, shard: Shard) -> Clusters:
        from muster.jobs.clustering import lloyd

        assert shard.rows is not None
        return lloyd.cluster(shard.rows, self._settings(), shard.first_row, self._params.labels)

    def _settings(self) -> LloydSettings:
        """sklearn's `auto`: ten starts where they are drawn blindly, one elsewhere."""
        import numpy as np

        from muster.jobs.clustering.lloyd import LloydSettings

        params = self._params
        auto = RANDOM_STARTS if params.init == "random" else 1
        return LloydSettings(
            n_clusters=params.n_clusters,
            init=np.array(params.init, np.float64) if isinstance(params.init, list) else params.init or "density",
            n_init=auto if params.n_init == "auto" else params.n_init,
            max_iter=params.max_iter,
            tol=params.tol,
            random_state=params.random_state,
            exact=params.algorithm == "exact",
        )

    def _several_features(self, shard: Shard) -> Clusters:
        from muster.jobs.clustering import sklearn_rows

        assert shard.rows is not None
        return sklearn_rows.cluster(shard.rows, self._params, shard.first_row, self._cpus)


def _refuse_bad_rows(shard: Shard, found: Clusters) -> None:
    """Where rows have no answer, the shard's failure names the first of them."""
    import numpy as np

    from muster.jobs.clustering.sorted_rows import why_none

    assert shard.rows is not None
    bad = np.flatnonzero(~found.ok)
    if not len(bad):
        return
    first = f"row {shard.first_row + int(bad[0])} of layer {shard.layer} {why_none(shard.rows[bad[0]])}"
    more = f", and {len(bad) - 1:,} more of its shard have no answer" if len(bad) > 1 else ""
    raise ShardFailure("data", f"{first}{more}; `on_item_error: record` keeps the others")
