"""The pool's slots: which batches are in flight on each, and where the next may go. No I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from muster.agent.core.actions import KillReason
from muster.agent.core.events import Attempt, Needs
from muster.agent.core.layers import HeldLayer
from muster.coordinator.protocol.control import LayerInfo
from muster.jobs.common.retry_delay import RetryDelay
from muster.jobs.contract.plan import Delivery

DEPTH = 2  # batches in flight on a slot: one running, one so that its worker never idles
BATCH_SECONDS = 0.3
BATCH_LEAST_SECONDS = 0.05  # below it a call costs more than it brings
BATCH_SHARDS = 1024
AHEAD_SECONDS = 1.0  # a batch longer than this gets none behind it: another slot may be free before
REST_SECONDS = 1.0  # after a worker's death with nothing in hand, doubled each time
REST_LIMIT_SECONDS = 30.0
SETTLED_SECONDS = 2.0  # a worker's memory is of the job it is at once it is at it for so long
BARREN_LIMIT = 3  # deaths or empty calls in a row, on one slot, before its shards are given up as lost
BACKSTOP_SECONDS = 605.0  # what runs users' code minds their timeout itself, but for imports, which may take 600 s
WAY_SECONDS = 5.0  # for a batch to reach a worker on another machine


@dataclass
class Flight:
    """One submitted batch. Its numbers may have been dropped or granted anew since."""

    ticket: int
    slot: int
    info: LayerInfo
    items: dict[int, Attempt]
    part: str  # name of the part it makes
    expected: float | None  # seconds
    inputs: dict[int, str] = field(default_factory=dict)  # number → name of its input in the spool
    pull_seconds: float = 0.0  # what pulling them took
    unwanted_since: float | None = None  # what runs of it counts no more
    retired: bool = False  # of what counts no more, some is done by nobody else

    @property
    def layer(self) -> str:
        return self.info.layer.digest

    @property
    def needs(self) -> tuple[object, ...]:
        return needs_of(self.info)

    @property
    def alone(self) -> tuple[int, int, int] | None:
        """Its shard, where it has only one."""
        if len(self.items) != 1:
            return None
        [(number, attempt)] = self.items.items()
        return number, *attempt


@dataclass
class Slot:
    """Flights run in their order. All of a slot's flights are of one job, and need the same."""

    number: int
    worker: Literal["none", "coming", "up"] = "none"  # batches are submitted to one that is up; one comes after a death
    place: str = ""  # the machine that its worker is on; "" for this one
    given: Needs | None = None  # what its worker has for itself; None: it takes any batch
    flights: list[Flight] = field(default_factory=list)
    head_since: float = 0.0  # when the one that is first became that
    last_layer: str | None = None
    killing: KillReason | None = None  # why we are having its worker killed; None while we are not
    victim: tuple[int, int, int] | None = None  # the shard that is to blame for it
    running: tuple[int, int, int] | None = None  # (number, boot, attempt), as last seen
    running_since: float = 0.0
    rest: RetryDelay = field(default_factory=lambda: RetryDelay(REST_SECONDS, REST_LIMIT_SECONDS))
    gpus: tuple[str, ...] = ()  # that its flights have, or had: nobody else's while there are any
    job: str = ""  # of the last flight
    job_since: float = 0.0  # when the first of that job in a row was launched
    frozen_since: float | None = None  # its runner is stopped: more was running than is lent

    @property
    def cpus(self) -> int:
        return self.flights[0].info.work.cpus if self.flights else 0

    @property
    def barren(self) -> int:
        """Deaths and empty calls in a row with no shard to show for them."""
        return self.rest.failures

    def see(self, running: tuple[int, int, int] | None, now: float) -> None:
        """What its worker is at."""
        if running != self.running:
            self.running, self.running_since = running, now

    @property
    def in_hand(self) -> tuple[int, int, int] | None:
        """The shard that its worker is at, where that is known: no mark tells it of one on another machine."""
        return self.flights[0].alone if self.place and self.flights else self.running

    def overdue(self, now: float) -> bool:
        """Whether the shard in hand runs beyond its timeout; on another machine, whether one of the batch must."""
        if not self.flights or self.frozen_since is not None:
            return False
        head, work = self.flights[0], self.flights[0].info.work
        if work.timeout is None:
            return False
        limit = work.timeout + (BACKSTOP_SECONDS if work.runs_code else 0.0)
        if self.place:
            return now - self.head_since > limit + WAY_SECONDS + (head.expected or 0.0)
        return self.running is not None and now - self.running_since > limit

    def is_late(self, now: float) -> bool:
        """Whether the shard in hand runs longer than one may behind which another batch waits."""
        return self.running is not None and self.frozen_since is None and now - self.running_since > AHEAD_SECONDS

    def thaw(self, now: float) -> None:
        """The time it stood still counts for nothing."""
        if self.frozen_since is not None:
            self.running_since += now - self.frozen_since
            self.head_since += now - self.frozen_since
            self.frozen_since = None

    def fruitful(self) -> None:
        self.rest.reset()

    def fruitless(self, now: float) -> bool:
        """Rest, longer each time: a worker that cannot start must not spin. True where it was once too often."""
        self.rest.failed(now)
        return self.barren >= BARREN_LIMIT


