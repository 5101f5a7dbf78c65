"""One machine's part of a round: a virtual worker's contribution, and how good given weights are. Keeps no state."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import threadpoolctl
import xxhash

from jobs.train import optimizers, quantise, seeds
from jobs.train.contribution import LOSS_MOST, LOSS_UNIT, Contribution, Tally, bits_of
from jobs.train.data import Data, Feeder
from jobs.train.header import Header
from jobs.train.models import Model, open_model
from jobs.train.params import TrainParams

Array = np.ndarray[Any, Any]

JUDGED_ROWS = 1000  # of the test set, at a time
LARGEST = float(np.finfo(np.float32).max)


class Score(msgspec.Struct, frozen=True):
    """How weights do on the whole test set."""

    right: int
    rows: int
    loss: int  # summed, in units of 1 / LOSS_UNIT

    @property
    def accuracy(self) -> float:
        return self.right / self.rows

    @property
    def mean_loss(self) -> float:
        return self.loss / LOSS_UNIT / self.rows


def digest_of(weights: Array) -> str:
    """By which both ends know that they have the same weights."""
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(weights, "<f4").data)


class Learner:
    """The model and the data of a job, open in one worker. Weights are only read."""

    def __init__(self, params: TrainParams, data: Data, threads: int = 1, model: Model | None = None) -> None:
        threadpoolctl.threadpool_limits(limits=threads)
        self._params = params
        self._data = data
        self.model = model or open_model(params, data.facts)
        self.dim = self.model.dim
        self._feeder = Feeder(data.x, data.y, data.unit)
        self._gradient = np.zeros(self.dim, np.float32)
        self._moved: Array = np.empty(0, np.float32)  # of a virtual worker that takes several steps
        self._optimizer: optimizers.Optimizer | None = None
        self._quantiser = quantise.Quantiser(self.dim, params.bits, params.limit)
        self._values = np.empty(self.dim, quantise.DTYPES[params.bits])

    def start(self) -> Array:
        """The weights of round 0."""
        return self.model.start(self._params.seed)

    def contribute(self, weights: Array, header: Header, v: int) -> Contribution:
        """What virtual worker `v` gives for a round; its values are good until the next call."""
        rows = self._rows(header, v)
        if header.steps == 1:
            loss = self._one_step(weights, rows)
            return self._quantised(self._gradient, loss, header, v, 1, len(rows))
        loss = self._several_steps(weights, rows, header)
        return self._quantised(self._moved, loss, header, v, len(rows), len(rows))

    def evaluate(self, weights: Array) -> Score:
        """On the whole test set."""
        right, loss, data = 0, 0.0, self._data
        feeder = Feeder(data.test_x, data.test_y, data.unit)
        for first in range(0, len(data.test_x), JUDGED_ROWS):
            x, y = feeder.batch(np.arange(first, min(first + JUDGED_ROWS, len(data.test_x))))
            found, lost = self.model.judge(weights, x, y)
            right, loss = right + found, loss + lost
        return Score(right, len(data.test_x), _fixed(loss, len(data.test_x)))

    def _rows(self, header: Header, v: int) -> Array:
        source = seeds.bits_of(self._params.seed, header.round, v)
        return seeds.rows_of(source, header.steps * self._params.microbatch, len(self._data.x))

    def _one_step(self, weights: Array, rows: Array) -> float:
        """The gradient summed over the rows, and the buffers' change times as many."""
        x, y = self._feeder.batch(rows)
        loss = self.model.gradient(weights, x, y, self._gradient)
        if self.model.buffers:
            self._gradient[self.model.stepped :] *= np.float32(len(rows))
        return loss

    def _several_steps(self, weights: Array, rows: Array, header: Header) -> float:
        """How far the steps lead, as a gradient would have it: first weights less last; buffers the other way."""
        moved, optimizer = self._begun(weights)
        stepped, batch = self.model.stepped, self._params.microbatch
        gradient, share, loss = self._gradient, np.float32(1 / batch), 0.0
        for first in range(0, len(rows), batch):
            x, y = self._feeder.batch(rows[first : first + batch])
            loss += self.model.gradient(moved, x, y, gradient)
            gradient[:stepped] *= share
            optimizer.step(moved[:stepped], gradient[:stepped], header.rate)
            moved[stepped:] += gradient[stepped:]
        np.subtract(weights[:stepped], moved[:stepped], out=moved[:stepped])
        moved[stepped:] -= weights[stepped:]
        return loss

    def _begun(self, weights: Array) -> tuple[Array, optimizers.Optimizer]:
        if self._optimizer is None:
            self._optimizer = optimizers.named(self._params, self.model.stepped)
            self._moved = np.empty(self.dim, np.float32)
        self._optimizer.reset()
        self._moved[:] = weights
        return self._moved, self._optimizer

    def _quantised(self, values: Array, loss: float, header: Header, v: int, weight: int, samples: int) -> Contribution:
        """`values` times `weight`, which makes them a sum over the samples."""
        params, stepped = self._params, self.model.stepped
        noise = seeds.bits_of(params.seed, header.round, v, seeds.NOISE) if params.bits == 8 else None
        peaks, finite, saturated = [], math.isfinite(loss), False
        for part, scale in ((slice(0, stepped), header.scale), (slice(stepped, None), header.buffer_scale)):
            peak = quantise.peak_of(values[part])
            finite = finite and math.isfinite(peak)
            scale = scale * weight
            saturated = saturated or quantise.saturates(peak, scale, params.bits, params.limit)
            peaks.append(bits_of(min(peak * weight, LARGEST)) if finite else 0)
            self._values[part] = self._quantiser.rounded(values[part], scale, peak, noise) if finite else 0
        tally = Tally(
            1, samples, _fixed(loss, samples) if finite else 0, int(saturated and finite), int(not finite), *peaks
        )
        return Contribution(self._values, tally)


def _fixed(loss: float, samples: int) -> int:
    """A loss summed over samples in fixed point, which adds up to the same whatever the order."""
    return round(min(max(loss, 0.0), samples * float(LOSS_MOST)) * LOSS_UNIT) if math.isfinite(loss) else 0
