"""Failed is not lost; a bug is not a poison shard, nor a bad machine a bad job."""

from __future__ import annotations

from typing import Any

from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import events as e
from tests.support.sched import World, every, only, seed


def started(*names: str, count: int = 100, **job: Any) -> World:
    """Everybody's first shard succeeded."""
    world = World()
    world.add(seed(count=count), **job)
    world.enter(*names)
    for name in names:
        world.finish(name)
    return world


def test_a_shard_is_quarantined_at_its_last_attempt() -> None:
    world = started("a", count=2, attempts=3)
    for expected in (False, False, True):
        stored = only(c.StoreFailure, world.fail("a"))
        assert stored.quarantine is expected
    assert len(world.layer().quarantined) == 1


def test_a_shard_whose_own_data_is_at_fault_is_given_up_at_once() -> None:
    world = started("a", "b", count=4, attempts=3)
    assert only(c.StoreFailure, world.fail("a", code="data")).quarantine
    assert len(world.layer().quarantined) == 1


def test_data_at_fault_blames_no_machine_and_halts_no_job_before_it_is_too_much() -> None:
    world = started("a", "b", max_failures=5)
    for _ in range(4):
        said = world.fail("a", code="data")
        assert not every(c.ForgetFailures, said)
    assert not world.state.agents["a"].ineligible and world.state.jobs["j.1"].state == "running"
    world.fail("a", code="data")
    assert world.state.jobs["j.1"].state == "halted"
    alone = World()
    alone.add()
    alone.enter("a")
    for _ in range(4):
        alone.fail("a", code="data")
    assert alone.state.jobs["j.1"].state == "running"


def test_with_a_shard_quarantined_the_job_ends_incomplete_and_says_why() -> None:
    world = started("a", count=2, attempts=1)
    world.commit("a", world.grants["a"][0])
    world.fail("a")
    job = world.state.jobs["j.1"]
    assert (job.state, job.why) == ("incomplete", "1 shard given up")


def test_an_attempt_counts_what_failed_and_what_was_lost_at_work_before_it() -> None:
    world = started("a", count=2, attempts=3)
    left = world.last("a").numbers
    assert world.layer().attempts(left) == [], "nothing was tried before"
    world.fail("a")
    assert world.layer().attempts(left) == [2]
    world.lose("a")
    assert world.layer().attempts(left) == [3]
    world.commit("a", world.last("a"))
    assert world.layer().attempts(left) == []


def test_losses_use_up_no_attempt() -> None:
    world = started("a", count=2, attempts=1)
    said = world.lose("a", running=False)
    assert not every(c.StoreFailure, said)
    assert only(c.SendGrant, said).numbers == world.grants["a"][-2].numbers


def test_a_failure_counts_once_however_often_it_is_told() -> None:
    world = started("a", count=2, attempts=3)
    grant = world.last("a")
    assert every(c.StoreFailure, world.fail("a", grant))
    assert not every(c.StoreFailure, world.fail("a", grant))


def test_a_late_failure_does_not_touch_the_newer_attempt() -> None:
    world = started("a", "b", count=6)
    grant = world.last("a")
    world.lose("a", running=False, hungry=False)
    world.finish("b")
    newer = world.last("b")
    assert newer.numbers & grant.numbers
    assert not world.fail("a", grant, hungry=False)
    assert world.state.agents["b"].holdings["L", 1, newer.attempt].open == newer.numbers


def test_max_failures_halts_the_job_and_takes_back_what_is_unfinished() -> None:
    world = started("a", "b", attempts=1, max_failures=2)
    world.fail("a")
    said = world.fail("a")
    assert world.state.jobs["j.1"].state == "halted"
    assert "2 shards given up" in only(c.StoreJob, said).why
    assert {drop.session for drop in every(c.SendDrop, said)} == set(world.sessions.values())
    assert not any(world.open_of(name) for name in "ab")


def test_different_shards_failing_on_two_machines_with_no_success_halt_the_job() -> None:
    world = World()
    world.add()
    world.enter("a", "b", "c")
    world.fail("a")
    assert world.state.jobs["j.1"].state == "running"
    world.fail("b")
    assert world.state.jobs["j.1"].state == "halted"


def test_one_shard_failing_on_two_machines_halts_nothing() -> None:
    world = World()
    world.add(seed(count=1))
    world.enter("a", "b")
    world.fail("a")
    assert world.last("b").numbers == world.last("a").numbers
    world.fail("b")
    assert world.state.jobs["j.1"].state == "running"


