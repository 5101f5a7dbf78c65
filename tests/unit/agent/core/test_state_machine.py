"""The core's decisions, one at a time."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import pytest

from muster.agent.core.actions import Action, Delete, Freeze, Kill, Push, Quit, Recheck, Redial, Run, Say, Tell, Thaw
from muster.agent.core.events import (
    BatchEnded,
    DrainAsked,
    Event,
    FoundPart,
    Heard,
    Lent,
    LinkDown,
    LinkUp,
    Needs,
    PackagesCame,
    PartDamaged,
    PlaceRefused,
    PoolLost,
    PoolOpened,
    PushAnswered,
    PushDown,
    PushUp,
    SlotGone,
    SlotsSeen,
    SlotUp,
    SlotView,
    SpaceSeen,
    Ticked,
    WorkerDied,
)
from muster.agent.core.reports import PRINTED_KEPT
from muster.agent.core.slots import AHEAD_SECONDS
from muster.agent.core.state_machine import AgentCore, Left, _note_for_people, may_leave, room
from muster.coordinator.protocol.control import (
    Bye,
    Committed,
    Drop,
    Failure,
    Grant,
    Hello,
    LayerInfo,
    Leave,
    Loss,
    News,
    Printed,
    Rejected,
    Returned,
    Sync,
    Welcome,
)
from muster.coordinator.protocol.fitting import FAILURES
from muster.coordinator.protocol.frames import AGENT_LIMIT
from muster.coordinator.protocol.transfer import Refused, Settled
from muster.coordinator.protocol.values import PROTOCOL, encode
from muster.jobs.common.errors import FencedError, LinkError, MusterError, RefusedError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import Environment, Layer, MadeSource, Work
from muster.jobs.workbench.batch import Mishap, Outcome

A, B = "a" * 32, "b" * 32
T = TypeVar("T", bound=Action)


def awaited(layer: LayerInfo, seconds: float) -> LayerInfo:
    """Of a job whose results may wait no longer than that."""
    return msgspec.structs.replace(layer, work=msgspec.structs.replace(layer.work, flush=seconds))


def who(cpus: int = 2, memory: int = 1 << 30, disk: int = 1 << 30, gpus: tuple[str, ...] = ()) -> Hello:
    """An agent for tests."""
    return Hello(
        protocol=PROTOCOL,
        name="one",
        spool="s" * 32,
        process="p" * 32,
        host="here",
        pid=1,
        cpus=cpus,
        memory=memory,
        disk=disk,
        kernels={"cluster": 1},
        fingerprint="f",
        python="3.11",
        version="0",
        in_place=True,
        gpus=list(gpus),
    )


def info(
    layer: str = A,
    job: str = "j.1",
    cpus: int = 1,
    memory: int | None = None,
    timeout: float | None = None,
    out: int = 100,
    code: str | None = None,
    gpus: int = 0,
    disk: int = 0,
    rounds: bool = False,
    runs_code: bool = False,
) -> LayerInfo:
    takes = (cpus, memory, timeout)
    work = Work("cluster", 1, {}, code, None, None, *takes, gpus=gpus, disk=disk, runs_code=runs_code)
    made = MadeSource("each" if rounds else "")
    return LayerInfo(job, Layer(layer[:1], layer, made, 0, 1, 10_000, 0, out, None), work)


def grant(lo: int, hi: int, layer: str = A, attempt: int = 1) -> Grant:
    return Grant("j.1", layer, 1, attempt, [(lo, hi)])


class World:
    """A desk with a link, a session, a pool and a push channel, all willing."""

    def __init__(self, core: AgentCore | None = None, **kwargs: Any) -> None:
        self.now = 100.0
        self.core = core or AgentCore(who(**kwargs))
        self.orders: list[Action] = []
        self.looked = 0  # how many of the orders `said` has seen
        slots = [SlotUp(slot.number) for slot in self.core.state.slots.every]
        self.tell(*slots, LinkUp("farm"), Heard(Welcome("farm", 1, 7, 60.0, 5.0)), PushUp())

    def tell(self, *events: Event) -> list[Action]:
        new: list[Action] = []
        for event in events:
            new += self.core.handle(event, self.now)
        self.orders += new
        self.core.state.check()
        return new

    def hear(self, *infos: LayerInfo, grants: list[Grant] | None = None, **fields: Any) -> list[Action]:
        return self.tell(Heard(News(list(infos), grants or [], **fields)))

    def after(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self.tell(Ticked())

    def ended(self, run: Run, seconds: float = 0.1, **fields: Any) -> list[Action]:
        numbers = fields.pop("numbers", tuple(n for n, _, _ in run.items))
        outcome = Outcome(numbers, len(numbers), 100 * len(numbers), 8, seconds * len(numbers), 1,
                          fields.pop("mishaps", ()), **fields)  # fmt: skip
        return self.tell(BatchEnded(run.ticket, outcome))

    def died(self, run: Run, running: int | None = None, ours: bool = False) -> list[Action]:
        """Its worker is gone, and the next one there."""
        at = None if running is None else (running, 1, 1)
        return self.tell(WorkerDied(run.slot, (run.ticket,), "signal 9", ours, at), SlotUp(run.slot))

    def said(self) -> Sync:
        """All syncs since the last look, with one more said now, as one; each is answered with nothing."""
        fresh: list[Action] = []
        while not of(Say, fresh):
            if self.core.state.talk.asked is not None:
                self.hear()
            fresh = self.after(0.1)
        self.hear()
        syncs = [say.message for say in of(Say, self.orders[self.looked :]) if isinstance(say.message, Sync)]
        self.looked = len(self.orders)
        lists = ("finished", "failures", "losses", "returned", "changed", "printed")
        joined = {field: [item for sync in syncs for item in getattr(sync, field)] for field in lists}
        return msgspec.structs.replace(syncs[-1], **joined)


def of(kind: type[T], orders: list[Action]) -> list[T]:
    return [order for order in orders if isinstance(order, kind)]


def held(world: World) -> RangeSet:
    """What is held and not finished, of layer A."""
    return RangeSet([pair for held in world.core.state.held() if held.layer == A for pair in held.running])


def numbers(runs: list[Run]) -> list[int]:
    return [n for run in runs for n, _, _ in run.items]


def test_packages_that_were_installed_are_in_a_new_hello() -> None:
    world = World()
    envs = {"": Environment("3.11", {"torch": "2.1"})}
    said = world.tell(PackagesCame(("torch",), envs))
    if world.core.state.talk.asked is not None:
        said += world.hear()
    said += world.after(1.0)
    (hello,) = [say.message for say in of(Say, said) if isinstance(say.message, Hello)]
    assert (hello.packages, hello.envs) == (["torch"], envs)


# --- what it computes wrong ---


def test_a_kind_that_is_computed_wrong_is_handed_back_and_joined_no_more() -> None:
    world = World()
    first, _ = of(Run, world.hear(info(), grants=[grant(0, 100)]))
    number = first.items[0][0]
    bad = Mishap(number, "unfit", "centers are off by 0.001", "", 0.0, 0)
    said = world.ended(first, numbers=(), mishaps=(bad,))
    assert of(Tell, said)[0].line == "takes no cluster jobs, as it computes them wrong: centers are off by 0.001"
    assert not of(Run, said) and not world.core.state.waiting
    if world.core.state.talk.asked is not None:
        said += world.hear(grants=[grant(200, 300)])
    said += world.after(1.0)
    (hello,) = [say.message for say in of(Say, said) if isinstance(say.message, Hello)]
    assert hello.kernels == {} and hello.unfit == {"cluster": "centers are off by 0.001"} and not of(Run, said)
    assert Loss("j.1", A, 1, 1, [(number, number + 1)], False, "centers are off by 0.001") in hello.losses
    assert "takes no cluster jobs" in _note_for_people(world.core.state)


def test_a_kind_whose_bits_differ_from_others_is_told_once_and_shown_until_it_is_not() -> None:
    world = World()
    why = "answers the known problem of cluster with other bits (b) than two (a)"
    (told,) = of(Tell, world.hear(differs={"cluster": why}))
    assert told.line == f"takes no cluster jobs: {why}" == _note_for_people(world.core.state)
    assert not of(Tell, world.hear()) and _note_for_people(world.core.state)
    world.tell(LinkDown("cut"), LinkUp("farm"))
    assert not of(Tell, world.tell(Heard(Welcome("farm", 1, 8, 60.0, 5.0, differs={"cluster": why}))))
    assert world.said().note == told.line
    (told,) = of(Tell, world.tell(LinkDown("cut"), LinkUp("farm"), Heard(Welcome("farm", 1, 9, 60.0, 5.0))))
    assert told.line == "takes cluster jobs again" and not _note_for_people(world.core.state)


# --- placing ---


def test_the_first_batch_of_a_layer_is_one_shard_on_each_slot() -> None:
    runs = of(Run, World().hear(info(), grants=[grant(0, 100)]))
    assert [len(run.items) for run in runs] == [1, 1]
    assert {run.slot for run in runs} == {0, 1}


def test_quick_shards_go_in_batches_two_deep() -> None:
    world = World()
    first, _ = of(Run, world.hear(info(), grants=[grant(0, 5000)]))
    runs = of(Run, world.ended(first, seconds=0.001))
    assert [len(run.items) for run in runs] == [300, 300], "0.3 s each; one running and one waiting behind it"
    assert {run.slot for run in runs} == {first.slot}


def test_no_batch_has_more_than_1024_shards() -> None:
    world = World()
    first, _ = of(Run, world.hear(info(), grants=[grant(0, 10_000)]))
    assert max(len(run.items) for run in of(Run, world.ended(first, seconds=1e-6))) == 1024


def test_slow_shards_wait_here_and_not_behind_another() -> None:
    world = World()
    first, _ = of(Run, world.hear(info(), grants=[grant(0, 10)]))
    (run,) = of(Run, world.ended(first, seconds=30.0))
    assert len(run.items) == 1


def test_what_waits_behind_a_shard_that_takes_long_goes_to_an_idle_slot() -> None:
    world = World()
    first, second = of(Run, world.hear(info(rounds=True), grants=[grant(0, 2)]))
    world.ended(first, seconds=0.01)
    world.ended(second, seconds=0.01)
    one, two, behind = of(Run, world.hear(grants=[grant(2, 5)]))
    assert behind.slot == one.slot
    slow = one.items[0]
    world.tell(SlotsSeen((SlotView(one.slot, slow, 0),)))
    assert not of(Run, world.ended(two, seconds=0.01)), "it will be its turn in a moment"
    assert not of(Run, world.after(AHEAD_SECONDS))
    (again,) = of(Run, world.after(0.1))
    assert (again.slot, again.items) == (two.slot, behind.items)
    assert not of(Run, world.after(1.0)), "once"
    assert not of(Run, world.ended(again, seconds=0.01))
    world.ended(one, seconds=2.0)
    assert len(of(Delete, world.ended(behind, seconds=0.01))) == 1, "the second run is for nothing"


def test_few_shards_left_are_shared_out() -> None:
    world = World()
    first, second = of(Run, world.hear(info(), grants=[grant(0, 42)]))
    runs = of(Run, world.ended(first, seconds=0.01))
    assert len(numbers(runs)) < 40, "something is left for the other slot"
    assert of(Run, world.ended(second, seconds=0.01))


def test_a_wide_shard_takes_its_cpus() -> None:
    world = World(cpus=4)
    assert len(of(Run, world.hear(info(cpus=3), grants=[grant(0, 10)]))) == 1
    wider = World(cpus=2)
    assert len(of(Run, wider.hear(info(cpus=4), grants=[grant(0, 10)]))) == 1, "alone, it runs on what there is"


def test_a_wide_layer_is_not_starved_by_narrow_ones() -> None:
    world = World(cpus=2)
    one, _ = of(Run, world.hear(info(), info(B, cpus=2), grants=[grant(0, 50), grant(0, 1, B)]))
    world.now += 20
    (one,) = of(Run, world.ended(one, seconds=20.0))
    world.now += 20
    assert not of(Run, world.ended(one, seconds=20.0)), "room is being made"
    (two,) = list(world.core.state.slots.flights)
    (run,) = of(Run, world.tell(BatchEnded(two.ticket, Outcome((1,), 1, 100, 0, 5.0, 1, ()))))
    assert run.info.layer.digest == B


def test_memory_asked_for_bounds_what_runs_at_once() -> None:
    runs = of(Run, World(cpus=4, memory=1000).hear(info(memory=400), grants=[grant(0, 10)]))
    assert len(runs) == 2


def test_memory_seen_bounds_what_runs_at_once_where_none_was_asked_for() -> None:
    world = World(cpus=4, memory=1000)
    runs = of(Run, world.hear(info(), grants=[grant(0, 40)]))
    assert len(runs) == 4
    world.now += 3.0
    world.tell(SlotsSeen((SlotView(runs[0].slot, (0, 1, 1), 300),)))
    again = [run for one in runs for run in of(Run, world.ended(one, seconds=5.0))]
    assert len(again) == 3, "3 x 300 bytes fit, a fourth does not"
    world.hear(gone=[A])
    assert not world.core.state.slots.learnt, "another job is another matter"


def test_memory_of_the_job_before_is_not_held_against_the_next() -> None:
    world = World(cpus=2, memory=1000)
    runs = of(Run, world.hear(info(), grants=[grant(0, 4)]))
    world.tell(SlotsSeen((SlotView(runs[0].slot, (0, 1, 1), 900),)))
    assert not world.core.state.slots.learnt, "its worker is at it for a moment only"


def test_a_shard_that_found_no_memory_beside_others_runs_again_with_fewer() -> None:
    world = World(cpus=2)
    one, two = of(Run, world.hear(info(), grants=[grant(0, 2)]))
    short = Mishap(0, "memory", "MemoryError", "", 1.0, 1)
    assert not of(Run, world.ended(one, numbers=(), mishaps=(short,))), "it waits for the other one's end"
    assert not world.core.state.reports.next.failures
    (again,) = of(Run, world.ended(two))
    assert numbers([again]) == [0]
    world.ended(again, numbers=(), mishaps=(short,))
    assert [one.number for one in world.said().failures] == [0], "alone it has no excuse"


def test_scratch_space_bounds_what_runs_at_once_and_holds_up_nobody_who_wants_none() -> None:
    world = World(cpus=4, disk=2500)
    first = of(Run, world.hear(info(disk=1000), info(B, "j.2"), grants=[grant(0, 10)]))
    assert len(first) == 2, "two times 1,000 bytes and two outputs of 100 fit into 2,500"
    assert {run.info.job for run in of(Run, world.hear(grants=[Grant("j.2", B, 1, 2, [(0, 2)])]))} == {"j.2"}
    assert len(of(Run, world.ended(first[0]))) == 1, "what it gave back is the next one's"


def test_scratch_space_is_not_promised_while_a_shard_has_it() -> None:
    world = World(cpus=1, disk=2500)
    (run,) = of(Run, world.hear(info(disk=1000), grants=[grant(0, 1)]))
    assert room(world.core.state, world.now) == 2500 - 1000 - 100
    world.ended(run)
    assert room(world.core.state, world.now) == 2500 - 100, "its part is there until it is pushed"


def test_what_wants_more_scratch_space_than_the_whole_budget_is_handed_back() -> None:
    world = World(disk=2500)
    assert not of(Run, world.hear(info(disk=2450), grants=[grant(0, 3)]))
    assert world.core.state.too_large and not world.core.state.unfinished


def test_each_slot_has_gpus_of_its_own() -> None:
    world = World(cpus=4, gpus=("0", "1", "5"))
    one, two, three = of(Run, world.hear(info(gpus=1), grants=[grant(0, 9)]))
    assert {run.gpus for run in (one, two, three)} == {("0",), ("1",), ("5",)}
    (again,) = of(Run, world.ended(two, seconds=5.0))
    assert (again.slot, again.gpus) == (two.slot, two.gpus), "what it loaded may be there still"
    assert not of(Run, world.hear(info(B, "k.1", gpus=2), grants=[grant(0, 1, B, 2)]))
    world.hear(gone=[A])
    for run in (one, again):
        world.ended(run)
    (both,) = [run for run in of(Run, world.orders) if run.info.layer.digest == B]
    assert both.gpus is not None and len(both.gpus) == 2 and not set(both.gpus) & {three.gpus[0] if three.gpus else ""}


def test_gpus_are_hidden_from_who_asked_for_none_where_some_are_lent() -> None:
    assert of(Run, World(gpus=("0",)).hear(info(), grants=[grant(0, 1)]))[0].gpus == ()
    assert of(Run, World().hear(info(), grants=[grant(0, 1)]))[0].gpus is None


# --- what becomes of batches ---


def test_a_failure_and_a_loss_are_told_apart_and_the_rest_runs_again() -> None:
    world = World(cpus=1)
    (first,) = of(Run, world.hear(info(), grants=[grant(0, 21)]))
    (run, _) = of(Run, world.ended(first, seconds=0.02))
    a, b, c, *rest = (n for n, _, _ in run.items)
    mishaps = (Mishap(b, "exit", "m", "e", 0.1, 5), Mishap(c, "killed", "k", "", 0.1, 5))
    world.ended(run, numbers=(a,), mishaps=mishaps)
    sync = world.said()
    assert [(f.number, f.code, f.attempt) for f in sync.failures] == [(b, "exit", 1)]
    assert [(loss.numbers, loss.running) for loss in sync.losses] == [([(c, c + 1)], True)]
    assert set(rest) <= set(world.core.state.holdings[A].waiting) | set(world.core.state.holdings[A].placed)


def test_a_dead_workers_shard_is_lost_and_the_others_run_again_unreported() -> None:
    world = World(cpus=1)
    (first,) = of(Run, world.hear(info(), grants=[grant(0, 1000)]))
    run, behind = of(Run, world.ended(first, seconds=0.001))
    victim = run.items[3][0]
    world.tell(WorkerDied(0, (run.ticket, behind.ticket), "signal 11", False, (victim, 1, 1)))
    sync = world.said()
    assert [(loss.numbers, loss.reason) for loss in sync.losses] == [([(victim, victim + 1)], "signal 11")]
    assert not sync.failures
    assert len(held(world)) == 998


def test_a_worker_that_dies_with_nothing_in_hand_rests_and_is_given_up_on_the_third_time() -> None:
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 1)]))
    assert not of(Run, world.died(run))
    (run,) = of(Run, world.after(1.5))
    world.died(run)
    (run,) = of(Run, world.after(2.5))
    world.died(run)
    (loss,) = world.said().losses
    assert (loss.numbers, loss.running) == ([(0, 1)], False)


def test_a_changed_source_returns_what_is_held_of_its_layer() -> None:
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 10)]))
    world.ended(run, numbers=(), changed=True)
    sync = world.said()
    assert sync.changed == [A]
    assert sync.returned == [Returned(A, 1, 1, [(0, 10)])]


def test_a_full_disk_pauses_then_one_batch_tries() -> None:
    world = World()
    world.said()
    one, two = of(Run, world.hear(info(), grants=[grant(0, 10)]))
    world.ended(one, numbers=(), full="No space left on device")
    world.ended(two, numbers=(), full="No space left on device")
    sync = world.said()
    assert (sync.room, sync.hungry) == (0, False)
    assert "No space left" in sync.note
    (run,) = of(Run, world.after(10.0))
    assert {again.slot for again in of(Run, world.ended(run))} == {0, 1}, "there is room again"


def test_no_room_in_the_budget_runs_nothing_until_parts_are_pushed() -> None:
    world = World(cpus=1, disk=250)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 3)]))
    (second,) = of(Run, world.ended(run))
    ended = world.ended(second)
    assert not of(Run, ended), "two parts of 100 bytes, and 50 left"
    (push,) = of(Push, ended)
    settled = world.tell(PushAnswered(Settled([(0, 2)]), RangeSet([(0, 2)]), 200, 0.1))
    assert [order.name for order in of(Delete, settled)] == [name for name, _ in push.pieces]
    assert len(of(Run, settled)) == 1


def test_a_part_nobody_needs_takes_its_room_for_as_long_as_it_is_being_sent() -> None:
    world = World(cpus=1, disk=250)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 3)]))
    (second,) = of(Run, world.ended(run))
    assert of(Push, world.ended(second))
    orders = world.hear(info(B), grants=[grant(0, 1, B)], gone=[A])
    assert not of(Delete, orders) and not of(Run, orders), "both parts of 100 bytes are in the bundle under way"
    answered = world.tell(PushAnswered(Refused("gone", [], ""), RangeSet([(0, 2)]), 200, 0.1))
    assert len(of(Delete, answered)) == 2
    assert len(of(Run, answered)) == 1


def test_a_shard_above_the_budget_is_handed_back_with_both_numbers() -> None:
    world = World(disk=50)
    assert not of(Run, world.hear(info(), grants=[grant(0, 3)]))
    sync = world.said()
    assert sync.returned == [Returned(A, 1, 1, [(0, 3)])]
    assert "100" in sync.note
    assert "50" in sync.note


def test_room_is_what_neither_parts_nor_reservations_take() -> None:
    world = World(cpus=1, disk=1000)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 3)]))
    world.ended(run)
    assert world.said().room == 1000 - 100 - 200
    world.tell(SpaceSeen((4 << 20) + 350))
    assert world.said().room == 150


# --- timeouts, memory, drops ---


def seen(world: World, run: Run, tree: int = 0) -> list[Action]:
    return world.tell(SlotsSeen((SlotView(run.slot, run.items[0], tree),)))


@pytest.mark.parametrize(("runs_code", "grace"), [(False, 0.0), (True, 605.0)])
def test_what_hangs_is_killed_and_failed(runs_code: bool, grace: float) -> None:
    """What runs users' code minds their timeouts, and gives them 600 s for imports."""
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(timeout=30.0, runs_code=runs_code), grants=[grant(0, 1)]))
    assert not of(Kill, seen(world, run))
    world.now += 29 + grace
    assert not of(Kill, seen(world, run))
    world.now += 2
    assert of(Kill, seen(world, run)) == [Kill(0, "timeout")]
    assert not of(Kill, seen(world, run)), "once"
    world.died(run, running=0, ours=True)
    (failure,) = world.said().failures
    assert failure.code == "timeout"


