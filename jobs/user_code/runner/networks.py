"""Networks in numpy, their weights one flat float32 vector: what they make of rows, and the gradient of their loss. For
a runner: Python 3.8 or later, nothing of ours. Draws nothing and takes no step."""

from __future__ import annotations

from typing import Any

import numpy as np

KERNEL = 3  # pixels along each side of a convolution
CORNERS = 4  # of a pooling window: up and left, up and right, down and left, down and right


class ParameterCut:
    """Consecutive pieces of a flat vector as arrays of their shapes."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        self.shapes = shapes
        self._ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)]).tolist()
        self.size: int = self._ends[-1]

    def views(self, flat: Any) -> list[Any]:
        ends = self._ends
        return [flat[ends[i] : ends[i + 1]].reshape(shape) for i, shape in enumerate(self.shapes)]


class TrainableNetwork:
    """Keeps no state between calls but its memory, in which the logits lie until the next call."""

    cut: ParameterCut
    names: list[str]  # of the pieces, as a file of weights has them; those of weights have their inputs along axis 0

    def arrays(self, weights: Any) -> dict[str, Any]:
        """The vector's pieces by name."""
        return dict(zip(self.names, self.cut.views(weights)))

    def forward(self, weights: Any, x: Any) -> Any:
        """The logits; what the way back needs is kept as well."""
        raise NotImplementedError

    def backward(self, weights: Any, x: Any, y: Any, logits: Any, out: Any) -> float:
        """The loss summed over the rows that have just gone forward; its gradient goes into `out`, and `logits` become
        their own."""
        raise NotImplementedError

    def judge(self, weights: Any, x: Any, y: Any) -> tuple[int, float]:
        """How many rows have their label as the largest; the loss summed over them."""
        logits = self.forward(weights, x)
        right = int((logits.argmax(axis=1) == y).sum())
        return right, cross_entropy(logits, y, np.arange(len(y)))


