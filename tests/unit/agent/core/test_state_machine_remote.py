"""The core's decisions on inputs that have to be pulled, one at a time."""

from __future__ import annotations

from typing import Any

import msgspec

from muster.agent.core.actions import (
    Action,
    Copy,
    Discard,
    DropSheet,
    FollowRounds,
    KeepSheet,
    Pull,
    PullCode,
    Push,
    Run,
    StopFollowing,
)
from muster.agent.core.events import (
    BatchEnded,
    DrainAsked,
    Heard,
    LinkDown,
    NotPulled,
    Pulled,
    PullUp,
    PushAnswered,
    SheetCame,
    SpaceSeen,
    Ticked,
    Unfollowed,
    Why,
)
from muster.agent.core.inputs import name_of
from muster.agent.core.state_machine import AgentCore, Left, room
from muster.coordinator.protocol.control import Drop, Grant, LayerInfo, News, Returned, Welcome
from muster.coordinator.protocol.transfer import Settled
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import ArraySource, Layer, MadeSource, ModelFile, Stamp, Work
from muster.jobs.workbench.batch import Mishap, Outcome
from tests.unit.agent.core.test_state_machine import A, B, World, grant, numbers, of, who

IN, OUT = 1000, 100
MIB = 1 << 20
CODE = "c" * 32
MODEL = "d" * 32


def info(layer: str = A, code: str | None = None, in_bytes: int = IN, out: int = OUT, path: str = "/x") -> LayerInfo:
    source = ArraySource(path, 128, "|u1", (100, in_bytes), Stamp(1, 2, 3, 4))
    work = Work("cluster", 1, {}, code, None, None, 1, None, None)
    return LayerInfo("j.1", Layer(layer[:1], layer, source, 100, 1, 100, in_bytes, out, None), work)


def remote(disk: int = 1 << 30, cpus: int = 1, **left: Any) -> World:
    """A desk that does not read in place, with a willing pull channel."""
    world = World(AgentCore(msgspec.structs.replace(who(cpus=cpus, disk=disk), in_place=False), Left(**left)))
    world.tell(PullUp())
    return world


def came(world: World, pull: Pull) -> list[Action]:
    return world.tell(Pulled(pull.name, b"d" * 16, pull.nbytes, 0.5))


def failed(world: World, pull: Pull, code: Why) -> list[Action]:
    return world.tell(NotPulled(pull.name, code, "no"))


def pulls(orders: list[Action]) -> list[int]:
    return [pull.number for pull in of(Pull, orders)]


def test_nothing_runs_before_its_input_is_there_and_the_next_is_pulled_meanwhile() -> None:
    world = remote()
    orders = world.hear(info(in_bytes=20 * MIB), grants=[grant(0, 3)])
    assert pulls(orders) == [0]
    assert not of(Run, orders)
    first = came(world, of(Pull, orders)[0])
    (run,) = of(Run, first)
    assert numbers([run]) == [0]
    assert run.inputs[0] == Copy(of(Pull, orders)[0].name, 20 * MIB, b"d" * 16)
    assert pulls(first) == [1], "while the first is computed"


def test_small_inputs_are_asked_for_several_at_once() -> None:
    assert pulls(remote().hear(info(), grants=[grant(0, 50)])) == list(range(8))


def test_code_is_pulled_once_and_waited_for() -> None:
    world = remote()
    orders = world.hear(info(code=CODE), info(B, code=CODE, path="/y"), grants=[grant(0, 1), grant(0, 1, B)])
    assert of(PullCode, orders) == [PullCode(7, CODE)]
    for pull in of(Pull, orders):
        assert not of(Run, came(world, pull))
    assert of(Run, world.tell(Pulled(CODE, b"", 10, 0.0)))


def test_code_that_is_there_is_not_pulled() -> None:
    world = remote(codes=[CODE])
    assert not of(PullCode, world.hear(info(code=CODE), grants=[grant(0, 1)]))


def with_model(layer: str = A, nbytes: int = 5000, **more: Any) -> LayerInfo:
    info_ = info(layer, **more)
    return replace_work(info_, ModelFile("net.npz", MODEL, nbytes))


