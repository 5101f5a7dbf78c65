"""Which trials go on, and how far. Pure: from the table alone, so that a scheduler rebuilt from it decides the same."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from itertools import chain

from muster.jobs.tuning.params import FIRST_SHARE, TuneParams, stop_of
from muster.jobs.tuning.trials import Table, Trial

Due = Iterator[tuple[int, int]]  # number of a trial, and the iteration it is to go to


def rungs(params: TuneParams) -> list[int]:
    """Iterations at which trials are compared; the last is where they end."""
    most = stop_of(params).iterations
    if params.refits:
        return list(range(1, most + 1))
    at = params.grace or max(1, most // FIRST_SHARE)
    found = []
    while at < most:
        found.append(at)
        at *= params.eta
    return [*found, most]


class Scheduler(ABC):
    """Asked after every commit. What it names twice is wanted once."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.rungs = rungs(table.params)

    @property
    def entry(self) -> int:
        """Iterations at which a trial that is added now is compared first."""
        return self.rungs[0]

    @abstractmethod
    def due(self, busy: Collection[int]) -> Due:
        """What should run, the most urgent first; trials that are `busy` run already and may be named again."""


class Fifo(Scheduler):
    """Every trial to its end, in order."""

    def due(self, busy: Collection[int]) -> Due:
        for number in sorted(self._table.open):
            yield number, self.rungs[-1]
        for number in self._table.fresh():
            yield number, self.rungs[-1]


class Halving(Scheduler):
    """Rung by rung: nobody goes on before all are there, so the same are promoted on any number of machines."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._rung = 0
        self._members: Sequence[int] = range(table.count)
        self._first, self._admitted = self._members, set[int]()  # who was a member at first, and who came to be one
        self._missing = dict.fromkeys(self._members)  # those that are not there yet

    @property
    def entry(self) -> int:
        """Where all are now."""
        self._climb()
        return self.rungs[self._rung]

    def due(self, busy: Collection[int]) -> Due:
        self._climb()
        added = [number for number in self._table.added if number in self._missing]
        for number in chain(added, (number for number in self._missing if number not in self._table.added)):
            yield number, self.rungs[self._rung]

    def _climb(self) -> None:
        while True:
            self._admit()
            for trial in self._table.trials.values():  # of all the others nothing came
                if trial.ended or trial.iterations >= self.rungs[self._rung]:
                    self._missing.pop(trial.number, None)
            if self._missing or self._rung + 1 == len(self.rungs):
                return
            at, trials = self.rungs[self._rung], [self._table.trials[number] for number in self._members]
            best = sorted(trials, key=lambda trial: self._table.rank(trial, at))
            kept = best[: max(1, len(best) // self._table.params.eta)]
            self._members = sorted(trial.number for trial in kept)
            self._missing = dict.fromkeys(self._members)
            self._rung += 1

    def _admit(self) -> None:
        """Those that were added while all were at this rung."""
        added = [
            number
            for number, at in self._table.added.items()
            if number not in self._first and number not in self._admitted and at <= self.rungs[self._rung]
        ]
        if added:
            self._admitted.update(added)
            self._members = [*self._members, *added]
            self._missing.update(dict.fromkeys(added))


class Asha(Scheduler):
    """Whoever is among the best of those at its rung goes on, without waiting for the rest; else a fresh one starts.
    Who is promoted depends on the order in which results came."""

    def due(self, busy: Collection[int]) -> Due:
        for number, trial in sorted(self._table.open.items()):
            goal = max(trial.goal, self.rungs[0])
            if trial.iterations < goal:
                yield number, goal
        waiting = False
        for rung in reversed(range(len(self.rungs) - 1)):
            for trial in self._promoted(rung):
                waiting = True
                yield trial.number, self.rungs[rung + 1]
        for number in self._table.fresh():
            waiting = True
            yield number, self.rungs[0]
        if not (waiting or busy):
            yield from self._last()

    def _promoted(self, rung: int) -> list[Trial]:
        """The best of those that have come to this rung, as far as they still stand there."""
        at = self.rungs[rung]
        there = [trial for trial in self._table.trials.values() if trial.ended or trial.iterations >= at]
        best = sorted(there, key=lambda trial: self._table.rank(trial, at))[: len(there) // self._table.params.eta]
        return [trial for trial in best if self._stands(trial, at)]

    def _last(self) -> Due:
        """The best of all goes on to the end, where rungs were too thin to promote it."""
        best = self._table.best
        if best is not None and not best.ended:
            yield best.number, self.rungs[-1]

    def _stands(self, trial: Trial, at: int) -> bool:
        return not trial.ended and trial.iterations == at and trial.goal <= at


SCHEDULERS: dict[str, type[Scheduler]] = {"fifo": Fifo, "halving": Halving, "asha": Asha}
