"""One trial of a search, iteration by iteration, for a runner: numpy, Python 3.8 or later; nothing of ours.

A call is one row of bytes: the length of a JSON (8 bytes), the JSON, and perhaps a trial's state. A live trial stays in
memory by its number and the digest of its state, so that where it goes on here nothing is loaded.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import io
import json
import sys
from pathlib import Path
from typing import Any, Dict, Iterator  # noqa: UP035 (3.8)

import numpy as np

Arrays = Dict[str, Any]  # noqa: UP006 (3.8)
HEAD_BYTES = 8
KEPT = 2  # live trials
METRICS_MOST = 64
SPLIT, WEIGHTS, ROWS = 0, 1, 2  # purposes that random numbers are drawn for
JUDGED_ROWS = 4096  # at once

_trials: dict[str, Trials] = {}


class BadTrialError(ValueError):
    """What the trial's function gave is not what it must be."""


def answer(rows: Any, **settings: Any) -> Arrays:
    """The runner's function: the settings are the same in every call."""
    if "only" not in _trials:
        _trials["only"] = Trials(**settings)
    raw = rows.tobytes()
    end = HEAD_BYTES + int.from_bytes(raw[:HEAD_BYTES], "little")
    told, values = _trials["only"].act(json.loads(raw[HEAD_BYTES:end]), raw[end:])
    return {
        name: np.frombuffer(one + b" ", np.uint8)[None] for name, one in (("told", _json(told)), ("values", values))
    }


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _texts(metrics: dict[str, Any]) -> dict[str, str]:
    """Numbers as texts: JSON has none for what is not finite."""
    return {str(name): repr(float(value)) for name, value in metrics.items()}


