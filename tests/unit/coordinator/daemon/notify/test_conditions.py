"""What a job's user is woken for, and how often."""

from __future__ import annotations

from muster.coordinator.daemon.notify.conditions import Condition, Conditions
from tests.support.sched import World


def test_a_standstill_is_told_once_and_again_after_it_went_on() -> None:
    alarms, state = Conditions(stalled=60.0), World().state
    assert alarms.look(state, {"j.1": 5}, 0.0) == [] == alarms.look(state, {"j.1": 5}, 59.0)
    [one] = alarms.look(state, {"j.1": 5}, 120.0)
    assert (one.job, one.event, one.why) == ("j.1", "stalled", "nothing of it was finished for 2 minutes")
    assert alarms.look(state, {"j.1": 5}, 500.0) == []
    assert alarms.look(state, {"j.1": 6}, 501.0) == [] == alarms.look(state, {"j.1": 6}, 560.0)
    assert len(alarms.look(state, {"j.1": 6}, 561.0)) == 1


def test_a_paused_jobs_time_does_not_count() -> None:
    alarms, state = Conditions(stalled=60.0), World().state
    alarms.look(state, {"j.1": 5}, 0.0)
    alarms.look(state, {}, 10.0)
    assert alarms.look(state, {"j.1": 5}, 100.0) == []


def test_a_machine_that_stays_away_is_told_of_to_each_job() -> None:
    world = World(lease=6.0)
    world.enter("a", "b")
    alarms = Conditions(gone=60.0)
    world.tick(20)
    assert alarms.look(world.state, {"j.1": 1}, 0.0) == []
    world.join("b")
    told = alarms.look(world.state, {"j.1": 2, "j.2": 1}, 61.0)
    assert told == [Condition(job, "agent-gone", "a was not heard of for 1 minutes", "a") for job in ("j.1", "j.2")]
    assert alarms.look(world.state, {"j.1": 3, "j.2": 2}, 100.0) == []


def test_one_that_left_in_good_order_is_not_missed() -> None:
    world = World(expected=frozenset({"z"}))
    alarms = Conditions(gone=60.0)
    alarms.look(world.state, {"j.1": 1}, 0.0)
    assert [one.agent for one in alarms.look(world.state, {"j.1": 2}, 61.0)] == ["z"], "it was here before a restart"