def test_three_shards_failing_on_a_lone_machine_halt_the_job() -> None:
    world = World()
    world.add()
    world.enter("a")
    for state in ("running", "running", "halted"):
        world.fail("a")
        assert world.state.jobs["j.1"].state == state


def test_after_three_failures_a_machine_waits_for_what_another_one_finds() -> None:
    world = World()
    world.add()
    world.enter("a", "b")
    for _ in range(3):
        said = world.fail("a")
    assert not every(c.SendGrant, said), "it would burn through all shards while b runs its first"
    world.tick(1)
    world.finish("b")
    assert world.open_of("a") == 2


def test_a_success_ends_the_halting() -> None:
    world = started("a", "b")
    for name in "abab":
        world.fail(name)
    assert world.state.jobs["j.1"].state == "running"


def test_three_shards_in_a_row_bar_a_machine_and_count_as_losses() -> None:
    world = started("a", "b", attempts=1)
    for _ in range(2):
        world.fail("a")
    assert len(world.layer().quarantined) == 2
    said = world.fail("a")
    forgotten = only(c.ForgetFailures, said)
    assert (forgotten.agent, len(forgotten.shards)) == ("a", 3)
    assert not world.layer().quarantined
    assert world.open_of("a") == 0
    assert "in a row" in str(world.state.obstacle(world.state.agents["a"], world.state.jobs["j.1"]))


def test_a_success_between_them_breaks_the_row() -> None:
    world = started("a", "b", attempts=1)
    for _ in range(2):
        world.fail("a")
        world.fail("a")
        world.finish("a")
    assert not world.state.agents["a"].ineligible


def test_the_only_machine_is_never_barred() -> None:
    world = started("a", attempts=1)
    for _ in range(5):
        world.fail("a")
    assert not world.state.agents["a"].ineligible
    assert len(world.layer().quarantined) == 5


def test_a_retry_lets_a_barred_machine_in_again() -> None:
    world = started("a", "b")
    for _ in range(3):
        world.fail("a")
    world.handle(e.Retried("j.1"))
    world.sync("a")
    assert world.open_of("a") == 2


def lost_often(*names: str, times: int) -> World:
    world = started(*names, count=len(names) + 1)
    for _ in range(times):
        name = next(name for name in names if world.open_of(name))
        world.lose(name)
        for other in names:
            world.sync(other)
    return world


def test_five_losses_on_a_lone_machine_quarantine() -> None:
    assert not lost_often("a", times=4).layer().quarantined
    world = lost_often("a", times=5)
    assert "lost 5 times while running" in every(c.StoreQuarantine, world.said)[-1].why


def test_five_losses_quarantine_only_on_three_machines_where_there_are_three() -> None:
    world = started("a", count=2)
    for _ in range(4):
        world.lose("a")
    world.enter("b", "c")
    world.lose("a", hungry=False)
    assert not world.layer().quarantined
    for name in "bc":
        world.sync(name)
        world.lose(name, hungry=False)
    assert len(world.layer().quarantined) == 1


def test_a_machine_that_takes_no_work_is_not_waited_for_before_a_shard_is_given_up() -> None:
    """Its pool may never come up, while the shard kills the others for as long as they come back."""
    world = started("a", count=2)
    world.join("b")
    world.sync("b", hungry=False)
    for _ in range(5):
        world.lose("a")
    assert len(world.layer().quarantined) == 1


def test_losses_of_what_was_not_running_never_quarantine() -> None:
    world = started("a", count=2)
    for _ in range(9):
        world.lose("a", running=False)
    assert not world.layer().quarantined


def test_a_lease_that_ends_is_held_against_nobody() -> None:
    world = started("a", count=2)
    for _ in range(9):
        world.tick(62)
        world.enter("a")
    assert not world.layer().quarantined


def test_a_finished_part_that_turns_out_damaged_runs_again() -> None:
    world = started("a", count=1)
    (grant,) = world.grants["a"]
    said = world.lose("a", running=False, grant=grant)
    assert only(c.SendGrant, said).numbers == grant.numbers


def test_finished_work_whose_outputs_are_refused_has_failed() -> None:
    world = started("a", count=1)
    (grant,) = world.grants["a"]
    assert only(c.StoreFailure, world.fail("a", grant)).quarantine is False
    assert world.open_of("a") == 1
