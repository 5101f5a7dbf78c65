"""Where the core-seconds of this machine go, and what each job takes of it: totals since the process began. No I/O.

Between two events nothing changes, so each event first adds the time since the last one to the state that was.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from muster.coordinator.protocol.control import IDLE_STATES, JobAccount, MachineAccount

JOBS_TOLD = 64  # in one message; the others of those that changed are told with the next
JOBS_KEPT = 256  # an agent may live through any number of jobs
SECONDS_MOST, COUNT_MOST = 1e10, 1 << 53  # as the protocol has them


@dataclass
class JobTotals:
    """What one job took here."""

    busy: float = 0.0
    wasted: float = 0.0
    processor: float = 0.0
    in_bytes: int = 0
    spared: int = 0
    in_seconds: float = 0.0
    out_bytes: int = 0
    out_seconds: float = 0.0
    disk_bytes: int = 0
    peak: int = 0

    def told(self, job: str) -> JobAccount:
        said: dict[str, Any] = dict(vars(self), wasted=min(self.wasted, self.busy))
        most = {name: COUNT_MOST if isinstance(value, int) else SECONDS_MOST for name, value in said.items()}
        return JobAccount(job, **{name: min(value, most[name]) for name, value in said.items()})


class Cores(NamedTuple):
    """What the machine's cores are at: whole numbers of them."""

    there: int  # whether lent or not
    lent: int
    held_back: int  # of those lent, for the memory of what runs
    used: dict[str, int]  # job → cores that run its shards
    otherwise: str  # what the rest of those lent are in, one of IDLE_STATES


@dataclass
class Account:
    """One agent process's. The coordinator adds the differences between what it is told."""

    began: float | None = None  # when the first event was
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*IDLE_STATES, "busy", "paused"), 0.0))
    jobs: dict[str, JobTotals] = field(default_factory=dict)
    memory_now: int = 0
    disk_now: int = 0
    _last: float = 0.0
    _gone: JobTotals = field(default_factory=JobTotals)  # of jobs that are not kept any more
    _told: dict[str, JobTotals] = field(default_factory=dict)
    _new: bool = False  # whether a job is here that was never told of
    _processor: dict[int, float] = field(default_factory=dict)  # slot → seconds of its tree when last looked at

    def job(self, job: str) -> JobTotals:
        if job not in self.jobs:
            self._forget_some()
            self.jobs[job], self._new = JobTotals(), True
        return self.jobs[job]

    def advance(self, cores: Cores, now: float) -> None:
        """The time since the last event was spent so."""
        if self.began is None:
            self.began = self._last = now
        seconds, self._last = max(0.0, now - self._last), now
        if not seconds:
            return
        used = sum(cores.used.values())
        busy = min(used, cores.lent)
        for job, count in cores.used.items():
            self.job(job).busy += seconds * count * busy / used
        idle = cores.lent - busy
        held_back = min(idle, cores.held_back) if cores.otherwise not in ("cut_off", "starting") else 0
        total = self.seconds
        total["busy"] += seconds * busy
        total["memory"] += seconds * held_back
        total[cores.otherwise] += seconds * (idle - held_back)
        total["paused"] += seconds * max(0, cores.there - cores.lent)

    def used_processor(self, slot: int, job: str, seconds: float) -> None:
        """The tree of a slot's worker has used so much by now. What it used before it was first seen, to start say, is
        no job's; a tree that has used less than before is another worker's."""
        if seconds <= 0:
            return
        before = self._processor.get(slot, seconds)
        self._processor[slot] = seconds
        if job:
            self.job(job).processor += max(0.0, seconds - before)

    def weighed(self, by_job: dict[str, int]) -> None:
        """Bytes that the shards of each job take now."""
        self.memory_now = sum(by_job.values())
        for job, nbytes in by_job.items():
            self.job(job).peak = max(self.job(job).peak, nbytes)

    @property
    def pressing(self) -> bool:
        """Whether a job began here since the last word: what is told from then on is set against this."""
        return self._new

    @property
    def lent(self) -> float:
        """Core-seconds."""
        return sum(self.seconds[state] for state in (*IDLE_STATES, "busy"))

    def told(self) -> MachineAccount:
        """The totals now, to be said."""
        changed: list[JobAccount] = []
        for job, totals in self.jobs.items():
            if len(changed) < JOBS_TOLD and self._told.get(job) != totals:
                self._told[job] = replace(totals)
                changed.append(totals.told(job))
        self._new = False
        every = [self._gone, *self.jobs.values()]
        return MachineAccount(
            seconds=self._last - (self.began or 0.0),
            **{state: min(seconds, SECONDS_MOST) for state, seconds in self.seconds.items()},
            memory_now=self.memory_now,
            disk_now=min(max(0, self.disk_now), COUNT_MOST),
            processor=min(sum(one.processor for one in every), SECONDS_MOST),
            in_bytes=min(sum(one.in_bytes for one in every), COUNT_MOST),
            out_bytes=min(sum(one.out_bytes for one in every), COUNT_MOST),
            jobs=changed,
        )

    def say_again(self) -> None:
        """Nobody knows whether the last word of it was heard."""
        self._told.clear()

    def leave_farm(self) -> None:
        """Jobs of another farm may go by the same names."""
        for job in list(self.jobs):
            self._forget(job)

    def _forget_some(self) -> None:
        """Of jobs that are told, the oldest."""
        for job in list(self.jobs)[: max(0, len(self.jobs) + 1 - JOBS_KEPT)]:
            self._forget(job)

    def _forget(self, job: str) -> None:
        totals = self.jobs.pop(job)
        self._told.pop(job, None)
        self._gone.processor += totals.processor
        self._gone.in_bytes += totals.in_bytes
        self._gone.out_bytes += totals.out_bytes