def on_another_machine() -> World:
    world = World(cpus=1)
    world.tell(SlotGone(0, "another node"), SlotUp(0, "node2"))
    return world


def unmarked(world: World, seconds: float) -> list[Action]:
    """What is ordered after so long in which nothing is known of slot 0 but that it is busy."""
    world.now += seconds
    return world.tell(SlotsSeen((SlotView(0, None, 0),)))


def test_what_hangs_on_another_machine_is_killed_and_failed() -> None:
    """No mark of it can be read: all that is known is when it was sent."""
    world = on_another_machine()
    (run,) = of(Run, world.hear(info(timeout=30.0), grants=[grant(0, 1)]))
    assert not of(Kill, unmarked(world, 34.0))
    assert of(Kill, unmarked(world, 2.0)) == [Kill(0, "timeout")]
    assert not of(Kill, unmarked(world, 1.0)), "once"
    world.tell(WorkerDied(0, (run.ticket,), "killed by the agent", True), SlotUp(0, "node2"))
    (failure,) = world.said().failures
    assert (failure.number, failure.code) == (0, "timeout")


def test_of_a_batch_that_hangs_on_another_machine_each_shard_runs_alone_until_one_is_found() -> None:
    world = on_another_machine()
    (first,) = of(Run, world.hear(info(timeout=30.0), grants=[grant(0, 1)]))
    world.ended(first, seconds=0.01)  # so that batches are of many
    (batch,) = of(Run, world.hear(grants=[grant(1, 4, attempt=2)]))
    assert len(batch.items) > 1
    assert of(Kill, unmarked(world, 36.0))
    world.tell(WorkerDied(0, (batch.ticket,), "killed by the agent", True))
    assert not world.said().failures, "nobody knows which of them it was"
    good, bad = of(Run, world.tell(SlotUp(0, "node2")))
    assert not of(Kill, unmarked(world, 33.0))
    (other,) = of(Run, world.ended(good))
    assert not of(Kill, unmarked(world, 33.0)), "the next one has its own time"
    assert of(Kill, unmarked(world, 3.0)) == [Kill(0, "timeout")]
    world.tell(WorkerDied(0, (bad.ticket, other.ticket), "killed by the agent", True))
    (failure,) = world.said().failures
    assert (failure.number, failure.code) == (bad.items[0][0], "timeout")


