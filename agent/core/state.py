"""All that an agent's core knows, as one value with its invariants and a check. Reacts to nothing; no I/O, no clock.

A shard's way: granted → waiting ⇄ placed → finished (finished until settled) | failed | lost | returned | dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from muster.agent.core.account import Account
from muster.agent.core.actions import Action, Copy, Push
from muster.agent.core.events import Attempt
from muster.agent.core.finished_parts import FinishedParts, Part
from muster.agent.core.inputs import Inputs
from muster.agent.core.layers import HeldLayer
from muster.agent.core.reports import Reports, ReportSum
from muster.agent.core.session import ControlSession
from muster.agent.core.slots import Flight, Slots
from muster.coordinator.protocol.control import Drop, Failure, Grant, Held, Hello, LayerInfo, Loss
from muster.jobs.common.ranges import RangeSet
from muster.jobs.common.retry_delay import RetryDelay
from muster.jobs.workbench.batch import Mishap

SPARE_BYTES = 4 << 20  # left for logs and the state file


@dataclass
class FreeDisk:
    """What is known of the spool's disk."""

    budget: int  # for parts, finished or being written, and for inputs
    free: int | None = None  # what the disk said; None before
    full: str | None = None  # what the system said when it was last full; None since something was written
    retry: RetryDelay = field(default_factory=RetryDelay)  # of writing to it

    def filled(self, why: str, now: float) -> None:
        """A batch met a full disk or quota."""
        self.full = why
        self.retry.failed(now)

    def written(self) -> None:
        """A batch was committed: there is room."""
        self.full = None
        self.retry.reset()

    def closed(self, now: float) -> bool:
        """Whether nothing should be tried for now."""
        return not self.retry.is_over(now)

    def grew(self, nbytes: int) -> None:
        """So much was written since the file system was asked; less than 0 where files were deleted."""
        if self.free is not None:
            self.free -= nbytes

    def room(self, parts: int, reserved: int, inputs: int = 0) -> int:
        """Bytes neither used by parts nor reserved; less than 0 where too much is promised. `inputs`: bytes on the disk
        that are either among the reserved ones or may go at once."""
        left = self.budget - parts - reserved
        return left if self.free is None else min(left, self.free + inputs - SPARE_BYTES - reserved)


@dataclass
class MadeSheet:
    """What a shard that ran here made, and another may read; it lies where sheets do."""

    nbytes: int
    spared: bool = False  # whether a link did not have to bring it


@dataclass
class BulkState:
    """What is known of a channel for bulk, and of what the coordinator says there."""

    up: bool = False
    stuck: str = ""  # why nothing goes; "" while it does
    dead_session: int | None = None  # one the coordinator does not know
    retry: RetryDelay = field(default_factory=RetryDelay)  # of refusals that may pass

    def failed(self, why: str, now: float) -> None:
        """It was refused, and is let be for a while."""
        self.stuck = why
        self.retry.failed(now)

    def worked(self) -> None:
        """Something went through; what was refused is still let be until its time."""
        self.retry.failures, self.stuck = 0, ""


@dataclass
class PushState(BulkState):
    """The push channel, and the bundle that is under way on it. Its parts stay on the disk until it is answered."""

    under_way: Push | None = None  # sent and not answered
    farm: str = ""  # of the bundle that was offered last
    offered: str = ""  # its layer
    anew: RangeSet = field(default_factory=RangeSet)  # granted of it since: the answer says nothing of these
    emptied: list[str] = field(default_factory=list)  # parts nobody needs, kept for the bundle under way alone
    hurry: set[str] = field(default_factory=set)  # layers whose rest is to be offered at once
    put_off: dict[str, RetryDelay] = field(default_factory=dict)  # layers that are to be offered again later


@dataclass
class PullState(BulkState):
    """The pull channel, and the packs of code asked for on it; which inputs come is in `Inputs`."""

    codes_coming: dict[str, int] = field(default_factory=dict)  # digest → the session it was asked for in


