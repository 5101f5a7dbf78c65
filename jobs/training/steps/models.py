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
from muster.jobs.user_code.runner import networks

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
        return InNumpy(networks.TrainableMlp([flat_width(facts), *params.layers, facts.classes]))
    if params.model == "conv1":
        return InNumpy(networks.TrainableConv1(image_of(facts, "conv1", least=4), params.filters, facts.classes))
    if params.model != "code":
        image_of(facts, params.model, least=TORCH_LEAST)
    return Elsewhere(facts.stepped, facts.buffers, packed)


class InNumpy(TrainableModel):
    """A network that is computed here."""

    def __init__(self, network: networks.TrainableNetwork) -> None:
        self._network, self.stepped = network, network.cut.size

    def start(self, seed: int) -> Array:
        """He's start for weights; biases are 0."""
        flat, source = np.zeros(self.dim, np.float32), sampling.bits_of(seed, sampling.WEIGHTS)
        for view in self._network.cut.views(flat):
            if view.ndim > 1:
                scale = np.float32((2 / view.shape[0]) ** 0.5)
                view[...] = (sampling.normals_of(source, view.size) * scale).reshape(view.shape)
        return flat

    def gradient(self, weights: Array, x: Array, y: Array, out: Array) -> float:
        return self._network.backward(weights, x, y, self._network.forward(weights, x), out)

    def arrays(self, weights: Array) -> dict[str, Array]:
        return self._network.arrays(weights)

    def judge(self, weights: Array, x: Array, y: Array) -> tuple[int, float]:
        return self._network.judge(weights, x, y)


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
