"""Rounds: granted whole by pace, retired, and forgotten with the life of the daemon that made them."""

from __future__ import annotations

import dataclasses
import itertools

import msgspec

from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import events as e
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import MadeSource
from tests.support.sched import World, every, only, ranges, seed

FIRST = 1 << 32


def world_of(*names: str, each: bool = False, **more: int) -> World:
    """Machines that did a first round each. `each`: the parts of a round come one by one."""
    world = World()
    rounds = seed(count=0, made=True, rounds=True, first=FIRST)
    if each:
        plan = msgspec.structs.replace(rounds.plan, source=MadeSource("each"))
        rounds = dataclasses.replace(rounds, plan=plan)
    world.add(rounds)
    world.enter(*names, **more)
    make(world, len(names))
    for name in names:
        world.finish(name)
        world.commit(name, world.last(name))
        world.sync(name)
    assert not world.layer().left
    return world


def make(
    world: World, count: int, retire: RangeSet | None = None, aside: bool = False, near: str = ""
) -> list[c.Action]:
    top = world.layer().count
    create = tuple((top + i, b"") for i in range(count))
    return world.handle(e.Advanced("j.1", 0, create, False, retire or RangeSet(), aside, near))


def play(world: World, count: int, aside: bool = False, **machines: tuple[float, float]) -> dict[str, int]:
    """A round as machines of these paces take it, whose bytes are under way for so long; how many each had of it."""
    began, before = world.now, len(world.said)
    make(world, count, aside=aside)
    grants = every(c.SendGrant, world.said[before:])
    names = {session: name for name, session in world.sessions.items()}
    had = {names[grant.session]: grant for grant in grants}
    shares = {name: len(had[name].numbers) if name in had else 0 for name in machines}
    computed = {name: pace * shares[name] for name, (pace, _) in machines.items()}
    for name in sorted(had, key=lambda name: computed[name] + machines[name][1]):
        world.now = began + computed[name] + machines[name][1]
        world.sync(name, finished=(world.finished(had[name], compute=computed[name]),))
        world.commit(name, had[name])
    return shares


def test_a_round_is_granted_whole_at_once_and_no_mark_is_stored() -> None:
    world = world_of("a", "b", cpus=2)
    said = make(world, 12)
    assert sorted(len(grant.numbers) for grant in every(c.SendGrant, said)) == [6, 6]
    assert not every(c.RaiseHighWater, world.said)


def test_a_cluster_takes_no_job_in_rounds_and_it_is_said_why() -> None:
    world = world_of("a")
    world.enter("cluster", no_rounds=True)
    make(world, 12)
    assert "cluster" not in world.grants
    said = str(world.state.obstacle(world.state.agents["cluster"], world.state.jobs["j.1"]))
    assert said == "is a Ray cluster, where calls would take a tenth of each round: join its machines"


def test_shares_follow_what_a_shard_takes_to_compute() -> None:
    world = world_of("a", "b")
    for _ in range(12):
        play(world, 12, a=(0.01, 0.0), b=(0.03, 0.0))
    assert play(world, 12, a=(0.01, 0.0), b=(0.03, 0.0)) == {"a": 9, "b": 3}


def test_shares_follow_what_a_round_takes_over_the_link() -> None:
    world = world_of("a", "b")
    for _ in range(8):
        play(world, 12, a=(0.1, 0.0), b=(0.1, 0.6))
    assert play(world, 12, a=(0.1, 0.0), b=(0.1, 0.6)) == {"a": 9, "b": 3}


def test_who_would_hold_up_a_round_by_its_link_alone_is_left_out_and_tried_again_ever_later() -> None:
    world = world_of("a", "b")
    had = [play(world, 12, a=(0.01, 0.01), b=(0.01, 1.4))["b"] for _ in range(2000)]
    tried = [number for number, share in enumerate(had) if share]
    assert len(tried) < 12 and tried[:2] == [0, 1]
    apart = [after - before for before, after in itertools.pairwise(tried[1:])]
    assert apart[:6] == sorted(apart[:6]) and apart[0] > 15 and apart[-1] > 400
    assert world.state.agents["b"].is_left_out("j.1")
    world.sync("b")
    told = str(world.state.agents["b"].idle_because)
    assert told == "j.1: left out of the rounds: one takes it 1.4 s beside computing, and the others 130 ms in all"


def test_who_was_left_out_has_its_part_again_once_its_link_is_better() -> None:
    world = world_of("a", "b")
    for _ in range(40):
        play(world, 12, a=(0.01, 0.01), b=(0.01, 1.4))
    assert world.state.agents["b"].is_left_out("j.1")
    for _ in range(1000):
        play(world, 12, a=(0.01, 0.01), b=(0.01, 0.01))
    assert play(world, 12, a=(0.01, 0.01), b=(0.01, 0.01)) == {"a": 6, "b": 6}


