"""Trials of a search that are ours: their data, networks in numpy, scikit-learn's estimators; for a runner: Python 3.8
or later, nothing of ours."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Dict  # noqa: UP035 (3.8)

import numpy as np

# By its path: a user's module may have the same name
loading = ModuleType("loading")
loading.__file__ = str(Path(__file__).with_name("loading.py"))
SourceFileLoader("loading", loading.__file__).exec_module(loading)
networks = loading.sibling("networks")

Arrays = Dict[str, Any]  # noqa: UP006 (3.8)
HEAD_BYTES = 8
SPEED = "speed_"  # what the momentum of an array is called beside it
SPLIT, WEIGHTS, ROWS = 0, 1, 2  # purposes that random numbers are drawn for
OVERFLOW = "under-/overflow"  # in what scikit-learn says of weights that are no numbers any more
LEAST_ROWS = 10  # of each class on average, however small a share is

_pools: Dict[str, Any] = {}  # noqa: UP006 (3.8)   of threads, of the libraries that are loaded


class Data:
    """Training rows, some of them held out to judge trials by, and test rows."""

    def __init__(self, settings: dict[str, Any]) -> None:
        arrays = _tensors(settings["data"])
        self.unit, self.classes, self.regresses = float(arrays["unit"][0]), settings["classes"], settings["regresses"]
        order = _drawn(settings["seed"], SPLIT).permutation(len(arrays["y"]))
        held = max(1, round(len(order) * settings["valid"]))
        self.x, self.y = self._floats(arrays["x"], order[held:]), np.asarray(arrays["y"])[order[held:]]
        self.valid_x, self.valid_y = self._floats(arrays["x"], order[:held]), np.asarray(arrays["y"])[order[:held]]
        self._test = arrays["test_x"], arrays["test_y"]

    def test(self) -> tuple[Any, Any]:
        """Rows that nothing else sees."""
        x, y = self._test
        return self._floats(x, slice(None)), np.asarray(y)

    def flat(self) -> tuple[Any, Any, Any, Any]:
        """Each row as a vector."""
        return _flat(self.x), self.y, _flat(self.valid_x), self.valid_y

    def _floats(self, rows: Any, which: Any) -> Any:
        return rows[which].astype(np.float32) * np.float32(self.unit)


# --- networks ----------------------------------------------------------------------------------------------


class NetworkTrial:
    """A network that learns by SGD with momentum; an iteration is an epoch."""

    def __init__(self, make: Any, judged_rows: int, config: dict[str, Any], data: Any, seed: int) -> None:
        """`make`: of a configuration and the data, one for each size of batch; `judged_rows`: at once."""
        self._data, self._seed, self._done = data, seed, 0
        self._lr, self._momentum = float(config.get("lr", 0.1)), float(config.get("momentum", 0.0))
        self._batch, self._judged_rows = int(config.get("batch", 128)), judged_rows
        self._threads = int(config["threads"]) if "threads" in config else None
        self._learning, self._judging = make(config, data), make(config, data)
        self.weights = _begun(self._learning.cut, _drawn(seed, WEIGHTS))
        self._speed, self._slope = np.zeros_like(self.weights), np.empty_like(self.weights)

    def load(self, state: bytes, start: int) -> None:
        self._done = start
        with np.load(io.BytesIO(state), allow_pickle=False) as arrays:
            for flat, which in ((self.weights, ""), (self._speed, SPEED)):
                for name, view in self._views(flat).items():
                    view[...] = arrays[which + name].reshape(view.shape)

    def save(self) -> bytes:
        flats = ((self.weights, ""), (self._speed, SPEED))
        return npz(
            {
                which + name: view.reshape(-1, view.shape[-1]) if view.ndim > 1 else view
                for flat, which in flats
                for name, view in self._views(flat).items()
            }
        )

    def _views(self, flat: Any) -> Arrays:
        """The pieces of a vector by name. Of a convolution a file has the inputs channel by channel, each with its
        pixels, as `muster.jobs.inference.conv1` takes them; the network has them pixel by pixel."""
        found: Arrays = self._learning.arrays(flat)
        if (kernel := found.get("conv.weight")) is not None:
            found["conv.weight"] = kernel.reshape(networks.KERNEL**2, -1, kernel.shape[1]).swapaxes(0, 1)
        return found

    def step(self) -> dict[str, float]:
        data = self._data
        order = _drawn(self._seed, ROWS, self._done).permutation(len(data.x))
        right, loss = 0, 0.0
        with np.errstate(all="ignore"), _limited(self._threads):  # what is not finite is told of in the loss
            for first in range(0, len(order), self._batch):
                rows = order[first : first + self._batch]
                found, lost = self._learn(data.x[rows], data.y[rows])
                right, loss = right + found, loss + lost
            self._done += 1
            seen = {"train_accuracy": right / len(order), "train_loss": loss / len(order)}
            return {**seen, **self._judged(data.valid_x, data.valid_y)}

    def score(self) -> dict[str, float]:
        with np.errstate(all="ignore"), _limited(self._threads):
            return self._judged(*self._data.test())

    def _learn(self, x: Any, y: Any) -> tuple[int, float]:
        """A step on these rows: how many were right before it, and the loss summed over them."""
        logits = self._learning.forward(self.weights, x)
        right = int((logits.argmax(axis=1) == y).sum())
        loss = self._learning.backward(self.weights, x, y, logits, self._slope)
        self._slope *= np.float32(self._lr / len(y))
        self._speed *= np.float32(self._momentum)
        self._speed -= self._slope
        self.weights += self._speed
        return right, loss

    def _judged(self, x: Any, y: Any) -> dict[str, float]:
        right, loss = 0, 0.0
        for first in range(0, len(x), self._judged_rows):
            some = slice(first, first + self._judged_rows)
            found, lost = self._judging.judge(self.weights, x[some], y[some])
            right, loss = right + found, loss + lost
        return {"accuracy": right / len(x), "loss": loss / len(x)}


def mlp(config: dict[str, Any], data: Any, seed: int) -> NetworkTrial:
    """A hidden layer or several with relu between them."""
    return NetworkTrial(_mlp, 4096, config, data, seed)


def _mlp(config: dict[str, Any], data: Any) -> Any:
    hidden = config.get("hidden", 128)
    inner = [int(one) for one in (hidden if isinstance(hidden, list) else [hidden])]
    return networks.TrainableMlp([int(np.prod(data.x.shape[1:])), *inner, data.classes])


def conv1(config: dict[str, Any], data: Any, seed: int) -> NetworkTrial:
    """A 3x3 convolution, 2x2 max pooling, relu, a dense layer."""
    return NetworkTrial(_conv1, 256, config, data, seed)


def _conv1(config: dict[str, Any], data: Any) -> Any:
    shape = data.x.shape[1:]
    image = tuple(shape) if len(shape) == 3 else (*shape, 1)
    return networks.TrainableConv1(image, int(config.get("filters", 16)), data.classes)


def _begun(cut: Any, draw: Any) -> Any:
    """He's start for weights, by their inputs; biases are 0."""
    flat = np.zeros(cut.size, np.float32)
    for view in cut.views(flat):
        if view.ndim > 1:
            view[...] = draw.standard_normal(view.shape) * (2 / view.shape[0]) ** 0.5
    return flat


