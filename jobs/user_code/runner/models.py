"""Models that other libraries open, for a runner: standard library and numpy, Python 3.8 or later; nothing of ours.

Each class is what a user's would be: `__init__(path, device)` and `__call__(batch)`. A library is imported where its
class is made, so that a machine without it says so by name.
"""

from __future__ import annotations

import importlib
import os
import re
import socket
import sys
import zipfile
from typing import Any, Dict  # noqa: UP035 (3.8)

import numpy as np

Arrays = Dict[str, Any]  # noqa: UP006 (3.8)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]", re.ASCII)
_UNIT, _UNIT_BYTES = "unit", 32  # a member of a skops file, and what is read of it
_LEAST_SKOPS = (0, 13)  # what is older makes some types that it was not told to trust
_DTYPES = {"float": "f4", "double": "f8", "float16": "f2", "bool": "?"}  # ONNX's names; its integers are numpy's


class MissingPackageError(ImportError):
    """A library that this format needs is not here."""


class BadModelError(ValueError):
    """The file is not what its name says, or does not fit the rows."""


def _library(name: str) -> Any:
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name is not None and error.name.split(".")[0] != package:
            raise  # it is there, and lacks something itself
        line = f"{sys.executable} -m pip install {package}"
        raise MissingPackageError(f"{package} is not installed on {socket.gethostname()}: `{line}`") from None


def _threads() -> int:
    return int(os.environ.get("OMP_NUM_THREADS", "1"))


def _flat(batch: Any) -> Any:
    return batch.reshape(len(batch), -1)


class _Estimator:
    """A fitted scikit-learn estimator, and which of its methods gives the output."""

    def __init__(self, model: Any, method: str, unit: Any = None) -> None:
        """`unit`: what 1 of a row of uint8 is to it; other rows are taken as they are."""
        if not hasattr(model, method):
            raise BadModelError(f"a {type(model).__name__} has no {method}; choose another `params.method`")
        self._unit = unit
        self._width = getattr(model, "n_features_in_", None)
        self._call = getattr(model, method)

    def __call__(self, batch: Any) -> Any:
        rows = _flat(batch)
        if self._width is not None and rows.shape[1] != self._width:
            raise BadModelError(f"the model takes rows of {self._width} values, these have {rows.shape[1]}")
        if self._unit is not None and rows.dtype == np.uint8:
            rows = rows.astype(np.float32) * self._unit
        found = self._call(rows)
        return found.toarray() if hasattr(found, "toarray") else found  # a sparse matrix, as some transform to


class Skops(_Estimator):
    """Only types that skops knows to be safe are made, and those the job file names; nothing in the file is run."""

    def __init__(self, path: str, device: str, method: str = "predict", trusted: tuple[str, ...] = ()) -> None:
        io = _library("skops.io")
        version = _library("skops").__version__
        if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < _LEAST_SKOPS:
            line = f"{sys.executable} -m pip install 'skops>=0.13'"
            raise BadModelError(f"skops {version} on {socket.gethostname()} opens files that run code: `{line}`")
        unknown = sorted(set(io.get_untrusted_types(file=path)) - set(trusted))
        if unknown:
            raise BadModelError(f"holds types that are not trusted: {', '.join(unknown)}")
        super().__init__(io.load(path, trusted=list(trusted)), method, _unit_in(path))


def _unit_in(path: str) -> Any:
    """What a search says in its best estimator's file of the scale of its rows; None where there is nothing."""
    with zipfile.ZipFile(path) as archive:
        if _UNIT not in archive.namelist():
            return None
        with archive.open(_UNIT) as member:
            text = member.read(_UNIT_BYTES).decode("ascii", "replace")
    try:
        return np.float32(text)
    except ValueError:
        raise BadModelError(f"{_UNIT} is {text!r}, expected a number") from None