def needs_of(info: LayerInfo) -> tuple[object, ...]:
    """What must be the same of two batches that are on one slot at a time."""
    return info.job, *info.work.takes


def given_for(info: LayerInfo) -> Needs:
    """What a worker must have for a layer's shards, where it has something for itself."""
    return Needs(info.work.cpus, info.work.gpus, info.work.memory)


class Slots:
    """All slots. The cpus of those at work add up to at most `allowed`, the memory of all to at most the budget."""

    def __init__(self, count: int, memory: int, gpus: tuple[str, ...] = ()) -> None:
        self.every = [Slot(number) for number in range(count)]
        self.memory = memory
        self.gpus = gpus  # labels
        self.on_demand = False  # whether the pool is open, and workers come as work is there for them
        self.learnt: dict[str, int] = {}  # job → the most memory that a shard of it was seen to take
        self.lent = count  # processors that may be used now; 0: none
        self._narrowed: int | None = None  # fewer than are lent, for the memory of what runs
        self.narrow_for: set[str] = set()  # jobs for whose memory slots were taken away

    @property
    def allowed(self) -> int:
        return self.lent if self._narrowed is None else min(self.lent, self._narrowed)

    @property
    def flights(self) -> list[Flight]:
        return [flight for slot in self.every for flight in slot.flights]

    @property
    def ready(self) -> bool:
        """Whether any of them has a worker, or will have one, in a moment or for work."""
        return self.on_demand or any(slot.worker != "none" for slot in self.every)

    @property
    def places(self) -> dict[str, int]:
        """How many slots are up on each of the other machines that have any."""
        return dict(Counter(slot.place for slot in self.every if slot.place and slot.worker == "up"))

    @property
    def busy(self) -> bool:
        """Whether anything is in flight."""
        return any(slot.flights for slot in self.every)

    @property
    def idle(self) -> int:
        """Cpus that run nothing."""
        return max(0, self.allowed - self.used)

    @property
    def used(self) -> int:
        return sum(slot.cpus for slot in self.every if slot.frozen_since is None)

    @property
    def open(self) -> bool:
        """Whether anything new may be started: what was stopped goes on first."""
        return self.lent > 0 and all(slot.frozen_since is None for slot in self.every)

    def lend(self, cpus: int) -> None:
        self.lent = cpus
        self._reach(cpus)

    def up(self, number: int, place: str, given: Needs | None) -> None:
        """It has a worker. A pool may have more slots than we know of."""
        self._reach(number + 1)
        slot = self.every[number]
        slot.worker, slot.place, slot.given = "up", place, given

    def down(self) -> None:
        """None of them has a worker any more."""
        self.on_demand = False
        for slot in self.every:
            slot.worker = "none"

    def _reach(self, count: int) -> None:
        self.every += [Slot(number) for number in range(len(self.every), count)]

    def to_freeze(self) -> Slot | None:
        """The one that began last, where more runs than is lent. One alone runs on what there is. None on a cluster:
        nothing stops what runs on other machines."""
        if self.on_demand:
            return None
        running = self._running()
        if sum(slot.cpus for slot in running) <= self.lent or (self.lent > 0 and len(running) == 1):
            return None
        return max(running, key=lambda slot: slot.running_since)

    def to_thaw(self) -> Slot | None:
        """The one that began first of those stopped, where there is room for it; any that has nothing to run."""
        frozen = [slot for slot in self.every if slot.frozen_since is not None]
        empty = next((slot for slot in frozen if not slot.flights), None)
        if empty or not frozen or self.lent <= 0:
            return empty
        first, running = min(frozen, key=lambda slot: slot.running_since), self._running()
        fits = not running or sum(slot.cpus for slot in running) + first.cpus <= self.lent
        return first if fits else None

    def _running(self) -> list[Slot]:
        return [slot for slot in self.every if slot.flights and slot.frozen_since is None and not slot.killing]

    def free_for(self, holding: HeldLayer, now: float) -> Slot | None:
        """The best slot for a batch of the holding now: an empty one that last ran its layer, if there is any."""
        fitting = [slot for slot in self.every if self._open(slot, holding, now) and self._fits(slot, holding)]
        layer = holding.info.layer.digest
        return min(fitting, key=lambda s: (len(s.flights), s.last_layer != layer, s.number), default=None)

    def _open(self, slot: Slot, holding: HeldLayer, now: float) -> bool:
        if slot.worker != "up" or slot.killing or not slot.rest.is_over(now) or len(slot.flights) >= DEPTH:
            return False
        if not slot.flights:
            return slot.given in (None, given_for(holding.info))
        ahead = slot.flights[-1]
        quick = ahead.expected is not None and ahead.expected <= AHEAD_SECONDS
        return quick and ahead.needs == needs_of(holding.info)

    def _fits(self, slot: Slot, holding: HeldLayer) -> bool:
        if slot.flights:
            return True  # it needs no more than what is there
        work = holding.info.work
        others = [other for other in self.every if other.flights]
        if work.gpus > len(self._free_gpus()):
            return False
        memory = sum(self.memory_of(other.flights[0].info) for other in others) + self.memory_of(holding.info)
        return not others or (self.used + work.cpus <= self.allowed and memory <= self.memory)

    def memory_of(self, info: LayerInfo) -> int:
        """What a shard is taken to need: what was asked for, or what was seen if that is more."""
        return max(info.work.memory or 0, self.learnt.get(info.job, 0))

    def learn(self, number: int, tree_bytes: int, now: float) -> None:
        """A slot's worker takes so much; not what it took for another job before."""
        slot = self.every[number]
        if slot.flights and slot.running is not None and now - slot.job_since > SETTLED_SECONDS:
            self.learnt[slot.job] = max(tree_bytes, self.learnt.get(slot.job, 0))

    def _free_gpus(self) -> list[str]:
        taken = {gpu for slot in self.every if slot.flights for gpu in slot.gpus}
        return [gpu for gpu in self.gpus if gpu not in taken]

    def _choose_gpus(self, slot: Slot, count: int) -> tuple[str, ...]:
        """Those it had, if it can: what was loaded onto them may be there still."""
        free = self._free_gpus()
        ours = len(slot.gpus) == count and set(slot.gpus) <= set(free)
        return slot.gpus if ours else tuple(free[:count])

    def batch_size(self, holding: HeldLayer, waiting: int) -> int:
        """Shards for one call: as many as take BATCH_SECONDS, fewer near the end, when `waiting` are left of what may
        follow each other on a slot, so that all slots end together."""
        delivery = holding.info.layer.delivery
        if holding.seconds is None or delivery is Delivery.ROUND_EACH:
            return 1
        if delivery is Delivery.ROUND_WHOLE:  # all of a round is here: each slot takes its share at once
            return max(1, min(-(-waiting // max(1, self.idle // max(1, holding.cpus))), BATCH_SHARDS))
        each = max(holding.seconds, 1e-7)
        places = DEPTH * max(1, self.allowed // max(1, holding.cpus))
        share = max(-(-waiting // places), int(BATCH_LEAST_SECONDS / each))
        return max(1, min(int(BATCH_SECONDS / each), share, BATCH_SHARDS))

    def launch(self, slot: Slot, flight: Flight, now: float) -> None:
        if not slot.flights:
            slot.head_since = now
            slot.gpus = self._choose_gpus(slot, flight.info.work.gpus)
        if slot.job != flight.info.job:
            slot.job, slot.job_since = flight.info.job, now
        slot.flights.append(flight)
        slot.last_layer = flight.layer

    def land(self, ticket: int, now: float) -> tuple[Slot, Flight] | None:
        """Take a flight off its slot."""
        for slot in self.every:
            for flight in slot.flights:
                if flight.ticket == ticket:
                    slot.flights.remove(flight)
                    slot.head_since = now
                    slot.running = None  # the same shard, run again, starts anew
                    return slot, flight
        return None

    def clear(self, slot: Slot, tickets: Iterable[int], now: float) -> list[Flight]:
        """Take the flights of a worker that is gone off its slot."""
        dead = set(tickets)
        flights = [flight for flight in slot.flights if flight.ticket in dead]
        slot.flights = [flight for flight in slot.flights if flight.ticket not in dead]
        slot.killing, slot.victim, slot.running, slot.head_since = None, None, None, now
        return flights

    def narrow(self, slot: Slot, info: LayerInfo) -> bool:
        """Take a slot away for the memory of what runs on this one, or just did. False where it is the last."""
        others = [other for other in self.every if other.flights and other is not slot]
        if not others or self.allowed <= 1:
            return False
        used = sum(other.cpus for other in others if other.frozen_since is None) + info.work.cpus
        self._narrowed = max(1, min(self.allowed, used) - info.work.cpus)
        self.narrow_for.add(info.job)
        return True

    def widen(self, jobs: set[str]) -> None:
        """Give the slots back once none of the jobs they were taken for has work here, and forget what those took."""
        self.learnt = {job: most for job, most in self.learnt.items() if job in jobs} if self.learnt else self.learnt
        if self.narrow_for and not self.narrow_for & jobs:
            self.narrow_for.clear()
            self._narrowed = None
