"""An infer job's model while it is planned: which format, whether it fits the rows, which batch, what comes out."""

from __future__ import annotations

import shutil
import sys
import tempfile
from importlib.util import find_spec
from math import prod
from pathlib import Path

import msgspec

from muster.jobs.common.errors import JobFileError
from muster.jobs.contract import requirements
from muster.jobs.contract.kind import Bench, Prepared, RunnerLost, ShardFailure, Site
from muster.jobs.inference import model_file
from muster.jobs.inference.network import BadWeights, Network
from muster.jobs.inference.params import BATCH_BYTES, BATCH_LIMITS, MLP_FORMATS, NAN_ROWS, NEEDS, InferParams
from muster.jobs.inference.sandboxed import sandbox
from muster.jobs.results import output_declarations
from muster.jobs.results.output_declarations import Declared
from muster.jobs.sources.formats import npy

TRIAL_SECONDS = 120.0

_OF_MLP = "is for the weights of an MLP: .npz and .safetensors"
_OF_ESTIMATOR = "is for scikit-learn's estimators"


def prepare(params: InferParams, site: Site) -> Prepared[InferParams]:
    """Everything `auto` resolved; a JobFileError for what could never run."""
    output_declarations.check(params.outputs, reserved=(NAN_ROWS,))
    if site.has_code:
        return _prepared_code(params, site)
    if params.args:
        raise JobFileError("params.args: only a class of your own takes arguments", "code: work.py:Class")
    if params.model is None:
        raise JobFileError("params.model: missing: there is neither a model nor `code`", "params: {model: net.npz}")
    path = model_file.find(params.model, site.base, site.moved)
    form = model_file.format_of(path)
    params = msgspec.structs.replace(_suited(params, form), trust_torchscript=msgspec.UNSET)
    if form in MLP_FORMATS:
        network = _network(params, path, form, site)
        return Prepared(_prepared_network(params, network), params.model, row_seconds=network.row_seconds)
    needs = NEEDS.get(form, ()) if site.python is None else ()
    params = msgspec.structs.replace(params, batch=_batch(params, _widest_row(site)))
    return Prepared(_tried(params, path, form, site) if site.may_try else params, params.model, needs)


def _prepared_code(params: InferParams, site: Site) -> Prepared[InferParams]:
    """A class of the user's: nothing of it is run here."""
    for name in ("activation", "final", "method", "trusted", "trust_pickle", "trust_torchscript"):
        if getattr(params, name):
            raise JobFileError(f"params.{name}: has no meaning beside `code`", "leave it out")
    if params.model is not None:
        model_file.find(params.model, site.base, site.moved)
    return Prepared(msgspec.structs.replace(params, batch=_batch(params, _widest_row(site))), params.model)


def _suited(params: InferParams, form: str) -> InferParams:
    """With the format's own defaults; parameters of another format are refused."""
    if form in MLP_FORMATS:
        _refuse(params, "method", _OF_ESTIMATOR)
        return msgspec.structs.replace(params, activation=params.activation or "relu", final=params.final or "none")
    _refuse(params, "activation", _OF_MLP)
    _refuse(params, "final", _OF_MLP)
    _check_trust(params, form)
    if form not in ("skops", "pickle"):
        _refuse(params, "method", _OF_ESTIMATOR)
        return params
    return msgspec.structs.replace(params, method=params.method or "predict")


def _check_trust(params: InferParams, form: str) -> None:
    """A file that does what it likes to whoever opens it is opened for nobody who did not say that he trusts it."""
    if form == "pickle" and not params.trust_pickle:
        why = f"params.model: {params.model}: a pickle, and opening one runs whatever is in it"
        raise JobFileError(why, "save it with `skops.io.dump`; or, if you made it yourself, `trust_pickle: true`")
    if form == "torchscript" and not params.trust_torchscript:
        why = f"params.model: {params.model}: TorchScript, and opening it runs code in it, which may write any file"
        other = "export it to .onnx, or save its state_dict as .safetensors for a class of your own"
        raise JobFileError(why, f"{other}; or, if you made it yourself, `trust_torchscript: true`")