class Pickle(_Estimator):
    """Opening it runs whatever is in it: only where the job file says `trust_pickle: true`."""

    def __init__(self, path: str, device: str, method: str = "predict") -> None:
        super().__init__(_library("joblib").load(path), method)


class Onnx:
    """On the CPU, with as many threads as the plan gives."""

    def __init__(self, path: str, device: str) -> None:
        ort = _library("onnxruntime")
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = _threads(), 1
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.use_deterministic_compute = True
        options.log_severity_level = 3
        self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        given = self._session.get_inputs()
        if len(given) != 1:
            raise BadModelError(f"the model takes {len(given)} inputs, rows are one: {[one.name for one in given]}")
        self._input = given[0]
        self._dtype = self._dtype_of(given[0].type)
        self._names = _fit_names([one.name for one in self._session.get_outputs()])

    def _dtype_of(self, told: str) -> Any:
        inner = told[len("tensor(") : -1] if told.startswith("tensor(") else told
        try:
            return np.dtype(_DTYPES.get(inner, inner))
        except TypeError:
            raise BadModelError(f"the model takes {told}, rows are numbers") from None

    def __call__(self, batch: Any) -> Arrays:
        rows = self._shaped(batch)
        found = self._session.run(None, {self._input.name: np.ascontiguousarray(rows, self._dtype)})
        bad = [name for name, value in zip(self._names, found) if not isinstance(value, np.ndarray)]
        if bad:
            raise BadModelError(f"output {bad[0]!r} is no array; convert the model with `zipmap: False`")
        return dict(zip(self._names, found))

    def _shaped(self, batch: Any) -> Any:
        """Flat rows where the model wants them so; else each fixed axis has to be the rows' own."""
        wanted = self._input.shape
        rows = _flat(batch) if len(wanted) == 2 else batch
        fits = len(wanted) == rows.ndim and all(
            not isinstance(axis, int) or axis == have for axis, have in zip(wanted[1:], rows.shape[1:])
        )
        if not fits:
            raise BadModelError(f"the model takes rows of shape {wanted[1:]}, these have {list(rows.shape[1:])}")
        if isinstance(wanted[0], int) and wanted[0] != len(rows):
            raise BadModelError(f"the model takes batches of {wanted[0]} rows and no others: `batch: {wanted[0]}`")
        return rows


class TorchScript:
    """An archive of `torch.jit.save`, on `device`. Opening it runs code in it: only where the job file trusts it."""

    def __init__(self, path: str, device: str) -> None:
        self._torch = _library("torch")
        self._torch.set_num_threads(_threads())
        self._device = self._torch.device(device)
        self._model = self._torch.jit.load(path, map_location=self._device).eval()
        first = next(self._model.parameters(), None)
        self._dtype = first.dtype if first is not None and first.dtype.is_floating_point else self._torch.float32

    def __call__(self, batch: Any) -> Arrays:
        rows = np.ascontiguousarray(batch)
        with self._torch.inference_mode():
            try:
                found = self._model(self._torch.from_numpy(rows).to(self._device, self._dtype))
            except RuntimeError as error:  # above the last line stands TorchScript's own traceback, of any length
                raise BadModelError(str(error).strip().rpartition("\n")[2]) from error
            return {name: tensor.cpu().numpy() for name, tensor in _tensors(found).items()}


def _tensors(found: Any) -> Arrays:
    if isinstance(found, dict):
        return dict(zip(_fit_names(list(found)), found.values()))
    if isinstance(found, (tuple, list)):
        return {f"out{i}": tensor for i, tensor in enumerate(found)}
    return {"out": found}


def _fit_names(names: list[str]) -> list[str]:
    """As outputs may be called; `out0`, `out1`, ... where they would not differ any more."""
    fit = [_NOT_IN_NAMES.sub("_", str(name))[:64] for name in names]
    if len(names) == 1:
        return ["out"]
    return fit if len(set(fit)) == len(fit) and all(fit) else [f"out{i}" for i in range(len(names))]
