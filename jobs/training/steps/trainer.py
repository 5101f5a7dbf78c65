"""What computes a virtual worker's steps: a model, an optimizer, data. Knows no round and rounds nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from muster.jobs.training.aggregation import optimizers
from muster.jobs.training.data.dataset import Data, Feeder
from muster.jobs.training.params import TrainParams
from muster.jobs.training.steps.models import TrainableModel

Array = np.ndarray[Any, Any]

JUDGED_ROWS = 1000  # of the test set, at a time


class Trainer(ABC):
    """Keeps no state between calls but its memory."""

    stepped: int  # how many of the weights are parameters
    buffers: int  # and how many, behind them, are averaged and never stepped
    peak: int = 0  # bytes of memory that processes of its own took for the last call

    @property
    def dim(self) -> int:
        return self.stepped + self.buffers

    @abstractmethod
    def start(self, seed: int) -> Array:
        """The first weights."""

    @abstractmethod
    def run(self, weights: Array, rows: Array, steps: int, rate: float, seed: int) -> tuple[Array, float]:
        """One step: the gradient summed over the rows, behind it the buffers' change times as many. Several: how far
        they lead, as a gradient would have it (first weights less last; buffers the other way). And the summed loss.

        The vector is good until the next call.
        """

    @abstractmethod
    def judge(self, weights: Array) -> tuple[int, float]:
        """How many rows of the test set are classified rightly, and the loss summed over them."""

    @abstractmethod
    def arrays(self, weights: Array) -> dict[str, Array]:
        """The vector's pieces by name, as a file of weights has them."""

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back processes."""


class NumpyTrainer(Trainer):
    """In this process."""

    def __init__(self, params: TrainParams, data: Data, model: TrainableModel) -> None:
        self.stepped, self.buffers = model.stepped, model.buffers
        self._params = params
        self._data = data
        self._model = model
        self._feeder = Feeder(data.x, data.y, data.unit)
        self._gradient = np.zeros(model.dim, np.float32)
        self._moved: Array = np.empty(0, np.float32)
        self._optimizer: optimizers.Optimizer | None = None

    def start(self, seed: int) -> Array:
        return self._model.start(seed)

    def run(self, weights: Array, rows: Array, steps: int, rate: float, seed: int) -> tuple[Array, float]:
        if steps > 1:
            return self._several(weights, rows, len(rows) // steps, rate)
        x, y = self._feeder.batch(rows)
        loss = self._model.gradient(weights, x, y, self._gradient)
        if self.buffers:
            self._gradient[self.stepped :] *= np.float32(len(rows))
        return self._gradient, loss

    def judge(self, weights: Array) -> tuple[int, float]:
        right, loss, data = 0, 0.0, self._data
        feeder = Feeder(data.test_x, data.test_y, data.unit)
        for first in range(0, len(data.test_x), JUDGED_ROWS):
            x, y = feeder.batch(np.arange(first, min(first + JUDGED_ROWS, len(data.test_x))))
            found, lost = self._model.judge(weights, x, y)
            right, loss = right + found, loss + lost
        return right, loss

    def arrays(self, weights: Array) -> dict[str, Array]:
        return self._model.arrays(weights)

    def _several(self, weights: Array, rows: Array, batch: int, rate: float) -> tuple[Array, float]:
        moved, optimizer = self._begun(weights)
        stepped, gradient, share, loss = self.stepped, self._gradient, np.float32(1 / batch), 0.0
        for first in range(0, len(rows), batch):
            x, y = self._feeder.batch(rows[first : first + batch])
            loss += self._model.gradient(moved, x, y, gradient)
            gradient[:stepped] *= share
            optimizer.step(moved[:stepped], gradient[:stepped], rate)
            moved[stepped:] += gradient[stepped:]
        np.subtract(weights[:stepped], moved[:stepped], out=moved[:stepped])
        moved[stepped:] -= weights[stepped:]
        return moved, loss

    def _begun(self, weights: Array) -> tuple[Array, optimizers.Optimizer]:
        """A copy of the weights to step on, and an optimizer that remembers nothing."""
        if self._optimizer is None:
            self._optimizer = optimizers.named(self._params, self.stepped)
            self._moved = np.empty(self.dim, np.float32)
        self._optimizer.reset()
        self._moved[:] = weights
        return self._moved, self._optimizer