class State:
    """All of it, what becomes of shards, and the few questions that everything asks. A number of a layer is held or
    finished, never both."""

    def __init__(self, who: Hello, inputs: Iterable[Copy] = (), codes: Iterable[str] = ()) -> None:
        self.in_place = who.in_place  # sources are read where they are
        self.farm = ""  # whose work this is; parts of other farms stay on the disk untouched
        self.talk = ControlSession(who)
        self.reports = Reports()
        self.account = Account()
        # shards
        self.holdings: dict[str, HeldLayer] = {}  # by layer; one may hold nothing and only know its layer
        self.unfit: dict[str, str] = {}  # kinds that a worker was seen to compute wrong, and how that showed
        self.differs: dict[str, str] = {}  # kinds that the coordinator grants nothing of here, and what it found
        self.finished_parts = FinishedParts()
        self.push = PushState()
        # what runs
        self.slots = Slots(who.cpus, who.memory, tuple(who.gpus))
        self.refused: dict[str, str] = {}  # machines that the pool uses nothing of, and why
        self.narrowed = ""  # why slots were taken away for the memory of what ran, the last time
        self.pool_lost = ""  # why, and what is done about it; "" until it is, and once a slot is up again
        self.tickets = 0  # of batches, the last one's
        self.part_prefix = who.process[:8]  # makes names of parts unique to this process
        self.paused = ""  # why no processor is lent; "" while some are
        self.draining = ""  # why; "" while not draining
        self.draining_since = 0.0
        self.progress_at = 0.0  # when a drain last got on
        # the spool
        self.disk = FreeDisk(who.disk)
        self.too_large: str | None = None  # why a shard can never run here
        self.inputs = Inputs(inputs)
        self.codes = set[str]() if who.in_place else {*codes}  # packs of users' files that were pulled
        self.spoilt: set[str] = set()  # copies that were not what was pulled, once
        self.pull = PullState()
        self.followed: dict[str, list[str]] = {}  # layer of rounds → its sheets that are here, the newest last
        self.made: dict[str, dict[str, MadeSheet]] = {}  # layer → what shards here made for later ones, the newest last
        self.made_at: dict[str, float] = {}  # of these layers, when some of it was held here last
        self.follow_after: dict[str, float] = {}  # layer → when it may be followed again
        self.actions: list[Action] = []  # gathered by `emit` until the event is dealt with

    def emit(self, action: Action) -> None:
        self.actions.append(action)

    # --- what the coordinator says ---

    def learn(self, info: LayerInfo) -> None:
        layer = info.layer.digest
        if layer in self.holdings:
            self.holdings[layer].info = info
        else:
            pulls = not self.in_place and not info.layer.made
            follows = not self.in_place and info.layer.delivery.in_rounds
            self.holdings[layer] = HeldLayer(info, pulls, follows)

    def grant(self, grant: Grant, now: float) -> bool:
        """Hold what is granted; what is finished here already is said to be. False where the layer is unknown."""
        holding = self.holdings.get(grant.layer)
        if holding is None:
            return False
        numbers, attempt = RangeSet(grant.numbers), (grant.boot, grant.attempt)
        if grant.layer == self.push.offered:
            self.push.anew.update(numbers)
        done = self.finished_parts.regrant(self.farm, grant.layer, attempt, numbers)
        if done:
            self.reports.finish((grant.job, grant.layer, *attempt), done)
        sheets = {number: sheet for sheet, those in grant.sheets.items() for number in RangeSet(those) & numbers}
        holding.grant(attempt, numbers - done, grant.payloads, now, sheets)
        return True

    def drop(self, drop: Drop) -> None:
        """Forget them unless they are finished."""
        numbers = RangeSet(drop.numbers)
        if drop.layer in self.holdings:
            self.holdings[drop.layer].forget(numbers, (drop.boot, drop.attempt))
        for flight in self.slots.flights if drop.retired else ():
            flight.retired |= flight.layer == drop.layer and any(number in numbers for number in flight.items)

    def settle(self, layer: str, numbers: RangeSet) -> list[str]:
        """They are committed, by whomever. Returns the names of the parts that may go."""
        if layer in self.holdings:
            self.holdings[layer].forget(numbers)
        return self.finished_parts.settle(self.farm, layer, numbers)

    def gone(self, layer: str) -> list[str]:
        """No job wants this layer any more. Returns the names of the parts that may go."""
        self.holdings.pop(layer, None)
        for flight in self.slots.flights:
            flight.retired |= flight.layer == layer
        self.reports.silent_on(layer)
        return self.finished_parts.settle(self.farm, layer, None)

    def move_to(self, farm: str) -> None:
        """Work for this farm. What was held of another is forgotten; what was finished for it stays on the disk."""
        if farm == self.farm:
            return
        if self.farm:  # else the reports are of the last process, for the farm it worked for
            self.holdings.clear()
            self.reports = Reports()
            self.account.leave_farm()
        self.farm = farm

    # --- what becomes of held shards ---

    def finish(self, layer: str, numbers: Iterable[int], part: str, nbytes: int, now: float) -> list[ReportSum]:
        """Those of a part's numbers that are held are finished. Returns the sums that report them, none if none are."""
        holding = self.holdings.get(layer)
        held = holding.forget(RangeSet.of(numbers)) if holding is not None else {}
        if not held or holding is None:
            return []
        self.finished_parts.add(Part(part, self.farm, layer, nbytes, {a: n.copy() for a, n in held.items()}, now))
        return [self.reports.finish((holding.info.job, layer, *a), n) for a, n in held.items()]

    def fail(self, holding: HeldLayer, mishap: Mishap, running: bool = True) -> None:
        """A held shard gave no result: it failed, or it was lost."""
        if mishap.lost:
            self.lose(holding, RangeSet.of([mishap.number]), running, mishap.message)
            return
        for boot, attempt in holding.forget(RangeSet.of([mishap.number])):
            info = holding.info
            failure = Failure(info.job, info.layer.digest, mishap.number, boot, attempt, mishap.code, mishap.message,
                              mishap.evidence, max(0.0, mishap.seconds), max(0, mishap.peak))  # fmt: skip
            self.reports.fail(failure)

    def lose(self, holding: HeldLayer, numbers: RangeSet, running: bool, reason: str) -> None:
        for (boot, attempt), held in holding.forget(numbers).items():
            info = holding.info
            self.reports.lose(Loss(info.job, info.layer.digest, boot, attempt, held.pairs(), running, reason))

    def give_back(self, holding: HeldLayer, numbers: RangeSet) -> None:
        """Hand them back unstarted."""
        for attempt, held in holding.forget(numbers).items():
            self.reports.give_back(holding.info.layer.digest, attempt, held)

    def give_back_waiting(self) -> None:
        for holding in self.holdings.values():
            self.give_back(holding, holding.waiting.copy())

    def damaged(self, name: str) -> None:
        """A part turned out to be no good: its shards were finished, and are lost."""
        part = self.finished_parts.remove(name)
        if part is None or part.farm != self.farm:
            return
        for (boot, attempt), numbers in part.attempts.items():
            job = self.job_of(part.layer)
            self.reports.lose(Loss(job, part.layer, boot, attempt, numbers.pairs(), False, "its part is damaged"))

    # --- what there is ---

    def job_of(self, layer: str) -> str:
        """ "" for what an earlier process finished, until the layer is heard of."""
        holding = self.holdings.get(layer)
        return holding.info.job if holding is not None else ""

    @property
    def jobs(self) -> set[str]:
        """Jobs of which something is held."""
        return {holding.info.job for holding in self.holdings.values() if holding.count}

    @property
    def unfinished(self) -> int:
        return sum(holding.count for holding in self.holdings.values())

    @property
    def waiting(self) -> int:
        return sum(len(holding.waiting) for holding in self.holdings.values())

    @property
    def busy(self) -> bool:
        """Whether anything is held and not finished, or in flight."""
        return self.slots.busy or any(holding.attempts for holding in self.holdings.values())

    @property
    def to_push(self) -> int:
        """Finished shards nobody has acknowledged."""
        return self.finished_parts.count(self.farm)

    def counts(self) -> dict[str, int]:
        """How many shards of each layer are held, or finished and not settled; none of a layer without any."""
        counts = {layer: holding.count for layer, holding in self.holdings.items() if holding.count}
        for layer in self.finished_parts.layers(self.farm):
            finished = sum(len(part.live) for part in self.finished_parts.of(self.farm, layer))
            counts[layer] = counts.get(layer, 0) + finished
        return counts

    def held(self) -> list[Held]:
        """All of it, as a hello names it."""
        named: list[Held] = []
        for layer in sorted({*self.holdings, *self.finished_parts.layers(self.farm)}):
            running = self.holdings[layer].attempts if layer in self.holdings else {}
            finished = self.finished_parts.held(self.farm, layer)
            named += [_held(self.job_of(layer), layer, a, running, finished) for a in sorted({*running, *finished})]
        return named

    def check(self) -> None:
        """Assert every invariant; for tests."""
        flights: dict[int, Flight] = {}
        for slot in self.slots.every:
            for flight in slot.flights:
                assert flight.ticket not in flights, "a ticket twice"
                assert flight is slot.flights[0] or flight.needs == slot.flights[0].needs, "unlike flights on a slot"
                flights[flight.ticket] = flight
        for layer, holding in self.holdings.items():
            self._check_holding(layer, holding, flights)
        for layer in self.finished_parts.layers(self.farm):
            self._check_finished(layer)
        self._check_inputs()
        finished = self.finished_parts
        by_layer = {name for by_name in finished.by_layer.values() for name in by_name}
        assert by_layer == finished.parts.keys(), "a part that no layer has, or that is no more"
        nbytes = sum([part.nbytes for part in finished.parts.values()]) + sum(finished.emptied.values())
        assert finished.nbytes == nbytes, "bytes of parts miscounted"
        assert not (self.draining and self.paused), "who leaves finishes what runs"
        assert self.push.under_way or not self.push.emptied, "a part nobody needs was left on the disk"

    def _check_holding(self, layer: str, holding: HeldLayer, flights: dict[int, Flight]) -> None:
        if not holding.attempts:
            there = holding.placed or holding.waiting or holding.ready or holding.inputs
            assert not there, "placed, waiting, ready or with an input, and not held"
            return
        for number in holding.placed:
            assert number not in holding.waiting, "a number both placed and waiting"
        attempts, placed = holding.attempts.values(), RangeSet.of(sorted(holding.placed))
        assert all(attempts), "an attempt without a number"
        assert RangeSet.alike(attempts, [placed, holding.waiting]), "held twice, or neither placed nor waiting"
        assert holding.ready is holding.waiting or not holding.ready - holding.waiting, "ready and not waiting"
        for number, name in holding.inputs.items():
            assert holding.attempt_of(number) is not None, "an input of a number not held"
            assert name in self.inputs.whole, "a shard waits on an input that is not there"
        for number, ticket in holding.placed.items():
            assert ticket in flights and flights[ticket].layer == layer, "a number placed on no flight"
            assert flights[ticket].items[number] == holding.attempt_of(number), "run for another attempt"

    def _check_finished(self, layer: str) -> None:
        parts = list(self.finished_parts.of(self.farm, layer))
        there = [numbers for part in parts for numbers in part.attempts.values()]
        assert all(there) and all(part.attempts for part in parts), "a part without a live number"
        if layer in self.holdings:
            there += self.holdings[layer].attempts.values()
        assert sum(map(len, there)) == len(RangeSet.union(there)), "a number in two parts, or both held and finished"

    def _check_inputs(self) -> None:
        one = self.inputs
        names = [*one.whole, *one.coming, *one.halves]
        assert len(names) == len(set(names)), "an input in two states"
        assert one.nbytes == one.bytes_of(one.whole) + one.coming_bytes + sum(one.halves.values()), "inputs miscounted"
        assert one.seconds.keys() <= one.whole.keys(), "what pulling took of an input that is not there"


def _held(
    job: str, layer: str, attempt: Attempt, running: dict[Attempt, RangeSet], finished: dict[Attempt, RangeSet]
) -> Held:
    none = RangeSet()
    return Held(job, layer, *attempt, running.get(attempt, none).pairs(), finished.get(attempt, none).pairs())