def replace_work(info_: LayerInfo, model: ModelFile) -> LayerInfo:
    return msgspec.structs.replace(info_, work=msgspec.structs.replace(info_.work, model=model))


def test_a_model_is_pulled_once_before_any_input_and_waited_for() -> None:
    world = remote()
    orders = world.hear(with_model(), with_model(B, path="/y"), grants=[grant(0, 1), grant(0, 1, B)])
    first, *inputs = of(Pull, orders)
    assert first == Pull(7, MODEL, A, 0, 5000, True) and not any(pull.model for pull in inputs)
    for pull in inputs:
        assert not of(Run, came(world, pull))
    assert of(Run, world.tell(Pulled(MODEL, bytes.fromhex(MODEL), 5000, 1.0)))
    world.core.state.check()


def test_a_model_an_earlier_process_pulled_is_used_and_stays_while_it_is_wanted() -> None:
    world = remote(disk=5000 + 2 * (IN + OUT), inputs=[Copy(MODEL, 5000, bytes.fromhex(MODEL))])
    orders = world.hear(with_model(), grants=[grant(0, 4)])
    to_come, ran = of(Pull, orders), 0
    while to_come:
        pull = to_come.pop(0)
        assert not pull.model
        orders = came(world, pull)
        for run in of(Run, orders):
            ran += 1
            orders += world.ended(run, numbers=(), mishaps=(Mishap(run.items[0][0], "exit", "no", "", 0.1, 0),))
        to_come += of(Pull, orders)
        assert all(order.name != MODEL for order in of(Discard, orders))
    assert ran == 4


def test_a_model_larger_than_the_budget_is_handed_back() -> None:
    world = remote(disk=4000)
    orders = world.hear(with_model(), grants=[grant(0, 1)])
    assert not of(Pull, orders) and world.core.state.too_large


def test_a_model_that_is_spoilt_is_pulled_again_once() -> None:
    world = remote(inputs=[Copy(MODEL, 5000, bytes.fromhex(MODEL))])
    orders = world.hear(with_model(), grants=[grant(0, 1)])
    (pull,) = of(Pull, orders)
    (run,) = of(Run, came(world, pull))
    lost = Mishap(0, "model", "not what was submitted", "", 0.0, 0)
    orders = world.tell(BatchEnded(run.ticket, Outcome((), 0, 0, 0, 0.0, 0, (lost,))))
    assert of(Discard, orders) == [Discard(MODEL, bytes.fromhex(MODEL))]
    assert of(Pull, orders) == [Pull(7, MODEL, A, 0, 5000, True)]
    assert of(Run, world.tell(Pulled(MODEL, bytes.fromhex(MODEL), 5000, 1.0)))


def test_code_that_is_spoilt_is_pulled_again_once() -> None:
    world = remote(codes=[CODE])
    (pull,) = of(Pull, world.hear(info(code=CODE), grants=[grant(0, 1)]))
    (run,) = of(Run, came(world, pull))
    lost = Mishap(0, "code", "the pack does not match its digest", "", 0.0, 0)
    orders = world.tell(BatchEnded(run.ticket, Outcome((), 0, 0, 0, 0.0, 0, (lost,))))
    assert of(PullCode, orders) == [PullCode(7, CODE)] and not of(Run, orders)
    (run,) = of(Run, world.tell(Pulled(CODE, b"", 99, 1.0)))
    assert not world.said().losses
    world.tell(BatchEnded(run.ticket, Outcome((), 0, 0, 0, 0.0, 0, (lost,))))
    assert [loss.numbers for loss in world.said().losses] == [[(0, 1)]]


def test_the_same_source_for_another_layer_is_not_pulled_again() -> None:
    world = remote()
    (pull,) = of(Pull, world.hear(info(), grants=[grant(0, 1)]))
    (run,) = of(Run, came(world, pull))
    world.ended(run)
    orders = world.hear(info(B), grants=[grant(0, 1, B)])
    assert not of(Pull, orders)
    assert numbers(of(Run, orders)) == [0]


