"""What a pool tells of its slots and batches, in whatever order its workers come, speak, break and die, and hand their
slots over. Without any process: a model of the lower port, and one of what may be told."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from muster.agent.core.events import (
    BatchEnded,
    Needs,
    PoolEvent,
    PoolFellBack,
    PoolLost,
    PoolOpened,
    SlotGone,
    SlotUp,
    WorkerDied,
)
from muster.agent.pool import interface
from muster.agent.pool.interface import Word
from muster.agent.pool.pool import DEATHS_BEFORE_UP, Pool
from muster.jobs.common.errors import MusterError
from muster.jobs.common.processes import ProcessId
from muster.jobs.workbench.batch import Outcome
from tests.support.farm import until
from tests.support.standin import batch

SLOTS, MORE = 2, 3  # at first; once more are wanted
OUTCOME = Outcome((), 0, 0, 0, 0.0, 0, ())
NEEDS = [Needs(), Needs(cpus=2)]


class Seats:
    """Workers that come up, speak and die when they are told to. A seat that was killed dies at some time after."""

    def __init__(
        self, heeds_needs: bool = True, slow: bool = False, room: Needs | None = None, on_demand: bool = False
    ) -> None:
        self.heeds_needs = heeds_needs
        self.room = room
        self.on_demand = on_demand
        self.slow = slow  # it says by `comes` that it is open
        self.tell: Callable[[Word], None] = lambda word: None
        self.needs: dict[str, Needs] = {}  # of each seat that was started
        self.up: list[str] = []
        self.sent: dict[str, list[int]] = {}  # seat → tickets of which nothing was said
        self.killed: set[str] = set()
        self.is_open = False

    def open(self, temp: Path, tell: Callable[[Word], None]) -> None:
        assert temp.is_dir() and not self.is_open
        self.tell = tell
        if not self.slow:
            self.comes()

    def comes(self) -> None:
        self.is_open = True
        self.tell(interface.Opened())

    def start(self, seat: str, needs: Needs) -> None:
        assert self.is_open and seat not in self.needs, "a seat is one worker's alone"
        self.needs[seat], self.sent[seat] = needs, []

    def send(self, seat: str, ticket: int, batch: bytes, name: str, in_rounds: bool) -> None:
        assert seat in self.up, "a batch for a worker that never said a word"
        if seat in self.sent:
            self.sent[seat].append(ticket)

    def kill(self, seat: str) -> None:
        assert seat in self.needs
        self.killed.add(seat)

    def close(self) -> None:
        self.is_open = False
        self.sent.clear()

    # --- what happens to them ---

    def waiting(self) -> list[str]:
        return [seat for seat in self.sent if seat not in self.up]

    def running(self) -> list[str]:
        return [seat for seat, tickets in self.sent.items() if tickets]

    def alive(self) -> list[Needs]:
        """What each has that nobody wants dead, in the order that they were started."""
        return [self.needs[seat] for seat in self.sent if seat not in self.killed]

    def doomed(self) -> list[str]:
        return [seat for seat in self.sent if seat in self.killed]

    def comes_up(self, seat: str) -> None:
        self.up.append(seat)
        self.tell(interface.WorkerUp(seat, process=ProcessId(1000 + len(self.needs), 0.0)))

    def says(self, seat: str) -> None:
        ticket = self.sent[seat].pop(0)
        self.tell(interface.WorkerSaid(seat, ticket, msgspec.msgpack.encode(OUTCOME)))

    def breaks(self, seat: str) -> None:
        self.tell(interface.WorkerSaid(seat, self.sent[seat][0], b"", "it broke"))

    def dies(self, seat: str) -> None:
        del self.sent[seat]
        self.tell(interface.WorkerGone(seat, "died"))


class PoolMachine(RuleBasedStateMachine):
    """The model: which slots were said to be up, and what was submitted and not told of, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.seats = Seats()  # of the workers that are wanted
        self.up: set[int] = set()
        self.wanted = SLOTS
        self.flying: dict[int, list[tuple[int, Needs]]] = {slot: [] for slot in range(MORE)}
        self.ours: set[int] = set()  # slots that were killed since their last death
        self.tickets = 0
        self.lost: PoolLost | None = None
        self.fell_back = False
        self.pool = self.make_pool()
        self.pool.start()

    def make_pool(self) -> Pool:
        return Pool(Path(self.folder.name), SLOTS, self.hear, self.seats)

    @property
    def every(self) -> list[Seats]:
        return [self.seats]

    def teardown(self) -> None:
        self.pool.stop()
        assert not list(Path(self.folder.name).iterdir())
        self.folder.cleanup()

    def hear(self, event: PoolEvent) -> None:
        assert self.lost is None, "a word after the end"
        match event:
            case SlotUp(slot, place):
                assert place == "" and self.pool.worker_pid(slot) is not None
                self.up.add(slot)
            case BatchEnded(ticket):
                [flying] = [each for each in self.flying.values() if ticket in {one for one, _ in each}]
                assert ticket == flying.pop(0)[0], "out of order"
            case WorkerDied(slot, tickets, reason, ours):
                told, self.flying[slot] = self.flying[slot][: len(tickets)], self.flying[slot][len(tickets) :]
                assert tuple(ticket for ticket, _ in told) == tickets, "of others than those that were first"
                assert reason == "killed by the agent" if ours else reason
                assert slot in self.ours or not ours
                self.ours.discard(slot)
                self.up.discard(slot)
            case PoolFellBack():
                self.fell_back = True
            case PoolLost():
                self.lost = event
                assert not any(self.flying.values()), "batches that nothing was told of"

    def one_of(self, data: st.DataObject, choose: Callable[[Seats], list[str]]) -> tuple[Seats, str]:
        return data.draw(st.sampled_from([(seats, seat) for seats in self.every for seat in choose(seats)]))

    def any_of(self, choose: Callable[[Seats], list[str]]) -> bool:
        return any(choose(seats) for seats in self.every)

    # --- rules ---

    @precondition(lambda self: self.any_of(Seats.waiting))
    @rule(data=st.data())
    def a_worker_comes_up(self, data: st.DataObject) -> None:
        seats, seat = self.one_of(data, Seats.waiting)
        seats.comes_up(seat)

    @precondition(lambda self: self.any_of(Seats.running))
    @rule(data=st.data())
    def a_batch_ends(self, data: st.DataObject) -> None:
        seats, seat = self.one_of(data, Seats.running)
        seats.says(seat)

    @precondition(lambda self: self.any_of(Seats.running))
    @rule(data=st.data())
    def a_worker_breaks(self, data: st.DataObject) -> None:
        seats, seat = self.one_of(data, Seats.running)
        seats.breaks(seat)
        assert seat in seats.killed or self.lost

    @precondition(lambda self: self.any_of(lambda seats: list(seats.sent)))
    @rule(data=st.data(), last_words=st.integers(0, 2))
    def a_worker_dies(self, data: st.DataObject, last_words: int) -> None:
        """What it said before is heard first: that is the lower port's to see to."""
        seats, seat = self.one_of(data, lambda seats: list(seats.sent))
        for _ in range(min(last_words, len(seats.sent[seat]))):
            seats.says(seat)
        seats.dies(seat)

    @precondition(lambda self: self.any_of(Seats.doomed))
    @rule(data=st.data())
    def a_kill_comes_about(self, data: st.DataObject) -> None:
        seats, seat = self.one_of(data, Seats.doomed)
        seats.dies(seat)

    @rule()
    def more_slots_are_wanted(self) -> None:
        self.wanted = MORE
        self.pool.want(MORE)

    @precondition(lambda self: self.lost is None)
    @rule(slot=st.integers(0, MORE - 1), needs=st.sampled_from(NEEDS))
    def a_batch_is_submitted(self, slot: int, needs: Needs) -> None:
        """As the agent does: to a slot that it was told is up, and never for two jobs at a time."""
        if slot in self.up and all(other == needs for _, other in self.flying[slot]):
            self.tickets += 1
            self.flying[slot].append((self.tickets, needs))
            self.pool.submit(slot, self.tickets, batch(), needs)

    @rule(slot=st.integers(0, MORE - 1))
    def a_slot_is_killed(self, slot: int) -> None:
        """As the agent does: for what is running in it."""
        if self.flying[slot]:
            self.ours.add(slot)
            self.pool.kill(slot)

    @precondition(lambda self: self.seats.is_open and self.lost is None)
    @rule()
    def the_workers_are_gone_for_good(self) -> None:
        self.seats.tell(interface.Closed("gone"))
        if self.lost is not None:
            with pytest.raises(MusterError, match="the pool is gone: gone"):
                self.pool.submit(0, 0, batch(), Needs())

    # --- what holds ---

    @invariant()
    def a_batch_runs_on_a_worker_that_is_given_what_it_needs(self) -> None:
        by_ticket = {ticket: needs for flying in self.flying.values() for ticket, needs in flying}
        for seats in self.every:
            for seat, tickets in seats.sent.items():
                for ticket in tickets if seats.heeds_needs else ():
                    assert by_ticket.get(ticket, seats.needs[seat]) == seats.needs[seat]

    @invariant()
    def in_a_slot_one_worker_runs_batches(self) -> None:
        for flying in self.flying.values():
            tickets = {ticket for ticket, _ in flying}
            at_work = [seat for seats in self.every for seat, sent in seats.sent.items() if tickets & set(sent)]
            assert len(at_work) <= 1

    @property
    def works(self) -> bool:
        """Whether there is anybody to start workers."""
        return self.lost is None

    @invariant()
    def no_slot_waits_for_nothing(self) -> None:
        """All that was submitted comes to an end, and a slot that is down is up again."""
        if self.works and not self.any_of(Seats.waiting) and not self.any_of(Seats.doomed):
            assert self.up == set(range(self.wanted)), "workers are there, and their slots are not up"
            assert self.any_of(Seats.running) or not any(self.flying.values()), "batches that nobody runs"
            assert not self.ours, "a kill of which nothing was told"


