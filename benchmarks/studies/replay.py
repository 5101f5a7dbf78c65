"""A training by machines that are not there: each gradient is computed here, when it comes says a clock of its own.

The clock goes by times that were measured: what one real machine takes for a contribution, with its spread, what a
round takes beside, and for how long the server is busy with one contribution. Measures nothing itself.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from muster.jobs.training.aggregation.asynchronous import AsynchronousPushes
from muster.jobs.training.aggregation.contribution import ContributionSum, RoundHeader
from muster.jobs.training.aggregation.synchronous import Stepped
from muster.jobs.training.data.dataset import Data
from muster.jobs.training.params import TrainParams
from muster.jobs.training.progress import BestMark, Point
from muster.jobs.training.serial import Serial, run_serially
from muster.jobs.training.steps.learner import Learner

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Costs:
    """Seconds."""

    compute: float  # of one contribution
    spread: Sequence[float]  # of rounds over their mean, as they came
    beside: float  # what a round of one machine takes beside its compute
    server: float  # that the server, or its link, is busy with what one machine hands in at once


@dataclass
class Curve:
    """As a job's result has it."""

    points: list[Point] = field(default_factory=list)
    marks: list[BestMark] = field(default_factory=list)


class Clock:
    """When machines are done, and when the server is: it takes in one after the other."""

    def __init__(self, costs: Costs, seed: int) -> None:
        self._costs, self._luck, self._free = costs, random.Random(seed), 0.0

    def computed(self, contributions: int) -> float:
        """Seconds that a machine takes for so many."""
        return contributions * self._costs.compute * self._luck.choice(self._costs.spread) + self._costs.beside

    def taken_in(self, at: float) -> float:
        """When the server has taken in what comes then."""
        self._free = max(self._free, at) + self._costs.server
        return self._free


def in_rounds(params: TrainParams, data: Data, machines: int, costs: Costs, most_seconds: float) -> Curve:
    """The weights do not depend on the machines: what is replayed is when each round was over."""
    serial, clock, curve, now = trajectory(params, data), Clock(costs, params.seed), Curve(), 0.0
    accuracies = dict(serial.accuracies)
    shares = [len(range(first, params.workers, machines)) for first in range(min(machines, params.workers))]
    for iteration, loss in enumerate(serial.losses, 1):
        if now > most_seconds:
            break
        now = max(map(clock.taken_in, sorted(now + clock.computed(share) for share in shares)))
        curve.points.append(Point(iteration, now, loss, params.workers * params.samples, machines))
        if iteration in accuracies:
            curve.marks.append(BestMark(iteration, now, accuracies[iteration], 0.0))
    return curve


_trajectories: dict[bytes, Serial] = {}


def trajectory(params: TrainParams, data: Data) -> Serial:
    """Computed once, whatever number of machines is replayed with it."""
    key = msgspec.msgpack.encode(params)
    if key not in _trajectories:
        _trajectories[key] = run_serially(params, data)
    return _trajectories[key]


@dataclass(frozen=True, order=True)
class Handed:
    """A contribution on its way: in the order in which they come."""

    at: float
    machine: int
    header: RoundHeader = field(compare=False)
    workers: tuple[int, ...] = field(compare=False)
    weights: Array = field(compare=False)


def asynchronously(params: TrainParams, data: Data, machines: int, costs: Costs, most_seconds: float) -> Curve:
    """Each machine hands in each contribution by itself, and gets the newest weights for the next."""
    learner, clock, curve, now = Learner(params, data), Clock(costs, params.seed), Curve(), 0.0
    pushes = AsynchronousPushes(params, learner.start(), learner.model.stepped)
    under_way: list[Handed] = []
    idle = list(range(machines))
    while not pushes.is_over and now <= most_seconds:
        while idle and (issued := pushes.issue(1)):
            at = now + clock.computed(1)
            heapq.heappush(under_way, Handed(at, idle.pop(), *issued, pushes.weights))
        handed = heapq.heappop(under_way)
        now = clock.taken_in(handed.at)
        idle.append(handed.machine)
        total, before = ContributionSum(pushes.dim, params.bits), pushes.round
        total.add(learner.contribute(handed.weights, handed.header, handed.workers[0]))
        step = pushes.arrive(handed.header, handed.workers, total)
        if not isinstance(step, Stepped):
            continue
        curve.points.append(Point(pushes.version, now, step.loss, step.samples, 1))
        if pushes.round // params.eval_every > before // params.eval_every or pushes.is_over:
            score = learner.evaluate(pushes.weights)
            curve.marks.append(BestMark(pushes.version, now, score.accuracy, score.mean_loss))
    learner.close()
    return curve
