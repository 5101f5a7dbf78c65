"""The model `mlp`: dense layers with relu between them, in numpy. One matrix product per layer and pass."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from muster.jobs.training.steps.models import ParameterCut, TrainableModel, cross_entropy, right_and_loss, start_of

Array = np.ndarray[Any, Any]


class TrainableMlp(TrainableModel):
    """x @ w0 + b0, relu, ... ; the vector is w0, b0, w1, b1, ... with weights as (inputs, outputs)."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes
        self._cut = ParameterCut([shape for ins, outs in pairwise(sizes) for shape in ((ins, outs), (outs,))])
        self.stepped = self._cut.size
        self._room: _Room | None = None

    def start(self, seed: int) -> Array:
        return start_of(self._cut, seed)

    def gradient(self, weights: Array, x: Array, y: Array, out: Array) -> float:
        room = self._room_for(len(x))
        views, grads = self._cut.views(weights), self._cut.views(out)
        x = x.reshape(len(x), -1)
        logits = _forward(views, x, room.layers)
        loss = cross_entropy(logits, y, room.rows)
        inputs = [x, *room.layers]
        for i in reversed(range(len(room.layers))):
            above = room.layers[i] if i + 1 == len(room.layers) else room.errors[i]
            np.matmul(inputs[i].T, above, out=grads[2 * i])
            np.matmul(room.ones, above, out=grads[2 * i + 1])
            if i:
                np.matmul(above, views[2 * i].T, out=room.errors[i - 1])
                np.greater(room.layers[i - 1], 0, out=room.alive[i - 1])
                room.errors[i - 1] *= room.alive[i - 1]
        return loss

    def arrays(self, weights: Array) -> dict[str, Array]:
        """w0, b0, w1, ...: what kind `infer` reads."""
        return {f"{'wb'[i % 2]}{i // 2}": view for i, view in enumerate(self._cut.views(weights))}

    def judge(self, weights: Array, x: Array, y: Array) -> tuple[int, float]:
        room = self._room_for(len(x))
        return right_and_loss(_forward(self._cut.views(weights), x.reshape(len(x), -1), room.layers), y)

    def _room_for(self, rows: int) -> _Room:
        if self._room is None or len(self._room.rows) != rows:
            self._room = _Room(self._sizes[1:], rows)
        return self._room


class _Room:
    """Memory for a batch of so many rows."""

    def __init__(self, widths: list[int], rows: int) -> None:
        self.rows = np.arange(rows)
        self.ones = np.ones(rows, np.float32)
        self.layers = [np.empty((rows, width), np.float32) for width in widths]
        self.errors = [np.empty((rows, width), np.float32) for width in widths[:-1]]
        self.alive = [np.empty((rows, width), np.float32) for width in widths[:-1]]


def _forward(views: list[Array], x: Array, layers: list[Array]) -> Array:
    """The logits; each layer's output stays in `layers`."""
    for i, out in enumerate(layers):
        np.matmul(x, views[2 * i], out=out)
        out += views[2 * i + 1]
        if i + 1 < len(layers):
            np.maximum(out, 0, out=out)
        x = out
    return x