def _refuse(params: InferParams, name: str, why: str) -> None:
    if getattr(params, name) is not None:
        raise JobFileError(f"params.{name}: {why}", "leave it out")


def _widest_row(site: Site) -> int:
    return max((prod(shape.row) * npy.itemsize(shape.dtype) for shape in site.shapes), default=1)


def _batch(params: InferParams, row_bytes: int) -> int:
    """As given, or the power of two whose rows, and what is made of them, stay near the processor."""
    if params.batch != "auto":
        return params.batch
    least, most = BATCH_LIMITS
    fitting = max(1, BATCH_BYTES // max(1, row_bytes))
    return min(most, max(least, 1 << (fitting.bit_length() - 1)))


def _network(params: InferParams, path: Path, form: str, site: Site) -> Network:
    """What the file holds, and takes the rows of the source."""
    from muster.jobs.inference import mlp

    assert params.activation and params.final, "suited"
    try:
        model = mlp.load(path, form, params.activation, params.final)
    except BadWeights as error:
        raise JobFileError(f"params.model: {params.model}: {error}", mlp.NAMING) from None
    for shape in site.shapes:
        if prod(shape.row) != model.width:
            told = f"takes rows of {model.width} values, the source has rows of {prod(shape.row)}, shape {shape.row}"
            hint = "choose the `layers` that fit, or another model"
            raise JobFileError(f"params.model: {params.model}: {told}", hint)
    return model


def _prepared_network(params: InferParams, model: Network) -> InferParams:
    dtype, row = model.output
    return msgspec.structs.replace(
        params,
        batch=_batch(params, model.row_values * model.dtype.itemsize),
        outputs=params.outputs or {"out": Declared(dtype, list(row))},
    )


# --- a trial -------------------------------------------------------------------------------------------------


def _tried(params: InferParams, path: Path, form: str, site: Site) -> InferParams:
    """Rows of zeros through the model tell its outputs, where this machine has what it needs; else the first shard."""
    missing = [name for name in NEEDS.get(form, ()) if find_spec(name) is None]
    python = sys.executable if site.python is None else shutil.which(site.python)
    if python is None or (missing and site.python is None):
        return params
    outputs: dict[str, Declared] | None = None
    for shape in site.shapes:
        found = _trial(params, path, form, site, shape.row, shape.dtype, python)
        if outputs is not None and found != outputs:
            return params  # layers of different rows, each with outputs of its own
        outputs = found
    return msgspec.structs.replace(params, outputs=params.outputs or outputs)


def _trial(
    params: InferParams, path: Path, form: str, site: Site, row: tuple[int, ...], dtype: str, python: str
) -> dict[str, Declared]:
    import numpy as np

    assert params.batch != "auto", "resolved"
    with tempfile.TemporaryDirectory(prefix="muster-") as folder:
        bench = Bench(params, site.cpus, TRIAL_SECONDS, Path(folder), python=python, model=path)
        tried = sandbox(bench, form)
        try:
            found = tried.call(0, 0, np.zeros((params.batch, *row), dtype), TRIAL_SECONDS)
        except (ShardFailure, RunnerLost) as error:
            raise JobFileError(f"params.model: {params.model}: {_said(error)}", _hint(error, form, python)) from None
        finally:
            tried.close()
    return {name: Declared(array.dtype.str, list(array.shape[1:])) for name, array in found.items()}


def _said(error: Exception) -> str:
    return str(error).removeprefix("BadModelError: ").removeprefix("MissingPackageError: ")


def _hint(error: Exception, form: str, python: str) -> str:
    text = str(error)
    if "not installed" in text:
        return next((requirements.pip_line(name, python) for name in NEEDS.get(form, ())), "install it")
    if "not trusted" in text:
        return "where you made the file yourself, name these types in `params.trusted`"
    if "dtype" in text and form in ("skops", "pickle"):
        return "results are numbers: `method: predict_proba`, or fit with numbers for classes"
    return "a row of zeros was tried; correct the model, or choose the `layers` that fit it"
