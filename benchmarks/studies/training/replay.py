"""A training by machines that are not there: each gradient is computed here, when it comes says a clock of its own.

The clock goes by times that were measured: what one real machine takes for a contribution, with its spread, what a
round takes beside, and for how long the server is busy with one contribution. Measures nothing itself.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from muster.jobs.training.aggregation.asynchronous import AsynchronousPushes
from muster.jobs.training.aggregation.contribution import ContributionSum, RoundHeader
from muster.jobs.training.aggregation.synchronous import Stepped
from muster.jobs.training.data.dataset import Data
from muster.jobs.training.params import TrainParams
from muster.jobs.training.progress import BestMark, CourseRecord, Point
from muster.jobs.training.steps.learner import Learner

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Costs:
    """Seconds."""

    compute: float  # of one contribution
    spread: Sequence[float]  # of rounds over their mean, as they came
    beside: float  # what a round of one machine takes beside its compute
    server: float  # that the server, or its link, is busy with what one machine hands in at once


class Clock:
    """When machines are done, and when the server is: it takes in one after the other."""

    def __init__(self, costs: Costs, seed: int) -> None:
        self._costs, self._luck, self._free = costs, random.Random(seed), 0.0

    def computed(self, contributions: int) -> float:
        """Seconds that a machine takes for so many."""
        return (contributions * self._costs.compute + self._costs.beside) * self._luck.choice(self._costs.spread)

    def taken_in(self, at: float) -> float:
        """When the server has taken in what comes then."""
        self._free = max(self._free, at) + self._costs.server
        return self._free


def in_rounds(
    params: TrainParams, scores: Sequence[tuple[int, float, float]], machines: int, costs: Costs, most_seconds: float
) -> CourseRecord:
    """The weights do not depend on the machines: what is replayed is when each round was over. `scores`: of some
    rounds, the loss and the accuracy."""
    clock, record, now, before = Clock(costs, params.seed), CourseRecord(), 0.0, 0
    shares = [len(range(first, params.workers, machines)) for first in range(min(machines, params.workers))]
    for iteration, loss, accuracy in scores:
        for _ in range(iteration - before):
            now = max(map(clock.taken_in, sorted(now + clock.computed(share) for share in shares)))
        if now > most_seconds:
            break
        rows = (iteration - before) * params.workers * params.samples
        record.points.append(Point(iteration, now, loss, rows, machines))
        record.marks.append(BestMark(iteration, now, accuracy, 0.0))
        before = iteration
    return record


@dataclass(frozen=True, order=True)
class Order:
    """A contribution that is asked for, and once a machine has it, on its way: in the order in which they come."""

    at: float
    machine: int
    header: RoundHeader = field(compare=False)
    worker: int = field(compare=False)
    weights: Array = field(compare=False)


class Replay:
    """An asynchronous training as its driver conducts it: whoever is free has work at the newest weights, each hands
    in each contribution by itself, and before an evaluation all that is out comes in, while the clock goes on."""

    def __init__(self, params: TrainParams, data: Data, machines: int, costs: Costs) -> None:
        self._params, self._learner, self._clock = params, Learner(params, data), Clock(costs, params.seed)
        self._pushes = AsynchronousPushes(params, self._learner.start(), self._learner.model.stepped)
        self._total = ContributionSum(self._pushes.dim, params.bits)
        self._now = 0.0
        self._idle = list(range(machines))
        self._waiting: deque[tuple[RoundHeader, int, Array]] = deque()  # for a machine
        self._under_way: list[Order] = []
        self._unscored: list[tuple[int, float, Array]] = []
        self.record = CourseRecord()

    def run(self, most_seconds: float) -> CourseRecord:
        while not self._pushes.is_over and self._now <= most_seconds:
            if not self._unscored:
                self._issue()
            self._begin()
            if self._under_way:
                self._take(heapq.heappop(self._under_way))
            else:
                self._score()
        self._score()
        self._learner.close()
        return self.record

    def _issue(self) -> None:
        if issued := self._pushes.issue(self._params.workers):
            header, workers = issued
            self._waiting.extend((header, worker, self._pushes.weights) for worker in workers)

    def _begin(self) -> None:
        while self._idle and self._waiting:
            at = self._now + self._clock.computed(1)
            heapq.heappush(self._under_way, Order(at, self._idle.pop(), *self._waiting.popleft()))

    def _take(self, order: Order) -> None:
        self._now = self._clock.taken_in(order.at)
        self._idle.append(order.machine)
        pushes, before = self._pushes, self._pushes.round
        self._total.clear()
        self._total.add(self._learner.contribute(order.weights, order.header, order.worker))
        step = pushes.arrive(order.header, (order.worker,), self._total)
        if not isinstance(step, Stepped):
            return
        self.record.points.append(Point(pushes.version, self._now, step.loss, step.samples, 1))
        if pushes.round // self._params.eval_every > before // self._params.eval_every or pushes.is_over:
            self._unscored.append((pushes.version, self._now, pushes.weights))

    def _score(self) -> None:
        """Off the clock."""
        for version, at, weights in self._unscored:
            score = self._learner.evaluate(weights)
            self.record.marks.append(BestMark(version, at, score.accuracy, score.mean_loss))
        self._unscored.clear()


def asynchronously(params: TrainParams, data: Data, machines: int, costs: Costs, most_seconds: float) -> CourseRecord:
    return Replay(params, data, machines, costs).run(most_seconds)