def test_what_an_earlier_process_pulled_is_used_unless_it_is_too_short() -> None:
    window = info().layer.window
    found = [Copy(name_of("farm", window(0)), IN, b"e" * 16), Copy(name_of("farm", window(1)), IN - 1, b"f" * 16)]
    world = remote(inputs=found)
    orders = world.hear(info(), grants=[grant(0, 2)])
    assert numbers(of(Run, orders)) == [0]
    assert of(Discard, orders) == [Discard(found[1].name, b"f" * 16)]
    assert pulls(orders) == [1]


def test_the_cache_gives_way_to_what_is_needed_the_longest_unused_first() -> None:
    world = remote(disk=3 * (IN + OUT))
    names = []
    for number in range(3):
        (pull,) = of(Pull, world.hear(info(), grants=[grant(number, number + 1, attempt=number + 1)]))
        names.append(pull.name)
        orders = came(world, pull)
        orders += world.ended(of(Run, orders)[0])
        (push,) = of(Push, orders)
        world.tell(PushAnswered(Settled([(number, number + 1)]), RangeSet.of([number]), 100, 0.1))
    assert push
    orders = world.hear(info(), grants=[grant(50, 51, attempt=9)])
    assert [order.name for order in of(Discard, orders)] == names[:1]
    assert pulls(orders) == [50]
    assert isinstance(orders[0], Discard), "room first"


def test_with_the_disk_short_the_cache_goes_though_the_budget_has_room() -> None:
    world = remote()
    (pull,) = of(Pull, world.hear(info(), grants=[grant(0, 1)]))
    (run,) = of(Run, came(world, pull))
    assert not of(Discard, world.tell(SpaceSeen(0))), "it is being read"
    world.ended(run)
    assert of(Discard, world.tell(SpaceSeen(0))) == [Discard(pull.name, b"d" * 16)]


def test_room_counts_inputs_of_what_is_held_and_not_those_that_may_go() -> None:
    world = remote(disk=10_000)
    world.core.state.inputs.whole["x"] = Copy("x", 5000, b"")
    world.core.state.inputs.nbytes = 5000
    world.hear(info(), grants=[grant(0, 3)])
    assert world.said().room == 10_000 - 3 * (IN + OUT)


def test_a_shard_above_the_whole_budget_is_handed_back_with_both_numbers() -> None:
    world = remote(disk=1050)
    assert not of(Pull, world.hear(info(), grants=[grant(0, 3)]))
    sync = world.said()
    assert sync.returned == [Returned(A, 1, 1, [(0, 3)])]
    assert sync.note == "a shard needs 1.1 KiB of disk, the budget is 1.0 KiB", sync.note


def test_outputs_larger_than_was_said_do_not_lock_it_up() -> None:
    """Three inputs fill the budget; then it shows that an output takes as much again: the others wait."""
    world = remote(disk=3 * IN)
    orders = world.hear(info(out=0), grants=[grant(0, 3)])
    assert pulls(orders) == [0, 1, 2]
    (run,) = of(Run, came(world, of(Pull, orders)[0]))
    came(world, of(Pull, orders)[1])
    came(world, of(Pull, orders)[2])
    ended = world.tell(BatchEnded(run.ticket, Outcome((0,), 1, IN, IN, 0.1, 1, ())))
    (push,) = of(Push, ended)
    settled = world.tell(PushAnswered(Settled([(0, 1)]), RangeSet.of([0]), IN, 0.1))
    assert push and numbers(of(Run, ended + settled)) == [1]


def test_a_drop_before_a_pull_has_begun_spares_it() -> None:
    world = remote()
    (pull,) = of(Pull, world.hear(info(in_bytes=20 * MIB), grants=[grant(0, 3)]))
    world.after(1.0)
    world.hear(drops=[Drop(A, 1, 1, [(0, 2)])])
    orders = came(world, pull)
    assert not of(Run, orders), "its own was under way and is kept"
    assert pulls(orders) == [2]