def test_a_kill_that_met_the_next_shard_blames_nobody() -> None:
    world = World(cpus=1)
    (first,) = of(Run, world.hear(info(timeout=30.0), grants=[grant(0, 50)]))
    run, _ = of(Run, world.ended(first, seconds=0.01))
    seen(world, run)
    world.now += 31
    assert of(Kill, seen(world, run))
    world.died(run, running=run.items[1][0], ours=True)
    sync = world.said()
    assert not sync.failures
    assert not sync.losses


def test_too_much_memory_takes_a_slot_away_and_on_the_last_one_fails() -> None:
    world = World(memory=1000)
    one, two = of(Run, world.hear(info(), grants=[grant(0, 2)]))
    both = SlotsSeen((SlotView(0, one.items[0], 400), SlotView(1, two.items[0], 700)))
    orders = world.tell(both)
    assert of(Kill, orders) == [Kill(1, "crowded")]
    assert "1 cpu" in of(Tell, orders)[0].line
    world.died(two, running=1, ours=True)
    (loss,) = world.said().losses
    assert (loss.numbers, loss.running) == ([(1, 2)], False)
    assert of(Kill, seen(world, one, 1001)) == [Kill(0, "memory")]
    world.died(one, running=0, ours=True)
    (failure,) = world.said().failures
    assert failure.code == "memory"
    assert len(of(Run, world.hear(grants=[grant(5, 7)]))) == 2, "with that job gone the slots are back"


