"""What is measured of one job while it is served: news in, values for figures.sqlite out. No I/O, no clock."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from muster.coordinator.api.figures import (
    EVENTS_KEPT,
    SLOWEST_KEPT,
    TROUBLES_KEPT,
    JobEvent,
    JobFiguresKept,
    MachineFigures,
    Slowest,
    Trouble,
    spent_as,
)
from muster.coordinator.api.status import JobStatus
from muster.coordinator.figures import histogram
from muster.coordinator.figures.bins import Axis, Row
from muster.coordinator.protocol.control import IDLE_STATES, Failure, JobAccount, MachineAccount
from muster.coordinator.protocol.transfer import BundleFigures
from muster.jobs.contract.states import ENDED, JobState
from muster.jobs.contract.text_limits import EVIDENCE_BYTES, kept

SLACK_SECONDS = 10.0  # between two accounts an agent's clock may have gone so much faster than ours
SHARED_EVIDENCE_BYTES = EVIDENCE_BYTES // 8  # of the one example of a group: a hundred of them are written at a time
AT_ONCE = 8  # times as fast as the clock: what shards use beyond their cores, and inputs that come side by side
AGENTS_NAMED = 20  # of those where a group of failures was seen
_DIGITS = re.compile(r"\d+(?:\.\d+)?")
_NOTHING = JobAccount("")


@dataclass
class Heard:
    """The last that an agent's process said of where its time goes, and when."""

    process: str
    cpus: int
    at: float
    account: MachineAccount
    jobs: dict[str, JobAccount] = field(default_factory=dict)  # what it said of them since it was added up
    is_new: bool = True  # since then
    before: tuple[float, MachineAccount] | None = None  # when that was, and what it had said: a job that began since
    #   then has nothing to do with what the process did earlier

    def more(self, account: MachineAccount, at: float) -> None:
        self.account, self.at, self.is_new = account, at, True
        self.jobs.update({one.job: one for one in account.jobs})

    def added_up(self) -> None:
        """For every job."""
        self.jobs.clear()
        self.is_new, self.before = False, (self.at, msgspec.structs.replace(self.account, jobs=[]))