def _limited(threads: int | None) -> Any:
    """Numeric libraries on so many threads, for as long as this is entered; None: as the process was started."""
    if threads is None:
        return contextlib.nullcontext()
    if "only" not in _pools:
        _pools["only"] = importlib.import_module("threadpoolctl").ThreadpoolController()
    return _pools["only"].limit(limits=threads)


# --- scikit-learn ------------------------------------------------------------------------------------------


class Estimator:
    """A scikit-learn estimator; an iteration is a pass of `partial_fit` over all rows, in an order of its own."""

    def __init__(self, cls: Any, config: dict[str, Any], data: Any, seed: int) -> None:
        self._data, self._seed, self._done = data, seed, 0
        self._x, self._y, self._valid_x, self._valid_y = data.flat()
        takes = inspect.signature(cls).parameters
        draws = "random_state" in takes and "random_state" not in config
        self._drawn = {"random_state": seed % (1 << 32)} if draws else {}
        self._fitted = cls(**config, **self._drawn)
        self._names = ("r2", "mse") if data.regresses else ("accuracy",)

    def load(self, state: bytes, start: int) -> None:
        skops = importlib.import_module("skops.io")
        self._done, self._fitted = start, skops.loads(state, trusted=skops.get_untrusted_types(data=state))

    def save(self) -> bytes:
        raw: bytes = importlib.import_module("skops.io").dumps(self._fitted)
        return raw

    def step(self) -> dict[str, float]:
        order = _drawn(self._seed, ROWS, self._done).permutation(len(self._x))
        more = {} if self._data.regresses else {"classes": np.arange(self._data.classes)}
        self._done += 1
        try:
            self._fitted.partial_fit(self._x[order], self._y[order], **more)
        except ValueError as error:
            if OVERFLOW not in str(error):
                raise
            return {f"{rows}{name}": float("nan") for rows in ("train_", "") for name in self._names}
        return self._scored(self._x, self._y)

    def _scored(self, x: Any, y: Any) -> dict[str, float]:
        """On the rows it saw, and on those held out."""
        seen = {f"train_{name}": value for name, value in self._judged(x, y).items()}
        return {**seen, **self._judged(self._valid_x, self._valid_y)}

    def _judged(self, x: Any, y: Any) -> dict[str, float]:
        if not self._data.regresses:
            return {"accuracy": float(self._fitted.score(x, y))}
        with np.errstate(all="ignore"):  # what is not finite is told of
            lost = np.square(self._fitted.predict(x).astype(np.float64) - y).mean()
            spread = np.square(y - y.mean()).mean()
            return {"r2": float(1 - lost / spread if spread else lost == 0), "mse": float(lost)}

    def score(self) -> dict[str, float]:
        x, y = self._data.test()
        return self._judged(_flat(x), y)