class HandoverMachine(PoolMachine):
    """The workers that are wanted come late, or never; others have the slots meanwhile."""

    def make_pool(self) -> Pool:
        self.seats.slow = True
        self.early = Seats(heeds_needs=False)
        return Pool(Path(self.folder.name), SLOTS, self.hear, self.seats, self.early)

    @property
    def every(self) -> list[Seats]:
        return [self.early] if self.fell_back else [self.early, self.seats]

    @precondition(lambda self: not self.seats.is_open and not self.fell_back and self.lost is None)
    @rule()
    def they_come_late(self) -> None:
        self.seats.comes()

    @precondition(lambda self: not self.seats.is_open and not self.fell_back and self.lost is None)
    @rule()
    def they_never_come(self) -> None:
        self.seats.tell(interface.Closed("no such thing here"))
        assert self.fell_back and self.lost is None

    @invariant()
    def who_handed_over_ends(self) -> None:
        """With its last batch."""
        if self.lost is None and not self.fell_back and not self.any_of(Seats.waiting) and self.seats.is_open:
            idle = [seat for seat, sent in self.early.sent.items() if not sent]
            assert set(idle) <= self.early.killed


class FallbackMachine(HandoverMachine):
    """The workers that are wanted come late, or never, and others have the slots in the latter case alone."""

    def make_pool(self) -> Pool:
        self.seats.slow = True
        self.early = Seats(heeds_needs=False)
        return Pool(Path(self.folder.name), SLOTS, self.hear, self.seats, self.early, meanwhile=False)

    @property
    def works(self) -> bool:
        return self.lost is None and (self.seats.is_open or self.fell_back)

    @invariant()
    def of_two_sorts_only_one_is_ever_started(self) -> None:
        """Each gives out the machine's GPUs as if they were its alone."""
        assert not self.early.needs or self.fell_back


PoolMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
HandoverMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
FallbackMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase
TestHandover = HandoverMachine.TestCase
TestFallback = FallbackMachine.TestCase


def started(
    folder: Path, seats: Seats, others: Seats | None = None, slots: int = 1, meanwhile: bool = True
) -> tuple[Pool, list[PoolEvent]]:
    events: list[PoolEvent] = []
    pool = Pool(folder, slots, events.append, seats, others, meanwhile)
    pool.start()
    return pool, events


def told(events: list[PoolEvent]) -> list[tuple[type, int]]:
    """What is new, of which slot."""
    found = [(type(event), getattr(event, "slot", -1)) for event in events]
    events.clear()
    return found


def first(seats: Seats) -> str:
    return next(iter(seats.sent))


def test_a_pool_whose_workers_never_say_a_word_is_lost_for_good(tmp_path: Path) -> None:
    pool, events = started(tmp_path, seats := Seats())
    for _ in range(DEATHS_BEFORE_UP):
        seats.dies(first(seats))
    [lost] = events
    assert isinstance(lost, PoolLost) and lost.error is not None
    assert lost.reason == lost.error.message == "workers do not start: died"
    pool.stop()


def test_a_pool_that_worked_once_may_be_started_again(tmp_path: Path) -> None:
    pool, events = started(tmp_path, seats := Seats())
    seats.comes_up(first(seats))
    for _ in range(DEATHS_BEFORE_UP + 1):
        seats.dies(first(seats))
    assert events[-1] == PoolLost("workers do not start: died")
    pool.stop()
    pool.start()
    seats.comes_up(first(seats))
    assert isinstance(events[-1], SlotUp)
    pool.stop()


