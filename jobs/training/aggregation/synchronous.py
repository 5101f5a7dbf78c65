"""The driver's side of sync and local training: whole rounds, one after the other. No clock, no files, no network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from muster.jobs.common.errors import TrainingError
from muster.jobs.training.aggregation.contribution import Contribution, ContributionSum, RoundHeader
from muster.jobs.training.aggregation.weights import WeightsState
from muster.jobs.training.aggregation.weights_delta import Update
from muster.jobs.training.params import TrainParams

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


class SynchronousRounds(WeightsState):
    """Which round it is, and the weights it starts from."""

    def __init__(self, params: TrainParams, weights: Array, stepped: int) -> None:
        super().__init__(params, weights, stepped)
        self.round = 0
        self.redo = 0

    @property
    def is_over(self) -> bool:
        return self.round >= self.params.rounds

    def header(self) -> RoundHeader:
        """Of the round at hand."""
        return self._master.header(self.round, self.redo, self.round)

    def merge(self, total: Contribution | ContributionSum) -> Stepped | Redo:
        """All virtual workers' contributions, added up. TrainingError where there is no going on."""
        tally, header = total.tally, self.header()
        assert tally.workers == self.params.workers, "a whole round"
        if tally.odd:
            raise TrainingError(f"the loss of round {self.round} is not a finite number")
        self._master.learn(total)
        if why := self._master.wrong_scale(total, header):
            self.redo += 1
            return Redo(why)
        update = self._master.advance(total, header, self.round + 1, self._master.rate_at(self.round), 1.0)
        self.round += 1
        self.redo = 0
        return Stepped(update, tally.mean_loss, tally.samples)

    def state_dict(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Arrays and plain values that `resume` goes on from, to the same bits."""
        arrays, values = self._master.state_dict()
        return arrays, {"round": self.round, "redo": self.redo, **values}

    @classmethod
    def resume(
        cls, params: TrainParams, stepped: int, arrays: dict[str, Array], values: dict[str, Any]
    ) -> SynchronousRounds:
        """As it was when `state_dict` was called."""
        outer = cls(params, arrays["weights"], stepped)
        outer.round, outer.redo = values["round"], values["redo"]
        outer._master.restore(arrays, values)
        return outer