class TrainableMlp(TrainableNetwork):
    """Dense layers with relu between them. x @ w0 + b0, relu, ...; one matrix product per layer and pass."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes
        layers = range(len(sizes) - 1)
        self.cut = ParameterCut([shape for i in layers for shape in ((sizes[i], sizes[i + 1]), (sizes[i + 1],))])
        self.names = [f"{which}{i}" for i in layers for which in "wb"]
        self._room: MlpRoom | None = None

    def forward(self, weights: Any, x: Any) -> Any:
        room, views = self._room_for(len(x)), self.cut.views(weights)
        x = x.reshape(len(x), -1)
        for i, out in enumerate(room.layers):
            np.matmul(x, views[2 * i], out=out)
            out += views[2 * i + 1]
            if i + 1 < len(room.layers):
                np.maximum(out, 0, out=out)
            x = out
        return x

    def backward(self, weights: Any, x: Any, y: Any, logits: Any, out: Any) -> float:
        room = self._room_for(len(x))
        views, grads = self.cut.views(weights), self.cut.views(out)
        loss = cross_entropy(logits, y, room.rows)
        inputs = [x.reshape(len(x), -1), *room.layers]
        for i in reversed(range(len(room.layers))):
            above = room.layers[i] if i + 1 == len(room.layers) else room.errors[i]
            np.matmul(inputs[i].T, above, out=grads[2 * i])
            np.matmul(room.ones, above, out=grads[2 * i + 1])
            if i:
                np.matmul(above, views[2 * i].T, out=room.errors[i - 1])
                np.greater(room.layers[i - 1], 0, out=room.alive[i - 1])
                room.errors[i - 1] *= room.alive[i - 1]
        return loss

    def _room_for(self, rows: int) -> MlpRoom:
        if self._room is None or len(self._room.rows) != rows:
            self._room = MlpRoom(self._sizes[1:], rows)
        return self._room


class MlpRoom:
    """Memory for a batch of so many rows."""

    def __init__(self, widths: list[int], rows: int) -> None:
        self.rows = np.arange(rows)
        self.ones = np.ones(rows, np.float32)
        self.layers = [np.empty((rows, width), np.float32) for width in widths]
        self.errors = [np.empty((rows, width), np.float32) for width in widths[:-1]]
        self.alive = [np.empty((rows, width), np.float32) for width in widths[:-1]]


class TrainableConv1(TrainableNetwork):
    """One 3x3 convolution, relu, 2x2 max pooling, one dense layer, as matrix products. Pixels under the four corners of
    the pooling windows lie apart, so that pooling is a maximum of whole arrays."""

    names = ["conv.weight", "conv.bias", "dense.weight", "dense.bias"]  # noqa: RUF012 nobody changes it

    def __init__(self, image: tuple[int, int, int], filters: int, classes: int) -> None:
        height, width, channels = self._image = image
        self._pooled = (height - KERNEL + 1) // 2, (width - KERNEL + 1) // 2
        self._filters = filters
        self._taps = KERNEL * KERNEL * channels
        flat = self._pooled[0] * self._pooled[1] * filters
        self.cut = ParameterCut([(self._taps, filters), (filters,), (flat, classes), (classes,)])
        self._room: ConvRoom | None = None

    def forward(self, weights: Any, x: Any) -> Any:
        room = self._room_for(len(x))
        kernel, shift, dense, bias = self.cut.views(weights)
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

    def backward(self, weights: Any, x: Any, y: Any, logits: Any, out: Any) -> float:
        room = self._room_for(len(x))
        _, _, dense, _ = self.cut.views(weights)
        kernel_out, shift_out, dense_out, bias_out = self.cut.views(out)
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

    def _spread(self, x: Any, taps: Any) -> None:
        """The 3x3 neighbourhood of each pixel that is pooled, by corner: three lines each, whole in memory."""
        x = np.ascontiguousarray(x, np.float32)  # as they are, mostly
        line = np.dtype((np.void, KERNEL * self._image[2] * x.itemsize))
        row, down, right, _ = x.strides
        shape = (2, 2, len(x), *self._pooled, KERNEL)
        lines = np.ndarray(shape, line, x, 0, (down, right, row, 2 * down, 2 * right, down))
        np.copyto(taps.view(line).reshape(shape), lines)

    def _room_for(self, rows: int) -> ConvRoom:
        if self._room is None or len(self._room.rows) != rows:
            spots = self._pooled[0] * self._pooled[1]
            self._room = ConvRoom(rows, spots, self._taps, self._filters, self.cut.shapes[-1][0])
        return self._room


class ConvRoom:
    """Memory for a batch of so many rows."""

    def __init__(self, rows: int, spots: int, taps: int, filters: int, classes: int) -> None:
        self.rows = np.arange(rows)
        self.ones = np.ones(rows, np.float32)
        self.spots = np.ones(rows * spots, np.float32)
        self.taps = np.empty((CORNERS, rows * spots, taps), np.float32)
        self.corners = np.empty((CORNERS, rows * spots, filters), np.float32)
        self.best = np.empty((rows * spots, filters), np.float32)
        self.positive = np.empty((rows * spots, filters), np.float32)
        self.error = np.empty((rows * spots, filters), np.float32)
        self.alive = np.empty((rows * spots, filters), np.float32)
        self.logits = np.empty((rows, classes), np.float32)


def cross_entropy(logits: Any, y: Any, rows: Any) -> float:
    """The loss summed over the rows; `logits` becomes its gradient."""
    logits -= logits.max(axis=1, keepdims=True)
    picked = logits[rows, y].sum(dtype=np.float64)
    np.exp(logits, out=logits)
    sums = logits.sum(axis=1, keepdims=True)
    loss = float(np.log(sums).sum(dtype=np.float64) - picked)
    logits /= sums
    logits[rows, y] -= 1
    return loss
