"""What both sides of `benchmarks.tune` train: functions in numpy alone, sent as they are. Knows neither side."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import numpy as np

_data: dict[str, Any] = {}  # path → its arrays, once a process


def pause(config: Any, state: Any, budget: int) -> Any:
    """An iteration that takes its time and learns nothing."""
    began, at = time.perf_counter(), (state or 0) + 1
    time.sleep(config["pause"])
    return {"train_accuracy": at / 1000, "inside": time.perf_counter() - began}, at


def count(config: Any, state: Any, budget: int) -> Any:
    """An iteration that keeps its processor busy."""
    began, at = time.perf_counter(), (state or 0) + 1
    while time.perf_counter() - began < config["pause"]:
        pass
    return {"train_accuracy": at / 1000, "inside": time.perf_counter() - began}, at


def epoch(config: Any, state: Any, budget: int) -> Any:
    """One over all rows, of an mlp with one hidden layer: SGD with momentum. `train_accuracy` is that of its steps."""
    began, rows = time.perf_counter(), _rows(config["data"])
    at, arrays, speed = state or (0, *_start(config, rows))
    order = np.random.default_rng((config["trial"], at)).permutation(len(rows["x"]))
    right = 0
    for first in range(0, len(order), 128):
        some = order[first : first + 128]
        right += _step(rows["x"][some], rows["y"][some], arrays, speed, config)
    told = {"train_accuracy": right / len(order), "test_accuracy": _test(rows, arrays)}
    return {**told, "inside": time.perf_counter() - began}, (at + 1, arrays, speed)


def _rows(path: str) -> Any:
    if path not in _data:
        with np.load(path) as arrays:
            found = {name: arrays[name] for name in arrays}
        for name in ("x", "test_x"):
            found[name] = found[name].reshape(len(found[name]), -1).astype(np.float32) / np.float32(found[name].max())
        _data[path] = found
    return _data[path]


def _start(config: Any, rows: Any) -> Any:
    draw = np.random.default_rng(config["trial"])
    sizes = (rows["x"].shape[1], config["hidden"], int(rows["y"].max()) + 1)
    arrays: list[Any] = []
    for ins, outs in pairwise(sizes):
        arrays += [(draw.standard_normal((ins, outs)) * (2 / ins) ** 0.5).astype("f4"), np.zeros(outs, "f4")]
    return arrays, [np.zeros_like(one) for one in arrays]


def _step(x: Any, y: Any, arrays: Any, speed: Any, config: Any) -> int:
    """How many were right before it."""
    hidden = np.maximum(x @ arrays[0] + arrays[1], 0)
    slope = hidden @ arrays[2] + arrays[3]
    right = int((slope.argmax(axis=1) == y).sum())
    slope = np.exp(slope - slope.max(axis=1, keepdims=True))
    slope /= slope.sum(axis=1, keepdims=True)
    slope[np.arange(len(y)), y] -= 1
    slope /= np.float32(len(y))
    back = (slope @ arrays[2].T) * (hidden > 0)
    for i, gradient in enumerate((x.T @ back, back.sum(axis=0), hidden.T @ slope, slope.sum(axis=0))):
        speed[i] = np.float32(config["momentum"]) * speed[i] - np.float32(config["lr"]) * gradient
        arrays[i] = arrays[i] + speed[i]
    return right


def _test(rows: Any, arrays: Any) -> float:
    outs = np.maximum(rows["test_x"] @ arrays[0] + arrays[1], 0) @ arrays[2] + arrays[3]
    return float((outs.argmax(axis=1) == rows["test_y"]).mean())