def test_where_shards_come_one_by_one_a_long_one_is_not_taken_for_a_thin_link() -> None:
    world = world_of("a", "b", each=True)
    for _ in range(6):
        assert play(world, 12, a=(0.01, 0.01), b=(0.01, 1.4))["b"]


def test_one_slow_round_leaves_nobody_out() -> None:
    world = world_of("a", "b")
    for slow in (0.0, 0.0, 3.0, 0.0, 0.0):
        assert play(world, 12, a=(0.01, 0.01), b=(0.01, slow))["b"]


def test_who_was_left_out_does_all_where_there_is_nobody_else() -> None:
    world = world_of("a", "b")
    for _ in range(40):
        play(world, 12, a=(0.01, 0.01), b=(0.01, 1.4))
    make(world, 12)
    assert not world.open_of("b")
    world.handle(e.Departed(world.sessions["a"]))
    world.tick()
    assert world.open_of("b") == 12
    world.finish("b")
    world.commit("b", world.last("b"))
    assert play(world, 12, b=(0.01, 1.4)) == {"b": 12}


def test_a_shard_that_failed_does_not_wait_for_a_machine_that_is_left_out() -> None:
    world = world_of("a", "b")
    for _ in range(40):
        play(world, 12, a=(0.01, 0.01), b=(0.01, 1.4))
    make(world, 1)
    world.fail("a")
    world.tick()
    world.sync("a")
    assert world.open_of("a") == 1 and not world.open_of("b")


def test_who_is_left_out_takes_nothing_that_others_are_about_to_take() -> None:
    world = world_of("a", "b")
    for _ in range(40):
        play(world, 12, a=(0.01, 0.01), b=(0.01, 1.4))
    world.sync("a", hungry=False)
    make(world, 12)
    assert not world.open_of("b")
    world.sync("a")
    assert world.open_of("a") == 12


def test_what_is_made_beside_the_rounds_does_not_count_for_shares() -> None:
    world = world_of("a", "b")
    for _ in range(6):
        play(world, 2, a=(1.0, 0.0), b=(1.0, 0.0))
        for _ in range(3):
            play(world, 1, aside=True, a=(0.01, 0.0), b=(0.01, 5.0))
    assert play(world, 2, a=(1.0, 0.0), b=(1.0, 0.0)) == {"a": 1, "b": 1}


def test_retired_shards_are_taken_back_and_refused_like_committed_ones() -> None:
    world = world_of("a", "b")
    make(world, 4)
    numbers = RangeSet([(FIRST + 2, FIRST + 6)])
    world.finish("a")
    mine = world.last("a")
    said = make(world, 0, numbers)
    assert only(c.SendCommitted, said).numbers == mine.numbers
    assert only(c.SendDrop, said).numbers == world.last("b").numbers
    (verdict,) = world.handle(e.Offered(world.sessions["a"], "L", mine.numbers))
    assert isinstance(verdict, c.RefuseOffer) and verdict.code == "committed"
    assert not make(world, 0, numbers)


def test_what_an_agent_has_of_another_life_is_settled_at_its_hello() -> None:
    old = world_of("a")
    make(old, 3)
    held = old.held(old.last("a"), finished=True)
    world = World(boot=2)
    world.add(seed(count=0, made=True, rounds=True, first=2 * FIRST))
    said = world.join("a", held=(held,))
    assert only(c.SendCommitted, said).numbers.pairs() == held.finished


def test_an_idle_machine_takes_over_all_that_a_round_waits_for() -> None:
    world = world_of("a", "b", cpus=2)
    make(world, 8)
    theirs = world.last("b").numbers
    world.finish("a", seconds=0.1)
    world.commit("a", world.last("a"))
    world.sync("a")
    said = world.tick(3)
    assert only(c.SendGrant, said).numbers == theirs


def test_whoever_lost_its_round_to_another_machine_is_given_what_waits_for_it_alone() -> None:
    world = world_of("a", "b")
    for name in ("a", "b"):
        world.sync(name, hungry=False)
    world.add(seed("M", count=0, made=True, rounds=True, first=FIRST), job="j.2", succeeded=True, machine="b")
    world.handle(e.Advanced("j.2", 0, ((FIRST, b""),), False))
    make(world, 4)
    world.sync("b")
    assert world.last("b").layer == "L" and len(world.last("b").numbers) == 4
    world.handle(e.HungUp(world.sessions["b"]))
    world.now += 1.0
    world.sync("a")
    world.commit("a", world.last("a"))
    assert not world.state.agents["b"].holdings
    assert only(c.SendGrant, world.tick()).job == "j.2"