def test_what_the_kernel_took_for_its_memory_runs_with_fewer_beside_it_and_alone_it_fails() -> None:
    world = World(memory=1000)
    one, two = of(Run, world.hear(info(), grants=[grant(0, 2)]))
    taken = "the kernel's out-of-memory killer took the process at 1.2 GiB or more"
    orders = world.tell(WorkerDied(two.slot, (two.ticket,), taken, False, (1, 1, 1), short=True))
    assert taken in of(Tell, orders)[0].line
    assert taken in _note_for_people(world.core.state), "what `coordinator agents` shows"
    said = world.said()
    assert taken in said.narrowed[info().job], "what `coordinator status JOB` shows"
    (loss,) = said.losses
    assert (loss.numbers, loss.running) == ([(1, 2)], False)
    world.tell(WorkerDied(one.slot, (one.ticket,), taken, False, (0, 1, 1), short=True))
    (failure,) = world.said().failures
    assert (failure.code, failure.message) == ("memory", taken)


def test_a_dropped_shard_that_runs_long_is_killed_and_not_reported() -> None:
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 2)]))
    world.said()
    orders = world.hear(drops=[Drop(A, 1, 1, [(0, 1)])])
    assert of(Kill, orders) == [Kill(0, "dropped")]
    (again,) = of(Run, world.died(run, running=0, ours=True))
    assert numbers([again]) == [1]
    assert not world.core.state.reports.next.pressing


def test_a_dropped_shard_that_runs_on_against_expectation_is_killed_too() -> None:
    world = World(cpus=1)
    (first,) = of(Run, world.hear(info(), grants=[grant(0, 2)]))
    (run,) = of(Run, world.ended(first, seconds=0.1))
    world.said()
    assert not of(Kill, world.hear(drops=[Drop(A, 1, 1, [(1, 2)])])), "it takes so little that it may as well end"
    assert not of(Kill, seen(world, run, 1))
    world.now += 2.1
    assert of(Kill, seen(world, run, 1)) == [Kill(0, "dropped")]


def test_what_nobody_does_instead_is_killed_soon_where_an_overtaken_shard_of_a_round_may_run_on() -> None:
    for retired, after in ((True, 0.6), (False, 60.1)):
        world = World(cpus=1)
        (run,) = of(Run, world.hear(info(rounds=True), grants=[grant(0, 1)]))
        world.said()
        assert not of(Kill, world.hear(drops=[Drop(A, 1, 1, [(0, 1)], retired)]))
        world.now += after - 0.2
        assert not of(Kill, seen(world, run))
        world.now += 0.2
        assert of(Kill, seen(world, run)) == [Kill(0, "dropped")]


def test_what_runs_of_a_layer_that_no_job_wants_any_more_is_killed_as_soon() -> None:
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(rounds=True), grants=[grant(0, 1)]))
    world.said()
    assert not of(Kill, world.hear(gone=[A]))
    assert not of(Kill, seen(world, run, 0))
    world.now += 0.6
    assert of(Kill, seen(world, run, 0)) == [Kill(0, "dropped")]


def test_a_dropped_shard_in_a_batch_that_counts_is_let_end_and_discarded() -> None:
    world = World(cpus=1)
    (first,) = of(Run, world.hear(info(), grants=[grant(0, 7)]))
    run, _ = of(Run, world.ended(first, seconds=0.1))
    keep, drop = run.items[0][0], run.items[1][0]
    world.said()
    assert not of(Kill, world.hear(drops=[Drop(A, 1, 1, [(drop, drop + 1)])]))
    world.ended(run)
    assert keep in world.core.state.finished_parts.live("farm", A)
    assert drop not in world.core.state.finished_parts.live("farm", A)


