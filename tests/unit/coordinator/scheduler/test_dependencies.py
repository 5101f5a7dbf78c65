"""Jobs that start after others: when they start, what halts them, and what a restart or a retry makes of that."""

from __future__ import annotations

from typing import Any

import pytest

from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import dependencies
from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.entities import Job
from muster.jobs.contract.states import JobState
from tests.support.sched import World, every, seed


def add(world: World, job: str, *after: str, state: JobState | None = None, **more: Any) -> Job:
    """A job of one shard; by default it waits, where it is to start after others."""
    known = state or ("waiting" if after else "running")
    return world.add(seed(f"L{job}", 1), job=job, after=after, state=known, **more)


def complete(world: World, job: str) -> None:
    """All of it is finished, committed and merged."""
    layer = world.state.jobs[job].layers[0]
    world.finish("one", granted(world, job))
    world.handle(e.BundleCommitted(job, layer.digest, layer.generation, "one", layer.whole, 1))
    world.handle(e.LayerMerged(job, layer.digest, layer.generation))


def granted(world: World, job: str) -> c.SendGrant:
    """The job's one shard, to a machine that asks for work."""
    world.sync("one")
    return next(grant for grant in world.grants["one"] if grant.job == job)


def test_it_starts_once_all_that_it_names_are_complete_and_not_before() -> None:
    world = World()
    for name in ("a.1", "b.1"):
        add(world, name)
    third = add(world, "c.1", "a.1", "b.1")
    world.enter("one")
    complete(world, "a.1")
    assert third.state == "waiting" and dependencies.waits_for(world.state, third) == ["b.1"]
    complete(world, "b.1")
    assert third.state == "running"
    complete(world, "c.1")
    assert third.state == "complete"


def test_nothing_of_it_is_granted_or_opened_while_it_waits() -> None:
    world = World()
    add(world, "a.1")
    add(world, "b.1", "a.1")
    world.enter("one", "two")
    world.tick(3)
    assert {grant.job for grant in every(c.SendGrant, world.said)} == {"a.1"}
    assert [one.job for one in every(c.StoreLayer, world.said)] == ["a.1"]


def test_one_after_jobs_that_are_complete_starts_at_once() -> None:
    world = World()
    add(world, "a.1")
    world.enter("one")
    complete(world, "a.1")
    assert add(world, "b.1", "a.1").state == "running"


@pytest.mark.parametrize("how", ["cancelled", "deleted", "halted", "incomplete", "damaged"])
def test_it_is_halted_where_one_before_it_will_not_be_complete_and_so_are_those_after_it(how: str) -> None:
    world = World()
    first = add(world, "a.1", attempts=1)
    second, third = add(world, "b.1", "a.1"), add(world, "c.1", "b.1")
    world.enter("one")
    if how in {"cancelled", "deleted"}:
        world.handle(e.Cancelled("a.1"))
    elif how == "halted":
        world.handle(e.DriverFailed("a.1", "it gets nowhere"))
    elif how == "damaged":
        world.handle(e.JobDamaged("a.1", (first.layers[0].digest,)))
    else:
        world.fail("one")
        assert first.state == "incomplete"
    if how == "deleted":
        assert second.state == "halted"
        world.handle(e.Removed("a.1"))
        world.handle(e.Retried("b.1"))
    assert (second.state, second.why) == ("halted", f"it was to start after a.1, which is {how}")
    assert (third.state, third.why) == ("halted", "it was to start after b.1, which is halted")


def test_after_a_restart_it_waits_on_and_one_that_is_not_read_back_yet_is_not_taken_for_deleted() -> None:
    world = World(boot=2)
    world.scheduler.state.last_tick = None  # as before the daemon's first
    second = add(world, "b.1", "a.1")
    assert second.state == "waiting"
    add(world, "a.1")
    world.tick()
    assert second.state == "waiting"
    world.enter("one")
    complete(world, "a.1")
    assert second.state == "running"


def test_one_whose_predecessor_went_while_nobody_served_is_halted_with_the_first_tick() -> None:
    world = World(boot=2)
    world.scheduler.state.last_tick = None
    second = add(world, "b.1", "a.1")
    world.tick()
    assert (second.state, second.why) == ("halted", "it was to start after a.1, which is deleted")


def test_once_it_runs_it_hangs_on_nothing_that_becomes_of_those_before_it() -> None:
    world = World()
    add(world, "a.1")
    second = add(world, "b.1", "a.1")
    world.enter("one")
    complete(world, "a.1")
    granted(world, "b.1")
    world.handle(e.Cancelled("b.1"))
    world.handle(e.Removed("a.1"))
    world.handle(e.Retried("b.1"))
    assert second.state == "running"


def test_a_retry_of_one_that_never_began_waits_again() -> None:
    world = World()
    add(world, "a.1")
    second = add(world, "b.1", "a.1")
    world.handle(e.Cancelled("a.1"))
    assert second.state == "halted"
    world.handle(e.Retried("a.1"))
    world.handle(e.Retried("b.1"))
    assert second.state == "waiting" and not second.why
    world.enter("one")
    complete(world, "a.1")
    complete(world, "b.1")


def test_a_retry_of_one_with_rounds_that_never_began_waits_again_too() -> None:
    """The numbers of its shards begin far above 0, and it has begun all the same with none of them."""
    world = World()
    add(world, "a.1")
    layer = seed("R", 1 << 32, made=True, rounds=True, first=1 << 32)
    training = world.add(layer, job="b.1", after=("a.1",), state="waiting", driver="train")
    world.handle(e.Cancelled("b.1"))
    world.handle(e.Retried("b.1"))
    assert training.state == "waiting"


def test_a_layer_that_is_merged_already_ends_no_job_that_waits() -> None:
    world = World()
    add(world, "a.1")
    reused = world.add(seed("M", 1, state="merged"), job="b.1", after=("a.1",), state="waiting")
    world.enter("one")
    assert reused.state == "waiting"
    complete(world, "a.1")
    assert reused.state == "complete"


def test_a_cancelled_one_waits_for_nothing() -> None:
    world = World()
    add(world, "a.1")
    second = add(world, "b.1", "a.1")
    world.handle(e.Cancelled("b.1"))
    world.enter("one")
    complete(world, "a.1")
    assert second.state == "cancelled"
