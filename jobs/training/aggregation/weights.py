"""The driver's copy of the weights and how a merged contribution moves them. Decides nothing about rounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from muster.jobs.common.errors import TrainingError
from muster.jobs.training.aggregation import optimizers
from muster.jobs.training.aggregation.contribution import Contribution, ContributionSum, RoundHeader, float_of
from muster.jobs.training.aggregation.fixed_point import Scale, peak_of
from muster.jobs.training.aggregation.weights_delta import Compressor, Update
from muster.jobs.training.params import TrainParams
from muster.jobs.training.steps.learner import digest_of

Array = np.ndarray[Any, Any]


class Weights:
    """Weights, the optimizer's state, fixed-point scales, and what the last update's rounding left."""

    def __init__(self, params: TrainParams, weights: Array, stepped: int) -> None:
        self.weights: Array = np.array(weights, np.float32)  # replaced, never written: others may still hold it
        self.digest = digest_of(self.weights)
        self.stepped = stepped
        bits, limit, samples = params.bits, params.limit, params.samples
        self.scales = Scale(bits, limit, samples), Scale(bits, limit, samples)
        self._params = params
        self._optimizer = optimizers.outer(params, stepped)
        self._compressor = Compressor(len(self.weights), stepped, params.bits)
        self._mean = np.empty(len(self.weights), np.float32)

    def advance(
        self, total: Contribution | ContributionSum, header: RoundHeader, number: int, rate: float, share: float
    ) -> Update:
        """The weights a step of this rate on, as number `number`; a `share` of it, where it is not a whole round."""
        old, stepped, mean = self.weights, self.stepped, self._mean
        np.copyto(mean, total.values, casting="unsafe")
        mean[:stepped] *= np.float32(1 / (header.scale * total.tally.samples))
        mean[stepped:] *= np.float32(share / (header.buffer_scale * total.tally.samples))
        new = old.copy()
        new[stepped:] += mean[stepped:]
        self._optimizer.step(new[:stepped], mean[:stepped], rate * share)
        if not math.isfinite(peak_of(new)):
            raise TrainingError(f"the weights of round {number} are not finite numbers")
        update = self._compressor.update(number, old, new)
        self.weights, self.digest = new, digest_of(new)
        return update

    def rate_at(self, round_: int) -> float:
        """Of a step of ours in this round."""
        return optimizers.rate_at(self._params, round_) if self._params.steps == 1 else self._params.outer_lr

    def header(self, number: int, redo: int, round_: int) -> RoundHeader:
        """Of work to be done at these weights, which have this number, in this round."""
        return RoundHeader(
            round=number,
            redo=redo,
            steps=self._params.steps,
            scale=self.scales[0].value,
            rate=optimizers.rate_at(self._params, round_),
            weights=self.digest,
            buffer_scale=self.scales[1].value,
        )

    def peaks_of(self, total: Contribution | ContributionSum) -> tuple[float, float]:
        return float_of(total.tally.peak), float_of(total.tally.buffer_peak)

    def wrong_scale(self, total: Contribution | ContributionSum, header: RoundHeader) -> str:
        """Why what was computed under this header cannot count, in words; empty where it can."""
        tally, scales = total.tally, (header.scale, header.buffer_scale)
        if tally.saturated:
            return f"{tally.saturated} of {tally.workers} workers had values beyond the scale"
        judged = zip(self.scales, self.peaks_of(total), scales, strict=True)
        guessed = header.round == 0 and header.redo == 0
        if guessed and any(scale.is_coarse(peak, guess) for scale, peak, guess in judged):
            return "the first scale was a guess, and too coarse"
        return ""

    def learn(self, total: Contribution | ContributionSum) -> None:
        """The scales of what comes next, or is done again."""
        for scale, peak in zip(self.scales, self.peaks_of(total), strict=True):
            scale.learn(peak)

    def state_dict(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Arrays and plain values that `restore` takes."""
        arrays = {"weights": self.weights, "residual": self._compressor.residual}
        arrays |= {f"optimizer.{name}": array for name, array in self._optimizer.state.items()}
        values = {"taken": self._optimizer.taken, "scales": [[scale.value, scale.peaks] for scale in self.scales]}
        return {name: array.copy() for name, array in arrays.items()}, values

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        """All but the weights, which came with the constructor."""
        self._optimizer.taken = values["taken"]
        for name, array in self._optimizer.state.items():
            array[:] = arrays[f"optimizer.{name}"]
        self._compressor.residual[:] = arrays["residual"]
        for scale, (value, peaks) in zip(self.scales, values["scales"], strict=True):
            scale.value, scale.peaks = value, list(peaks)


class WeightsState:
    """What a training's driver tells of its weights, in whatever order contributions move them."""

    def __init__(self, params: TrainParams, weights: Array, stepped: int) -> None:
        self.params = params
        self._master = Weights(params, weights, stepped)

    @property
    def weights(self) -> Array:
        """Of the work at hand. Not to be written; later work has arrays of its own."""
        return self._master.weights

    @property
    def digest(self) -> str:
        return self._master.digest

    @property
    def stepped(self) -> int:
        return self._master.stepped

    @property
    def dim(self) -> int:
        return len(self.weights)
