"""What must be true of the scheduler, in plain sets: a store, agents, and an oracle of who holds what. Not its code."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from muster.coordinator.protocol.control import Failure, Finished, Held, Loss, Returned
from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import events as e
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.states import JobState, LayerState
from tests.support.sched import added, hello, seed

MIB = 1 << 20
FIRST = 400  # more shards of rounds than one life of the daemon sees
KIND = "cluster"
Key = tuple[str, int, int]  # layer, boot, attempt
Shard = tuple[str, int]
Run = tuple[str, int, int]  # agent, boot, attempt
Sets = defaultdict[Key, set[int]]


def ranges(numbers: Iterable[int]) -> RangeSet:
    return RangeSet.of(sorted(numbers))


def pairs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    return ranges(numbers).pairs()


# --- the store ------------------------------------------------------------------------------------------


@dataclass
class DiskLayer:
    digest: str
    count: int
    made: bool
    out_bytes: int
    in_bytes: int = 0
    state: LayerState = "waiting"
    generation: int = 0
    high_water: int = 0
    closed: bool = False
    rows: set[int] = field(default_factory=set)
    quarantined: set[int] = field(default_factory=set)
    failures: set[tuple[int, Run]] = field(default_factory=set)
    payloads: dict[int, bytes] = field(default_factory=dict)
    rounds: bool = False
    first: int = 0
    skipped: set[int] = field(default_factory=set)

    @property
    def whole(self) -> set[int]:
        return set(range(self.count))

    @property
    def empty(self) -> bool:
        """Nothing was made, nothing will be: it is merged as soon as it is open. So are rounds that are over."""
        return self.closed and (self.count == 0 or (self.rounds and self.rows == self.whole))

    def begin(self, boot: int) -> None:
        """Rounds know nothing of what another life of the daemon had: all of that is settled."""
        if self.rounds:
            self.first = self.count = FIRST * boot
            self.rows = self.whole
            self.payloads.clear()

    def seed(self) -> e.LayerSeed:
        runs: defaultdict[int, set[Run]] = defaultdict(set)
        for number, run in self.failures:
            runs[number].add(run)
        return seed(
            self.digest, self.count, self.in_bytes, self.out_bytes, self.made, self.rounds,
            state=self.state, generation=self.generation, high_water=self.high_water,
            committed=ranges(self.rows), quarantined=ranges(self.quarantined), closed=self.closed,
            failures={number: frozenset(those) for number, those in runs.items()}, first=self.first,
            only=ranges(self.whole - self.skipped).pairs() if self.skipped else None,
        )  # fmt: skip


@dataclass
class DiskJob:
    id: str
    kernel: int
    cpus: int
    attempts: int
    max_failures: int
    layers: dict[str, DiskLayer]
    priority: int = 1
    state: JobState = "running"
    why: str = ""
    succeeded: bool = False
    cursor: int = 0
    same_kernels: bool = False
    kernels: str = ""  # of what is committed, where one fingerprint alone is wanted
    machine: str = ""  # the one agent that may run it
    at_once: int = 0  # shards that may be out; 0: any number
    after: tuple[str, ...] = ()  # jobs that are to be complete before it starts

    def added(self) -> e.JobAdded:
        first = next(iter(self.layers.values()))
        return added(
            self.id, *(layer.seed() for layer in self.layers.values()), kernel=self.kernel, cpus=self.cpus,
            attempts=self.attempts, max_failures=self.max_failures, priority=self.priority, state=self.state,
            why=self.why, succeeded=self.succeeded, cursor=self.cursor, payloads=dict(first.payloads),
            same_kernels=self.same_kernels, kernels_fixed=self.kernels,
            machine=self.machine, at_once=self.at_once, after=self.after,
        )  # fmt: skip


@dataclass
class Disk:
    """What Store* commands and commits have written. `Farm.durable` is the copy a crash goes back to."""

    jobs: dict[str, DiskJob] = field(default_factory=dict)
    damaged: dict[str, DiskJob] = field(default_factory=dict)  # set apart in this life of the daemon
    agents: dict[str, bool] = field(default_factory=dict)

    def layer(self, job: str, digest: str) -> DiskLayer:
        return self.jobs[job].layers[digest]

    def write(self, command: c.Action) -> None:
        match command:
            case c.StoreFailure(job, digest, agent, failure, quarantine):
                layer = self.layer(job, digest)
                layer.failures.add((failure.number, (agent, failure.boot, failure.attempt)))
                if quarantine:
                    layer.quarantined.add(failure.number)
            case c.StoreQuarantine(job, digest, number, _):
                self.layer(job, digest).quarantined.add(number)
            case c.ForgetFailures(job, None, _):
                for layer in self.jobs[job].layers.values():
                    layer.failures, layer.quarantined = set(), set()
            case c.ForgetFailures(job, agent, shards):
                for digest, number in shards:
                    layer = self.layer(job, digest)
                    layer.failures = {f for f in layer.failures if f[0] != number or f[1][0] != agent}
                    layer.quarantined.discard(number)
            case c.StoreJob(job, state, why):
                self.jobs[job].state, self.jobs[job].why = state, why
            case c.StoreSuccess(job):
                self.jobs[job].succeeded = True
            case c.StoreLayer(job, digest, state, generation):
                layer = self.layer(job, digest)
                if (layer.state, layer.generation) != ("merged", generation):  # that stays so until it is discarded
                    layer.state, layer.generation = state, generation
            case c.RaiseHighWater(job, digest, value):
                layer = self.layer(job, digest)
                layer.high_water = max(layer.high_water, value)
            case c.DiscardLayer(job, digest, generation):
                layer = self.layer(job, digest)
                layer.state, layer.generation, layer.high_water = "waiting", generation, 0
                layer.rows, layer.quarantined, layer.failures = set(), set(), set()
            case c.StoreAgent(agent, live):
                self.agents[agent] = live

    def copy(self) -> Disk:
        return copy.deepcopy(self)


# --- agents ---------------------------------------------------------------------------------------------


@dataclass
class Agent:
    """A machine that does what an agent does. `running` and `done` are the truth, whatever the scheduler believes."""

    name: str
    spool: str
    cpus: int
    kernel: int
    budget: int  # bytes
    lives: int = 0
    session: int = 0
    draining: bool = False
    running: Sets = field(default_factory=lambda: defaultdict(set))
    done: Sets = field(default_factory=lambda: defaultdict(set))  # on its disk
    finished: Sets = field(default_factory=lambda: defaultdict(set))  # to be reported
    news: list[Failure | Loss | Returned] = field(default_factory=list)  # to be reported, one at a time
    cost: dict[str, int] = field(default_factory=dict)  # layer → bytes
    fingerprint: str = "k1"
    paused: bool = False

    @property
    def process(self) -> str:
        return f"{self.name}-{self.spool}-{self.lives}"

    @property
    def room(self) -> int:
        taken = sum(self.cost[key[0]] * len(those) for held in (self.running, self.done) for key, those in held.items())
        return max(0, self.budget - taken)

    def hello(self, session: int) -> e.Joined:
        """Names all it holds; at most one failure or loss goes with it, the rest by syncs, and all reports again."""
        self.news = [one for one in self.news if not isinstance(one, Returned)]
        keys = [key for key in {**self.running, **self.done} if self.running[key] or self.done[key]]
        first = self.news[:1]
        said = hello(
            name=self.name, spool=self.spool, process=self.process, cpus=self.cpus, memory=0,
            disk=self.budget, kernels={KIND: self.kernel}, fingerprint=self.fingerprint, in_place=True,
            held=[Held("", *key, pairs(self.running[key]), pairs(self.done[key])) for key in keys],
            failures=[one for one in first if isinstance(one, Failure)],
            losses=[one for one in first if isinstance(one, Loss)],
        )  # fmt: skip
        return e.Joined(session, said)

    def sync(self, hungry: bool) -> e.Synced:
        first = self.news[:1]
        return e.Synced(
            session=self.session, room=self.room, hungry=hungry and not self.draining and not self.paused,
            lent=0 if self.paused else self.cpus,
            finished=tuple(report(key, numbers) for key, numbers in self.finished.items() if numbers),
            failures=tuple(one for one in first if isinstance(one, Failure)),
            losses=tuple(one for one in first if isinstance(one, Loss)),
            returned=tuple(one for one in first if isinstance(one, Returned)),
            counts=self.counts(),
        )  # fmt: skip

    def counts(self) -> dict[str, int]:
        """What it has, and what it has yet to say that it has no more."""
        counts: Counter[str] = Counter()
        for held in (self.running, self.done):
            counts.update({layer: 0 for layer, _, _ in held})
            for key, numbers in held.items():
                counts[key[0]] += len(numbers)
        for one in self.news[1:]:
            counts[one.layer] += 1 if isinstance(one, Failure) else len(RangeSet(one.numbers))
        return counts

    def answered(self) -> None:
        self.finished.clear()
        del self.news[:1]

    def hear(self, command: c.Action) -> None:
        match command:
            case c.SendGrant(_, _, layer, attempt, numbers):
                self._granted((layer, self.boot, attempt), set(numbers))
            case c.SendDrop(_, layer, boot, attempt, numbers):
                self.running[layer, boot, attempt] -= set(numbers)
            case c.SendCommitted(_, layer, numbers):
                self.settle(layer, set(numbers))
                for key in [key for key in self.running if key[0] == layer]:
                    self.running[key] -= set(numbers)
            case c.SendGone(_, layer):
                self.forget(layer)
            case c.SendDrain():
                self.draining = True

    boot = 0  # of the coordinator it talks to

    def _granted(self, grant: Key, numbers: set[int]) -> None:
        for key in [key for key in self.running if key[0] == grant[0]]:
            self.running[key] -= numbers
        self.running[grant] |= numbers
        for key in [key for key in self.done if key[0] == grant[0]]:
            known = self.done[key] & numbers
            self.done[key] -= known
            self.running[grant] -= known
            if known:
                self.done[grant] |= known
                self.finished[grant] |= known

    def settle(self, layer: str, numbers: set[int]) -> None:
        """These are committed. What was finished is reported all the same."""
        for key in [key for key in self.done if key[0] == layer]:
            self.done[key] -= numbers

    def give_up(self, layer: str, numbers: set[int]) -> None:
        """The job runs on other kernels: its parts go, and that is said."""
        for key, held in self.done.items():
            if key[0] == layer and held & numbers:
                self.news.append(Loss("", *key, pairs(held & numbers), False, "other kernels"))
        self.settle(layer, numbers)

    def forget(self, layer: str) -> None:
        """Nobody wants this layer any more."""
        for held in (self.running, self.done, self.finished):
            for key in [key for key in held if key[0] == layer]:
                del held[key]
        self.news = [one for one in self.news if one.layer != layer]

    def die(self) -> None:
        """By kill -9: what is on the disk stays."""
        self.lives += 1
        self.session, self.draining = 0, False
        self.running.clear()
        self.finished.clear()
        self.news.clear()


def report(key: Key, numbers: set[int]) -> Finished:
    return Finished("", *key, pairs(numbers), len(numbers), float(len(numbers)), 0.0, 0, 0, 0)


# --- the oracle -----------------------------------------------------------------------------------------


@dataclass
class Seen:
    """An agent as the scheduler ought to see it."""

    spool: str
    process: str
    session: int
    cpus: int
    kernel: int
    disk: int  # bytes in all
    heard: float
    fingerprint: str
    room: int = 0
    state: str = "live"
    hungry: bool = False
    paused: bool = False
    open: Sets = field(default_factory=lambda: defaultdict(set))
    done: Sets = field(default_factory=lambda: defaultdict(set))
    left: dict[Key, set[int]] = field(default_factory=dict)  # what it had when its last session ended

    @property
    def present(self) -> bool:
        return self.state in {"live", "draining"}

    def has(self, layer: str, number: int) -> list[Key]:
        return [key for held in (self.open, self.done) for key in held if key[0] == layer and number in held[key]]

    def drop(self, layer: str, numbers: set[int]) -> None:
        for held in (self.open, self.done):
            for key in held:
                if key[0] == layer:
                    held[key] -= numbers

    @property
    def load(self) -> int:
        return sum(map(len, self.open.values()))

    @property
    def idle(self) -> bool:
        return not any(self.open.values()) and not any(self.done.values())


class Oracle:
    """One per boot of the scheduler. Its methods say what an event must mean, and return what must be emitted."""

    def __init__(self, boot: int, disk: Disk, lease: float) -> None:
        self.boot, self.disk = boot, disk
        self.expected = {name for name, live in disk.agents.items() if live}
        self.limbo_until: float | None = None
        self.lease = lease
        self.agents: dict[str, Seen] = {}
        self.sessions: dict[int, str] = {}
        self.fenced: set[str] = set()
        self.opened: dict[str, str] = {}  # layer → the job that has it open
        self.opened_after: dict[str, tuple[int, int]] = {}  # layer → the last attempt before it opened, in this boot
        self.merging: set[str] = set()
        self.limbo: defaultdict[str, set[int]] = defaultdict(set)
        self.committed: defaultdict[tuple[str, str], set[int]] = defaultdict(set)  # (job, layer) → numbers
        self.quarantined: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self.touched: defaultdict[tuple[str, str], set[int]] = defaultdict(set)  # perhaps granted before
        self.failures: defaultdict[tuple[str, str, int], set[Run]] = defaultdict(set)
        self.losses: defaultdict[tuple[str, str, int], set[Run]] = defaultdict(set)
        self.kicked: defaultdict[tuple[str, str, int], set[str]] = defaultdict(set)  # agents it was taken from
        self.first: defaultdict[str, defaultdict[str, set[Shard]]] = defaultdict(lambda: defaultdict(set))
        self.strikes: defaultdict[tuple[str, str], list[Shard]] = defaultdict(list)
        self.barred: set[tuple[str, str]] = set()
        self.kernels: dict[str, str] = {}  # job → the one fingerprint it goes to
        self.fixed: set[str] = set()  # jobs where a commit has decided that
        self.last_attempt = 0

    def learn(self, job: DiskJob, alive: float) -> None:
        if job.kernels:
            self.kernels[job.id] = job.kernels
            self.fixed.add(job.id)
        for layer in job.layers.values():
            key = (job.id, layer.digest)
            self.committed[key] = layer.whole if layer.state == "merged" else layer.rows | layer.skipped
            self.quarantined[key] = layer.quarantined - layer.rows
            for number, run in layer.failures if not layer.rounds else ():
                self.failures[job.id, layer.digest, number].add(run)
            self.touched[key] = set(range(layer.high_water))
            if layer.state == "open" and job.state != "cancelled" and not layer.empty:
                self.opened[layer.digest] = job.id
                self.opened_after.pop(layer.digest, None)  # a twin that was opened a moment ago gives way
                self.limbo[layer.digest] = self.touched[key] - self.committed[key] - self.quarantined[key]
                if self.limbo[layer.digest] and self.limbo_until is None:
                    self.limbo_until = alive + self.lease

    # --- questions ---

    def job_of(self, layer: str) -> DiskJob:
        return self.disk.jobs[self.opened[layer]]

    def eligible(self, name: str, job: DiskJob) -> bool:
        seen = self.agents[name]
        return seen.state == "live" and not seen.paused and self._fits(name, job)

    def _fits(self, name: str, job: DiskJob) -> bool:
        seen = self.agents[name]
        least = min(layer.out_bytes for layer in job.layers.values())
        able = seen.kernel == job.kernel and seen.cpus >= job.cpus and seen.disk >= least
        able = able and job.machine in {"", name}
        return able and self.suits(seen, job) and (name, job.id) not in self.barred

    def suits(self, seen: Seen, job: DiskJob) -> bool:
        return self.kernels.get(job.id, seen.fingerprint) == seen.fingerprint

    def goes_to(self, seen: Seen, job: DiskJob) -> None:
        """The first machine to have anything of it decides."""
        if job.same_kernels:
            self.kernels.setdefault(job.id, seen.fingerprint)

    def able(self, name: str, job: DiskJob) -> bool:
        """Whether it will take a shard of the job: it works, or could."""
        seen = self.agents[name]
        room = any(layer.out_bytes <= seen.room for layer in job.layers.values() if layer.digest in self.opened)
        return self.eligible(name, job) and (not seen.idle or (seen.hungry and room))

    def holders(self, layer: str, number: int) -> list[tuple[str, Key]]:
        return [(name, key) for name, seen in self.agents.items() for key in seen.has(layer, number)]

    def pending(self, layer: str) -> set[int]:
        job = self.opened[layer]
        left = self.disk.layer(job, layer).whole - self.committed[job, layer] - self.quarantined[job, layer]
        held = {n for seen in self.agents.values() for sets in (seen.open, seen.done) for k in sets if k[0] == layer
                for n in sets[k]}  # fmt: skip
        return left - held - self.limbo[layer]

    # --- news of agents ---

    def joined(self, event: e.Joined, alive: float) -> list[object]:
        said = event.hello
        old = self.agents.get(said.name)
        if said.process in self.fenced:
            return [("reject", event.session, "fenced")]
        if old and old.present and old.spool != said.spool:
            return [("reject", event.session, "name-taken")]
        must: list[object] = []
        if old and old.present:
            del self.sessions[old.session]
        if old and old.spool != said.spool:
            old = None
            self.strikes = defaultdict(list, {k: v for k, v in self.strikes.items() if k[0] != said.name})
            self.barred = {pair for pair in self.barred if pair[0] != said.name}
        if old and old.process != said.process:
            self.fenced.add(old.process)
            must += [("reject", old.session, "fenced")] if old.present else []
        seen = Seen(
            said.spool, said.process, event.session, said.cpus, said.kernels[KIND], said.disk, alive,
            said.fingerprint,
        )  # fmt: skip
        if old:
            seen.open, seen.done, seen.left = old.open, old.done, old.left
            if old.state == "draining" and old.process == said.process:
                seen.state = "draining"
        self.agents[said.name], self.sessions[event.session] = seen, said.name
        for failure in said.failures:
            must += self.failed(said.name, failure)
        for loss in said.losses:
            must += self.lost(said.name, loss)
        halted = {one[1] for one in must if isinstance(one, tuple) and one[0] == "halted"}
        must += self._reconciled(event, seen, halted)
        self.expected.discard(said.name)
        return must

    def _reconciled(self, event: e.Joined, seen: Seen, halted: set[object]) -> list[object]:
        """`halted`: the jobs that this hello's own failures put an end to; of these nothing is adopted."""
        must: list[object] = []
        before = {key: seen.open[key] | seen.done[key] for key in {**seen.open, **seen.done}}
        before = {key: those for key, those in before.items() if those}
        claimed: Sets = defaultdict(set)
        for held in event.hello.held:
            key = (held.layer, held.boot, held.attempt)
            running, finished = set(RangeSet(held.running)), set(RangeSet(held.finished))
            claimed[key] = running | finished
            if held.layer in self.opened:
                if (held.boot, held.attempt) <= self.opened_after.get(held.layer, (0, 0)):
                    claimed[key].clear()
                    continue
                theirs = seen.open[key] | seen.done[key]
                if not theirs:
                    theirs = set(self.limbo[held.layer]) if held.boot < self.boot else seen.left.get(key, set())
                adopts = key not in before and held.boot < self.boot
                job = self.job_of(held.layer)
                wanted = job.state in {"running", "paused"} and job.id not in halted
                if adopts and wanted and self.suits(seen, job):
                    seen.open[key] = running & self.limbo[held.layer]
                    self.limbo[held.layer] -= running
                    if seen.open[key]:
                        self.goes_to(seen, job)
                must += self.has_finished(event.hello.name, key, finished & theirs)
        seen.left.clear()
        for key, those in before.items():
            seen.open[key] -= those - claimed[key]
            seen.done[key] -= those - claimed[key]
        return must

    def finished(self, name: str, key: Key, numbers: set[int]) -> list[object]:
        """A report counts for what it is known to have by that grant."""
        seen = self.agents[name]
        return self.has_finished(name, key, numbers & (seen.open[key] | seen.done[key]))

    def has_finished(self, name: str, key: Key, numbers: set[int]) -> list[object]:
        layer = key[0]
        if layer not in self.opened:
            return []
        job, seen = self.job_of(layer), self.agents[name]
        numbers = (numbers & self.disk.layer(job.id, layer).whole) - self.committed[job.id, layer]
        if key[1] < self.boot:
            self.limbo[layer] -= numbers
        new = numbers - seen.done[key]
        twins = [twin for twin in seen.done if twin[0] == layer and twin != key]
        for twin in twins:
            seen.done[twin] -= numbers
        seen.open[key] -= numbers
        seen.done[key] |= numbers
        self.limbo[layer] -= numbers
        self.quarantined[job.id, layer] -= numbers
        self.touched[job.id, layer] |= numbers
        if new:
            self.goes_to(seen, job)
        return self.succeeded(name, job) if new else []

    def succeeded(self, name: str, job: DiskJob) -> list[object]:
        self.strikes.pop((name, job.id), None)
        if job.succeeded:
            return []
        job.succeeded = True
        self.first.pop(job.id, None)
        return [("success", job.id)]

    def _had(self, name: str, key: Key, number: int) -> bool:
        seen = self.agents[name]
        held = number in seen.open[key] or number in seen.done[key]
        told = self.failures[self.opened[key[0]], key[0], number] | self.losses[self.opened[key[0]], key[0], number]
        again = any(run[0] == name and run[1] < self.boot and run[1:] != key[1:] for run in told)
        return held or (key[1] < self.boot and number in self.limbo[key[0]] and not again)

    def _let_go(self, name: str, key: Key, number: int, poison: bool) -> None:
        seen = self.agents[name]
        seen.open[key].discard(number)
        seen.done[key].discard(number)
        if poison:
            self.limbo[key[0]].discard(number)
            self.quarantined[self.opened[key[0]], key[0]].add(number)

    def _elsewhere(self, name: str, key: Key, number: int) -> bool:
        """On another machine, that is not paused or is done with it."""
        others = [(who, their) for who, their in self.holders(key[0], number) if who != name]
        return any(not self.agents[who].paused or number in self.agents[who].done[their] for who, their in others)

    def failed(self, name: str, failure: Failure) -> list[object]:
        key, number = (failure.layer, failure.boot, failure.attempt), failure.number
        if failure.layer not in self.opened or not self._had(name, key, number):
            return []
        job, run = self.job_of(failure.layer), (name, failure.boot, failure.attempt)
        runs = self.failures[job.id, failure.layer, number]
        if run in runs:
            return []
        runs.add(run)
        final = failure.code == "data"
        poison = (final or len(runs) >= job.attempts) and not self._elsewhere(name, key, number)
        self._let_go(name, key, number, poison)
        must: list[object] = [("failure", job.id, failure.layer, number, name, poison)]
        must += [] if final else self._blame(name, job, (failure.layer, number))
        return must + self._too_many(job, poison and ("halted", job.id) not in must)

    def _blame(self, name: str, job: DiskJob, shard: Shard) -> list[object]:
        if not job.succeeded:
            self.first[job.id][name].add(shard)
            shards = set().union(*self.first[job.id].values())
            alone = sum(self.eligible(one, job) for one in self.agents) <= 1
            hopeless = (len(shards) >= 2 and len(self.first[job.id]) >= 2) or (alone and len(shards) >= 3)
            return [("halted", job.id)] if hopeless and job.state == "running" else []
        strikes = self.strikes[name, job.id]
        strikes[:] = [one for one in strikes if one != shard] + [shard]
        if len(strikes) < 3 or not any(self.eligible(one, job) for one in self.agents if one != name):
            return []
        self.barred.add((name, job.id))
        del self.strikes[name, job.id]
        for layer, number in strikes:
            runs = self.failures[job.id, layer, number]
            runs -= {run for run in runs if run[0] == name}
            self.quarantined[job.id, layer].discard(number)
        return [("barred", job.id, name, tuple(strikes))]

    def _too_many(self, job: DiskJob, poison: bool) -> list[object]:
        count = sum(len(self.quarantined[job.id, layer]) for layer in job.layers)
        enough = count >= job.max_failures or any(layer.rounds for layer in job.layers.values())
        full = poison and enough and job.state in {"running", "paused"}
        return [("halted", job.id)] if full else []

    def lost(self, name: str, loss: Loss) -> list[object]:
        key = (loss.layer, loss.boot, loss.attempt)
        if loss.layer not in self.opened:
            return []
        job = self.job_of(loss.layer)
        poison = set()
        numbers = {number for number in RangeSet(loss.numbers) if self._had(name, key, number)}
        for number in numbers if loss.running else ():
            runs = self.losses[job.id, loss.layer, number]
            runs.add((name, loss.boot, loss.attempt))
            on = {run[0] for run in runs}
            known = on | {one for one in self.agents if self.able(one, job)}
            if len(runs) >= 5 and len(on) >= min(3, len(known)) and not self._elsewhere(name, key, number):
                poison.add(number)
        for number in numbers:
            self._let_go(name, key, number, number in poison)
        must: list[object] = [("quarantine", job.id, loss.layer, number) for number in sorted(poison)]
        return must + self._too_many(job, bool(poison))

    def returned(self, name: str, event: Returned) -> None:
        self.agents[name].open[event.layer, event.boot, event.attempt] -= set(RangeSet(event.numbers))

    def parted(self, name: str, state: str) -> None:
        seen = self.agents[name]
        self.sessions.pop(seen.session)
        seen.state, seen.session, seen.hungry = state, 0, False
        seen.left = {key: seen.open[key] | seen.done[key] for key in {**seen.open, **seen.done}}
        seen.open.clear()
        seen.done.clear()

    def _decided(self, job: DiskJob, fingerprint: str) -> None:
        if job.same_kernels and job.id not in self.fixed:
            self.kernels[job.id] = fingerprint
            self.fixed.add(job.id)

    def rows_added(self, event: e.BundleCommitted) -> list[object]:
        self._decided(self.disk.jobs[event.job], event.fingerprint)
        layer = self.disk.layer(event.job, event.layer)
        if layer.generation != event.generation or layer.state not in {"open", "waiting"}:
            return []
        numbers, must = set(event.numbers), []
        is_open = self.opened.get(event.layer) == event.job
        if is_open and (seen := self.agents.get(event.agent)):
            if any(number in seen.open[key] for number in numbers for key in seen.has(event.layer, number)):
                must = self.succeeded(event.agent, self.disk.jobs[event.job])
            seen.drop(event.layer, numbers)
        self.committed[event.job, event.layer] |= numbers
        self.quarantined[event.job, event.layer] -= numbers
        if is_open:
            self.limbo[event.layer] -= numbers
        self.settled(event.job, event.layer, numbers)
        if is_open and layer.empty:
            self.closed(event.layer)
        return must

    def settled(self, job: str, layer: str, numbers: set[int]) -> None:
        for number in numbers:
            for by_shard in (self.failures, self.losses, self.kicked):
                by_shard.pop((job, layer, number), None)

    def retired(self, job: str, layer: str, numbers: set[int]) -> None:
        """Nobody wants these any more, wherever they are."""
        self.committed[job, layer] |= numbers
        self.quarantined[job, layer] -= numbers
        self.settled(job, layer, numbers)
        if self.opened.get(layer) == job:
            for seen in self.agents.values():
                seen.drop(layer, numbers)

    def ticked(self, alive: float) -> None:
        for name, seen in self.agents.items():
            if seen.present and alive - seen.heard > self.lease:
                self.parted(name, "gone")
        self.released(alive)
        for job in self.disk.jobs.values():
            if job.state == "running" and job.id in self.kernels.keys() - self.fixed:
                own = {one for one in self.sessions.values() if self._fits(one, job)}
                if not own:
                    del self.kernels[job.id]

    def released(self, alive: float) -> None:
        if self.limbo_until is not None and (not self.expected or alive >= self.limbo_until):
            self.limbo_until = None
            self.limbo.clear()

    def was_kicked(self, layer: str, number: int) -> None:
        for name, seen in self.agents.items():
            if seen.has(layer, number):
                self.kicked[self.opened[layer], layer, number].add(name)
            for key in [key for key in seen.done if key[0] == layer]:
                seen.done[key].discard(number)

    def forgiven(self, job: str) -> None:
        for by_shard in (self.failures, self.losses, self.kicked):
            for shard in [shard for shard in by_shard if shard[0] == job]:
                del by_shard[shard]
        for layer in self.disk.jobs[job].layers:
            self.quarantined[job, layer].clear()
        self.first.pop(job, None)
        self.strikes = defaultdict(list, {k: v for k, v in self.strikes.items() if k[1] != job})
        self.barred = {pair for pair in self.barred if pair[1] != job}

    def closed(self, layer: str) -> None:
        """Nobody has it open any more."""
        self.opened.pop(layer, None)
        self.opened_after.pop(layer, None)
        self.merging.discard(layer)
        self.limbo.pop(layer, None)
        for seen in self.agents.values():
            for held in (seen.open, seen.done):
                for key in [key for key in held if key[0] == layer]:
                    del held[key]