def test_a_dropped_shard_that_hangs_before_others_of_its_batch_is_killed_and_those_run_again() -> None:
    world = World(cpus=1)
    (first,) = of(Run, world.hear(info(), grants=[grant(0, 7)]))
    run, _ = of(Run, world.ended(first, seconds=0.1))
    one, other = (number for number, _, _ in run.items[:2])
    world.said()
    world.hear(drops=[Drop(A, 1, 1, [(one, one + 1)])])
    assert not of(Kill, seen(world, run, one))
    world.now += 2.1
    assert of(Kill, seen(world, run, one)) == [Kill(0, "dropped")]
    assert other in numbers(of(Run, world.died(run, running=one, ours=True)))
    assert not world.core.state.reports.next.pressing


def test_what_shards_print_is_said_in_portions_and_too_much_of_it_is_counted() -> None:
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 1)]))
    world.ended(run, printed=((0, "hello"), (5, "of a shard that is not in the batch")), unprinted=2)
    assert sum(say.message.unprinted for say in of(Say, world.orders) if isinstance(say.message, Sync)) == 2
    assert world.said().printed == [Printed(A, 0, 1, 1, "hello")]
    reports = world.core.state.reports
    for number in range(PRINTED_KEPT + 5):
        reports.print(Printed(A, number, 1, 1, "x"))
    letter = reports.post()
    assert (len(letter.printed), letter.unprinted, len(reports.next.printed)) == (64, 5, PRINTED_KEPT - 64)
    reports.unanswered()
    assert len(reports.next.printed) == PRINTED_KEPT, "the link broke: they are said again"


def test_a_drop_of_an_older_attempt_changes_nothing() -> None:
    world = World(cpus=1)
    world.hear(info(), grants=[grant(0, 2, attempt=2)])
    world.said()
    world.hear(drops=[Drop(A, 1, 1, [(0, 2)])])
    assert len(held(world)) == 2


def test_finished_work_is_not_dropped() -> None:
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 1)]))
    world.ended(run)
    world.said()
    assert not of(Delete, world.hear(drops=[Drop(A, 1, 1, [(0, 1)])]))
    assert world.core.state.to_push == 1


def test_a_grant_of_what_is_finished_here_is_answered_without_running_it() -> None:
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 1)]))
    world.ended(run)
    world.said()
    assert not of(Run, world.hear(grants=[grant(0, 1, attempt=2)]))
    (finished,) = world.said().finished
    assert (finished.attempt, finished.numbers) == (2, [(0, 1)])


# --- talking ---


def test_a_hello_names_all_that_is_held() -> None:
    part = FoundPart(f"farm/{B}/old.part", "farm", B, 10, {(1, 4): RangeSet([(5, 8)])})
    other = FoundPart(f"elsewhere/{B}/x.part", "elsewhere", B, 10, {(1, 4): RangeSet([(9, 10)])})
    lost = Loss("j.1", A, 1, 1, [(3, 4)], True, "killed")
    core = AgentCore(who(), Left([part, other], [lost]))
    (say,) = of(Say, core.handle(LinkUp("farm"), 1.0))
    assert isinstance(say.message, Hello)
    (held,) = say.message.held
    assert (held.layer, held.attempt, held.running, held.finished) == (B, 4, [], [(5, 8)])
    assert say.message.losses == [lost]


def test_what_was_not_answered_is_said_again_in_the_next_hello() -> None:
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 3)]))
    world.said()
    world.now += 1
    (say,) = of(Say, world.ended(run, numbers=(), mishaps=(Mishap(0, "exit", "m", "e", 0.1, 5),)))
    assert isinstance(say.message, Sync)
    assert len(say.message.failures) == 1
    world.tell(LinkDown("cut"))
    world.now += 2
    (say,) = of(Say, world.tell(LinkUp("farm")))
    assert isinstance(say.message, Hello)
    assert [failure.number for failure in say.message.failures] == [0]
    assert [held.running for held in say.message.held] == [[(1, 3)]]


def test_much_evidence_still_fits_a_frame() -> None:
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 1000)]))
    runs = of(Run, world.ended(run, seconds=1e-4))
    world.tell(LinkDown("cut"))
    for run in runs:
        mishaps = tuple(Mishap(n, "exit", "m" * 9000, "e" * 90_000, 0.1, 5) for n, _, _ in run.items)
        runs += of(Run, world.ended(run, numbers=(), mishaps=mishaps))
    world.now += 2
    (say,) = of(Say, world.tell(LinkUp("farm")))
    assert isinstance(say.message, Hello)
    assert len(say.message.failures) == FAILURES
    assert all(f.message and f.evidence for f in say.message.failures)
    assert len(encode(say.message)) <= AGENT_LIMIT


def test_nothing_is_said_while_an_answer_is_awaited_and_news_is_gathered() -> None:
    world = World()
    one, two = of(Run, world.hear(info(), grants=[grant(0, 2)]))
    assert of(Say, world.after(1.0))
    assert not of(Say, world.ended(one))
    assert not of(Say, world.ended(two))
    (finished,) = world.said().finished
    assert finished.numbers == [(0, 2)]


def test_an_idle_agent_lets_its_question_wait_and_a_busy_one_does_not() -> None:
    world = World(cpus=1)
    assert [say.wait for say in of(Say, world.orders) if isinstance(say.message, Sync)] == [5.0], "and at once"
    world.hear(info(), grants=[grant(0, 100)])
    waits = [say.wait for say in of(Say, world.after(5.0))]
    assert waits == [0.0]


def test_with_a_slot_idle_it_asks_again_but_not_in_a_flurry() -> None:
    world = World(cpus=2)
    world.hear(info(), grants=[grant(0, 1)])
    asked = 0
    for _ in range(100):
        for say in of(Say, world.after(0.1)):
            asked += 1
            assert say.wait <= 1.0
            world.hear()
    assert 8 <= asked <= 20, "in ten seconds"


def test_a_lost_session_leads_to_a_new_hello() -> None:
    world = World()
    world.tell(Heard(Rejected("no-session", "who?")))
    (say,) = of(Say, world.after(1.1))
    assert isinstance(say.message, Hello)


def test_work_of_an_unknown_layer_leads_to_a_new_hello() -> None:
    world = World()
    world.hear(grants=[grant(0, 3)])
    (say,) = of(Say, world.after(1.1))
    assert isinstance(say.message, Hello)
    assert say.message.held == []


@pytest.mark.parametrize(("code", "error"), [("fenced", FencedError), ("name-taken", RefusedError)])
def test_some_refusals_are_the_end(code: str, error: type[Exception]) -> None:
    (quit_,) = of(Quit, World().tell(Heard(Rejected(code, "no", "a hint"))))
    assert isinstance(quit_.error, error)


@pytest.mark.parametrize(("code", "pause"), [("protocol", 60.0), ("stopping", 1.0)])
def test_others_are_tried_again(code: str, pause: float) -> None:
    assert of(Redial, World().tell(Heard(Rejected(code, "no")))) == [Redial(pause)]


def test_a_coordinator_that_goes_is_looked_for_while_work_goes_on() -> None:
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 5)]))
    world.said()
    assert of(Redial, world.tell(Heard(Bye("stopping")))) == [Redial(1.0)]
    assert of(Run, world.ended(run))


def test_another_farm_at_the_same_place_gets_nothing_of_the_old_ones() -> None:
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 5)]))
    world.ended(run)
    world.tell(LinkDown("cut"))
    world.now += 2
    (say,) = of(Say, world.tell(LinkUp("another")))
    assert isinstance(say.message, Hello)
    assert say.message.held == []
    assert not of(Delete, world.orders), "it stays on the disk"


# --- the pool ---


