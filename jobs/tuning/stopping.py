"""When a trial is over, judged after each of its iterations by what it reported. Reads no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from muster.jobs.tuning.params import Stop, TuneParams, stop_of

Why = Literal["", "target", "iterations", "seconds", "plateau", "diverged", "failed"]  # "": it goes on
LAST_RANKED = ("diverged", "failed")


class Standing(NamedTuple):
    """What of a trial's past decides when it ends."""

    best: float = -math.inf  # its metric, turned so that more is better
    stale: int = 0  # iterations since it was better by enough


BEGUN = Standing()


class Judge:
    """Of one trial, from its first iteration on, whichever machines those ran on."""

    def __init__(self, params: TuneParams, standing: Standing = BEGUN) -> None:
        self._params = params
        self._stop: Stop = stop_of(params)
        self.standing = standing

    def after(self, iteration: int, metrics: Mapping[str, float], seconds: float) -> Why:
        """`seconds`: of training so far."""
        if not all(map(math.isfinite, metrics.values() if self._params.is_ours else [metrics[self._params.metric]])):
            return "diverged"
        self._note(self._params.better(metrics[self._params.metric]))
        if any(aim.is_reached(metrics) for aim in self._stop.aims):
            return "target"
        if iteration >= self._stop.iterations:
            return "iterations"
        if self._stop.seconds is not None and seconds >= self._stop.seconds:
            return "seconds"
        plateau = self._stop.plateau
        return "plateau" if plateau is not None and self.standing.stale >= plateau.iterations else ""

    def recall(self, values: Iterable[float]) -> None:
        """The metric of iterations that ran before, here or elsewhere."""
        for value in values:
            self._note(self._params.better(value))

    def _note(self, value: float) -> None:
        delta = self._stop.plateau.delta if self._stop.plateau is not None else 0.0
        best, stale = self.standing
        self.standing = Standing(value, 0) if value > best + delta else Standing(best, stale + 1)
