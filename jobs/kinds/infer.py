"""The kind `infer`: rows through a model that each worker opens once. An MLP runs here, all others in a runner."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from jobs import declared
from jobs.declared import Declared
from jobs.errors import JobFileError
from jobs.kinds import Bench, Kind, Prepared, Result, Runner, Shape, Shard, ShardFailure, Site, Total
from jobs.kinds.map import check_args
from jobs.model import Output

if TYPE_CHECKING:
    import numpy as np

    from jobs.sandbox import Sandbox

    Array = np.ndarray[Any, Any]

NAN_ROWS = "nan_rows"
BATCH_BYTES = 4 << 20  # of rows and what layers make of them, for `batch: auto`
BATCH_LIMITS = (16, 4096)
SHOWN_ROWS = 5
MLP_FORMATS = ("npz", "safetensors")
CLASSES = {"skops": "Skops", "pickle": "Pickle", "onnx": "Onnx", "torchscript": "TorchScript"}
NEEDS = {"onnx": ("onnxruntime",), "torchscript": ("torch",)}

Method = Literal["predict", "predict_proba", "predict_log_proba", "decision_function", "transform", "score_samples"]


class InferParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`model`: a file relative to the job file. What is not given is resolved at submit, and stored in the plan."""

    model: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    batch: Literal["auto"] | Annotated[int, Meta(ge=1, le=1 << 24)] = "auto"
    nan: Literal["fail", "keep"] = "fail"
    activation: Literal["relu", "tanh", "sigmoid", "none"] | None = None  # of an MLP
    final: Literal["none", "softmax", "argmax"] | None = None  # of an MLP
    method: Method | None = None  # of an estimator
    trusted: list[str] = []  # types a .skops may hold beyond those that skops knows to be safe
    trust_pickle: bool = False
    device: Annotated[str, Meta(min_length=1, max_length=64)] = "cpu"
    args: dict[str, Any] = {}  # more arguments of the user's class
    outputs: Annotated[dict[str, Declared], Meta(min_length=1)] | None = None


class Infer(Kind[InferParams]):
    """One row of each output per input row."""

    name = "infer"
    kernel = 1
    Params = InferParams
    may_have_code = True

    def check(self, params: InferParams, shape: Shape | None) -> None:
        declared.check(params.outputs, reserved=(NAN_ROWS,))
        check_args(params.args)
        if shape is None:
            raise JobFileError("source: infer needs the rows of an array", "source: {path: rows.npy}")

    def prepare(self, params: InferParams, site: Site) -> Prepared[InferParams]:
        from jobs import planned_model

        return planned_model.prepare(params, site)

    def repeats(self, params: InferParams, shape: Shape | None, threads: int, has_code: bool) -> bool:
        """An MLP does, as it runs here."""
        return not has_code and format_named(params.model) in MLP_FORMATS

    def grain(self, params: InferParams) -> int:
        assert params.batch != "auto", "prepared"
        return params.batch

    def declare(self, params: InferParams, shape: Shape | None) -> tuple[Output, ...] | None:
        outputs = declared.as_outputs(params.outputs)
        if outputs is None or params.nan == "fail":
            return outputs
        with_count = (*outputs, Output(NAN_ROWS, "sum", "<i8"))
        return tuple(sorted(with_count, key=lambda output: output.name))

    def open(self, bench: Bench) -> Runner:
        form = None if bench.code else format_named(bench.params.model)
        if form in MLP_FORMATS:
            return InferRunner(bench.params, MlpModel(bench.params, bench.model, form))
        return InferRunner(bench.params, SandboxModel(bench, form))


def format_named(name: str | None) -> str:
    """By the name that was checked when the job was planned."""
    from jobs.modelfile import SUFFIXES

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
            raise ShardFailure("output", _said_of_nan(found + shard.first_row, len(shard.rows)))
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
        from jobs import mlp

        assert path is not None and params.activation and params.final and params.batch != "auto", "prepared"
        self._mlp = mlp.load(path, form, params.activation, params.final)
        self._batch = params.batch

    def run(self, shard: Shard, rows: Array) -> Given:
        import numpy as np

        dtype, shape = self._mlp.output
        out = np.empty((len(rows), *shape), dtype)
        bad = np.zeros(len(rows), bool)
        with np.errstate(all="ignore"):  # NaN is looked for
            for start in range(0, len(rows), self._batch):
                stop = min(start + self._batch, len(rows))
                logits = self._mlp.batch(_filled_up(rows[start:stop], self._batch))[: stop - start]
                np.isnan(logits).any(axis=1, out=bad[start:stop])
                out[start:stop] = self._mlp.finished(logits)
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


def sandbox(bench: Bench, form: str | None) -> Sandbox:
    """What runs a model of this form, or of the user's class where there is none."""
    import sys

    from jobs import openers
    from jobs.sandbox import Sandbox

    params: InferParams = bench.params
    ours = form is not None
    folder = Path(openers.__file__).parent if ours else bench.code
    entry = f"models.py:{CLASSES[form]}" if form is not None else bench.entry
    assert folder is not None and entry is not None, "a plan without a model's format has code"
    return Sandbox(
        python=bench.python or sys.executable,
        folder=folder,
        entry=entry,
        scratch=bench.scratch,
        env=bench.env,
        threads=bench.cpus,
        check=bench.check_code,
        args=_arguments(params, form),
        model={
            "path": str(bench.model) if bench.model is not None else None,
            "device": params.device,
            "batch": params.batch,
            "pad": ours,
        },
    )


def _arguments(params: InferParams, form: str | None) -> dict[str, Any]:
    if form is None:
        return params.args
    method = {"method": params.method} if form in ("skops", "pickle") else {}
    return method | ({"trusted": params.trusted} if form == "skops" else {})
