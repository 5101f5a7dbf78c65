"""A search: what is to be done next and when it is over, from what was committed. Pure: fed, asked, rebuilt."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from muster.jobs.common.units import counted
from muster.jobs.tuning.optuna_study import suggested
from muster.jobs.tuning.params import TuneParams, stop_of
from muster.jobs.tuning.schedulers import SCHEDULERS
from muster.jobs.tuning.space import Config, Space
from muster.jobs.tuning.trials import Metrics, Segment, Table

HOPELESS = 8  # failed trials with no other: then there is something wrong with all


class Search:
    """Commit what was done and it goes on from there, whoever did it."""

    def __init__(self, params: TuneParams, cpus: int = 1) -> None:
        """`cpus`: of a trial."""
        self.params, self.cpus = params, cpus
        self.configurations = params.configurations
        self.table = Table(params, params.trials_most)
        self.scheduler = SCHEDULERS[params.scheduler](self.table)
        self.elapsed = 0.0  # seconds, as the last commit has it
        self.score: Metrics | None = None  # of the best, on the test rows
        self.stopped = False  # by somebody
        self.retried = 0.0  # when somebody last had failed trials tried again, by the daemon's clock
        self._asked: dict[int, Config] = {}  # trials that nothing came of yet, of a searcher that asks what results say

    def commit(self, segment: Segment) -> bool:
        """Whether it is news."""
        self.elapsed = max(self.elapsed, segment.at)
        if segment.score is not None:
            self.score = segment.score
            return True
        if segment.stopped:
            self.stopped = True
            return True
        if segment.retried is not None:
            self.retried = segment.retried
            self.table.reopen()
            return True
        return self.table.commit(segment)

    def added(self, place: int, config: Config, at: float) -> Segment:
        """What the journal has of a trial that somebody adds now."""
        number = max(self.configurations.count, 1 + max(self.table.added, default=-1))
        whole = self.configurations.filled(number, config)
        return Segment(number, 0, self.scheduler.entry, config=whole, queued=place, at=at)

    def config(self, number: int) -> Config:
        """That of a trial. One that follows from results is asked for once, and then kept beside them."""
        known = self.table.trials.get(number)
        if known is not None and known.config is not None:
            return known.config
        if self.params.searcher != "optuna" or number in self.configurations.given:
            return self.configurations.config(number)
        if number not in self._asked:
            self._asked = {one: config for one, config in self._asked.items() if one not in self.table.trials}
            self._asked[number] = suggested(self.table, Space(self.params.space), number, self._asked)
        return self._asked[number]

    def orders(self, busy: Collection[int], room: int) -> list[tuple[int, int]]:
        """At most `room` trials that nobody is busy with, and how far each is to go."""
        if room <= 0 or self.ending(self.elapsed):
            return []
        due = (one for one in self.scheduler.due(busy) if one[0] not in busy)
        return list(islice(due, room))

    def ending(self, seconds: float) -> str:
        """Why no more is to be done, although there is more; "" otherwise."""
        budget, table = self.params.budget, self.table
        if self.params.goal == "first" and table.reached:
            return "the target was reached"
        if self.stopped:
            return "it was stopped"
        if budget.seconds is not None and seconds >= budget.seconds:
            return f"the budget of {budget.seconds:g} seconds is spent"
        if budget.iterations is not None and table.iterations >= budget.iterations:
            return f"the budget of {budget.iterations:,} iterations is spent"
        if budget.trials is not None and budget.trials < self.configurations.count and self.is_done:
            return f"the budget of {budget.trials:,} trials is spent"
        return ""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to be done of any trial."""
        return next(self.scheduler.due(()), None) is None

    @property
    def missed(self) -> bool:
        """Whether there is a target, and nobody has reached it."""
        return bool(stop_of(self.params).aims) and not self.table.reached

    def outcome(self, seconds: float) -> str:
        """What is to be said of how it ended; "" while it goes on, and where all went as it should."""
        why = self.ending(seconds) or ("all trials are done" if self.missed and self.is_done else "")
        return f"{why}; nobody reached the target" if why and self.missed else why

    def hopeless(self, max_failures: int) -> str:
        """Why there is no going on; "" while there is."""
        table = self.table
        last = next((trial.message for trial in table.trials.values() if trial.why == "failed"), "")
        if table.failed >= max_failures:
            return f"{counted(table.failed, 'trial')} failed (max_failures), such as: {last}"
        lone = table.failed == len(table.trials) and table.failed >= min(HOPELESS, table.count)
        return f"all of the first {table.failed} trials failed: {last}" if lone else ""