class Trials:
    """The trial that runs, those that may go on here, and the data."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._kept: Dict[str, Any] = {}  # noqa: UP006 (3.8)   name → live trial
        self._now: Any = None
        data = Data(settings) if settings["data"] else None
        if settings["trial"] == "code":
            self._make: Any = _users(settings["folder"], settings["code"], data, settings["seed"])
        elif settings["trial"] == "mlp":
            self._make = lambda config, trial: Mlp(config, data, settings["seed"])
        else:
            cls = _class(settings["trial"]["estimator"])
            self._make = lambda config, trial: Estimator(cls, config, data, settings["seed"])

    def act(self, asked: dict[str, Any], state: bytes) -> tuple[dict[str, Any], bytes]:
        """What a call asks for: a few values, and bytes."""
        if asked["what"] == "begin":
            return self._begin(asked, state), b""
        if asked["what"] == "score":
            return {"metrics": _texts(self._now.score())}, b""
        if asked["what"] == "save":
            return {}, self._now.save()
        return self._stepped(), b""

    def _begin(self, asked: dict[str, Any], state: bytes) -> dict[str, Any]:
        if asked["left"] and self._now is not None:  # what the last one goes by now
            self._kept[asked["left"]] = self._now
            while len(self._kept) > KEPT:
                del self._kept[next(iter(self._kept))]
        self._now = self._kept.pop(asked["name"], None) if asked["name"] and not state else None
        if self._now is not None:
            return {}
        if asked["name"] and not state:
            return {"missing": True}
        self._now = self._make(asked["config"], asked["trial"])
        if state:
            self._now.load(state, asked["start"])
        return {}

    def _stepped(self) -> dict[str, Any]:
        metrics = self._now.step()
        if metrics is None:
            return {"over": True}
        if not isinstance(metrics, dict) or not metrics or len(metrics) > METRICS_MOST:
            raise BadTrialError(f"expected metrics as a dict of 1 to {METRICS_MOST} numbers, got {metrics!r:.80}")
        if "failed" in metrics:
            return {"failed": str(metrics["failed"])}
        try:
            return {"metrics": _texts(metrics)}
        except (TypeError, ValueError):
            raise BadTrialError(f"metrics that are no numbers: {metrics!r:.200}") from None


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


# --- the user's --------------------------------------------------------------------------------------------


class Called:
    """`train(config, state, budget) -> (metrics, state)`, called for one iteration at a time."""

    def __init__(self, function: Any, config: Any, facts: dict[str, Any]) -> None:
        self._function, self._config, self._facts = function, config, facts
        self._state: Any = None

    def load(self, state: bytes, start: int) -> None:
        self._state = decoded(state)

    def step(self) -> Any:
        metrics, self._state = _pair(self._function(self._config, self._state, 1, **self._facts))
        return metrics

    def save(self) -> bytes:
        return encoded(self._state)


class Yielding(Called):
    """`train(config, state)`, which yields `(metrics, state)` after each iteration."""

    _steps: Iterator[Any] | None = None

    def step(self) -> Any:
        if self._steps is None:
            self._steps = iter(self._function(self._config, self._state, **self._facts))
        found = next(self._steps, None)
        if found is None:
            return None
        metrics, self._state = _pair(found)
        return metrics


def _pair(found: Any) -> Any:
    if not isinstance(found, tuple) or len(found) != 2:
        raise BadTrialError(f"expected (metrics, state), got {found!r:.80}")
    return found


def _users(folder: str, entry: str, data: Any, seed: int) -> Any:
    """What makes trials of the user's function. It may ask for `data`, `seed` and `trial` by name."""
    file, _, name = entry.partition(":")
    path = Path(folder) / file
    sys.path[:0] = list(dict.fromkeys([folder, str(path.parent)]))
    spec = importlib.util.spec_from_file_location(path.stem, str(path))
    if spec is None or spec.loader is None:
        raise BadTrialError(file + " is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise BadTrialError(f"{file} has no function called {name!r}")
    named = inspect.signature(function).parameters
    arrays = None if data is None else {one: getattr(data, one) for one in ("x", "y", "valid_x", "valid_y")}
    form = Yielding if inspect.isgeneratorfunction(function) else Called

    def make(config: Any, trial: int) -> Any:
        facts = {"data": arrays, "seed": seed, "trial": trial}
        return form(function, config, {fact: facts[fact] for fact in facts if fact in named})

    return make


# --- state as bytes ----------------------------------------------------------------------------------------


def encoded(state: Any) -> bytes:
    """Arrays, numbers, texts and bytes in dicts and lists, as an .npz: one array for each, and what lies where."""
    arrays: Arrays = {}

    def node(value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float, str)):
            return {"v": value}
        if isinstance(value, dict) and all(isinstance(key, (str, int)) for key in value):
            return {"d": [[key, node(one)] for key, one in value.items()]}
        if isinstance(value, (list, tuple)):
            return {"l" if isinstance(value, list) else "t": [node(one) for one in value]}
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufcSU":
            arrays[f"a{len(arrays)}"] = np.asarray(value)
            return {"a": len(arrays) - 1}
        if isinstance(value, bytes):
            arrays[f"a{len(arrays)}"] = np.frombuffer(value, np.uint8)
            return {"b": len(arrays) - 1}
        raise BadTrialError(
            f"a {type(value).__name__} cannot be kept: a state is arrays, numbers, texts and bytes in dicts and lists"
        )

    tree = _json(node(state))
    return _npz({"tree": np.frombuffer(tree, np.uint8), **arrays})


def decoded(raw: bytes) -> Any:
    with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:

        def value(node: dict[str, Any]) -> Any:
            ((kind, said),) = node.items()
            if kind == "d":
                return {key: value(one) for key, one in said}
            if kind in "lt":
                found = [value(one) for one in said]
                return found if kind == "l" else tuple(found)
            if kind == "v":
                return said
            array = arrays[f"a{said}"]
            return array.tobytes() if kind == "b" else (array if array.shape else array[()])

        return value(json.loads(arrays["tree"].tobytes()))


def _npz(arrays: Arrays) -> bytes:
    raw = io.BytesIO()
    np.savez(raw, **arrays)
    return raw.getvalue()


# --- ours --------------------------------------------------------------------------------------------------


