"""The kind `infer`: rows through a model that each worker opens once. An MLP runs here, all others in a runner."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

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
    Total,
)
from muster.jobs.contract.plan import Output, Work
from muster.jobs.contract.shard_size import RowCost
from muster.jobs.inference.params import INERT_FORMATS, MLP_FORMATS, NAN_ROWS, RESTS_ON, SUFFIXES, InferParams
from muster.jobs.kinds.map import check_args
from muster.jobs.results import output_declarations

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    Array = np.ndarray[Any, Any]

SHOWN_ROWS = 5


class Infer(Kind[InferParams]):
    """One row of each output per input row."""

    name = "infer"
    kernel = 1
    Params = InferParams
    may_have_code = True
    names_model = True

    def check(self, params: InferParams, shape: Shape | None) -> None:
        output_declarations.check(params.outputs, reserved=(NAN_ROWS,))
        check_args(params.args)
        if shape is None:
            raise JobFileError("source: infer needs the rows of an array", "source: {path: rows.npy}")

    def prepare(self, params: InferParams, site: Site) -> Prepared[InferParams]:
        from muster.jobs.inference import plan_model

        return plan_model.prepare(params, site)

    def known_answers(self) -> Answers:
        from muster.jobs.kinds import known_answers

        return known_answers.infer()

    def repeats(self, params: InferParams, shape: Shape | None, threads: int, has_code: bool) -> bool:
        """An MLP does, as it runs here."""
        return not has_code and format_named(params.model) in MLP_FORMATS

    def runs_code(self, work: Work) -> bool:
        """Files in which nothing is run are known by name; types that a submitter trusts may do anything."""
        form = SUFFIXES.get(PurePath(str(work.params.get("model"))).suffix.lower())
        harmless = form in INERT_FORMATS and not work.params.get("trusted")
        return super().runs_code(work) or not harmless

    def rests_on(self, params: InferParams, has_code: bool) -> tuple[str, ...]:
        return super().rests_on(params, has_code) if has_code else RESTS_ON.get(format_named(params.model), ())

    def grain(self, params: InferParams) -> int:
        assert params.batch != "auto", "prepared"
        return params.batch

    def row_cost(self, params: InferParams, shape: Shape, work: Work) -> RowCost:
        """Batches are filled up, but for a class of the user's. What a row of a network takes planning has found."""
        assert params.batch != "auto", "prepared"
        if work.code is not None or work.model is None:
            return RowCost()
        return RowCost(least=params.batch)

    def declare(self, params: InferParams, shape: Shape | None) -> tuple[Output, ...] | None:
        outputs = output_declarations.as_outputs(params.outputs)
        if outputs is None or params.nan == "fail":
            return outputs
        with_count = (*outputs, Output(NAN_ROWS, "sum", "<i8"))
        return tuple(sorted(with_count, key=lambda output: output.name))

    def report(self, places: Mapping[str, JobPlace], target: float | None) -> KindReport:
        from muster.jobs.kinds import rows_report

        return rows_report.of_batches(places)

    def open(self, bench: Bench) -> Runner:
        form = None if bench.code else format_named(bench.params.model)
        if form in MLP_FORMATS:
            return InferRunner(bench.params, MlpModel(bench.params, bench.model, form))
        return InferRunner(bench.params, SandboxModel(bench, form))


def format_named(name: str | None) -> str:
    """By the name that was checked when the job was planned."""
    assert name is not None, "a job without code has a model"
    return SUFFIXES[Path(name).suffix.lower()]


@dataclass(frozen=True)
class Given:
    """What a model gave for the rows of a shard."""

    outputs: dict[str, Array]
    nan: Array | None  # per row, where the outputs no longer show it


class InferRunner(Runner):
    """Looks for NaN in what the model gives, and says or counts where it is."""

    def __init__(self, params: InferParams, model: MlpModel | SandboxModel) -> None:
        self._keep = params.nan == "keep"
        self._model = model

    def run(self, shard: Shard) -> Result:
        import numpy as np

        assert shard.rows is not None, "infer runs on rows"
        given = self._model.run(shard, shard.rows)
        self.peak, self.printed = self._model.peak, self._model.printed
        found = _nan_rows(given)
        if not self._keep and len(found):
            came_so = not np.isfinite(shard.rows[found].reshape(len(found), -1)).all(axis=1).any()
            said = _said_of_nan(found + shard.first_row, len(shard.rows))
            raise ShardFailure("data" if came_so else "output", said)
        if not self._keep:
            return given.outputs
        if NAN_ROWS in given.outputs:
            raise ShardFailure("output", f"an output may not be called {NAN_ROWS}: that is their count")
        return {**given.outputs, NAN_ROWS: Total(np.array(len(found), np.int64))}

    def close(self) -> None:
        self._model.close()


def _nan_rows(given: Given) -> Array:
    """Numbers of the rows that have a NaN in any output."""
    import numpy as np

    bad: Any = given.nan
    for array in given.outputs.values():
        if array.dtype.kind == "f":
            one = np.isnan(array).reshape(len(array), -1).any(axis=1)
            bad = one if bad is None else bad | one
    return np.flatnonzero(bad) if bad is not None else np.empty(0, np.int64)


def _said_of_nan(numbers: Array, rows: int) -> str:
    first = ", ".join(str(number) for number in numbers[:SHOWN_ROWS])
    more = ", ..." if len(numbers) > SHOWN_ROWS else ""
    return f"NaN in {len(numbers)} of {rows} rows: {first}{more}; `nan: keep` in params keeps and counts them"


class MlpModel:
    """In this process: nothing in its file can be run."""

    peak = 0
    printed = ""

    def __init__(self, params: InferParams, path: Path | None, form: str) -> None:
        from muster.jobs.inference import mlp

        assert path is not None and params.activation and params.final and params.batch != "auto", "prepared"
        self._network = mlp.load(path, form, params.activation, params.final)
        self._batch = params.batch

    def run(self, shard: Shard, rows: Array) -> Given:
        import numpy as np

        dtype, shape = self._network.output
        out = np.empty((len(rows), *shape), dtype)
        bad = np.zeros(len(rows), bool)
        with np.errstate(all="ignore"):  # NaN is looked for
            for start in range(0, len(rows), self._batch):
                stop = min(start + self._batch, len(rows))
                logits = self._network.batch(_filled_up(rows[start:stop], self._batch))[: stop - start]
                np.isnan(logits).any(axis=1, out=bad[start:stop])
                out[start:stop] = self._network.finished(logits)
        return Given({"out": out}, bad)

    def close(self) -> None:
        """There is nothing to give back."""


def _filled_up(rows: Array, batch: int) -> Array:
    """With zeros: the bits of a product depend on how many rows it has."""
    import numpy as np

    if len(rows) == batch:
        return rows
    whole = np.zeros((batch, *rows.shape[1:]), rows.dtype)
    whole[: len(rows)] = rows
    return whole


class SandboxModel:
    """In a process of its own: a library's, or the user's class."""

    def __init__(self, bench: Bench, form: str | None) -> None:
        from muster.jobs.inference.sandboxed import sandbox

        self._sandbox = sandbox(bench, form)
        self._timeout = bench.timeout

    @property
    def peak(self) -> int:
        return self._sandbox.peak

    @property
    def printed(self) -> str:
        return self._sandbox.printed

    def run(self, shard: Shard, rows: Array) -> Given:
        return Given(self._sandbox.call(shard.number, shard.first_row, rows, self._timeout), None)

    def close(self) -> None:
        self._sandbox.close()