def test_people_are_told_why_there_are_no_workers_until_there_are() -> None:
    world = World()
    world.tell(PoolLost("started again in 2 s: Ray's raylet died"))
    assert "raylet" in world.core.snapshot().why_idle
    world.after(30.0)
    assert "raylet" in world.said().note
    world.tell(SlotUp(0))
    world.hear()
    world.after(30.0)
    assert world.said().note == ""


def test_a_batch_goes_to_a_slot_that_is_up_alone() -> None:
    world = World(cpus=2)
    world.tell(PoolLost("raylet died"), SlotUp(1))
    assert [run.slot for run in of(Run, world.hear(info(), grants=[grant(0, 2)]))] == [1]
    assert [run.slot for run in of(Run, world.tell(SlotUp(0)))] == [0]


def test_without_a_worker_and_with_none_to_come_what_waits_is_handed_back() -> None:
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 4)]))
    world.tell(SlotGone(0, "its node went", (run.ticket,)))
    assert not world.core.snapshot().ready and not world.core.snapshot().waiting
    assert world.said().returned == [Returned(A, 1, 1, [(0, 4)])]
    world.hear(grants=[grant(4, 6, attempt=2)])  # it was on its way
    assert world.said().returned == [Returned(A, 1, 2, [(4, 6)])]


def test_what_may_have_ended_a_worker_on_another_machine_runs_alone_and_is_told_when_it_does_so_again() -> None:
    """No mark of it can be read: without a batch of its own a shard that kills its worker would never be given up."""
    world = on_another_machine()
    (first,) = of(Run, world.hear(info(), grants=[grant(0, 1)]))
    world.ended(first, seconds=0.01)  # so that batches are of many
    (batch,) = of(Run, world.hear(grants=[grant(1, 4, attempt=2)]))
    assert len(batch.items) > 1
    world.tell(WorkerDied(0, (batch.ticket,), "exit code 1", False))
    assert not world.said().losses, "nobody knows which of them it was"
    good, bad = of(Run, world.tell(SlotUp(0, "node2")))
    (other,) = of(Run, world.ended(good))
    assert [[item[0] for item in run.items] for run in (good, bad, other)] == [[1], [2], [3]]
    world.tell(WorkerDied(0, (bad.ticket, other.ticket), "exit code 1", False))
    (loss,) = world.said().losses
    assert (loss.numbers, loss.running) == ([(2, 3)], True)


def test_after_a_death_nothing_runs_in_a_slot_before_its_next_worker_is_there() -> None:
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 1)]))
    assert not of(Run, world.tell(WorkerDied(0, (run.ticket,), "killed", True)))
    assert not of(Run, world.after(5.0))
    assert world.core.snapshot().ready, "another worker comes by itself: it takes work all the while"
    assert numbers(of(Run, world.tell(SlotUp(0)))) == [0]


def test_what_a_slot_that_went_was_given_runs_elsewhere_and_nobody_is_to_blame() -> None:
    world = World(cpus=2)
    first, second = of(Run, world.hear(info(), grants=[grant(0, 2)]))
    world.ended(second)
    again = of(Run, world.tell(SlotGone(first.slot, "its node went", (first.ticket,))))
    assert [run.slot for run in again] == [second.slot] and numbers(again) == numbers([first])
    said = world.said()
    assert not said.losses and not said.failures and not said.returned
    assert not of(Run, world.tell(SlotGone(second.slot, "its node went", (again[0].ticket,))))
    assert not world.core.snapshot().ready


def test_a_slot_more_than_was_known_of_is_used() -> None:
    world = World(cpus=1)
    world.tell(Lent(2), SlotUp(1))
    assert {run.slot for run in of(Run, world.hear(info(), grants=[grant(0, 4)]))} == {0, 1}


def test_the_agent_ends_with_the_reason_where_a_pool_would_never_start() -> None:
    world = World()
    error = MusterError("workers do not start", "install it again")
    (end,) = of(Quit, world.tell(PoolLost("workers do not start", error)))
    assert end.error is error


# --- pushing ---


def finished_one(world: World, **fields: Any) -> Run:
    (run,) = of(Run, world.hear(info(**fields), grants=[grant(0, 2)]))
    world.ended(run)
    return run


def test_a_result_that_somebody_waits_for_goes_up_soon() -> None:
    world = World()
    first, _ = of(Run, world.hear(awaited(info(), 0.5), grants=[grant(0, 100)]))
    assert not of(Push, world.ended(first, seconds=30.0)) and not of(Push, world.after(0.4))
    assert of(Push, world.after(0.2))


def test_a_bundle_goes_when_it_is_large_or_old_or_the_layer_is_quiet() -> None:
    world = World(cpus=1)
    finished_one(world)
    assert not of(Push, world.orders)
    assert not of(Push, world.after(9.0))
    (push,) = of(Push, world.after(1.1))
    assert push.session == 7
    quiet = World(cpus=1)
    (run,) = of(Run, quiet.hear(info(), grants=[grant(0, 1)]))
    assert of(Push, quiet.ended(run))
    large = World(cpus=1)
    (run,) = of(Run, large.hear(info(), grants=[grant(0, 2)]))
    outcome = Outcome((0,), 1, 8 << 20, 8, 0.1, 1, ())
    assert of(Push, large.tell(BatchEnded(run.ticket, outcome)))


def test_a_refusal_names_what_is_committed_and_the_rest_goes_at_once() -> None:
    world = World(cpus=1)
    (first,) = of(Run, world.hear(info(), grants=[grant(0, 5)]))
    (push,) = of(Push, [*world.ended(first, seconds=0.01), *world.after(11.0)])
    flights = list(world.core.state.slots.flights)
    world.tell(BatchEnded(flights[0].ticket, Outcome(tuple(flights[0].items), 1, 100, 0, 0.1, 1, ())))
    orders = world.tell(PushAnswered(Refused("committed", [(0, 1)]), RangeSet([(0, 1)]), 0, 0.0))
    assert of(Delete, orders) == [Delete(push.pieces[0][0])]
    (again,) = of(Push, orders)
    assert 0 not in again.pieces[0][1]


def test_a_refusal_that_names_nothing_of_ours_is_no_reason_to_spin() -> None:
    world = World(cpus=1)
    finished_one(world)
    world.after(11.0)
    orders = world.tell(PushAnswered(Refused("committed", [(900, 901)]), RangeSet([(0, 1)]), 0, 0.0))
    assert not of(Push, orders)
    assert of(Push, world.after(60.0))


def test_a_full_root_is_waited_for_and_said() -> None:
    world = World(cpus=1)
    finished_one(world)
    world.after(11.0)
    assert not of(Push, world.tell(PushAnswered(Refused("full", [], "the root is full"), RangeSet([(0, 1)]), 0, 0.0)))
    assert world.said().note == "the root is full"
    assert of(Push, world.after(5.0))


def test_what_is_finished_of_a_damaged_job_is_kept_and_holds_up_no_other_layer() -> None:
    world = World(cpus=2)
    one, two = of(Run, world.hear(info(A), info(B), grants=[grant(0, 1, layer=A), grant(0, 1, layer=B)]))
    (push,) = of(Push, world.ended(one))
    assert not of(Push, world.ended(two))
    orders = world.tell(PushAnswered(Refused("later", [], "no folder"), RangeSet([(0, 1)]), 0, 0.0))
    (other,) = of(Push, orders)
    assert other.layer != push.layer and not of(Delete, orders)
    assert "no folder" in of(Tell, orders)[0].line
    settled = world.tell(PushAnswered(Settled([(0, 1)]), RangeSet([(0, 1)]), 100, 0.0))
    assert of(Delete, settled) and not of(Push, settled)
    (again,) = of(Push, world.after(3.0))
    assert again == push
    world.tell(PushAnswered(Refused("later", [], "no folder"), RangeSet([(0, 1)]), 0, 0.0))
    world.tell(DrainAsked("SIGTERM"))
    world.hear()
    assert may_leave(world.core.state), "it does not wait for a job that is damaged"


