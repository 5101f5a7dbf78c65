"""When a trial is over, judged after each of its iterations by what it reported. Reads no clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from muster.jobs.tuning.params import Stop, TuneParams, stop_of

Why = Literal["", "target", "iterations", "seconds", "plateau", "diverged", "failed"]  # "": it goes on
LAST_RANKED = ("diverged", "failed")


class Judge:
    """Of one trial, from its first iteration on, whichever machines those ran on."""

    def __init__(self, params: TuneParams) -> None:
        self._params = params
        self._stop: Stop = stop_of(params)
        self._best = -math.inf  # turned so that more is better
        self._stale = 0  # iterations since it was better by enough

    def after(self, iteration: int, metrics: Mapping[str, float], seconds: float) -> Why:
        """`seconds`: of training so far."""
        value = metrics[self._params.metric]
        if not math.isfinite(value):
            return "diverged"
        self._note(self._params.better(value))
        if any(aim.is_reached(metrics) for aim in self._stop.aims):
            return "target"
        if iteration >= self._stop.iterations:
            return "iterations"
        if self._stop.seconds is not None and seconds >= self._stop.seconds:
            return "seconds"
        plateau = self._stop.plateau
        return "plateau" if plateau is not None and self._stale >= plateau.iterations else ""

    def recall(self, values: Sequence[float]) -> None:
        """The metric of iterations that ran before, here or elsewhere."""
        for value in values:
            self._note(self._params.better(value))

    def _note(self, value: float) -> None:
        delta = self._stop.plateau.delta if self._stop.plateau is not None else 0.0
        if value > self._best + delta:
            self._best, self._stale = value, 0
        else:
            self._stale += 1
