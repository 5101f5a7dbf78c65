"""The driver of a training: rounds out, sums in, scores, checkpoints, an end. The numerics are elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import msgspec

from muster.coordinator.drivers.driver import Drive, run
from muster.coordinator.drivers.training.participants import Arrival, Ended, Participants
from muster.coordinator.drivers.training.state import TrainingState
from muster.coordinator.farm_root import plans
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.errors import TrainingError
from muster.jobs.kinds.train import RoundOrder
from muster.jobs.training.aggregation.asynchronous import AsynchronousPushes
from muster.jobs.training.aggregation.contribution import ContributionSum
from muster.jobs.training.aggregation.synchronous import Redo, Stepped, SynchronousRounds
from muster.jobs.training.params import TrainParams
from muster.jobs.training.steps.models import open_model


def main() -> int:
    return run(_drive)


def _drive(drive: Drive) -> None:
    params = msgspec.convert(drive.state.params, TrainParams)
    assert params.facts is not None, "planned"
    model = open_model(params, params.facts, _packed_data(drive))
    try:
        book = TrainingState(drive, params, model)
        participants = Participants(drive, params)
        training: Training = (
            AsyncTraining(book, participants) if params.mode == "async" else RoundTraining(book, participants)
        )
        training.run()
        if not drive.over:
            book.finish()
    except TrainingError as error:
        drive.give_up(f"{error.message}; {error.hint.replace('JOB', drive.job)}")
    except Ended:
        return


def _packed_data(drive: Drive) -> Path | None:
    """Where the root has the job's data, as one file; None where each machine has it by itself."""
    described = plans.load(drive.place).work.model
    return Root(drive.place.path.parents[1]).model(described.digest) if described is not None else None


class RoundTraining:
    """Sync and local: whole rounds, one after the other. Evaluations are off the clock."""

    def __init__(self, book: TrainingState, participants: Participants) -> None:
        assert isinstance(book.outer, SynchronousRounds)
        self._book, self._participants, self._outer = book, participants, book.outer
        self._total = ContributionSum(self._outer.dim, book.params.bits)
        self._parts: set[tuple[str, str]] = set()  # machine and fingerprint of those who had a part in the round

    def run(self) -> None:
        self._evaluate()
        while not (self._outer.is_over or self._book.course.at_target):
            self._round()
            self._book.keep_if_due()

    def _round(self) -> None:
        before = self._outer.digest
        with self._book.on_the_clock():
            step = self._merged()
        if isinstance(step, Redo):
            self._book.course.record.redone += 1
            return
        self._participants.moved(before, self._outer.digest, step.update, self._outer.stepped)
        self._book.stepped(step, self._parts)
        self._evaluate()

    def _merged(self) -> Stepped | Redo:
        """All contributions of a round, and the step they make."""
        outer, total = self._outer, self._total
        header, wanted = outer.header(), list(range(self._book.params.workers))
        total.clear()
        self._parts.clear()
        while wanted or self._participants.busy:
            if wanted:
                orders = [RoundOrder(worker, header) for worker in wanted]
                self._participants.issue(orders, outer.weights, outer.digest, self._book.progress)
            arrived = self._participants.take()
            for arrival in arrived.sums:
                total.add(arrival.part)
                self._parts.add((arrival.machine, arrival.fingerprint))
            wanted = arrived.wrong
        return outer.merge(total)

    def _evaluate(self) -> None:
        while _ask_for_scores(self._book, self._participants) or self._participants.judging:
            arrived = self._participants.take()
            self._book.scored(arrived.scores, arrived.misjudged)


class AsyncTraining:
    """Each contribution moves the weights as it comes; how stale it may be is bounded, and all of it journalled.

    Where weights are to be evaluated, what is out comes in first, and the clock stands still as it does in rounds.
    """

    def __init__(self, book: TrainingState, participants: Participants) -> None:
        assert isinstance(book.outer, AsynchronousPushes)
        self._book, self._participants, self._pushes = book, participants, book.outer
        self._parts: set[tuple[str, str]] = set()  # likewise of those whose contributions made no step yet

    def run(self) -> None:
        self._evaluate()
        while not (self._pushes.is_over or self._book.course.at_target):
            with self._book.on_the_clock():
                self._train()
            self._evaluate()

    def _train(self) -> None:
        """To the end, or until weights wait for their score and no machine is at work."""
        course = self._book.course
        while not self._pushes.is_over and (self._participants.busy or not course.waiting):
            if not course.waiting:
                self._issue()
            self._take()
            self._book.keep_if_due()

    def _issue(self) -> None:
        """Work for whoever is free."""
        if issued := self._pushes.issue(self._book.params.workers):
            header, workers = issued
            orders = [RoundOrder(worker, header) for worker in workers]
            self._participants.issue(orders, self._pushes.weights, self._pushes.digest, self._book.progress)

    def _evaluate(self) -> None:
        while _ask_for_scores(self._book, self._participants) or self._participants.judging:
            self._take()

    def _take(self) -> None:
        arrived = self._participants.take()
        self._book.scored(arrived.scores, arrived.misjudged)
        self._pushes.withdraw(arrived.wrong)
        for arrival in arrived.sums:
            self._arrive(arrival)

    def _arrive(self, arrival: Arrival) -> None:
        if self._pushes.is_over:
            return
        before = self._pushes.digest
        self._parts.add((arrival.machine, arrival.fingerprint))
        step = self._pushes.arrive(arrival.header, arrival.workers, arrival.part)
        if isinstance(step, Redo):
            self._book.course.record.redone += 1
        elif step is not None:
            self._participants.moved(before, self._pushes.digest, step.update, self._pushes.stepped)
            self._book.stepped(step, self._parts)
            self._parts.clear()


def _ask_for_scores(book: TrainingState, participants: Participants) -> bool:
    """Of all weights that wait for one; whether there were any."""
    asked = book.unscored()
    for at, weights in asked:
        participants.judge(at, weights, book.progress)
    return bool(asked)


Training: TypeAlias = RoundTraining | AsyncTraining