class Mlp:
    """A hidden layer or several with relu, softmax, SGD with momentum; an iteration is an epoch. Float32."""

    def __init__(self, config: dict[str, Any], data: Any, seed: int) -> None:
        self._data, self._seed, self._done = data, seed, 0
        self._x, self._y, self._valid_x, self._valid_y = data.flat()
        hidden = config.get("hidden", 128)
        self._lr, self._momentum = float(config.get("lr", 0.1)), float(config.get("momentum", 0.0))
        self._batch = int(config.get("batch", 128))
        sizes = [self._x.shape[1], *(hidden if isinstance(hidden, list) else [hidden]), data.classes]
        draw = _drawn(seed, WEIGHTS)
        self.arrays: Arrays = {}
        for i in range(len(sizes) - 1):
            ins, outs = sizes[i : i + 2]
            self.arrays[f"w{i}"] = (draw.standard_normal((ins, outs)) * (2 / ins) ** 0.5).astype(np.float32)
            self.arrays[f"b{i}"] = np.zeros(outs, np.float32)
        self._layers = len(sizes) - 1
        self._speed = {name: np.zeros_like(one) for name, one in self.arrays.items()}

    def load(self, state: bytes, start: int) -> None:
        self._done = start
        with np.load(io.BytesIO(state), allow_pickle=False) as arrays:
            for name in self.arrays:
                self.arrays[name], self._speed[name] = arrays[name], arrays["speed_" + name]

    def save(self) -> bytes:
        return _npz({**self.arrays, **{"speed_" + name: one for name, one in self._speed.items()}})

    def step(self) -> dict[str, float]:
        order = _drawn(self._seed, ROWS, self._done).permutation(len(self._x))
        right, loss = 0, 0.0
        with np.errstate(all="ignore"):  # what is not finite is told of in the loss
            for first in range(0, len(order), self._batch):
                rows = order[first : first + self._batch]
                found, lost = self._learn(self._x[rows], self._y[rows])
                right, loss = right + found, loss + lost
            self._done += 1
            seen = {"train_accuracy": right / len(order), "train_loss": loss / len(order)}
            return {**seen, **self._judged(self._valid_x, self._valid_y)}

    def score(self) -> dict[str, float]:
        x, y = self._data.test()
        return self._judged(_flat(x), y)

    def _learn(self, x: Any, y: Any) -> tuple[int, float]:
        """A step on these rows: how many were right before it, and the loss summed over them."""
        outs = self._outs(x)
        right, loss, slope = _softmax(outs.pop(), y)
        slope /= len(y)
        for i in reversed(range(self._layers)):
            steps = {f"w{i}": outs[i].T @ slope, f"b{i}": slope.sum(axis=0)}
            if i:
                slope = (slope @ self.arrays[f"w{i}"].T) * (outs[i] > 0)
            for name, gradient in steps.items():
                self._speed[name] = self._momentum * self._speed[name] - self._lr * gradient
                self.arrays[name] = self.arrays[name] + self._speed[name]
        return right, loss

    def _outs(self, x: Any) -> list[Any]:
        """The rows and what each layer makes of them."""
        outs = [x]
        for i in range(self._layers):
            x = outs[-1] @ self.arrays[f"w{i}"] + self.arrays[f"b{i}"]
            outs.append(np.maximum(x, 0) if i + 1 < self._layers else x)
        return outs

    def _judged(self, x: Any, y: Any) -> dict[str, float]:
        right, loss = 0, 0.0
        with np.errstate(all="ignore"):
            for first in range(0, len(x), JUDGED_ROWS):
                some = slice(first, first + JUDGED_ROWS)
                found, lost, _ = _softmax(self._outs(x[some])[-1], y[some])
                right, loss = right + found, loss + lost
        return {"accuracy": right / len(x), "loss": loss / len(x)}


def _softmax(logits: Any, y: Any) -> tuple[int, float, Any]:
    """How many are right, the summed loss, and its slope."""
    right = int((logits.argmax(axis=1) == y).sum())
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    rows = np.arange(len(y))
    loss = float(-np.log(np.maximum(shares[rows, y], np.float32(1e-30))).sum())
    shares[rows, y] -= 1
    return right, loss, shares


class Estimator:
    """A scikit-learn classifier; an iteration is a pass of `partial_fit` over all rows, in an order of its own."""

    def __init__(self, cls: Any, config: dict[str, Any], data: Any, seed: int) -> None:
        self._data, self._seed, self._done = data, seed, 0
        self._x, self._y, self._valid_x, self._valid_y = data.flat()
        takes = inspect.signature(cls).parameters
        drawn = {"random_state": seed % (1 << 32)} if "random_state" in takes and "random_state" not in config else {}
        self._fitted = cls(**config, **drawn)

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
        scored = (("train_accuracy", self._x, self._y), ("accuracy", self._valid_x, self._valid_y))
        return {name: float(self._fitted.score(x, y)) for name, x, y in scored}

    def score(self) -> dict[str, float]:
        x, y = self._data.test()
        return {"accuracy": float(self._fitted.score(_flat(x), y))}


def _class(name: str) -> Any:
    module, _, cls = name.rpartition(".")
    return getattr(importlib.import_module(module), cls)


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
