"""What the networks have in common that a worker computes itself: rows as numbers of theirs, and what is given for
logits. Reads no file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
BYTE_SECONDS = 5e-12  # of a row, for each byte of weights that it is multiplied with


class BadWeights(ValueError):
    """The arrays are not those of a network; the message says which."""


class Network(ABC):
    """Rows of `width` values in, `classes` logits out."""

    def __init__(self, dtype: np.dtype[Any], width: int, classes: int, final: str, unit: float | None) -> None:
        """`unit`: what 1 of a row of uint8 is to the network; other rows are taken as they are."""
        self.dtype, self.width = dtype, width
        self._classes, self._final = classes, final
        self._unit = None if unit is None else dtype.type(unit)
        self._buffers: list[Array] = []

    @property
    def output(self) -> tuple[str, tuple[int, ...]]:
        """dtype and shape of one row's output."""
        return ("<i8", ()) if self._final == "argmax" else (self.dtype.str, (self._classes,))

    @property
    @abstractmethod
    def row_values(self) -> int:
        """Numbers that one row is while it goes through: itself and what each layer makes of it."""

    @property
    @abstractmethod
    def row_seconds(self) -> float:
        """Roughly what a row takes on one processor, where batches are large."""

    @abstractmethod
    def batch(self, rows: Array) -> Array:
        """The logits of these rows, in memory that the next call uses again."""

    def finished(self, logits: Array) -> Array:
        """What is given for logits."""
        if self._final == "argmax":
            best: Array = logits.argmax(axis=1)
            return best
        return softmax(logits) if self._final == "softmax" else logits

    def _converted(self, rows: Array) -> Array:
        """As the weights are; rows with axes of their own lie flat."""
        flat = rows.reshape(len(rows), -1)
        if flat.dtype == self.dtype:
            return flat
        x = self._buffer(0, len(rows), self.width)
        np.copyto(x, flat, casting="unsafe")
        if self._unit is not None and rows.dtype == np.uint8:
            x *= self._unit
        return x

    def _buffer(self, i: int, rows: int, width: int) -> Array:
        while len(self._buffers) <= i:
            self._buffers.append(np.empty((0, 0), self.dtype))
        if self._buffers[i].shape != (rows, width):
            self._buffers[i] = np.empty((rows, width), self.dtype)
        return self._buffers[i]


def softmax(logits: Array) -> Array:
    """Over the last axis."""
    with np.errstate(invalid="ignore"):  # of a row with an infinity: NaN, which is looked for later
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares: Array = powers / powers.sum(axis=1, keepdims=True)
    return shares
