"""A training's state as its driver keeps it: weights and course, on the clock, in checkpoints, in the result."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from muster.coordinator.api.status import Progress
from muster.coordinator.drivers.driver import Drive
from muster.coordinator.drivers.training.progress import progress_of
from muster.coordinator.drivers.training.result import publish
from muster.jobs.common.errors import RefusedError, TrainingError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.training import checkpoint
from muster.jobs.training.aggregation.asynchronous import AsynchronousPushes
from muster.jobs.training.aggregation.synchronous import Stepped, SynchronousRounds
from muster.jobs.training.params import TrainParams
from muster.jobs.training.progress import TrainingCourse
from muster.jobs.training.steps.learner import Score
from muster.jobs.training.steps.models import TrainableModel

Array = np.ndarray[Any, Any]

TREND_MARKS = 4  # scores that the time to the target is told by
RATE_SECONDS = 5.0  # how fast the rate that people are shown forgets


class TrainingState:
    """Goes on from the newest checkpoint that is whole."""

    def __init__(self, drive: Drive, params: TrainParams, model: TrainableModel) -> None:
        self.params = params
        self._drive = drive
        self._model = model
        self._folder = drive.place.checkpoints
        try:
            found, refused = checkpoint.latest(self._folder, params, model.stepped, model.dim)
        except RefusedError as error:  # of another model: a life more would not help
            hint = f"remove it from {self._folder}, then `coordinator retry JOB`"
            raise TrainingError(error.message, hint) from None
        for why in refused:
            print(why, file=sys.stderr, flush=True)
        if found is None:
            kind = AsynchronousPushes if params.mode == "async" else SynchronousRounds
            self.outer: SynchronousRounds | AsynchronousPushes = kind(params, model.start(params.seed), model.stepped)
            self.course = TrainingCourse(params)
        else:
            self.outer, self.course = found.outer, found.course
        points = self.course.record.points
        self._seconds = points[-1].seconds if points else 0.0  # of training, up to when the clock last stood still
        self._since: float | None = None
        self._asked: set[int] = set()  # iterations that wait for their score, and are being judged
        self._rate, self._rated = 0.0, (self.outer.round, self._seconds)

    # --- the clock ---

    @contextmanager
    def on_the_clock(self) -> Iterator[None]:
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._seconds, self._since = self.seconds, None

    @property
    def seconds(self) -> float:
        """Of training, without what was off the clock."""
        return self._seconds + (time.monotonic() - self._since if self._since is not None else 0.0)

    # --- what happens ---

    def stepped(self, step: Stepped, parts: set[tuple[str, str]]) -> None:
        """`parts`: machine and fingerprint of those who had a part in it."""
        seconds = self.seconds
        self.course.computed_on({fingerprint for _, fingerprint in parts})
        self.course.stepped(self.outer, step, seconds, len({machine for machine, _ in parts}))
        rounds, spell = self.outer.round - self._rated[0], seconds - self._rated[1]
        if rounds and spell > 0:
            weight = min(1.0, spell / RATE_SECONDS) if self._rate else 1.0
            self._rate += weight * (rounds / spell - self._rate)
            self._rated = self.outer.round, seconds

    def unscored(self) -> list[tuple[int, Array]]:
        """Iterations whose weights wait for a score that nobody was asked for yet."""
        found = [(at, weights) for at, (_, weights) in self.course.waiting.items() if at not in self._asked]
        self._asked |= {at for at, _ in found}
        return found

    def scored(self, scores: list[tuple[int, Score]], misjudged: list[int]) -> None:
        """What came of those; of some nothing did, and they are asked for again."""
        self._asked.difference_update([at for at, _ in scores], misjudged)
        for at, score in scores:
            if self.course.scored(at, score):
                self._drive.patiently(lambda: checkpoint.write_best(self._folder, self.course, self.params))

    # --- keeping it ---

    def keep_if_due(self) -> None:
        if checkpoint.is_due(self.params, self.course.record, self.outer.round, self.seconds):
            self.keep()

    def keep(self) -> None:
        """A durable checkpoint, and then the cursor."""
        self.course.saved(self.outer.round, self.seconds)
        self._drive.patiently(lambda: checkpoint.write(self._folder, self.outer, self.course))
        self._move(max(self._drive.cursor, self.outer.round))

    def finish(self) -> None:
        """The result is in its place before the job is said to be done."""
        self.keep()
        self._drive.patiently(
            lambda: publish(self._drive, self.params, self._model, self.outer, self.course, self.seconds)
        )
        self._move(self._drive.cursor, finish=True)

    def _move(self, cursor: int, finish: bool = False) -> None:
        drive = self._drive
        first = min([low for low, _ in drive.state.created], default=drive.next)
        every = RangeSet([(first, drive.next)]) if finish else None
        if not drive.advance(cursor, finish=finish, retire=every, progress=self.progress()):
            raise RuntimeError("the job was moved on by somebody else")

    def progress(self) -> Progress:
        """For people."""
        record, params, best = self.course.record, self.params, self.course.best
        return progress_of(
            self.outer.round,
            params.rounds,
            loss=record.points[-1].loss if record.points else None,
            accuracy=record.marks[-1].accuracy if record.marks else None,
            best=best.accuracy if best else None,
            target=params.target,
            rate=self._rate,
            seconds=self.seconds,
            target_seconds=self._until_target(),
        )

    def _until_target(self) -> float | None:
        """As the last scores went on; None where they did not get better."""
        marks, target = self.course.record.marks[-TREND_MARKS:], self.params.target
        if target is None or len(marks) < 2 or self.course.reached is not None:
            return None
        first, last = marks[0], marks[-1]
        gained, spell = last.accuracy - first.accuracy, last.seconds - first.seconds
        if gained <= 0 or spell <= 0:
            return None
        return max(0.0, (target - last.accuracy) / gained * spell - (self.seconds - last.seconds))