def test_the_first_batches_run_before_the_workers_that_are_wanted_are_there(tmp_path: Path) -> None:
    ray, early = Seats(slow=True), Seats(heeds_needs=False)
    pool, events = started(tmp_path, ray, early)
    early.comes_up(old := first(early))
    for ticket in (1, 2):
        pool.submit(0, ticket, batch(), Needs())
    ray.comes()
    pool.submit(0, 3, batch(), Needs())
    assert early.sent[old] == [1, 2, 3] and events[1:] == [], "nothing changes before the new worker's first word"
    early.says(old)
    ray.comes_up(new := first(ray))
    pool.submit(0, 4, batch(), Needs())
    assert (early.sent[old], ray.sent[new], early.killed) == ([2, 3], [], set())
    early.says(old)
    early.says(old)
    assert early.killed == {old} and ray.sent[new] == [], "not before the other is gone"
    early.dies(old)
    assert ray.sent[new] == [4] and isinstance(events[-1], SlotUp)
    ray.says(new)
    assert [event.ticket for event in events if isinstance(event, BatchEnded)] == [1, 2, 3, 4]
    pool.stop()


def test_a_slot_that_never_had_a_worker_gets_one_of_those_that_stay(tmp_path: Path) -> None:
    ray, early = Seats(slow=True), Seats(heeds_needs=False)
    pool, events = started(tmp_path, ray, early)
    early.comes_up(first(early))
    ray.comes()
    pool.want(2)
    for _ in range(DEATHS_BEFORE_UP):
        ray.dies(list(ray.sent)[-1])
    assert events[1:] == [PoolFellBack("workers do not start: died")]
    early.comes_up(list(early.sent)[-1])
    assert [event.slot for event in events if isinstance(event, SlotUp)] == [0, 1]
    pool.stop()


def test_a_job_that_needs_something_else_has_its_worker_before_the_batch_runs(tmp_path: Path) -> None:
    pool, _ = started(tmp_path, seats := Seats())
    seats.comes_up(old := first(seats))
    pool.submit(0, 1, batch(), Needs(gpus=1))
    assert seats.killed == {old} and not seats.sent[old]
    seats.dies(old)
    seats.comes_up(new := first(seats))
    assert (seats.needs[new], seats.sent[new]) == (Needs(gpus=1), [1])
    pool.stop()


@pytest.mark.parametrize("opened", [False, True])
def test_others_that_do_not_work_meanwhile_are_started_once_the_wanted_ones_cannot_be_had(
    tmp_path: Path, opened: bool
) -> None:
    ray, other = Seats(slow=True), Seats(heeds_needs=False)
    pool, events = started(tmp_path, ray, other, slots=2, meanwhile=False)
    if opened:
        ray.comes()
        for _ in range(DEATHS_BEFORE_UP):
            assert not other.is_open
            ray.dies(list(ray.sent)[-1])  # the last slot's, again and again
    else:
        ray.tell(interface.Closed("no Ray here"))
    assert [type(event) for event in events] == [PoolFellBack]
    for seat in list(other.sent):
        other.comes_up(seat)
    pool.submit(1, 1, batch(), Needs(gpus=1))
    assert [event.slot for event in events if isinstance(event, SlotUp)] == [0, 1] and other.running()
    pool.stop()