def test_a_broken_push_keeps_the_parts_and_is_done_again() -> None:
    world = World(cpus=1)
    finished_one(world)
    (push,) = of(Push, world.after(11.0))
    assert not of(Delete, world.tell(PushDown("cut")))
    (again,) = of(Push, world.tell(PushUp()))
    assert again == push


def test_parts_settled_while_they_are_sent_are_deleted_afterwards() -> None:
    world = World(cpus=1)
    finished_one(world)
    world.said()
    (push,) = of(Push, world.after(11.0))
    assert not of(Delete, world.hear(committed=[Committed(A, [(0, 1)])]))
    orders = world.tell(PushAnswered(Refused("committed", [(0, 1)]), RangeSet([(0, 1)]), 0, 0.0))
    assert of(Delete, orders) == [Delete(push.pieces[0][0])]


def test_other_outputs_than_the_layers_are_failures() -> None:
    world = World(cpus=1)
    finished_one(world)
    world.after(11.0)
    world.tell(PushAnswered(Refused("outputs", [(0, 1)], "x is float32"), RangeSet([(0, 1)]), 0, 0.0))
    (failure,) = world.said().failures
    assert (failure.number, failure.code, failure.message) == (0, "output", "x is float32")


def test_a_layer_of_no_job_goes_with_all_that_is_held_of_it() -> None:
    world = World(cpus=1)
    run = finished_one(world)
    world.said()
    orders = world.hear(gone=[A])
    assert of(Delete, orders) == [Delete(run.part)]
    assert world.core.state.unfinished == 0


@pytest.mark.parametrize("answer", [Settled([(0, 1)]), Refused("committed", [(0, 1)]), Refused("gone"),
                                    Refused("outputs"), Refused("kernels")])  # fmt: skip
def test_an_answer_from_before_a_new_grant_does_not_take_what_that_counts_upon(answer: Settled | Refused) -> None:
    """The layer was merged, or given up, and is open again: what was finished here for the first is the second's."""
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 1)]))
    assert of(Push, world.ended(run))
    world.said()
    world.hear(info(job="j.2"), grants=[grant(0, 1, attempt=2)])
    orders = world.tell(PushAnswered(answer, RangeSet([(0, 1)]), 10, 0.1))
    assert not of(Delete, orders)
    assert of(Push, orders), "it is offered again, and now the answer is of this opening"
    assert of(Delete, world.tell(PushAnswered(Settled([(0, 1)]), RangeSet([(0, 1)]), 10, 0.1))) == [Delete(run.part)]


def test_a_layer_that_was_gone_and_is_granted_anew_runs_on() -> None:
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 1)]))
    world.ended(run)
    world.said()
    assert of(Run, world.hear(info(job="j.2"), gone=[A], grants=[grant(0, 1, attempt=2)]))
    world.tell(PushAnswered(Refused("gone"), RangeSet([(0, 1)]), 10, 0.1))
    assert world.core.state.unfinished == 1


def test_once_a_heartbeat_it_counts_out_what_is_here() -> None:
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(), info(B), grants=[grant(0, 2), grant(0, 7, layer=B)]))
    world.after(5.1)
    assert world.said().counts == {A: 2, B: 7}
    world.ended(run)
    assert world.said().counts is None
    world.after(5.1)
    assert world.said().counts == {A: 2, B: 7}, "what is finished and not settled is here as much"


def test_a_hello_names_the_latest_grant_of_what_was_finished_by_an_earlier_one() -> None:
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 1)]))
    world.ended(run)
    world.said()
    world.hear(grants=[grant(0, 1, attempt=2)])
    world.tell(LinkDown("cut"), LinkUp("farm"))
    *_, say = of(Say, [*world.orders, *world.after(1.1)])
    (held,) = say.message.held
    assert (held.attempt, held.finished) == (2, [(0, 1)])


# --- courtesy ---


def test_a_pause_stops_what_runs_hands_back_the_rest_and_says_so() -> None:
    world = World(cpus=2)
    runs = of(Run, world.hear(info(timeout=10.0), grants=[grant(0, 6)]))
    orders = world.tell(Lent(0, "paused"))
    assert {order.slot for order in of(Freeze, orders)} == {0, 1}
    sync = world.said()
    assert sync.returned == [Returned(A, 1, 1, [(2, 6)])]
    assert (sync.hungry, sync.lent, sync.note) == (False, 0, "paused")
    for run in runs:
        seen(world, run)
    world.now += 1000.0
    assert not of(Kill, [*seen(world, runs[0]), *seen(world, runs[1])]), "no time goes by for what is stopped"
    orders = world.tell(Lent(2))
    assert {order.slot for order in of(Thaw, orders)} == {0, 1}
    assert not of(Kill, [*seen(world, runs[0]), *seen(world, runs[1])])
    world.now += 10.5
    assert of(Kill, seen(world, runs[0]))


def test_what_comes_while_it_is_paused_is_handed_back() -> None:
    world = World(cpus=1)
    world.tell(Lent(0, "paused"))
    assert not of(Run, world.hear(info(), grants=[grant(0, 3)]))
    assert world.said().returned == [Returned(A, 1, 1, [(0, 3)])]


def test_with_fewer_processors_the_youngest_stop_until_there_is_room() -> None:
    world = World(cpus=3)
    runs = of(Run, world.hear(info(), grants=[grant(0, 9)]))
    for i, run in enumerate(runs):
        world.now += i
        seen(world, run)
    assert [order.slot for order in of(Freeze, world.tell(Lent(1)))] == [2, 1]
    orders = world.ended(runs[0], seconds=30.0)
    assert [order.slot for order in of(Thaw, orders)] == [1] and not of(Run, orders), "what was stopped goes on first"
    assert world.said().lent == 1
    assert [order.slot for order in of(Thaw, world.tell(Lent(3)))] == [2]


def test_more_processors_than_it_joined_with_make_more_slots() -> None:
    world = World(cpus=1)
    world.hear(info(), grants=[grant(0, 9)])
    assert {run.slot for run in of(Run, world.tell(Lent(3), SlotUp(1), SlotUp(2)))} == {1, 2}
    assert world.said().lent == 3


def test_a_slot_that_ends_while_it_is_stopped_is_free_again() -> None:
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 2)]))
    world.tell(Lent(0, "paused"))
    assert of(Thaw, world.ended(run)) == [Thaw(0)], "a built-in kind: nothing could be stopped"
    assert not of(Run, world.hear(grants=[grant(1, 2, attempt=2)]))
    world.said()
    assert of(Run, [*world.tell(Lent(1)), *world.hear(grants=[grant(1, 2, attempt=3)])])


def test_who_leaves_while_paused_finishes_what_runs() -> None:
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 1)]))
    world.tell(Lent(0, "paused"))
    assert of(Thaw, world.tell(DrainAsked("SIGTERM"))) == [Thaw(0)]
    assert not of(Freeze, world.tell(Lent(0, "paused")))
    assert of(Push, world.ended(run))


# --- leaving ---


