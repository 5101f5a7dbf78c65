"""Rows, labels and a held-out test set. Reads files; knows no model and no round."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jobs.errors import SourceError
from jobs.train import seeds
from jobs.train.params import DataSpec, Facts

Array = np.ndarray[Any, Any]

DIGITS_TEST = 360  # of its 1,797 rows


@dataclass(frozen=True)
class Data:
    """`x` is uint8 or float32; what a model is given is x * unit."""

    x: Array
    y: Array
    test_x: Array
    test_y: Array
    unit: float

    @property
    def facts(self) -> Facts:
        classes = int(max(self.y.max(), self.test_y.max())) + 1
        return Facts(len(self.x), len(self.test_x), self.x.shape[1:], classes)


class Feeder:
    """Batches out of one array, in memory that the next batch uses again."""

    def __init__(self, x: Array, y: Array, unit: float) -> None:
        self._x, self._y, self._unit = x, y, np.float32(unit)
        self._raw: Array = np.empty((0, *x.shape[1:]), x.dtype)
        self._floats: Array = np.empty((0, *x.shape[1:]), np.float32)

    def batch(self, rows: Array) -> tuple[Array, Array]:
        if len(self._floats) != len(rows):
            self._raw = np.empty((len(rows), *self._x.shape[1:]), self._x.dtype)
            self._floats = np.empty(self._raw.shape, np.float32)
        np.take(self._x, rows, axis=0, out=self._raw, mode="clip")
        np.multiply(self._raw, self._unit, out=self._floats)
        return self._floats, self._y[rows]


def load(spec: str | DataSpec, base: Path, seed: int = 0) -> Data:
    """The data a job names; SourceError says what is wrong with it."""
    if isinstance(spec, str):
        if spec != "digits":
            raise SourceError(
                f"params.data: there is no data set {spec[:80]!r}", "data: digits, or {x: rows.npy, y: labels.npy}"
            )
        return _digits(seed)
    raise SourceError("params.data: files are not read yet")


def _digits(seed: int) -> Data:
    from sklearn.datasets import load_digits

    found = load_digits()
    return _split(found.images.astype(np.uint8), found.target.astype(np.int64), DIGITS_TEST, 1 / 16, seed)


def _split(x: Array, y: Array, test_rows: int, unit: float, seed: int) -> Data:
    """Some rows held out, the same for equal seeds."""
    order = seeds.order_of(seeds.bits_of(seed, seeds.SPLIT), len(x))
    test, train = order[:test_rows], order[test_rows:]
    return Data(x[train], y[train], x[test], y[test], unit)
