"""Trials of a search that are ours: their data, networks in numpy, scikit-learn's estimators; for a runner: Python 3.8
or later, nothing of ours."""

from __future__ import annotations

import importlib
import inspect
import io
import json
from typing import Any, Dict, Iterator  # noqa: UP035 (3.8)

import numpy as np

Arrays = Dict[str, Any]  # noqa: UP006 (3.8)
HEAD_BYTES = 8
SPLIT, WEIGHTS, ROWS = 0, 1, 2  # purposes that random numbers are drawn for
LEAST_ROWS = 10  # of each class on average, however small a share is


class Data:
    """Training rows, some of them held out to judge trials by, and test rows."""

    def __init__(self, settings: dict[str, Any]) -> None:
        arrays = _tensors(settings["data"])
        self.unit, self.classes = float(arrays["unit"][0]), settings["classes"]
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


class Network:
    """Softmax on what a network gives, SGD with momentum; an iteration is an epoch. Float32."""

    judged_rows = 4096  # at once

    def __init__(self, config: dict[str, Any], data: Any, seed: int) -> None:
        self._data, self._seed, self._done = data, seed, 0
        self._lr, self._momentum = float(config.get("lr", 0.1)), float(config.get("momentum", 0.0))
        self._batch = int(config.get("batch", 128))
        self.arrays: Arrays = self._start(config, _drawn(seed, WEIGHTS))
        self._speed = {name: np.zeros_like(one) for name, one in self.arrays.items()}

    def _start(self, config: dict[str, Any], draw: Any) -> Arrays:
        """The first weights and biases."""
        raise NotImplementedError

    def _shaped(self, rows: Any) -> Any:
        """Rows as the network takes them."""
        raise NotImplementedError

    def _outs(self, x: Any) -> list[Any]:
        """The rows, what each layer makes of them, and at last the logits."""
        raise NotImplementedError

    def _gradients(self, outs: list[Any], slope: Any) -> Iterator[tuple[str, Any]]:
        """Of each array by name, from the logits' slope on. What has come may be stepped at once."""
        raise NotImplementedError

    def load(self, state: bytes, start: int) -> None:
        self._done = start
        with np.load(io.BytesIO(state), allow_pickle=False) as arrays:
            for name in self.arrays:
                self.arrays[name], self._speed[name] = arrays[name], arrays["speed_" + name]

    def save(self) -> bytes:
        return npz({**self.arrays, **{"speed_" + name: one for name, one in self._speed.items()}})

    def step(self) -> dict[str, float]:
        data = self._data
        order = _drawn(self._seed, ROWS, self._done).permutation(len(data.x))
        right, loss = 0, 0.0
        with np.errstate(all="ignore"):  # what is not finite is told of in the loss
            for first in range(0, len(order), self._batch):
                rows = order[first : first + self._batch]
                found, lost = self._learn(self._shaped(data.x[rows]), data.y[rows])
                right, loss = right + found, loss + lost
            self._done += 1
            seen = {"train_accuracy": right / len(order), "train_loss": loss / len(order)}
            return {**seen, **self._judged(data.valid_x, data.valid_y)}

    def score(self) -> dict[str, float]:
        return self._judged(*self._data.test())

    def _learn(self, x: Any, y: Any) -> tuple[int, float]:
        """A step on these rows: how many were right before it, and the loss summed over them."""
        outs = self._outs(x)
        right, loss, slope = _softmax(outs.pop(), y)
        slope /= len(y)
        for name, gradient in self._gradients(outs, slope):
            self._speed[name] = self._momentum * self._speed[name] - self._lr * gradient
            self.arrays[name] = self.arrays[name] + self._speed[name]
        return right, loss

    def _judged(self, x: Any, y: Any) -> dict[str, float]:
        right, loss = 0, 0.0
        with np.errstate(all="ignore"):
            for first in range(0, len(x), self.judged_rows):
                some = slice(first, first + self.judged_rows)
                found, lost, _ = _softmax(self._outs(self._shaped(x[some]))[-1], y[some])
                right, loss = right + found, loss + lost
        return {"accuracy": right / len(x), "loss": loss / len(x)}


class Mlp(Network):
    """A hidden layer or several with relu between them."""

    def _start(self, config: dict[str, Any], draw: Any) -> Arrays:
        hidden = config.get("hidden", 128)
        width = int(np.prod(self._data.x.shape[1:]))
        sizes = [width, *(hidden if isinstance(hidden, list) else [hidden]), self._data.classes]
        found: Arrays = {}
        for i in range(len(sizes) - 1):
            ins, outs = sizes[i : i + 2]
            found[f"w{i}"] = _normals(draw, ins, outs)
            found[f"b{i}"] = np.zeros(outs, np.float32)
        self._layers = len(sizes) - 1
        return found

    def _shaped(self, rows: Any) -> Any:
        return _flat(rows)

    def _outs(self, x: Any) -> list[Any]:
        outs = [x]
        for i in range(self._layers):
            x = outs[-1] @ self.arrays[f"w{i}"] + self.arrays[f"b{i}"]
            outs.append(np.maximum(x, 0) if i + 1 < self._layers else x)
        return outs

    def _gradients(self, outs: list[Any], slope: Any) -> Iterator[tuple[str, Any]]:
        for i in reversed(range(self._layers)):
            here = slope
            if i:
                slope = (slope @ self.arrays[f"w{i}"].T) * (outs[i] > 0)
            yield f"w{i}", outs[i].T @ here
            yield f"b{i}", here.sum(axis=0)