def test_a_drain_hands_back_finishes_pushes_and_leaves() -> None:
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 5)]))
    world.tell(DrainAsked("SIGTERM"))
    sync = world.said()
    assert sync.returned == [Returned(A, 1, 1, [(1, 5)])]
    assert (sync.hungry, sync.room) == (False, 0)
    (push,) = of(Push, world.ended(run))
    assert push.pieces[0][1] == RangeSet([(0, 1)])
    world.said()
    world.hear()
    (say,) = of(Say, world.tell(PushAnswered(Settled([(0, 1)]), RangeSet([(0, 1)]), 100, 0.1)))
    assert isinstance(say.message, Leave)
    assert of(Quit, world.tell(Heard(Bye("left")))) == [Quit(None)]


def test_a_drain_asked_for_by_the_coordinator_is_the_same() -> None:
    world = World()
    world.said()
    world.now += 1
    (say,) = of(Say, world.hear(drain=True))
    assert isinstance(say.message, Leave)


def test_an_idle_agent_does_not_wait_for_an_answer_that_is_held() -> None:
    world = World()
    world.after(0.1)
    assert of(Redial, world.tell(DrainAsked("SIGINT"))) == [Redial(0.0)]


def test_what_outstays_a_drain_is_released_as_lost() -> None:
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(timeout=30.0), grants=[grant(0, 1)]))
    world.tell(DrainAsked("SIGTERM"))
    seen(world, run)
    assert of(Kill, world.after(31.0)) == [Kill(0, "drain")]
    world.died(run, running=0, ours=True)
    (loss,) = world.said().losses
    assert (loss.numbers, loss.running, loss.reason) == ([(0, 1)], False, "drain")


def test_a_drain_without_a_link_ends_with_an_error_and_the_parts_kept() -> None:
    world = World(cpus=1)
    run = finished_one(world)
    world.tell(LinkDown("no route"), DrainAsked("SIGTERM"))
    (behind,) = world.core.state.slots.flights
    world.tell(BatchEnded(behind.ticket, Outcome((1,), 1, 100, 0, 0.1, 1, ())))
    assert not of(Quit, world.after(59.0))
    (quit_,) = of(Quit, world.after(2.0))
    assert isinstance(quit_.error, LinkError)
    assert "2 finished shards" in quit_.error.message
    assert "no route" in quit_.error.message
    assert Delete(run.part) not in world.orders


def test_an_agent_that_never_had_a_link_leaves_at_once() -> None:
    core = AgentCore(who())
    assert of(Quit, core.handle(DrainAsked("SIGINT"), 1.0)) == [Quit(None)]


def test_nothing_is_ordered_after_the_end() -> None:
    world = World()
    world.tell(Heard(Rejected("fenced", "another")))
    assert world.hear(info(), grants=[grant(0, 5)]) == []


def test_failures_are_what_the_wire_takes() -> None:
    """A worker's negative times or sizes must not make a message that the other end refuses."""
    world = World(cpus=1)
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 1)]))
    world.ended(run, numbers=(), mishaps=(Mishap(0, "exit", "m", "e", -1.0, -1),))
    (failure,) = world.said().failures
    assert failure == Failure("j.1", A, 0, 1, 1, "exit", "m", "e", 0.0, 0)


def test_shards_of_a_damaged_part_are_lost_and_not_to_blame() -> None:
    world = World(cpus=1)
    run = finished_one(world)
    (push,) = of(Push, world.after(11.0))
    (recheck,) = of(Recheck, world.tell(PushAnswered(Refused("corrupt"), RangeSet([(0, 1)]), 0, 0.0)))
    assert recheck.names == (push.pieces[0][0],)
    world.said()
    world.tell(PartDamaged(run.part))
    (loss,) = world.said().losses
    assert (loss.numbers, loss.running) == ([(0, 1)], False)
    assert world.core.state.to_push == 0


def test_a_worker_that_is_overtaken_in_a_round_is_not_killed_for_it() -> None:
    """Its first shard has all to load: killed for being late, it would have to again."""
    rounds = LayerInfo("j.1", Layer("a", A, MadeSource("whole"), 0, 1, 0, 0, 100, None), info().work)
    for layer, kills in ((rounds, 0), (info(), 1)):
        world = World()
        world.tell(Heard(News([layer], [grant(0, 1)])))
        world.tell(Heard(News(drops=[Drop(A, 1, 1, [(0, 1)])])))
        assert len(of(Kill, world.orders)) == kills


# --- a pool whose workers come on demand ---


def on_demand(cpus: int = 4) -> World:
    """Of a cluster that has no slot up."""
    world = World(cpus=cpus)
    world.tell(PoolLost("it begins"), PoolOpened())
    return world


def test_work_is_taken_and_workers_are_asked_for_while_no_slot_is_up() -> None:
    world = on_demand()
    assert world.core.snapshot().ready and world.core.snapshot().demand == {}
    assert not of(Run, world.hear(info(), grants=[grant(0, 3)]))
    assert world.core.snapshot().demand == {Needs(1): 3}
    world.after(30.0)
    assert "the cluster has no room yet: asked for 3 workers with 1 cpu" in world.said().note
    assert [run.slot for run in of(Run, world.tell(SlotUp(2, "node", Needs(1))))] == [2]


def test_what_a_job_waits_for_is_said_while_another_one_runs() -> None:
    world = on_demand()
    world.tell(SlotUp(0, "node", Needs(1)))
    (run,) = of(Run, world.hear(info(), info(B, gpus=1), grants=[grant(0, 1), grant(0, 2, B)]))
    world.after(30.0)
    note = "the cluster has no room yet: asked for 2 workers with 1 cpu and 1 gpu"
    assert run.info.layer.digest == A and world.said().note == note
    world.tell(SlotUp(1, "other", Needs(1, 1)))
    world.after(30.0)
    assert world.said().note == "", "one of that sort is there"


def test_what_runs_on_a_cluster_goes_on_at_a_pause_and_nothing_follows_it() -> None:
    world = on_demand(cpus=1)
    world.tell(SlotUp(0, "node", Needs(1)))
    (run,) = of(Run, world.hear(info(), grants=[grant(0, 9)]))
    paused = world.tell(Lent(0, "paused"))
    assert not of(Freeze, paused) and of(Tell, paused)[0].line == "paused: what runs ends, the rest handed back"
    assert not of(Run, world.ended(run))
    assert not world.core.snapshot().busy


def test_no_more_workers_are_asked_for_than_processors_are_lent() -> None:
    world = on_demand(cpus=4)
    world.hear(info(), grants=[grant(0, 100)])
    assert sum(world.core.snapshot().demand.values()) == 4
    world.tell(Lent(0))
    assert world.core.snapshot().demand == {}


def test_a_batch_goes_to_a_worker_alone_that_was_given_what_it_needs() -> None:
    world = on_demand()
    world.tell(SlotUp(0, "node", Needs(2)))
    assert not of(Run, world.hear(info(), grants=[grant(0, 1)]))
    assert of(Run, world.tell(SlotUp(1, "node", Needs(1))))


def test_nodes_are_told_with_their_slots_as_these_come_and_go() -> None:
    world = on_demand()
    world.tell(SlotUp(0, "left", Needs(1)), SlotUp(1, "left", Needs(1)), SlotUp(2, "right", Needs(1)))
    world.after(6.0)
    assert world.said().places == {"left": 2, "right": 1}
    world.tell(SlotGone(2, "its node went"))
    world.after(6.0)
    assert world.said().places == {"left": 2}


def test_a_node_that_is_refused_is_told_here_and_there() -> None:
    world = on_demand()
    [line] = of(Tell, world.tell(PlaceRefused("left", "its Python 3.11 has no numpy")))
    assert line.line == "nothing is run on node left: its Python 3.11 has no numpy"
    world.after(30.0)
    assert world.said().note == line.line
