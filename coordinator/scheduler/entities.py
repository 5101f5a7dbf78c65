"""What the scheduler knows of one layer, job, machine or holding, and what holds of it. Decides nothing."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from functools import cached_property
from math import exp
from typing import ClassVar, Literal

import msgspec

from muster.coordinator.protocol.control import Hello
from muster.coordinator.scheduler.events import Run
from muster.jobs.common.ranges import RangeSet
from muster.jobs.common.units import counted, format_size
from muster.jobs.contract import plan as p
from muster.jobs.contract.requirements import PYTHON, lacking, named, rest_of
from muster.jobs.contract.states import ENDED, SETTLED, AgentState, JobState, LayerState

FINGERPRINTS_KEPT = 64  # of each agent
RATE_MEMORY_SECONDS = 5.0  # how fast an agent's measured rate forgets
RATE_STEP_SECONDS = 0.05  # shorter spells are added up before they count


@dataclass
class Rate:
    """Shards per second of one agent on one job, as seen from here: transfer and overhead included."""

    since: float  # when the spell being measured began
    count: int = 0  # finished in it
    per_second: float = 0.0  # 0 until measured

    def finished(self, count: int, now: float) -> None:
        self.count += count
        spell = now - self.since
        if spell < RATE_STEP_SECONDS:
            return
        fresh = self.count / spell
        weight = 1.0 - exp(-spell / RATE_MEMORY_SECONDS) if self.per_second else 1.0
        self.per_second += weight * (fresh - self.per_second)
        self.since, self.count = now, 0


@dataclass
class RoundCost:
    """What a round costs one machine beside its computing: above all bytes over its link, both ways."""

    samples: tuple[tuple[float, int], ...] = ()  # of its last two rounds: seconds, and how often all its slots computed
    handed_in: float = float("-inf")  # when it last did
    left_out_until: float | None = None  # then it is tried again; None: it is not left out
    patience: float = 0.0  # for how many times as long it was left out last
    instead: float = 0.0  # seconds of a round without it, where it is left out

    def took(self, seconds: float, batches: int) -> None:
        self.samples = (*self.samples[-1:], (seconds, batches))

    def seconds(self, pace: float) -> float | None:
        """The lesser of the two, as anything may hold up one of them; None while they are not known."""
        if len(self.samples) < 2:
            return None
        return max(0.0, min(seconds - batches * pace for seconds, batches in self.samples))


@dataclass(eq=False)
class Holding:
    """What one agent still has of one grant. `open` and `finished` are disjoint; neither has a committed shard."""

    agent: str
    job: str
    layer: str
    boot: int
    attempt: int
    granted: float
    open: RangeSet
    finished: RangeSet = field(default_factory=RangeSet)
    overtaken: tuple[int, float] = (-1, 0.0)  # the lowest open one when a later one was first finished, and when

    @property
    def key(self) -> tuple[str, int, int]:
        return self.layer, self.boot, self.attempt

    def discard(self, numbers: RangeSet) -> None:
        self.open.remove(numbers)
        self.finished.remove(numbers)

    def has_any(self, numbers: RangeSet) -> bool:
        """Cheap where their bounds are apart, as those of most holdings are."""
        return any(
            mine.bottom < numbers.top and numbers.bottom < mine.top and bool(mine & numbers)
            for mine in (self.open, self.finished)
        )

    def those(self, numbers: RangeSet) -> RangeSet:
        """Which of `numbers` it has; cheap where they are few."""
        return (numbers & self.open) | (numbers & self.finished)

    def everything(self) -> RangeSet:
        return self.open | self.finished


@dataclass
class Trouble:
    """What went wrong with one shard so far. A run is in it at most once, however often it is told of."""

    failures: set[Run] = field(default_factory=set)
    losses: set[Run] = field(default_factory=set)  # while it was really running
    kicked: set[str] = field(default_factory=set)  # agents that somebody wanted it off; it counts against nobody

    def machines(self) -> set[str]:
        """Where it was tried to no avail."""
        return {agent for agent, _, _ in self.failures | self.losses} | self.kicked


UNTRIED = Trouble()


@dataclass(eq=False)
class Layer:
    """One layer. Every number below `count` is in exactly one of fresh, again, limbo, committed, quarantined, or
    held by at least one agent. Fresh ones below `high_water` alone may be granted."""

    stored: ClassVar[bool] = True  # whether what is committed of it has a row and is merged; see `rounds.RoundLayer`

    job: str
    plan: p.Layer
    digest: str
    name: str
    count: int
    out_bytes: int
    state: LayerState
    generation: int
    high_water: int
    closed: bool
    fresh: RangeSet = field(default_factory=RangeSet)  # never granted
    again: RangeSet = field(default_factory=RangeSet)  # lost, failed or handed back: behind all fresh ones
    limbo: RangeSet = field(default_factory=RangeSet)  # after a restart: perhaps still held by an agent
    committed: RangeSet = field(default_factory=RangeSet)
    quarantined: RangeSet = field(default_factory=RangeSet)
    copied: RangeSet = field(default_factory=RangeSet)  # all that more than one agent holds, and perhaps others
    troubles: dict[int, Trouble] = field(default_factory=dict)
    payloads: dict[int, bytes] = field(default_factory=dict)  # of made shards not committed yet
    holdings: dict[tuple[str, int, int], Holding] = field(default_factory=dict)  # (agent, boot, attempt)
    raising: int = 0  # the high-water mark on its way to the store; never below high_water
    first: int = 0  # the lowest number that this life of the daemon gives; of rounds alone not 0
    opened_after: tuple[int, int] = (0, 0)  # the last (boot, attempt) there was when it opened: later ones are its own

    @cached_property
    def skipped(self) -> RangeSet:
        """Those that are never run: `committed` has them from the beginning. Nobody changes it."""
        return RangeSet() if self.plan.only is None else RangeSet([(0, self.count)]) - self.plan.numbers

    @property
    def reserved(self) -> int:
        """Bytes of the root that it may still take while it is open: its bundles to come, and its merged arrays."""
        return self.out_bytes * (self.planned + self.count - len(self.committed))

    @property
    def pending(self) -> int:
        return len(self.fresh) + len(self.again)

    @property
    def grantable(self) -> int:
        """How many of the pending ones the stored mark allows to grant, at most."""
        return len(self.again) + min(len(self.fresh), max(0, self.high_water - self.fresh.bottom))

    @property
    def planned(self) -> int:
        """How many of its numbers are this life's to run."""
        return self.count - self.first - len(self.skipped)

    @property
    def left(self) -> int:
        return 0 if self.state in SETTLED else self.count - len(self.committed) - len(self.quarantined)

    @property
    def active(self) -> bool:
        return self.state in {"open", "merging"}

    @property
    def exhausted(self) -> bool:
        """Nothing of it is left to do but to merge or to give up."""
        done = len(self.committed) + len(self.quarantined) == self.count
        return done and (self.closed or not self.plan.made)

    @property
    def stuck(self) -> bool:
        """Only a retry gets it any further."""
        return bool(self.quarantined) and self.exhausted

    @property
    def whole(self) -> RangeSet:
        return RangeSet([(0, self.count)])

    def extend(self, top: int, aside: bool) -> None:
        """A driver made those from `count` to `top`; of rounds, they may be `aside`."""
        self.fresh.add(self.count, top)
        self.count = top

    def reset_pending(self) -> None:
        """All that is not settled is pending: fresh above the mark, run before perhaps below it."""
        settled = self.committed | self.quarantined
        self.fresh = RangeSet([(self.high_water, self.count)]) - settled
        self.again = RangeSet([(0, self.high_water)]) - settled
        self.limbo, self.copied = RangeSet(), RangeSet()

    def took(self, agent: Agent, numbers: RangeSet, seconds: float) -> None:
        """An agent was so long at work on these."""

    def came(self, agent: Agent, job: Job, granted: float, numbers: RangeSet, now: float) -> None:
        """An agent handed these in, of which the first were granted then."""

    def outrun(self, agent: Agent, job: Job, holding: Holding, numbers: RangeSet, now: float) -> None:
        """Another machine was sooner with these, which this agent has not finished."""

    def settle(self, numbers: RangeSet) -> None:
        """They are committed, and nobody holds them any more."""
        for pending in (self.fresh, self.again, self.limbo, self.quarantined, self.copied):
            pending.remove(numbers)
        self.committed.update(numbers)
        if self.troubles or self.payloads:
            for number in numbers:
                self.troubles.pop(number, None)
                self.payloads.pop(number, None)

    def attempts(self, numbers: RangeSet) -> list[int]:
        """Of those that failed, or were lost at work, before: which attempt at each this one is."""
        tried = (self.troubles.get(number, UNTRIED) for number in (numbers if self.troubles else ()))
        return [1 + spent for one in tried if (spent := len(one.failures) + len(one.losses))]

    def trouble(self, number: int) -> Trouble:
        return self.troubles.setdefault(number, Trouble())

    def troubled(self) -> RangeSet:
        """Those that failed, were kicked, or were lost more than once while they ran, and are not settled."""
        troubles = self.troubles.items()
        return RangeSet.of(sorted(n for n, one in troubles if one.failures or one.kicked or len(one.losses) > 1))

    def has(self, holding: Holding) -> bool:
        """Whether it is still one of this layer's."""
        return self.holdings.get((holding.agent, holding.boot, holding.attempt)) is holding

    def held(self) -> RangeSet:
        """All that some agent has, open or finished."""
        return RangeSet.union(numbers for one in self.holdings.values() for numbers in (one.open, one.finished))