def test_a_changed_source_is_told_and_all_of_it_goes_back() -> None:
    world = remote()
    pull, *_ = of(Pull, world.hear(info(), grants=[grant(0, 5)]))
    failed(world, pull, "changed")
    sync = world.said()
    assert sync.changed == [A]
    assert sync.returned == [Returned(A, 1, 1, [(0, 5)])]


def test_a_shard_that_is_no_longer_ours_goes_back_quietly() -> None:
    world = remote()
    pull, *_ = of(Pull, world.hear(info(), grants=[grant(0, 5)]))
    failed(world, pull, "gone")
    sync = world.said()
    assert (sync.changed, sync.failures, sync.losses) == ([], [], [])
    assert sync.returned == [Returned(A, 1, 1, [(0, 1)])]


def test_a_full_disk_rests_and_tries_again_with_an_empty_cache() -> None:
    world = remote(inputs=[Copy("x", 50, b"e" * 16)])
    (pull,) = of(Pull, world.hear(info(), grants=[grant(0, 1)]))
    orders = failed(world, pull, "full")
    assert of(Discard, orders) == [Discard("x", b"e" * 16)]
    assert not of(Pull, orders)
    assert room(world.core.state, world.now) == 0
    assert pulls(world.after(2.5)) == [0]


def test_a_pull_that_was_cut_is_gone_on_with_and_takes_its_room_meanwhile() -> None:
    world = remote()
    (pull,) = of(Pull, world.hear(info(), grants=[grant(0, 1)]))
    assert not of(Pull, failed(world, pull, "cut"))
    assert world.core.state.inputs.nbytes == IN
    assert pulls(world.tell(PullUp())) == [0]
    assert world.core.state.inputs.nbytes == IN


def test_a_session_the_pull_channel_does_not_know_leads_to_a_hello() -> None:
    world = remote()
    (pull,) = of(Pull, world.hear(info(), grants=[grant(0, 1)]))
    world.hear()
    assert not of(Pull, failed(world, pull, "no-session"))
    world.after(2.0)
    world.hear()
    world.after(2.0)
    assert pulls(world.tell(Heard(Welcome("farm", 1, 8, 60.0, 5.0)))) == [0]


def test_without_a_link_what_is_pulled_is_run() -> None:
    world = remote()
    orders = world.hear(info(), grants=[grant(0, 2)])
    for pull in of(Pull, orders):
        orders += came(world, pull)
    (run,) = of(Run, orders)
    world.tell(LinkDown("cut"))
    assert numbers(of(Run, world.ended(run))) == [1]


def test_a_spoilt_copy_is_pulled_again_and_the_second_time_lost() -> None:
    world = remote()
    (pull,) = of(Pull, world.hear(info(), grants=[grant(0, 1)]))
    (run,) = of(Run, came(world, pull))
    spoilt = (Mishap(0, "input", "not what was pulled", "", 0.1, 5),)
    orders = world.ended(run, numbers=(), mishaps=spoilt)
    assert of(Discard, orders) == [Discard(pull.name, b"d" * 16)]
    assert pulls(orders) == [0]
    (run,) = of(Run, came(world, pull))
    assert not world.said().losses
    world.ended(run, numbers=(), mishaps=spoilt)
    assert [loss.numbers for loss in world.said().losses] == [[(0, 1)]]


def test_a_drain_pulls_nothing_more() -> None:
    world = remote()
    (pull,) = of(Pull, world.hear(info(in_bytes=20 * MIB), grants=[grant(0, 3)]))
    assert not of(Pull, world.tell(DrainAsked("asked")))
    assert not of(Pull, came(world, pull))
    assert world.said().returned == [Returned(A, 1, 1, [(0, 3)])]


def test_what_was_pulled_is_told() -> None:
    world = remote()
    (pull,) = of(Pull, world.hear(info(), grants=[grant(0, 1)]))
    (run,) = of(Run, came(world, pull))
    world.ended(run)
    sync = world.said()
    assert sync.finished[0].pull == 0.5


