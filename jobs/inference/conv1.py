"""The small convolution of a search: 3x3, 2x2 max pooling, relu, a dense layer. Knows no file, no job, no shard."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from muster.jobs.inference.network import BYTE_SECONDS, Array, BadWeights, Network

NAMES = ("conv.weight", "conv.bias", "dense.weight", "dense.bias")
VALUE_SECONDS = 2e-9  # of each number that a row is while it goes through
SHAPE = "shape"  # of a row: height, width and perhaps channels


def is_conv1(arrays: Mapping[str, Array]) -> bool:
    return {*NAMES, SHAPE} == set(arrays)


class Conv1(Network):
    """As `conv1` of jobs/user_code/runner/own_trials.py trains it."""

    def __init__(self, arrays: Mapping[str, Array], activation: str, final: str, unit: float | None = None) -> None:
        """BadWeights says what does not fit."""
        if activation != "relu":
            raise BadWeights(f"a convolution of a search has relu between its layers, not {activation}")
        weights = {name: np.ascontiguousarray(arrays[name]) for name in NAMES}
        self._conv, self._bias, self._dense, self._last = weights.values()
        self._image = _image(arrays[SHAPE])
        height, width, channels = self._image
        self._pooled = (height - 2) // 2, (width - 2) // 2
        filters, classes = self._bias.size, self._last.size
        wanted = {
            "conv.weight": (9 * channels, filters),
            "conv.bias": (filters,),
            "dense.weight": (prod(self._pooled) * filters, classes),
            "dense.bias": (classes,),
        }
        for name, array in weights.items():
            if array.dtype != np.float32 or array.shape != wanted[name] or not array.size:
                said = f"{name} is {array.dtype} of shape {array.shape}, expected float32 of shape {wanted[name]}"
                raise BadWeights(f"{said} for rows of shape {self._image}")
        super().__init__(np.dtype(np.float32), prod(self._image), classes, final, unit)

    @property
    def row_values(self) -> int:
        spots = 4 * prod(self._pooled)
        return self.width + spots * (len(self._conv) + self._bias.size) + len(self._dense)

    @property
    def row_seconds(self) -> float:
        """Its neighbourhoods are copied, each value of them nine times; then each is multiplied with all filters."""
        spots = 4 * prod(self._pooled)
        return (spots * self._conv.nbytes + self._dense.nbytes) * BYTE_SECONDS + self.row_values * VALUE_SECONDS

    def batch(self, rows: Array) -> Array:
        x = self._converted(rows).reshape(len(rows), *self._image)
        spots = self._spots(x) @ self._conv
        best = np.maximum(spots.max(axis=(2, 4)) + self._bias, 0)
        logits: Array = best.reshape(len(rows), -1) @ self._dense + self._last
        return logits

    def _spots(self, x: Array) -> Array:
        """The neighbourhood of each pixel that is pooled: (rows, down, 2, across, 2, 9 * channels)."""
        down, across = self._pooled
        spots = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
        spots = spots[:, : 2 * down, : 2 * across]
        return np.ascontiguousarray(spots).reshape(len(x), down, 2, across, 2, -1)


def _image(shape: Any) -> tuple[int, int, int]:
    """Height, width and channels of a row."""
    sizes = [int(size) for size in shape] if shape.ndim == 1 and shape.dtype.kind in "iu" else []
    if len(sizes) == 2:
        sizes.append(1)
    if len(sizes) != 3 or min(sizes[:2]) < 4 or sizes[2] < 1 or prod(sizes) > 1 << 28:
        raise BadWeights(f"{SHAPE} is {shape.tolist()!r:.80}, expected height, width and perhaps channels of a row")
    return sizes[0], sizes[1], sizes[2]
