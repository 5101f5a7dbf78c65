"""One machine's part of a round: a virtual worker's contribution, and how good given weights are. Keeps no state."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import threadpoolctl
import xxhash

from muster.jobs.training.aggregation import fixed_point
from muster.jobs.training.aggregation.contribution import (
    LOSS_MOST,
    LOSS_UNIT,
    Contribution,
    ContributionTally,
    RoundHeader,
    bits_of,
)
from muster.jobs.training.data import sampling
from muster.jobs.training.data.dataset import Data
from muster.jobs.training.params import TORCH_MODELS, TrainParams
from muster.jobs.training.steps.models import open_model
from muster.jobs.training.steps.torch_trainer import TorchTrainer, TrainerPlace
from muster.jobs.training.steps.trainer import NumpyTrainer, Trainer

Array = np.ndarray[Any, Any]

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


def trainer_of(params: TrainParams, data: Data, threads: int, place: TrainerPlace | None) -> Trainer:
    """What computes this job's steps here."""
    if params.model in TORCH_MODELS:
        assert place is not None, "torch runs in a process of its own"
        return TorchTrainer(params, data.facts, place, threads)
    return NumpyTrainer(params, data, open_model(params, data.facts))


class Learner:
    """The model and the data of a job, open in one worker. Weights are only read."""

    def __init__(self, params: TrainParams, data: Data, threads: int = 1, place: TrainerPlace | None = None) -> None:
        """`place`: where a torch module may run; numpy's models need none."""
        threadpoolctl.threadpool_limits(limits=threads)
        self.params = params
        self._rows = len(data.x)
        self._test_rows = len(data.test_x)
        self.model = trainer_of(params, data, threads, place)
        self.dim = self.model.dim
        self._quantiser = fixed_point.Quantiser(self.dim, params.bits, params.limit)
        self._values = np.empty(self.dim, fixed_point.DTYPES[params.bits])

    def start(self) -> Array:
        """The weights of round 0."""
        return self.model.start(self.params.seed)

    def contribute(self, weights: Array, header: RoundHeader, v: int) -> Contribution:
        """What virtual worker `v` gives for a round; its values are good until the next call."""
        seed, steps = self.params.seed, header.steps
        source = sampling.bits_of(seed, header.round, v)
        rows = sampling.rows_of(source, steps * self.params.microbatch, self._rows)
        luck = sampling.number_of(sampling.bits_of(seed, header.round, v, sampling.AUGMENT))
        values, loss = self.model.run(weights, rows, steps, header.rate, luck)
        return self._quantised(values, loss, header, v, 1 if steps == 1 else len(rows), len(rows))

    def evaluate(self, weights: Array) -> Score:
        """On the whole test set."""
        right, loss = self.model.judge(weights)
        return Score(min(max(right, 0), self._test_rows), self._test_rows, _fixed(loss, self._test_rows))

    def close(self) -> None:
        self.model.close()

    def _quantised(
        self, values: Array, loss: float, header: RoundHeader, v: int, weight: int, samples: int
    ) -> Contribution:
        """`values` times `weight`, which makes them a sum over the samples."""
        params, stepped = self.params, self.model.stepped
        noise = sampling.bits_of(params.seed, header.round, v, sampling.NOISE) if params.bits == 8 else None
        peaks, finite, saturated = [], math.isfinite(loss), False
        for part, scale in ((slice(0, stepped), header.scale), (slice(stepped, None), header.buffer_scale)):
            peak = fixed_point.peak_of(values[part])
            finite = finite and math.isfinite(peak)
            scale = scale * weight
            saturated = saturated or fixed_point.saturates(peak, scale, params.bits, params.limit)
            peaks.append(bits_of(min(peak * weight, LARGEST)) if finite else 0)
            self._values[part] = self._quantiser.rounded(values[part], scale, peak, noise) if finite else 0
        tally = ContributionTally(
            1, samples, _fixed(loss, samples) if finite else 0, int(saturated and finite), int(not finite), *peaks
        )
        return Contribution(self._values, tally)


def _fixed(loss: float, samples: int) -> int:
    """A loss summed over samples in fixed point, which adds up to the same whatever the order."""
    return round(min(max(loss, 0.0), samples * float(LOSS_MOST)) * LOSS_UNIT) if math.isfinite(loss) else 0
