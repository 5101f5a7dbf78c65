"""What the page knows of the farm at one moment, and what may be wanted of it. Values: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import msgspec

from muster.coordinator.api.requests import AgentsAsk, LookQuestion, StatusAsk
from muster.coordinator.api.status import Agents, JobStatus, Status
from muster.coordinator.farm_root.printed_log import Saying
from muster.coordinator.page.history import History
from muster.jobs.contract.states import ENDED


class Printed(msgspec.Struct, frozen=True):
    """What code of a job printed last: read from the root, not asked of the daemon."""

    job: str


class Sayings(msgspec.Struct, frozen=True):
    items: list[Saying]


Question = LookQuestion | Printed
COUNTS = StatusAsk(brief=True, rates=False)  # which takes least: of any farm it can be asked often
FARM: tuple[Question, ...] = (StatusAsk(brief=True), AgentsAsk(brief=True), COUNTS)  # what every view wants


def _with_rates(counts: JobStatus, told: JobStatus | None) -> JobStatus:
    """What was told of a job before, as long as it is in the same state."""
    if told is None or told.state != counts.state:
        return counts
    lasting = {"agents": told.agents, "notes": told.notes, "slow": told.slow, "layers": told.layers}
    return msgspec.structs.replace(counts, **lasting)


@dataclass(frozen=True, eq=False)
class Answer:
    """What was said to a question once; another one, however alike, is another."""

    value: msgspec.Struct | None  # None: refused, or not known
    error: str


@dataclass(frozen=True)
class Seen:
    """What is known of the farm, at one moment."""

    version: int
    answers: dict[Question, Answer]
    history: History
    heard: float | None = None  # wall clock of the last answer
    age: float = 0.0  # seconds since then
    gone: str = ""  # why nothing can be asked
    gone_since: float = 0.0  # wall clock
    silent: float = 0.0  # seconds that an answer is waited for, where that is long
    pace: float = 0.0  # seconds from one word of all machines to the next

    def get(self, question: Question) -> msgspec.Struct | None:
        found = self.answers.get(question)
        return found.value if found else None

    def error(self, question: Question) -> str:
        found = self.answers.get(question)
        return found.error if found else ""

    @cached_property
    def status(self) -> Status | None:
        """All jobs, with the newest counts, and with rates and notes as they were told last."""
        full, counts = self.get(FARM[0]), self.get(COUNTS)
        if not isinstance(counts, Status) or (isinstance(full, Status) and full.now >= counts.now):
            return full if isinstance(full, Status) else None
        rates = {job.id: job for job in full.jobs} if isinstance(full, Status) else {}
        return msgspec.structs.replace(counts, jobs=[_with_rates(job, rates.get(job.id)) for job in counts.jobs])

    def is_rated(self, job: JobStatus) -> bool:
        """Whether it was told what machines do of a job that is as it is now."""
        full = self.get(FARM[0])
        return isinstance(full, Status) and any(one.id == job.id and one.state == job.state for one in full.jobs)

    def job(self, job: str) -> tuple[JobStatus, float] | None:
        """All about one, with the newest counts, and the daemon's clock when it said these."""
        told, farm = self.get(StatusAsk(job)), self.status
        if not isinstance(told, Status) or not told.jobs:
            return None
        newer = [one for one in farm.jobs if one.id == job] if farm is not None and farm.now > told.now else []
        if farm is None or not newer or (newer[0].state != told.jobs[0].state and newer[0].state not in ENDED):
            return told.jobs[0], told.now
        return _with_rates(newer[0], told.jobs[0]), farm.now

    @property
    def agents(self) -> Agents | None:
        found = self.get(FARM[1])
        return found if isinstance(found, Agents) else None
