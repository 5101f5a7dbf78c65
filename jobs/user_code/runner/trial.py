"""One trial of a search, iteration by iteration, for a runner: numpy, Python 3.8 or later; nothing of ours.

A call is one row of bytes: the length of a JSON (8 bytes), the JSON, and perhaps a trial's state. A live trial stays in
memory by its number and the digest of its state, so that where it goes on here nothing is loaded.
"""

from __future__ import annotations

import inspect
import io
import json
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Dict, Iterator  # noqa: UP035 (3.8)

import numpy as np

# By its path: a user's module may have the same name
loading = ModuleType("loading")
loading.__file__ = str(Path(__file__).with_name("loading.py"))
SourceFileLoader("loading", loading.__file__).exec_module(loading)
own = loading.sibling("own_trials")

Arrays = Dict[str, Any]  # noqa: UP006 (3.8)
HEAD_BYTES = 8
KEPT = 2  # live trials
METRICS_MOST = 64

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
        self._make = _maker(settings, own.Data(settings) if settings["data"] else None)

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
        self._now = None
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


def _maker(settings: dict[str, Any], data: Any) -> Callable[[Any, int], Any]:
    """What makes a trial of a configuration and its number."""
    trial, seed = settings["trial"], settings["seed"]
    if trial == "code":
        return _users(settings["folder"], settings["code"], data, seed)  # type: ignore[no-any-return]
    if trial == "torch":
        make = loading.sibling("torch_trial").maker(
            settings["folder"], settings["code"], data, seed, (encoded, decoded)
        )
    elif isinstance(trial, str):
        make = partial(own.mlp if trial == "mlp" else own.conv1, data=data, seed=seed)
    else:
        cls, more = own.class_of(trial["estimator"]), {"data": data, "seed": seed}
        rungs = {"eta": settings["eta"], "iterations": settings["iterations"]}
        make = partial(own.Refitted, cls, **more, **rungs) if trial["refits"] else partial(own.Estimator, cls, **more)
    return lambda config, number: make(config)


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
    _, function = loading.named(folder, entry)
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
    raw: bytes = own.npz({"tree": np.frombuffer(tree, np.uint8), **arrays})
    return raw


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