@dataclass(eq=False)
class Job:
    """One job. `first_failures` empties at its first success."""

    id: str
    plan: p.Plan
    priority: int
    state: JobState
    why: str
    succeeded: bool
    cursor: int
    layers: list[Layer]
    fingerprint: str = ""  # the only one it is granted to; "" while there is no machine to set it, or none is wanted
    kernels_fixed: bool = False  # by a commit: it stays; until then it is that of a machine that is here
    opened: list[Layer] = field(default_factory=list)  # those open or merging
    supply: dict[str, Layer] = field(default_factory=dict)  # digest → each open layer with something pending, at least
    queue: deque[Layer] = field(default_factory=deque)  # those waiting, in order
    left: int = 0  # shards neither committed nor quarantined, of layers not given up
    quarantined: int = 0
    speed: float = 0.0  # shards per second of the agents it is known of; made exact again at each tick
    measured: int = 0  # how many those are
    out_bytes: int = 0  # of one shard's result, the largest seen
    least_cost: int = 0  # bytes of input and output of a shard of the layer with the smallest
    least_output: int = 0  # of output alone
    used: float = 0.0  # slot-seconds over priority: the job with the least is served first
    goes_on: bool = False  # its driver goes on without shards of rounds that are given up
    first_failures: dict[str, set[tuple[str, int]]] = field(default_factory=dict)  # agent → (layer, number)
    slowest: list[Holding] = field(default_factory=list)  # those that may be copied in the tail, the last to end first
    ranked_at: float = float("-inf")  # when `slowest` was gathered

    @property
    def work(self) -> p.Work:
        return self.plan.work

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def has_begun(self) -> bool:
        """Whether it waits for no other job any more: it runs, ended by itself, or some of it may have been granted, in
        whatever life of the daemon."""
        begun = self.state in {"running", "complete", "incomplete"} or self.succeeded or self.cursor > 0
        return begun or any(layer.high_water > layer.first or layer.active for layer in self.layers)

    @property
    def has_rounds(self) -> bool:
        return not self.layers[0].stored

    @property
    def judged_elsewhere(self) -> bool:
        """Whether a failure of a shard is its driver's affair alone, as each does something else: it says nothing of
        the machine, nor of the shards to come."""
        return self.goes_on and self.plan.proven

    def suits(self, fingerprint: str) -> bool:
        """Whether what is computed under this one may be part of its result, as far as is known."""
        return self.fingerprint in {"", fingerprint}

    def work_goes_to(self, fingerprint: str) -> None:
        """The first machine decides, unless a commit does."""
        if self.plan.same_kernels and not self.fingerprint:
            self.fingerprint = fingerprint