def test_the_next_round_is_granted_before_anyone_asks_for_it() -> None:
    world = world_of("a", "b")
    make(world, 2)
    for name in "ab":
        world.commit(name, world.last(name))  # the bundles are faster than the reports
    assert len(every(c.SendGrant, make(world, 2))) == 2


def test_a_machine_that_others_were_sooner_than_is_given_less_once_it_is_heard_of() -> None:
    world = world_of("a", "b")
    for _ in range(2):
        play(world, 8, a=(0.25, 0.0), b=(0.25, 0.0))
    make(world, 8)
    assert [len(world.last(name).numbers) for name in "ab"] == [4, 4]
    world.now += 3.0
    for name in "ab":
        world.commit("a", world.last(name))  # its own, and what it took over
    assert len(only(c.SendGrant, make(world, 8)).numbers) == 8
    world.now += 1.0
    world.sync("b")
    world.finish("a", seconds=1.0)
    world.commit("a", world.last("a"))
    world.sync("a")
    make(world, 8)
    assert len(world.last("b").numbers) < len(world.last("a").numbers) < 8


def test_paces_that_nobody_measures_any_more_come_together() -> None:
    world = world_of("a", "b")
    paces = [world.state.agents[name].paces for name in "ab"]
    paces[0]["j.1"], paces[1]["j.1"] = 1.0, 3.0
    make(world, 0)
    assert 1.0 < paces[0]["j.1"] < paces[1]["j.1"] < 3.0


def test_a_round_takes_room_for_what_is_to_come_of_it_alone() -> None:
    world = world_of("a")
    make(world, 4)
    assert world.layer().reserved == 4 * world.layer().out_bytes > 0


def test_a_cancelled_job_leaves_nothing_of_its_round() -> None:
    world = world_of("a")
    make(world, 4)
    world.handle(e.Cancelled("j.1"))
    assert not world.layer().left and not world.state.jobs["j.1"].left


def test_rounds_that_are_over_are_merged_by_themselves() -> None:
    world = world_of("a")
    make(world, 2)
    said = world.handle(e.Advanced("j.1", 7, (), True, RangeSet(ranges(range(FIRST, FIRST + 3)))))
    assert only(c.StoreJob, said).state == "complete"
    assert not every(c.StartMerge, said) and world.layer().state == "merged"


def test_what_is_made_has_no_source_that_could_change() -> None:
    world = world_of("a")
    make(world, 2)
    world.sync("a")
    assert not every(c.LookAtSource, world.sync("a", changed=("L",)))
    world.handle(e.SourceChanged("j.1", "L"))
    assert world.layer().state == "open"


def test_a_shard_given_up_halts_the_job_unless_its_driver_goes_on_without_it() -> None:
    for goes_on, state in ((False, "halted"), (True, "running")):
        world = world_of("a")
        world.handle(e.DriverOpened("j.1", goes_on))
        make(world, 2)
        lost = world.last("a").numbers.bottom
        for _ in range(5):
            world.lose("a", grant=world.last("a"))
            world.sync("a")
        assert world.state.jobs["j.1"].state == state and lost in world.layer().quarantined
        make(world, 0, RangeSet([(lost, lost + 2)]))
        assert not world.layer().quarantined and world.state.jobs["j.1"].state == state


def test_failures_that_a_driver_judges_halt_nothing_and_bar_no_machine() -> None:
    """As each shard of such a job does something else."""
    for proven, state in ((False, "halted"), (True, "running")):
        world = World()
        rounds = seed(count=0, made=True, rounds=True, first=FIRST)
        job = world.add(rounds, attempts=1, proven=proven)
        world.handle(e.DriverOpened("j.1", True))
        world.enter("a", "b")
        for _ in range(5):
            make(world, 2)
            for name in "ab":
                if world.open_of(name):
                    world.fail(name)
        assert job.state == state
        assert not (proven and any(agent.ineligible for agent in world.state.agents.values()))


def test_what_a_machine_has_made_goes_there_first_and_elsewhere_where_it_has_enough() -> None:
    for near in "abc":
        world = world_of("a", "b", "c")
        for _ in range(2):
            assert world.state.agents[near].session == only(c.SendGrant, make(world, 1, near=near)).session
        assert world.state.agents[near].session != only(c.SendGrant, make(world, 1, near=near)).session
    world = world_of("a", "b")
    world.handle(e.Departed(world.sessions["b"]))
    assert only(c.SendGrant, make(world, 1, near="b")).session == world.state.agents["a"].session
    world.sync("a", hungry=False)
    assert not every(c.SendGrant, make(world, 1, near="a")) and world.layer().pending == 1