def made_here(world: World, number: int, made: list[tuple[str, int]], sheet: str = "") -> list[Action]:
    """A shard of a search runs here and makes these; what follows from its end."""
    layer = Layer("made", A, MadeSource("each"), 0, 1, 0, 0, OUT, None)
    work = Work("tune", 1, {}, None, None, None, 1, None, None)
    given = Grant(
        "j.1", A, 1, number + 1, [(number, number + 1)], {number: b""}, {sheet: [(number, number + 1)]} if sheet else {}
    )
    run = of(Run, world.tell(Heard(News([LayerInfo("j.1", layer, work)], [given]))))[0]
    return world.tell(BatchEnded(run.ticket, Outcome((number,), 1, 100, 0, 1.0, 0, (), sheets=tuple(made))))


def test_what_a_shard_made_here_need_not_come_and_is_counted_once() -> None:
    world = remote(cpus=1)
    said = made_here(world, 0, [("1" * 32, 500)])
    assert of(KeepSheet, said) == [KeepSheet(A, "1" * 32)]
    made_here(world, 1, [("2" * 32, 700)], sheet="1" * 32)
    made_here(world, 2, [], sheet="1" * 32)
    made_here(world, 3, [], sheet="2" * 32)
    assert not of(FollowRounds, world.orders)
    assert world.core.state.account.job("j.1").spared == 1200
    assert of(StopFollowing, world.tell(Heard(News(gone=[A])))) == [StopFollowing(A)] and not world.core.state.made


def test_what_was_made_here_goes_when_it_is_too_much_but_for_what_waits() -> None:
    world = remote(cpus=1, disk=4000)
    assert of(Run, world.orders) == []
    for number, sheet in enumerate("1234"):
        made_here(world, number, [(sheet * 32, 400)])
    assert [one.sheet for one in of(DropSheet, world.orders)] == ["1" * 32, "2" * 32]
    assert list(world.core.state.made[A]) == ["3" * 32, "4" * 32]
    assert 0 < of(Run, world.orders)[-1].keeps <= 1000


def test_what_was_made_here_goes_when_nothing_of_its_layer_came_for_long() -> None:
    world = remote(cpus=1)
    made_here(world, 0, [("1" * 32, 500)])
    world.after(800)
    made_here(world, 1, [], sheet="1" * 32)
    assert not of(DropSheet, world.after(800))
    assert of(DropSheet, world.after(200)) == [DropSheet(A, "1" * 32)] and not world.core.state.made


def test_sheets_that_are_gone_with_their_layer_are_not_counted_upon() -> None:
    world = remote(cpus=1)
    made_here(world, 0, [("1" * 32, 500)])
    world.tell(Unfollowed(A, "cut"))
    assert list(world.core.state.made[A]) == ["1" * 32]
    world.tell(Unfollowed(A, "nobody knows it", gone=True))
    assert A not in world.core.state.made and not world.core.state.holdings[A].here


def test_rounds_are_followed_while_their_shards_wait_for_a_sheet() -> None:
    world = remote(cpus=3)
    layer = Layer("made", A, MadeSource("whole"), 0, 1, 0, 0, OUT, None)
    work = Work("train", 1, {}, None, None, None, 1, None, None)
    sheets = {"1" * 32: [(0, 2)], "2" * 32: [(2, 3)]}
    given = Grant("j.1", A, 1, 1, [(0, 3)], dict.fromkeys(range(3), b""), sheets)
    said = world.tell(Heard(News([LayerInfo("j.1", layer, work)], [given])))
    follow = of(FollowRounds, said)[0]
    assert follow.info.layer.digest == A and not of(Run, said)
    run = of(Run, world.tell(SheetCame(A, "1" * 32, 10)))[0]
    assert {number for number, *_ in run.items} <= {0, 1} and set(run.sheets.values()) == {"1" * 32}
    world.tell(Unfollowed(A, "cut"))
    assert not of(FollowRounds, world.tell(Ticked()))
    world.now += 2
    assert of(FollowRounds, world.tell(Ticked()))
    world.tell(SheetCame(A, "2" * 32, 10))
    assert sorted(number for one in of(Run, world.orders) for number, *_ in one.items) == [0, 1, 2]
    assert of(StopFollowing, world.tell(Heard(News(gone=[A]))))
