"""The driver's side of sync and local training: rounds, merges, the outer step. No clock, no files, no network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.errors import TrainingError
from jobs.train import optimizers
from jobs.train.contribution import Contribution, Sum, Tally, float_of
from jobs.train.header import Header
from jobs.train.learner import digest_of
from jobs.train.params import TrainParams
from jobs.train.quantise import peak_of
from jobs.train.scales import Scale
from jobs.train.update import Compressor, Update

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Stepped:
    """A round is over: `update` leads to the weights of the next."""

    update: Update
    loss: float  # mean over the round's samples
    samples: int


@dataclass(frozen=True)
class Redo:
    """The round has to be done again under its new header: values were beyond the scale, or far below it."""

    why: str


class Outer:
    """Weights, optimizer and scales from round to round."""

    def __init__(self, params: TrainParams, weights: Array, stepped: int) -> None:
        self.params = params
        self.round = 0
        self.redo = 0
        self.weights: Array = np.array(weights, np.float32)
        self.digest = digest_of(self.weights)
        self.stepped = stepped
        self._optimizer = optimizers.outer(params, stepped)
        self._scales = Scale(params.bits, params.limit), Scale(params.bits, params.limit)
        self._compressor = Compressor(len(self.weights), stepped, params.bits)
        self._mean = np.empty(len(self.weights), np.float32)

    @property
    def dim(self) -> int:
        return len(self.weights)

    @property
    def is_over(self) -> bool:
        return self.round >= self.params.rounds

    def header(self) -> Header:
        """Of the round at hand."""
        return Header(
            round=self.round,
            redo=self.redo,
            steps=self.params.steps,
            scale=self._scales[0].value,
            rate=optimizers.rate_at(self.params, self.round),
            weights=self.digest,
            buffer_scale=self._scales[1].value,
        )

    def merge(self, total: Contribution | Sum) -> Stepped | Redo:
        """All virtual workers' contributions, added up. TrainingError where there is no going on."""
        tally = total.tally
        assert tally.workers == self.params.workers, "a whole round"
        if tally.odd:
            raise TrainingError(f"the loss of round {self.round} is not a finite number")
        peaks = float_of(tally.peak), float_of(tally.buffer_peak)
        if why := self._wrong_scale(tally, peaks):
            self._redo(peaks)
            return Redo(why)
        update = self._step(total)
        for scale, peak in zip(self._scales, peaks, strict=True):
            scale.learn(peak)
        self.round += 1
        self.redo = 0
        return Stepped(update, tally.mean_loss, tally.samples)

    def state_dict(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Arrays and plain values that `resume` goes on from, to the same bits."""
        arrays = {"weights": self.weights, "residual": self._compressor.residual}
        arrays |= {f"optimizer.{name}": array for name, array in self._optimizer.state.items()}
        values = {
            "round": self.round,
            "redo": self.redo,
            "taken": self._optimizer.taken,
            "scales": [[scale.value, scale.peaks] for scale in self._scales],
        }
        return {name: array.copy() for name, array in arrays.items()}, values

    @classmethod
    def resume(cls, params: TrainParams, stepped: int, arrays: dict[str, Array], values: dict[str, Any]) -> Outer:
        """As it was when `state_dict` was called."""
        outer = cls(params, arrays["weights"], stepped)
        outer.round, outer.redo = values["round"], values["redo"]
        outer._optimizer.taken = values["taken"]
        for name, array in outer._optimizer.state.items():
            array[:] = arrays[f"optimizer.{name}"]
        outer._compressor.residual[:] = arrays["residual"]
        for scale, (value, peaks) in zip(outer._scales, values["scales"], strict=True):
            scale.value, scale.peaks = value, list(peaks)
        return outer

    def _wrong_scale(self, tally: Tally, peaks: tuple[float, float]) -> str:
        if tally.saturated:
            return f"{tally.saturated} of {tally.workers} workers had values beyond the scale"
        if any(scale.is_coarse(peak) for scale, peak in zip(self._scales, peaks, strict=True)):
            return "the first scale was a guess, and too coarse"
        return ""

    def _redo(self, peaks: tuple[float, float]) -> None:
        for scale, peak in zip(self._scales, peaks, strict=True):
            scale.adapt(peak)
        self.redo += 1

    def _step(self, total: Contribution | Sum) -> Update:
        """The outer step; `weights` is a new array, for others may still hold the old one."""
        old, stepped, mean = self.weights, self.stepped, self._mean
        np.copyto(mean, total.values, casting="unsafe")
        for part, scale in ((slice(0, stepped), self._scales[0]), (slice(stepped, None), self._scales[1])):
            mean[part] *= np.float32(1 / (scale.value * total.tally.samples))
        new = old.copy()
        new[stepped:] += mean[stepped:]
        self._optimizer.step(new[:stepped], mean[:stepped], self._rate())
        if not math.isfinite(peak_of(new)):
            raise TrainingError(f"the weights after round {self.round} are not finite numbers")
        update = self._compressor.update(self.round + 1, old, new)
        self.weights, self.digest = new, digest_of(new)
        return update

    def _rate(self) -> float:
        return optimizers.rate_at(self.params, self.round) if self.params.steps == 1 else self.params.outer_lr
