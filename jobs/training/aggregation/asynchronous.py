"""The driver's side of async training: pushes as they come, never too stale, and a journal to replay them from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from muster.jobs.common.errors import TrainingError
from muster.jobs.training.aggregation.contribution import Contribution, ContributionSum, RoundHeader
from muster.jobs.training.aggregation.synchronous import Redo, Stepped
from muster.jobs.training.aggregation.weights import WeightsState
from muster.jobs.training.params import TrainParams

Array = np.ndarray[Any, Any]


class WorkerPush(msgspec.Struct, frozen=True, array_like=True):
    """One arrival that counted, as the journal has it. In order, they decide every bit."""

    version: int  # of the weights it was computed at
    workers: tuple[int, ...]
    scale: float
    buffer_scale: float


class Issued(msgspec.Struct, frozen=True):
    """Work that is out: what it was computed from."""

    header: RoundHeader
    pushed: int  # workers' contributions that these weights had seen


class AsynchronousPushes(WeightsState):
    """A version is the number of arrivals the weights have seen. As many contributions as there are virtual workers
    are a round's worth; staleness is counted in these, and one push moves the weights by its share of a round."""

    def __init__(self, params: TrainParams, weights: Array, stepped: int) -> None:
        super().__init__(params, weights, stepped)
        self.version = 0
        self.pushed = 0
        self.journal: list[WorkerPush] = []
        self.out: dict[int, Issued] = {}
        self._redone = 0

    @property
    def round(self) -> int:
        """Whole rounds' worth of pushes so far."""
        return self.pushed // self.params.workers

    @property
    def is_over(self) -> bool:
        return self.round >= self.params.rounds

    def issue(self, count: int) -> tuple[RoundHeader, tuple[int, ...]] | None:
        """Work for as many virtual workers at the newest weights, or fewer where fewer are free; None: it has to wait.

        Should everything that is out arrive before the oldest of it, that is still not too stale: so nothing ever is.
        """
        free = [v for v in range(self.params.workers) if v not in self.out]
        oldest = min([issued.pushed for issued in self.out.values()], default=self.pushed)
        room = oldest + (self.params.stalest + 1) * self.params.workers - self.pushed - len(self.out)
        workers = tuple(free[: int(max(min(count, room), 0))])
        if not workers or self.is_over:
            return None
        header = self._header()
        self.out |= dict.fromkeys(workers, Issued(header, self.pushed))
        return header, workers

    def withdraw(self, workers: Sequence[int]) -> None:
        """Their machine is gone: others may be given these numbers."""
        for v in workers:
            self.out.pop(v, None)

    def arrive(
        self, header: RoundHeader, workers: Sequence[int], total: Contribution | ContributionSum
    ) -> Stepped | Redo | None:
        """What these workers gave, added up. None where it is not out; TrainingError where there is no going on.

        After a Redo its workers are free again, and what they gave does not count.
        """
        issued = self.out.get(workers[0]) if workers else None
        if issued is None or any(self.out.get(v) is None or self.out[v].header != header for v in workers):
            return None
        assert total.tally.workers == len(set(workers)), "each once"
        if total.tally.odd:
            raise TrainingError(f"the loss of push {self.version} (round {self.round}) is not a finite number")
        self.withdraw(workers)
        self._master.learn(total)
        if why := self._master.wrong_scale(total, issued.header):
            self._redone += 1
            return Redo(why)
        return self._take(issued, tuple(sorted(workers)), total)

    def state_dict(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Arrays and plain values that `resume` goes on from. What is out is not kept: it is issued anew."""
        arrays, values = self._master.state_dict()
        values |= {"version": self.version, "pushed": self.pushed, "redone": self._redone}
        return arrays, {**values, "journal": msgspec.to_builtins(self.journal)}

    @classmethod
    def resume(
        cls, params: TrainParams, stepped: int, arrays: dict[str, Array], values: dict[str, Any]
    ) -> AsynchronousPushes:
        pushes = cls(params, arrays["weights"], stepped)
        pushes.version, pushes.pushed, pushes._redone = values["version"], values["pushed"], values["redone"]
        pushes.journal = msgspec.convert(values["journal"], list[WorkerPush])
        pushes._master.restore(arrays, values)
        return pushes

    def recall(self, push: WorkerPush, pushed: int, digest: str) -> RoundHeader:
        """Work as a journal has it, out again: `pushed` and `digest` are of the weights of its version."""
        header = self._master.header(push.version, 0, pushed // self.params.workers)
        scaled = msgspec.structs.replace(header, scale=push.scale, buffer_scale=push.buffer_scale, weights=digest)
        self.out |= dict.fromkeys(push.workers, Issued(scaled, pushed))
        return scaled

    def _take(self, issued: Issued, workers: tuple[int, ...], total: Contribution | ContributionSum) -> Stepped:
        header = issued.header
        stale = (self.pushed - issued.pushed) // self.params.workers
        share = len(workers) / self.params.workers / (1 if self.params.damped is False else 1 + stale)
        update = self._master.advance(total, header, self.version + 1, self._master.rate_at(self.round), share)
        self.journal.append(WorkerPush(header.round, workers, header.scale, header.buffer_scale))
        self.version += 1
        self.pushed += len(workers)
        return Stepped(update, total.tally.mean_loss, total.tally.samples)

    def _header(self) -> RoundHeader:
        return self._master.header(self.version, self._redone, self.round)