ObstacleCode = Literal[
    "barred",
    "distrusted",
    "machine",
    "not-taken",
    "rounds",
    "unfit",
    "kind",
    "kernels",
    "differs",
    "package",
    "environment",
    "cpus",
    "gpus",
    "memory",
    "disk",
]


class Problem(msgspec.Struct, frozen=True):
    """A kind's problem with a known answer, as machines solve it that should all give the same bits."""

    kind: str
    kernel: int
    fingerprint: str
    digest: str


Said = dict[str, str]  # agent → digest of the bits of its answer, those that said it longest ago first


@dataclass(frozen=True)
class Obstacle:
    """Why a machine may run nothing of a job: `text` is for people, behind the machine's name."""

    code: ObstacleCode
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Idle:
    """Why an agent got nothing: `text` is for people."""

    code: Literal["no-job", "obstacle", "room", "unproven", "round", "left-out", "job", "granted", "push", "at-once"]
    text: str
    job: str | None = None  # that it is about

    def __str__(self) -> str:
        return self.text if self.job is None else f"{self.job}: {self.text}"


@dataclass(eq=False)
class Agent:
    """One machine's agent. `session` is 0 unless it is live or draining."""

    name: str
    hello: Hello  # its last one, but for what it held: which process of which machine it is, and what that has
    session: int
    cpus: int  # that it may use now
    room: int
    heard: float
    state: AgentState = "live"
    hungry: bool = False  # whether it would take work
    paused: bool = False  # what it has stands still until its user wills
    env_obstacles: dict[str, Obstacle | None] = field(default_factory=dict)  # job → what its own lacks, once looked at
    away: bool = False  # it hung up, and did not say hello since
    told: int = 0  # the last attempt it had heard of when it wrote its last sync, or hello
    missing: dict[str, float] = field(default_factory=dict)  # layer → since when it has had less of it than it should
    late: float = float("-inf")  # when another was last sooner with what it had of a round
    progressed: float = 0.0  # when it last said what became of anything
    unbilled: float = 0.0  # processor-seconds that it can have worked since it came, and was not believed to have yet
    ended: dict[tuple[str, int, int], float] = field(default_factory=dict)  # its last grants that are over → when given
    left: dict[tuple[str, int, int], RangeSet] = field(default_factory=dict)  # what it held when its last session ended
    idle_because: Idle | None = None  # of the last time it asked; None: it got something
    holdings: dict[tuple[str, int, int], Holding] = field(default_factory=dict)  # (layer, boot, attempt)
    rates: dict[str, Rate] = field(default_factory=dict)  # job → rate
    paces: dict[str, float] = field(default_factory=dict)  # job of rounds → compute seconds of a shard; 0: unknown
    round_costs: dict[str, RoundCost] = field(default_factory=dict)  # job of rounds → what one costs it
    link_out: float = 0.0  # bytes of results that it hands in a second; 0: not measured
    strikes: dict[str, list[tuple[str, int]]] = field(default_factory=dict)  # job → shards failed in a row
    ineligible: dict[str, Obstacle] = field(default_factory=dict)  # job → why
    names: frozenset[str] = frozenset()  # that its spool joined under before: parts of that time have them
    fingerprints: tuple[str, ...] = ()  # of its hellos, and of jobs it was granted: those of its parts. The newest last
    prints: dict[str, str] = field(default_factory=dict)  # job → its fingerprint for that, once looked at
    differs: dict[str, Obstacle] = field(default_factory=dict)  # kind → how its answer differs from machines alike
    distrusted: Obstacle | None = None  # why nothing more is granted to this process

    @property
    def present(self) -> bool:
        return self.state in {"live", "draining"}

    @property
    def takes_work(self) -> bool:
        """Whether it is to be granted anything, of whatever job it suits."""
        return self.state == "live" and not self.paused

    def hear(self, now: float) -> None:
        """It lives, and may have worked until now."""
        self.unbilled += (now - self.heard) * self.cpus
        self.heard = now

    def had(self, layer: str) -> bool:
        """Whether it holds any of the layer, or lately did."""
        return any(key[0] == layer for keys in (self.holdings, self.ended) for key in keys)

    def slots(self, job: Job) -> int:
        has, work = self.hello, job.work
        by_memory = has.memory // work.memory if work.memory and has.memory else self.cpus
        by_gpus = len(has.gpus) // work.gpus if work.gpus else self.cpus
        by_disk = has.disk // work.disk if work.disk else self.cpus
        return min(self.cpus // work.cpus, by_memory, by_gpus, by_disk)

    def too_small_for(self, job: Job) -> Obstacle | None:
        """Which resource it has too little of for a single shard, if any."""
        has, work = self.hello, job.work
        if self.cpus < work.cpus:
            return Obstacle("cpus", f"has {counted(self.cpus, 'cpu')}, a shard wants {work.cpus}")
        if len(has.gpus) < work.gpus:
            text = f"lends {len(has.gpus)} gpus, a shard wants {work.gpus}: leave, and join it with `--gpus`"
            return Obstacle("gpus", text)
        kept = job.least_output if has.in_place else job.least_cost + (work.model.nbytes if work.model else 0)
        if has.disk < (wanted := kept + work.disk):
            text = f"has {format_size(has.disk)} of disk for this, a shard wants {format_size(wanted)}"
            return Obstacle("disk", text)
        if self.slots(job) < 1:
            text = f"may use {format_size(has.memory)} of memory, a shard wants {format_size(work.memory or 0)}"
            return Obstacle("memory", text)
        return None

    def env_obstacle(self, job: Job) -> Obstacle | None:
        """What is wrong with its environment for this job, if anything."""
        if job.id not in self.env_obstacles:
            self.env_obstacles[job.id] = _lacks(self.hello.envs, job.work)
        return self.env_obstacles[job.id]

    def kernels_for(self, job: Job) -> str:
        """The fingerprint of what it computes of this job."""
        has, work = self.hello, job.work
        if work.rests_on is None or not has.names_rest:
            return has.fingerprint
        if job.id not in self.prints:
            self.prints[job.id] = has.fingerprint + rest_of(work.env, has.envs.get(work.env or ""), work.rests_on)
        return self.prints[job.id]

    def computes_on(self, fingerprint: str) -> bool:
        """From now on its parts may have this one. Whether that is new."""
        others = tuple(one for one in self.fingerprints if one != fingerprint)
        new = len(others) == len(self.fingerprints)
        self.fingerprints = (*others, fingerprint)[-FINGERPRINTS_KEPT:]
        return new

    def cost(self, layer: Layer) -> int:
        """Bytes of its disk that one shard takes, input and output."""
        return layer.out_bytes + (0 if self.hello.in_place else layer.plan.in_bytes)

    def open_of(self, job: str | None = None) -> int:
        return sum(len(h.open) for h in self.holdings.values() if job is None or h.job == job)

    def load(self) -> Counter[str]:
        """Job → shards of it that it has still to run."""
        counts: Counter[str] = Counter()
        for holding in self.holdings.values():
            counts[holding.job] += len(holding.open)
        return counts

    def is_left_out(self, job: str) -> bool:
        """Whether the job's rounds go on without it, as its link would hold them up."""
        cost = self.round_costs.get(job)
        return cost is not None and cost.left_out_until is not None

    def rate(self, job: str) -> float:
        """Shards of it per second, 0 until measured."""
        rate = self.rates.get(job)
        return rate.per_second if rate else 0.0


def _lacks(envs: dict[str, p.Environment], work: p.Work) -> Obstacle | None:
    """Why code of a job cannot run in any of these, if it cannot."""
    if work.env is not None and "/" in work.env:
        return None  # a path: whether it is there shows when it is started
    if work.env is not None and work.env not in envs:
        text = f"has no environment {work.env}: leave, and join it with `--env {work.env}=PYTHON`"
        return Obstacle("environment", text)
    if not work.packages:
        return None
    there = envs.get(work.env or "")
    missing = lacking(there, work.packages) if there else dict.fromkeys(work.packages, "")
    if not missing:
        return None
    wanted = ", ".join(f"{text} (it has {version})" if version else text for text, version in missing.items())
    where = f"in its environment {work.env} " if work.env else ""
    packages = [text for text in missing if named(text) != PYTHON]
    if not packages:
        return Obstacle("environment", f"has no {wanted}: join it with `--env NAME=PYTHON`, and name that")
    text = f"has no {wanted}: {where}`python -m pip install {' '.join(map(repr, packages))}`, then join again"
    return Obstacle("environment", text)
