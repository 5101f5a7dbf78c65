"""How a training goes: its curve, what is to be evaluated and kept, and when the target is reached. Knows no clock."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from muster.jobs.training.aggregation.asynchronous import AsynchronousPushes
from muster.jobs.training.aggregation.synchronous import Stepped, SynchronousRounds
from muster.jobs.training.params import TrainParams
from muster.jobs.training.steps.learner import Score

Array = np.ndarray[Any, Any]


class Point(msgspec.Struct, frozen=True, array_like=True):
    """An iteration: a round, or in `async` a push."""

    iteration: int
    seconds: float  # of training, evaluations left out
    loss: float
    samples: int
    machines: int = 0  # that had a part in it; 0: of a version that did not count them


class BestMark(msgspec.Struct, frozen=True, array_like=True):
    """The test set's word on the weights after an iteration."""

    iteration: int
    seconds: float
    accuracy: float
    loss: float


class CourseRecord(msgspec.Struct):
    """What a checkpoint and a report hold of the course."""

    points: list[Point] = []
    marks: list[BestMark] = []
    redone: int = 0
    saved_round: int = 0
    saved_seconds: float = 0.0
    kernels: dict[str, int] = {}  # fingerprint → in how many iterations it had a part


class TrainingCourse:
    """Fed with every step and score. Weights that wait for their score are held until it is there, so that a run ends
    with those that reached the target first, whenever that becomes known."""

    def __init__(self, params: TrainParams) -> None:
        self.record = CourseRecord()
        self.waiting: dict[int, tuple[float, Array]] = {}  # iteration: seconds and weights
        self.best: BestMark | None = None
        self.best_weights: Array | None = None  # in a file of their own from the moment they are, see `checkpoint`
        self.reached: BestMark | None = None
        self.reached_weights: Array | None = None
        self._params = params
        self._evaluated = 0  # the last round whose weights were put up for evaluation

    def stepped(
        self, outer: SynchronousRounds | AsynchronousPushes, step: Stepped, seconds: float, machines: int = 0
    ) -> None:
        """After a merge that moved the weights, by contributions of so many machines."""
        at = outer.round if isinstance(outer, SynchronousRounds) else outer.version
        self.record.points.append(Point(at, seconds, step.loss, step.samples, machines))
        due = outer.round // self._params.eval_every > self._evaluated // self._params.eval_every
        if due or outer.is_over:
            self._evaluated = outer.round
            self.waiting[at] = seconds, outer.weights

    def computed_on(self, kernels: set[str]) -> None:
        """An iteration's contributions are of machines with these fingerprints."""
        for fingerprint in kernels:
            self.record.kernels[fingerprint] = self.record.kernels.get(fingerprint, 0) + 1

    def scored(self, iteration: int, score: Score) -> bool:
        """Whether these weights are the best so far. A score for what does not wait for one changes nothing."""
        if iteration not in self.waiting:
            return False
        seconds, weights = self.waiting.pop(iteration)
        mark = BestMark(iteration, seconds, score.accuracy, score.mean_loss)
        self.record.marks = sorted([*self.record.marks, mark], key=lambda one: one.iteration)
        self._judge_target(mark, weights)
        if self.best is not None and (self.best.accuracy, -self.best.iteration) >= (mark.accuracy, -iteration):
            return False
        self.best, self.best_weights = mark, weights
        return True

    @property
    def at_target(self) -> bool:
        """Whether `reached` is final: nothing earlier waits for its score."""
        return self.reached is not None and all(at > self.reached.iteration for at in self.waiting)

    def saved(self, round_: int, seconds: float) -> None:
        """A checkpoint of this round is durable, or about to be."""
        self.record.saved_round, self.record.saved_seconds = round_, seconds

    def state_dict(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """For a checkpoint: arrays and plain values. The best weights are not in it."""
        arrays = {f"waiting.{at}": weights for at, (_, weights) in self.waiting.items()}
        if self.reached_weights is not None:
            arrays["reached"] = self.reached_weights
        return arrays, {
            "record": msgspec.to_builtins(self.record),
            "waiting": [[at, seconds] for at, (seconds, _) in self.waiting.items()],
            "best": msgspec.to_builtins(self.best),
            "reached": msgspec.to_builtins(self.reached),
            "evaluated": self._evaluated,
        }

    @classmethod
    def resume(cls, params: TrainParams, arrays: dict[str, Array], values: dict[str, Any]) -> TrainingCourse:
        course = cls(params)
        course.record = msgspec.convert(values["record"], CourseRecord)
        course.waiting = {at: (seconds, arrays[f"waiting.{at}"]) for at, seconds in values["waiting"]}
        course.best = msgspec.convert(values["best"], BestMark | None)
        course.reached = msgspec.convert(values["reached"], BestMark | None)
        course.reached_weights = arrays.get("reached")
        course._evaluated = values["evaluated"]
        return course

    def _judge_target(self, mark: BestMark, weights: Array) -> None:
        if self._params.target is None or mark.accuracy < self._params.target:
            return
        if self.reached is None or mark.iteration < self.reached.iteration:
            self.reached, self.reached_weights = mark, weights
