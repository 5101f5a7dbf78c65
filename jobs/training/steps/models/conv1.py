"""The model `conv1`: one 3x3 convolution, relu, 2x2 max pooling, one dense layer. In numpy, as matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

from muster.jobs.training.steps.models import ParameterCut, TrainableModel, cross_entropy, right_and_loss, start_of

Array = np.ndarray[Any, Any]

KERNEL = 3
CORNERS = [(0, 0), (0, 1), (1, 0), (1, 1)]  # of a pooling window


class Conv1(TrainableModel):
    """Pixels under the four corners of the pooling windows lie apart, so that pooling is a maximum of whole arrays."""

    def __init__(self, image: tuple[int, int, int], filters: int, classes: int) -> None:
        height, width, channels = self._image = image
        self._pooled = (height - KERNEL + 1) // 2, (width - KERNEL + 1) // 2
        self._filters = filters
        self._taps = KERNEL * KERNEL * channels
        flat = self._pooled[0] * self._pooled[1] * filters
        self._cut = ParameterCut([(self._taps, filters), (filters,), (flat, classes), (classes,)])
        self.stepped = self._cut.size
        self._room: _Room | None = None

    def start(self, seed: int) -> Array:
        return start_of(self._cut, seed)

    def gradient(self, weights: Array, x: Array, y: Array, out: Array) -> float:
        room = self._room_for(len(x))
        _, _, dense, _ = self._cut.views(weights)
        kernel_out, shift_out, dense_out, bias_out = self._cut.views(out)
        logits = self._forward(weights, x, room)
        loss = cross_entropy(logits, y, room.rows)
        np.matmul(room.positive.reshape(len(x), -1).T, logits, out=dense_out)
        np.matmul(room.ones, logits, out=bias_out)
        np.matmul(logits, dense.T, out=room.error.reshape(len(x), -1))
        np.greater(room.positive, 0, out=room.alive)
        room.error *= room.alive
        np.matmul(room.spots, room.error, out=shift_out)
        for values in room.corners:  # the first of equal ones has it all
            np.equal(values, room.best, out=room.alive)
            np.multiply(room.error, room.alive, out=values)
            room.error -= values
        np.matmul(room.taps.reshape(-1, self._taps).T, room.corners.reshape(-1, self._filters), out=kernel_out)
        return loss

    def judge(self, weights: Array, x: Array, y: Array) -> tuple[int, float]:
        return right_and_loss(self._forward(weights, x, self._room_for(len(x))), y)

    def arrays(self, weights: Array) -> dict[str, Array]:
        names = ("conv.weight", "conv.bias", "dense.weight", "dense.bias")
        return dict(zip(names, self._cut.views(weights), strict=True))

    def _forward(self, weights: Array, x: Array, room: _Room) -> Array:
        """The logits; what the way back needs stays in `room`."""
        kernel, shift, dense, bias = self._cut.views(weights)
        self._spread(x.reshape(len(x), *self._image), room.taps)
        np.matmul(room.taps.reshape(-1, self._taps), kernel, out=room.corners.reshape(-1, self._filters))
        np.maximum(room.corners[0], room.corners[1], out=room.best)
        np.maximum(room.best, room.corners[2], out=room.best)
        np.maximum(room.best, room.corners[3], out=room.best)
        np.add(room.best, shift, out=room.positive)
        np.maximum(room.positive, 0, out=room.positive)
        np.matmul(room.positive.reshape(len(x), -1), dense, out=room.logits)
        room.logits += bias
        return room.logits

    def _spread(self, x: Array, taps: Array) -> None:
        """The 3x3 neighbourhood of each pixel that is pooled, by corner."""
        (high, wide), channels = self._pooled, self._image[2]
        for corner, (down, right) in enumerate(CORNERS):
            for tap in range(KERNEL * KERNEL):
                top, left = down + tap // KERNEL, right + tap % KERNEL
                piece = x[:, top : top + 2 * high : 2, left : left + 2 * wide : 2]
                target = taps[corner].reshape(len(x), high, wide, self._taps)
                target[..., tap * channels : (tap + 1) * channels] = piece

    def _room_for(self, rows: int) -> _Room:
        if self._room is None or len(self._room.rows) != rows:
            spots = self._pooled[0] * self._pooled[1]
            self._room = _Room(rows, spots, self._taps, self._filters, self._cut.shapes[-1][0])
        return self._room


class _Room:
    """Memory for a batch of so many rows."""

    def __init__(self, rows: int, spots: int, taps: int, filters: int, classes: int) -> None:
        self.rows = np.arange(rows)
        self.ones = np.ones(rows, np.float32)
        self.spots = np.ones(rows * spots, np.float32)
        self.taps = np.empty((len(CORNERS), rows * spots, taps), np.float32)
        self.corners = np.empty((len(CORNERS), rows * spots, filters), np.float32)
        self.best = np.empty((rows * spots, filters), np.float32)
        self.positive = np.empty((rows * spots, filters), np.float32)
        self.error = np.empty((rows * spots, filters), np.float32)
        self.alive = np.empty((rows * spots, filters), np.float32)
        self.logits = np.empty((rows, classes), np.float32)