class Refitted(Estimator):
    """One that learns all at once: iteration k of n fits it anew, on 1 / eta ** (n - k) of the rows."""

    def __init__(self, cls: Any, config: dict[str, Any], data: Any, seed: int, eta: int, iterations: int) -> None:
        super().__init__(cls, config, data, seed)
        self._make: Any = lambda: cls(**config, **self._drawn)
        self._eta, self._iterations = eta, iterations
        self._order = _drawn(seed, ROWS).permutation(len(data.x))

    def step(self) -> dict[str, float]:
        self._done += 1
        share = len(self._order) * float(self._eta) ** (self._done - self._iterations)
        rows = self._order[: max(round(share), LEAST_ROWS * max(1, self._data.classes))]
        self._fitted = self._make().fit(self._x[rows], self._y[rows])
        return self._scored(self._x[rows], self._y[rows])


def class_of(name: str) -> Any:
    module, _, cls = name.rpartition(".")
    return getattr(importlib.import_module(module), cls)


def npz(arrays: Arrays) -> bytes:
    raw = io.BytesIO()
    np.savez(raw, **arrays)
    return raw.getvalue()


def _flat(rows: Any) -> Any:
    return np.ascontiguousarray(rows.reshape(len(rows), -1))


def _drawn(seed: int, *purpose: int) -> Any:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, *purpose))))


def _tensors(path: str) -> Arrays:
    """A safetensors file's arrays, mapped: all runners of a machine share them."""
    with open(path, "rb") as file:  # noqa: PTH123
        length = int.from_bytes(file.read(HEAD_BYTES), "little")
        listed = json.loads(file.read(length))
    kinds = {"U8": "u1", "F32": "<f4", "F64": "<f8", "I64": "<i8"}
    return {
        name: np.memmap(
            path, kinds[one["dtype"]], "r", HEAD_BYTES + length + one["data_offsets"][0], tuple(one["shape"])
        )
        for name, one in listed.items()
        if name != "__metadata__"
    }
