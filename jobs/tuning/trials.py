"""The table of a search: what is known of each trial, from the segments that were committed. Decides nothing."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import accumulate

import msgspec

from muster.jobs.tuning.params import TuneParams
from muster.jobs.tuning.space import Config
from muster.jobs.tuning.stopping import LAST_RANKED, Why

Metrics = dict[str, float]


class Segment(msgspec.Struct, frozen=True):
    """What came of a shard, as the journal has it: so much of one trial."""

    trial: int
    start: int  # iterations that were done before
    to: int  # where it was to go
    curve: list[Metrics] = []  # an entry for each iteration
    seconds: list[float] = []  # each iteration's
    why: Why = ""
    message: str = ""  # of a failure, in a line
    evidence: str = ""
    final: bool = False  # of a failure: another try would not help, or was one too many
    machine: str = ""
    state: str = ""  # digest of the checkpoint; "" where there is none
    state_bytes: int = 0
    at: float = 0.0  # seconds of the search when it was committed
    config: Config | None = None  # of a trial whose configuration follows from results
    score: Metrics | None = None  # on the test rows: the best trial's, once, at the end
    code: str = ""  # of a failure, as `muster.jobs.contract.failure_codes` has them
    queued: int | None = None  # nothing was done: somebody added the trial, from this place of the search's queue
    stopped: bool = False  # nothing was done: somebody ended the search
    retried: float | None = None  # nothing was done: somebody had failed trials tried again, then by the daemon's clock


class Trial:
    """One configuration's training so far."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.curve: list[Metrics] = []
        self.seconds: list[float] = []
        self.times: list[float] = []  # of the search when each iteration ended, nearly
        self.goal = 0  # the furthest it was sent
        self.why: Why = ""  # why it ended; "" while it has not
        self.message = self.evidence = self.machine = self.state = ""
        self.config: Config | None = None  # None: the searcher knows it by the number alone
        self.nearest = ""  # the machine that made its checkpoint; "" where it went wrong since
        self.failures = 0  # since it last got on
        self.state_bytes = 0
        self.reached_at: float | None = None  # seconds of the search when it reached the target

    @property
    def iterations(self) -> int:
        return len(self.curve)

    @property
    def begun(self) -> bool:
        """Whether anything was done of it: one that somebody added waits at first."""
        return bool(self.curve or self.failures)

    def forgive(self) -> None:
        """Nothing of what failed counts any more, or is told of."""
        self.failures, self.message, self.evidence = 0, "", ""

    @property
    def ended(self) -> bool:
        return self.why != ""


class Table:
    """Every trial that anything came of, and those that people added. The rest are fresh."""

    def __init__(self, params: TuneParams, count: int) -> None:
        self.params = params
        self.count = self._own = count  # of all, and of those that the searcher has: people add others
        self.trials: dict[int, Trial] = {}
        self.open: dict[int, Trial] = {}  # of those, the ones that have not ended
        self.iterations = self.failed = 0
        self.state_bytes = self.moved_bytes = 0  # of checkpoints: made, and gone on from by another machine
        self.added: dict[int, int] = {}  # trials that people added → iterations at which it is compared first
        self._fresh = 0  # below it none is

    def commit(self, segment: Segment) -> bool:
        """Whether it is news: what goes on from elsewhere than where its trial is has come before."""
        if segment.queued is not None:
            return self._add(segment)
        if segment.trial not in self.trials and not 0 <= segment.trial < self._own:
            return False
        trial = self.trials.get(segment.trial) or Trial(segment.trial)
        if trial.ended or segment.start != trial.iterations:
            return False
        self.trials[trial.number] = self.open[trial.number] = trial
        self.moved_bytes += trial.state_bytes if segment.machine != trial.nearest else 0
        trial.config = segment.config or trial.config
        trial.machine, trial.goal = segment.machine, max(trial.goal, segment.to)
        self.state_bytes += segment.state_bytes
        if segment.why == "failed":
            self._fail(trial, segment)
            return True
        trial.curve += segment.curve
        trial.seconds += segment.seconds
        began = segment.at - sum(segment.seconds)
        trial.times += [max(0.0, began + spent) for spent in accumulate(segment.seconds)]
        trial.state, trial.state_bytes, trial.why = segment.state, segment.state_bytes, segment.why
        trial.nearest = segment.machine
        trial.forgive()
        self.iterations += len(segment.curve)
        if trial.ended:
            del self.open[trial.number]
        if trial.why == "target":
            trial.reached_at = segment.at
        return True

    def _add(self, segment: Segment) -> bool:
        """A trial of which nothing was done; it goes before those that have not begun."""
        if segment.trial in self.trials or segment.trial < 0:
            return False
        trial = Trial(segment.trial)
        trial.config = segment.config
        self.trials[trial.number] = self.open[trial.number] = trial
        self.count += trial.number >= self._own
        self.added[trial.number] = segment.to
        return True

    @property
    def begun(self) -> int:
        """How many trials anything was done of."""
        return sum(trial.begun for trial in self.trials.values())

    def _fail(self, trial: Trial, segment: Segment) -> None:
        """It is tried again from where it was, until that was often enough."""
        trial.failures += 1
        trial.nearest = ""
        trial.message = f"{segment.code}: {segment.message}" if segment.code else segment.message
        trial.evidence = segment.evidence
        if segment.final:
            trial.why = "failed"
            self.failed += 1
            del self.open[trial.number]

    def failures(self, number: int) -> int:
        """How often the stretch failed that a trial is to do next."""
        return self.trials[number].failures if number in self.trials else 0

    def reopen(self) -> None:
        """Trials that failed are tried again, from where they were."""
        for trial in self.trials.values():
            if trial.why == "failed":
                trial.why = ""
                trial.forgive()
                self.open[trial.number] = trial
        self.failed = 0

    def fresh(self) -> Iterator[int]:
        """Trials that nothing came of, in order."""
        while self._fresh in self.trials:
            self._fresh += 1
        return (number for number in range(self._fresh, self._own) if number not in self.trials)

    def value(self, trial: Trial, upto: int | None = None) -> float:
        """Its metric after so many iterations, or the last; nan where there is none."""
        count = trial.iterations if upto is None else min(upto, trial.iterations)
        return trial.curve[count - 1][self.params.metric] if count else math.nan

    def rank(self, trial: Trial, upto: int | None = None) -> tuple[bool, float, int]:
        """Least is best. Who diverged or failed comes last, but not before it did. Equals go by number."""
        value = self.value(trial, upto)
        by_then = upto is None or trial.iterations < upto
        last = not math.isfinite(value) or (trial.why in LAST_RANKED and by_then)
        return last, 0.0 if last else -self.params.better(value), trial.number

    def ranked(self, most: int | None = None) -> list[Trial]:
        """The best first; so many, or all."""
        every = self.trials.values()
        return sorted(every, key=self.rank) if most is None else heapq.nsmallest(most, every, key=self.rank)

    @property
    def best(self) -> Trial | None:
        """None while there is none that could be called so."""
        found = min(self.trials.values(), key=self.rank, default=None)
        return None if found is None or self.rank(found)[0] else found

    @property
    def reached(self) -> list[Trial]:
        return [trial for trial in self.trials.values() if trial.why == "target"]
