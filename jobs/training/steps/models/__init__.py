"""What a model is to training: a flat float32 vector, and gradients at it. Knows no round and no machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from muster.jobs.common.errors import JobFileError
from muster.jobs.training.data import sampling
from muster.jobs.training.params import Facts, TrainParams

if TYPE_CHECKING:
    from muster.jobs.training.data.dataset import Born

Array = np.ndarray[Any, Any]

TORCH_LEAST = 16  # pixels: from there on, pooling leaves something


class TrainableModel(ABC):
    """Parameters first, then buffers, in one vector of `dim`. Keeps no state between calls but its memory."""

    stepped: int  # how many of the vector are parameters
    buffers: int = 0  # and how many, behind them, are averaged and never stepped

    @property
    def dim(self) -> int:
        return self.stepped + self.buffers

    @abstractmethod
    def start(self, seed: int) -> Array:
        """The first weights."""

    @abstractmethod
    def gradient(self, weights: Array, x: Array, y: Array, out: Array) -> float:
        """The loss summed over the rows; its gradient goes into `out`, and there, behind, the change of the buffers."""

    @abstractmethod
    def arrays(self, weights: Array) -> dict[str, Array]:
        """The vector's pieces by name, as a file of weights has them."""

    @abstractmethod
    def judge(self, weights: Array, x: Array, y: Array) -> tuple[int, float]:
        """How many rows are classified rightly, and the loss summed over them."""


def open_model(params: TrainParams, facts: Facts, packed: Path | None = None) -> TrainableModel:
    """The model of a job, ready. JobFileError where it does not fit the data, of which `packed` is the one file."""
    if params.model == "mlp":
        from muster.jobs.training.steps.models.mlp import TrainableMlp

        return TrainableMlp([flat_width(facts), *params.layers, facts.classes])
    if params.model == "conv1":
        from muster.jobs.training.steps.models.conv1 import Conv1

        return Conv1(image_of(facts, "conv1", least=4), params.filters, facts.classes)
    if params.model != "code":
        image_of(facts, params.model, least=TORCH_LEAST)
    return Elsewhere(facts.stepped, facts.buffers, packed)


class Elsewhere(TrainableModel):
    """A torch module, which lives in a process of its own: here is what was written down of it beside the data."""

    def __init__(self, stepped: int, buffers: int, packed: Path | None) -> None:
        self.stepped, self.buffers = stepped, buffers
        self._packed = packed

    def start(self, seed: int) -> Array:
        return self._born().start

    def gradient(self, weights: Array, x: Array, y: Array, out: Array) -> float:
        raise NotImplementedError("see `muster.jobs.training.steps.torch_trainer`")

    def judge(self, weights: Array, x: Array, y: Array) -> tuple[int, float]:
        raise NotImplementedError("see `muster.jobs.training.steps.torch_trainer`")

    def arrays(self, weights: Array) -> dict[str, Array]:
        return cut_up(weights, self._born().names)

    def _born(self) -> Born:
        from muster.jobs.training.data import dataset

        assert self._packed is not None, "a torch module has packed data"
        return dataset.born_in(self._packed)


def cut_up(weights: Array, names: Sequence[tuple[str, Sequence[int]]]) -> dict[str, Array]:
    """A flat vector's pieces, one after the other, in these shapes."""
    found, at = {}, 0
    for name, shape in names:
        size = int(np.prod(shape, dtype=np.int64))
        found[name] = weights[at : at + size].reshape(tuple(shape))
        at += size
    return found


def flat_width(facts: Facts) -> int:
    return int(np.prod(facts.row, dtype=np.int64))


def image_of(facts: Facts, model: str, least: int, where: str = "params.model") -> tuple[int, int, int]:
    """Height, width and channels of a row that is an image."""
    row = facts.row if len(facts.row) == 3 else (*facts.row, 1)
    if len(row) != 3 or min(row[:2]) < least:
        wrong = f"{where}: {model} needs images of {least} by {least} and more, rows here are of shape {facts.row}"
        raise JobFileError(wrong, "rows are (height, width) or (height, width, channels); mlp takes any")
    return row[0], row[1], row[2]


class ParameterCut:
    """Consecutive pieces of a flat vector as arrays of their shapes."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        self.shapes = shapes
        self._ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)]).tolist()
        self.size: int = self._ends[-1]

    def views(self, flat: Array) -> list[Array]:
        ends = self._ends
        return [flat[ends[i] : ends[i + 1]].reshape(shape) for i, shape in enumerate(self.shapes)]


def start_of(cut: ParameterCut, seed: int) -> Array:
    """He's start for weights, each of whose columns has its inputs along the axis before last; biases are 0."""
    flat = np.zeros(cut.size, np.float32)
    source = sampling.bits_of(seed, sampling.WEIGHTS)
    for view in cut.views(flat):
        if view.ndim > 1:
            fan_in = view.shape[0]
            view[...] = (sampling.normals_of(source, view.size) * np.float32((2 / fan_in) ** 0.5)).reshape(view.shape)
    return flat


def cross_entropy(logits: Array, y: Array, rows: Array) -> float:
    """The loss summed over the rows; `logits` becomes its gradient."""
    logits -= logits.max(axis=1, keepdims=True)
    picked = logits[rows, y].sum(dtype=np.float64)
    np.exp(logits, out=logits)
    sums = logits.sum(axis=1, keepdims=True)
    loss = float(np.log(sums).sum(dtype=np.float64) - picked)
    logits /= sums
    logits[rows, y] -= 1
    return loss


def right_and_loss(logits: Array, y: Array) -> tuple[int, float]:
    """How many rows have their label as the largest; the loss summed over them."""
    right = int((logits.argmax(axis=1) == y).sum())
    return right, cross_entropy(logits, y, np.arange(len(y)))