@pytest.mark.parametrize("opened", [False, True])
def test_where_the_workers_that_are_wanted_do_not_start_the_others_stay(tmp_path: Path, opened: bool) -> None:
    ray, early = Seats(slow=True), Seats(heeds_needs=False)
    pool, events = started(tmp_path, ray, early)
    early.comes_up(old := first(early))
    if opened:
        ray.comes()
        for _ in range(DEATHS_BEFORE_UP):
            ray.dies(first(ray))
        why = "workers do not start: died"
    else:
        ray.tell(interface.Closed(why := "no Ray here", MusterError(why, "install it")))
    assert events[1:] == [PoolFellBack(why)]
    pool.submit(0, 1, batch(), Needs())
    early.says(old)
    pool.want(2)
    assert len(early.sent) == 2
    until(lambda: not ray.is_open, "the others to be closed")
    pool.stop()
    pool.start()
    assert len(early.sent) == 2, "nor are they asked for again"
    pool.stop()


def test_workers_without_a_batch_make_room_for_one_that_needs_it_and_their_slots_stay_up(tmp_path: Path) -> None:
    pool, events = started(tmp_path, seats := Seats(room=Needs(3, 0, None)), slots=3)
    for seat in list(seats.sent):
        seats.comes_up(seat)
    told(events)
    pool.submit(0, 1, batch(), Needs(2))
    assert [needs.cpus for needs in seats.alive()] == [1, 2], "room for three, where three had one and one wants two"
    assert told(events) == [(SlotUp, 2)]
    for seat in list(seats.killed):
        seats.dies(seat)
    assert told(events) == [], "nobody had a batch"
    seats.comes_up(next(seat for seat in seats.sent if seats.needs[seat] == Needs(2)))
    assert told(events) == [(SlotUp, 0)]
    pool.submit(2, 2, batch(), Needs(1))
    assert [needs.cpus for needs in seats.alive()] == [2, 1], "the other idle one rests now"
    pool.stop()


def test_what_needs_more_than_there_is_gets_all_of_it(tmp_path: Path) -> None:
    pool, _ = started(tmp_path, seats := Seats(room=Needs(2, 1, 100)))
    seats.comes_up(first(seats))
    pool.submit(0, 1, batch(), Needs(8, 4, 1000))
    assert seats.alive() == [Needs(2, 1, 100)]
    pool.stop()


def test_workers_on_demand_come_as_they_are_asked_for_and_go_without_a_batch(tmp_path: Path) -> None:
    pool, events = started(tmp_path, seats := Seats(on_demand=True), slots=8)
    assert events == [PoolOpened()] and not seats.sent
    one, two = Needs(1), Needs(2)
    pool.ask({one: 2})
    old, late = seats.sent
    seats.comes_up(old)
    assert isinstance(events[-1], SlotUp) and events[-1].given == one
    told(events)
    pool.submit(0, 1, batch(), one)
    pool.ask({two: 1})
    assert late in seats.killed and old not in seats.killed, "it has a batch"
    assert (SlotGone, 1) in told(events)
    assert sorted(needs.cpus for needs in seats.alive()) == [1, 2]
    seats.says(old)
    pool.ask({})
    assert seats.alive() == []
    pool.stop()


def test_a_batch_for_a_slot_whose_worker_is_pending_is_given_back(tmp_path: Path) -> None:
    pool, events = started(tmp_path, seats := Seats(on_demand=True), slots=2)
    pool.ask({Needs(1): 1})
    seats.comes_up(first(seats))
    seats.dies(first(seats))
    told(events)
    pool.submit(0, 1, batch(), Needs(1))
    assert events == [SlotGone(0, "its worker has to be asked for again", (1,))]
    pool.stop()