class Conv1(Network):
    """A 3x3 convolution, 2x2 max pooling, relu, a dense layer."""

    judged_rows = 256

    def _start(self, config: dict[str, Any], draw: Any) -> Arrays:
        height, width, channels = _image(self._data.x.shape[1:])
        filters = int(config.get("filters", 16))
        self._pooled = (height - 2) // 2, (width - 2) // 2
        flat = self._pooled[0] * self._pooled[1] * filters
        return {
            "conv.weight": _normals(draw, 9 * channels, filters),
            "conv.bias": np.zeros(filters, np.float32),
            "dense.weight": _normals(draw, flat, self._data.classes),
            "dense.bias": np.zeros(self._data.classes, np.float32),
        }

    def _shaped(self, rows: Any) -> Any:
        """The neighbourhood of each pixel that is pooled: (rows, down, 2, across, 2, 9 * channels)."""
        x = rows.reshape(len(rows), *_image(rows.shape[1:]))
        (down, across), spots = self._pooled, np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
        spots = spots[:, : 2 * down, : 2 * across]
        return np.ascontiguousarray(spots).reshape(len(x), down, 2, across, 2, -1)

    def _outs(self, x: Any) -> list[Any]:
        spots = x @ self.arrays["conv.weight"]
        best = spots.max(axis=(2, 4))
        positive = np.maximum(best + self.arrays["conv.bias"], 0)
        logits = positive.reshape(len(x), -1) @ self.arrays["dense.weight"] + self.arrays["dense.bias"]
        return [x, spots, best, positive, logits]

    def _gradients(self, outs: list[Any], slope: Any) -> Iterator[tuple[str, Any]]:
        x, spots, best, positive = outs
        back = (slope @ self.arrays["dense.weight"].T).reshape(positive.shape) * (positive > 0)
        yield "dense.weight", positive.reshape(len(x), -1).T @ slope
        yield "dense.bias", slope.sum(axis=0)
        chosen = spots == best[:, :, None, :, None]
        shares = chosen * (back / chosen.sum(axis=(2, 4)))[:, :, None, :, None]  # equals share it
        filters = back.shape[-1]
        yield "conv.weight", x.reshape(-1, x.shape[-1]).T @ shares.reshape(-1, filters).astype(np.float32)
        yield "conv.bias", back.reshape(-1, filters).sum(axis=0)


def _softmax(logits: Any, y: Any) -> tuple[int, float, Any]:
    """How many are right, the summed loss, and its slope."""
    right = int((logits.argmax(axis=1) == y).sum())
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    rows = np.arange(len(y))
    loss = float(-np.log(np.maximum(shares[rows, y], np.float32(1e-30))).sum())
    shares[rows, y] -= 1
    return right, loss, shares


# --- scikit-learn ------------------------------------------------------------------------------------------


class Estimator:
    """A scikit-learn classifier; an iteration is a pass of `partial_fit` over all rows, in an order of its own."""

    def __init__(self, cls: Any, config: dict[str, Any], data: Any, seed: int) -> None:
        self._data, self._seed, self._done = data, seed, 0
        self._x, self._y, self._valid_x, self._valid_y = data.flat()
        takes = inspect.signature(cls).parameters
        draws = "random_state" in takes and "random_state" not in config
        self._drawn = {"random_state": seed % (1 << 32)} if draws else {}
        self._fitted = cls(**config, **self._drawn)

    def load(self, state: bytes, start: int) -> None:
        skops = importlib.import_module("skops.io")
        self._done, self._fitted = start, skops.loads(state, trusted=skops.get_untrusted_types(data=state))

    def save(self) -> bytes:
        raw: bytes = importlib.import_module("skops.io").dumps(self._fitted)
        return raw

    def step(self) -> dict[str, float]:
        order = _drawn(self._seed, ROWS, self._done).permutation(len(self._x))
        self._fitted.partial_fit(self._x[order], self._y[order], classes=np.arange(self._data.classes))
        self._done += 1
        return self._scored(self._x, self._y)

    def _scored(self, x: Any, y: Any) -> dict[str, float]:
        """On the rows it saw, and on those held out."""
        scored = (("train_accuracy", x, y), ("accuracy", self._valid_x, self._valid_y))
        return {name: float(self._fitted.score(x, y)) for name, x, y in scored}

    def score(self) -> dict[str, float]:
        x, y = self._data.test()
        return {"accuracy": float(self._fitted.score(_flat(x), y))}


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
        rows = self._order[: max(round(share), LEAST_ROWS * self._data.classes)]
        self._fitted = self._make().fit(self._x[rows], self._y[rows])
        return self._scored(self._x[rows], self._y[rows])


def class_of(name: str) -> Any:
    module, _, cls = name.rpartition(".")
    return getattr(importlib.import_module(module), cls)


def npz(arrays: Arrays) -> bytes:
    raw = io.BytesIO()
    np.savez(raw, **arrays)
    return raw.getvalue()


def _image(shape: Any) -> tuple[int, int, int]:
    """Height, width and channels."""
    return tuple(shape) if len(shape) == 3 else (*shape, 1)


def _normals(draw: Any, ins: int, outs: int) -> Any:
    """He's start for so many inputs."""
    return (draw.standard_normal((ins, outs)) * (2 / ins) ** 0.5).astype(np.float32)


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