class JobLedger:
    """One job's."""

    def __init__(self, record: JobFiguresKept, machines: Iterable[MachineFigures] = ()) -> None:
        self.record = record
        self.machines = {one.agent: one for one in machines}
        self._axis = Axis(record.width, {name: Row(one.bins) for name, one in self.machines.items()})
        self._dirty = set(self.machines)
        self._troubles = {(one.code, one.line): one for one in record.troubles}
        self._stretch: tuple[float, float | None] | None = None  # the last time it ran, until when if that is over
        if record.state == "running" and record.since is not None:
            self._stretch = record.since, None

    # --- the job's own life ---

    def began(self, now: float) -> None:
        """Its first grant."""
        self.record.started = self.record.started or now

    def began_at(self, started: float | None) -> None:
        """The store knows of its first grant, whatever was written here."""
        self.record.started = self.record.started or started

    def nothing_known_until(self, now: float) -> None:
        """The job is older than what is known of it: its time so far was neither this nor that."""
        self.record.since = self.record.at = now

    def turned(self, state: JobState, why: str, now: float) -> None:
        """The job is in another state."""
        self._count_stretch(now)
        if self.record.state == "running" and self._stretch:
            self._stretch = self._stretch[0], now
        if state == "running" and self.record.state != "running":
            self._stretch = now, None
        said = f"{state}: {why}" if why else state
        self.record.state, self.record.why = state, why
        self.record.ended = now if state in ENDED else None
        self.note(JobEvent(now, "state", "", said))

    def served_again(self, now: float) -> None:
        """By another life of the daemon. Nothing is known of the time between."""
        record = self.record
        if record.since is not None:
            record.away += max(0.0, now - max(record.at, record.since))
            self._count_stretch(max(record.at, record.since))
            record.since = now
        if record.state == "running":
            self._stretch = now, None
        record.restarts += 1
        self.note(JobEvent(now, "restart", "", "the coordinator was started again"))

    def _count_stretch(self, until: float) -> None:
        record = self.record
        if record.since is not None and record.state not in ENDED:
            name = spent_as(record.state)
            setattr(record, name, getattr(record, name) + max(0.0, until - record.since))
        record.since = until

    def note(self, event: JobEvent) -> None:
        if len(self.record.events) >= EVENTS_KEPT:
            self.record.events_left_out += 1
            return
        event.said = event.said[:300]
        self.record.events.append(event)

    def merged(self, now: float) -> None:
        self.record.first_layer = self.record.first_layer or now

    # --- what became of shards ---

    def machine(self, agent: str) -> MachineFigures:
        self._dirty.add(agent)
        if agent not in self.machines:
            self.machines[agent] = MachineFigures(agent)
        return self.machines[agent]

    def committed(self, agent: str, layer: str, count: int, told: BundleFigures | None, now: float) -> None:
        """A bundle of so many shards is durable."""
        record, machine = self.record, self.machine(agent)
        record.first_commit, record.last_commit = record.first_commit or now, now
        self._bin(agent, "committed", now, count)
        if told is None:
            return
        record.measured += count
        record.compute += told.seconds
        histogram.add(record.spread, told.spread)
        histogram.add(record.peaks, told.peaks)
        machine.rows += told.rows
        machine.read_bytes += told.in_bytes
        machine.shard_peak = max(machine.shard_peak, told.peak)
        if told.slowest and (len(record.slowest) < SLOWEST_KEPT or told.slowest[0][1] > record.slowest[-1].seconds):
            record.slowest += [Slowest(seconds, layer, number, agent) for number, seconds in told.slowest]
            record.slowest = sorted(record.slowest, key=lambda one: -one.seconds)[:SLOWEST_KEPT]

    def waited(self, agent: str, made: Iterable[float], attempts: Iterable[int], now: float) -> None:
        """Of committed shards: when their driver had made them, and which attempts those beyond a first were."""
        histogram.add(self.record.waits, histogram.counted(histogram.bucket_of_seconds(now - at) for at in made))
        histogram.add(self.machine(agent).later, histogram.counted(attempts))

    def took(self, seconds: Mapping[int, int]) -> None:
        """What a driver's clients had done, from when they asked for it."""
        histogram.add(self.record.waits, seconds)

    def known_committed(self, agent: str, shards: int, nbytes: int) -> None:
        """What the store has from a machine, which is exact whatever was lost of this."""
        machine = self.machines.get(agent)
        if machine is None or (machine.committed, machine.committed_bytes) != (shards, nbytes):
            machine = self.machine(agent)
            machine.committed, machine.committed_bytes = shards, nbytes

    def known_machine(self, agent: str, in_place: bool, budget: int) -> None:
        machine = self.machines[agent]
        machine.in_place, machine.budget = in_place, budget

    def describe(self, status: JobStatus) -> None:
        """What others know of the job."""
        record = self.record
        record.kind, record.why, record.started = status.kind, status.why, record.started or status.started
        record.totals, record.failures = status.totals, status.failures
        record.layers_total, record.layers_merged = status.layers_total, status.layers_merged
        record.notes = status.notes

    def failed(self, agent: str, layer: str, failure: Failure, now: float) -> None:
        machine = self.machine(agent)
        machine.failed += 1
        machine.kills += failure.code == "memory"
        self._bin(agent, "failed", now, 1)
        line = _DIGITS.sub("#", failure.message)[:200]
        key = (failure.code, line)
        if key not in self._troubles and len(self._troubles) >= TROUBLES_KEPT:
            key = ("other", "more kinds of failures than are told apart")
        group = self._troubles.get(key)
        if group is None:
            evidence = kept(failure.evidence, SHARED_EVIDENCE_BYTES, end=True)
            group = Trouble(*key, 0, now, now, [], layer, failure.number, failure.message[:500], evidence)
            self._troubles[key] = group
            self.record.troubles.append(group)
        group.count, group.last = group.count + 1, now
        if agent not in group.agents and len(group.agents) < AGENTS_NAMED:
            group.agents.append(agent)

    def lost(self, agent: str, count: int) -> None:
        self.machine(agent).lost += count

    def _bin(self, agent: str, name: str, at: float, amount: float) -> None:
        if self.record.started is not None:
            moment = max(0.0, at - self.record.started)
            self._axis.add(agent, name, moment, moment, amount)

    # --- what machines say of their time ---

    def account(self, agent: str, heard: Heard, works: bool) -> None:
        """Add what became of the agent's time since its last account. `works`: whether it may run shards of the job.
        Of what it says nothing counts beyond the cores that it has."""
        machine = self.machine(agent)
        if machine.last is not None and machine.process == heard.process:
            since, last, last_job = machine.at, machine.last, machine.last_job or _NOTHING
        else:
            since, last = heard.before or (heard.at - heard.account.seconds, MachineAccount())
            since, last_job = max(since, machine.at), _NOTHING
        if heard.at <= since:
            return
        own = heard.jobs.get(self.record.job, last_job)
        most = heard.cpus * (heard.at - since + SLACK_SECONDS)
        spent = {name: _more(heard.account, last, name, most) for name in (*IDLE_STATES, "busy", "paused")}
        busy = _more(own, last_job, "busy", most)
        ran = self._ran(since, heard.at) if works else 0.0
        machine.process, machine.at, machine.cpus, machine.accounted = heard.process, heard.at, heard.cpus, True
        self._add_states(machine, spent, busy, ran, (since, heard.at))
        self._add_own(machine, own, last_job, busy, (since, heard.at))
        self._raise_memory(agent, heard)
        machine.last = msgspec.structs.replace(heard.account, jobs=[])
        machine.last_job = own if own is not _NOTHING else None

    def _ran(self, since: float, until: float) -> float:
        """What part of a time the job ran, from 0 to 1: from its first grant on, and no longer than to its last commit
        once it is over."""
        if self._stretch is None or self.record.started is None:
            return 0.0
        begin, end = max(self._stretch[0], self.record.started), self._stretch[1] or until
        if self.record.ended is not None and self.record.last_commit is not None:
            end = min(end, self.record.last_commit)
        return max(0.0, min(until, end) - max(since, begin)) / (until - since)

    def _add_states(
        self, machine: MachineFigures, spent: Mapping[str, float], busy: float, ran: float, span: tuple[float, float]
    ) -> None:
        """The machine's core-seconds while the job ran, as far as the job's own account leaves room for them."""
        elsewhere = max(0.0, spent["busy"] * ran - busy)
        idle = sum(spent[name] for name in IDLE_STATES)
        lent = max((idle + spent["busy"]) * ran, busy + elsewhere)
        scale = max(0.0, lent - busy - elsewhere) / idle if idle else 0.0
        machine.lent += lent
        machine.elsewhere += elsewhere
        machine.paused += spent["paused"] * ran
        machine.present += (span[1] - span[0]) * ran
        for name in IDLE_STATES:
            setattr(machine, name, getattr(machine, name) + spent[name] * scale)
        self._spread(machine.agent, "lent", span, lent)
        self._spread(machine.agent, "busy", span, busy)
        self._spread(machine.agent, "waiting", span, (spent["input"] + spent["room"]) * scale)
        self._spread(machine.agent, "paused", span, spent["paused"] * ran)

    def _add_own(
        self, machine: MachineFigures, own: JobAccount, last: JobAccount, busy: float, span: tuple[float, float]
    ) -> None:
        seconds = AT_ONCE * (span[1] - span[0] + SLACK_SECONDS)
        machine.busy += busy
        machine.wasted += min(busy, _more(own, last, "wasted", busy))
        machine.processor += _more(own, last, "processor", machine.cpus * seconds)
        machine.in_seconds += _more(own, last, "in_seconds", seconds)
        machine.out_seconds += _more(own, last, "out_seconds", seconds)
        came, went = max(0, own.in_bytes - last.in_bytes), max(0, own.out_bytes - last.out_bytes)
        machine.in_bytes += came
        machine.out_bytes += went
        machine.spared += max(0, own.spared - last.spared)
        machine.disk_bytes += max(0, own.disk_bytes - last.disk_bytes)
        machine.peak = max(machine.peak, own.peak)
        self._spread(machine.agent, "in_bytes", span, came)
        self._spread(machine.agent, "out_bytes", span, went)

    def _spread(self, agent: str, name: str, span: tuple[float, float], amount: float) -> None:
        """Over the bins of a time, which ends with the job at the latest."""
        if self.record.started is None or amount <= 0:
            return
        end = max(self.record.started, min(span[1], self.record.ended or span[1]))
        begin = max(self.record.started, min(span[0], end))
        self._axis.add(agent, name, begin - self.record.started, end - self.record.started, amount)

    def _raise_memory(self, agent: str, heard: Heard) -> None:
        if self.record.started is not None and self.record.ended is None and self.record.job in heard.jobs:
            self._axis.raise_to(agent, "memory", max(0.0, heard.at - self.record.started), heard.account.memory_now)

    # --- for the file, and for who asks ---

    def new_values(self, now: float) -> tuple[JobFiguresKept, list[MachineFigures]]:
        """As it stands, with the machines of which anything is new since this was last asked."""
        self._settle(now)
        dirty = [self.machines[name] for name in self._dirty]
        self._dirty.clear()
        return self.record, dirty

    def all_values(self, now: float) -> tuple[JobFiguresKept, list[MachineFigures]]:
        """As it stands, with all machines."""
        self._settle(now)
        return self.record, [self.machines[name] for name in sorted(self.machines)]

    def _settle(self, now: float) -> None:
        record = self.record
        if record.started is not None and record.ended is None:
            self._axis.fit(max(0.0, now - record.started))
        if self._axis.width != record.width:
            self._dirty.update(self.machines)
        record.width, record.at = self._axis.width, now
        for name in self._dirty:
            if name in self._axis.rows:
                self.machines[name].bins = self._axis.rows[name].packed()

    def not_written(self) -> None:
        """What was last taken for the file is not in it."""
        self._dirty.update(self.machines)

    @property
    def is_dirty(self) -> bool:
        return bool(self._dirty)


def _more(now: MachineAccount | JobAccount, last: MachineAccount | JobAccount, name: str, most: float) -> float:
    return float(min(max(0.0, getattr(now, name) - getattr(last, name)), most))
