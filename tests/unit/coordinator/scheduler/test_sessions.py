"""Hellos, leases, fencing, drains, and what is left after a restart of the daemon."""

from __future__ import annotations

from typing import Any

from muster.coordinator.protocol.control import Held, Loss
from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.entities import Obstacle
from muster.jobs.common.ranges import RangeSet
from tests.support.sched import World, every, only, seed


def busy(*names: str, count: int = 100) -> World:
    world = World()
    world.add(seed(count=count))
    world.enter(*names)
    for name in names:
        world.finish(name)
    return world


# --- leases ---------------------------------------------------------------------------------------------


def test_a_dead_machines_shards_are_pending_again_within_lease_and_tick() -> None:
    world = busy("a")
    assert world.open_of("a")
    world.tick(60)
    assert world.open_of("a")
    world.tick(1)
    assert world.state.agents["a"].state == "gone"
    assert not world.layer().holdings


def test_a_machine_that_somebody_gives_up_is_gone_at_once_and_counts_if_it_comes_back() -> None:
    world = busy("a", "b")
    running, sessions = world.last("a"), dict(world.sessions)
    said = world.handle(e.AgentDropped("a"))
    assert (only(c.Reject, said).session, only(c.Reject, said).code) == (sessions["a"], "no-session")
    assert only(c.StoreAgent, said) == c.StoreAgent("a", False)
    assert world.state.agents["a"].state == "gone" and not running.numbers - world.layer().again
    world.join("a", held=[world.held(running, finished=True)])
    [holding] = world.state.agents["a"].holdings.values()
    assert holding.finished == running.numbers and not world.layer().again & running.numbers


def test_whoever_is_not_here_cannot_be_given_up() -> None:
    world = busy("a")
    world.handle(e.Departed(world.sessions["a"]))
    assert not world.handle(e.AgentDropped("a")) and world.state.agents["a"].state == "left"
    assert not world.handle(e.AgentDropped("nobody"))


def test_after_a_restart_nothing_waits_for_a_machine_that_somebody_gives_up() -> None:
    world = World(boot=2, expected=frozenset({"a"}))
    world.add(seed(count=4, state="open", high_water=4), succeeded=True)
    assert len(world.layer().limbo) == 4
    assert only(c.StoreAgent, world.handle(e.AgentDropped("a"))) == c.StoreAgent("a", False)
    assert not world.layer().limbo and world.layer().pending == 4


def test_bytes_on_any_channel_keep_a_session_alive() -> None:
    world = busy("a")
    for _ in range(200):
        world.tick(1)
        world.handle(e.Moved(world.sessions["a"]))
    assert world.state.agents["a"].state == "live"


def test_what_a_dead_agent_finished_goes_behind_all_untouched_shards() -> None:
    world = busy("a", count=10)
    finished = world.grants["a"][0].numbers
    world.tick(61)
    world.enter("b")
    while world.layer().fresh:
        assert finished.bottom in world.layer().again
        world.finish("b")


def test_work_finished_on_an_agent_is_not_done_again_while_its_lease_holds() -> None:
    world = busy("a", count=3)
    world.finish("a", hungry=False)
    world.enter("b")
    assert "b" not in world.grants


def test_a_late_tick_extends_all_leases_by_the_delay() -> None:
    world = busy("a")
    world.now += 3600
    world.handle(e.Ticked())
    assert world.state.agents["a"].state == "live"
    world.tick(58)
    assert world.state.agents["a"].state == "live"
    world.tick(3)
    assert world.state.agents["a"].state == "gone"


def test_whoever_was_heard_after_the_delay_is_forgiven_no_more_than_that() -> None:
    world = busy("a")
    world.now += 3600
    world.sync("a")
    world.handle(e.Ticked())
    world.tick(61)
    assert world.state.agents["a"].state == "gone"


def test_on_return_finished_parts_count_and_unfinished_ones_are_dropped() -> None:
    world = busy("a", count=3)
    first, second = world.grants["a"]
    world.tick(61)
    said = world.join("a", held=(world.held(first, finished=True), world.held(second)))
    assert only(c.SendDrop, said).numbers == second.numbers
    assert world.state.agents["a"].holdings["L", 1, first.attempt].finished == first.numbers
    assert world.layer().again == second.numbers


def test_on_return_what_others_committed_is_said_to_be() -> None:
    world = busy("a", count=3)
    (first, _) = world.grants["a"]
    world.commit("a", first)
    said = world.join("a", held=(world.held(first, finished=True),))
    assert only(c.SendCommitted, said).numbers == first.numbers


def test_a_grant_whose_answer_was_lost_is_pending_again() -> None:
    world = busy("a", count=3)
    first, second = world.grants["a"]
    world.join("a", held=(world.held(first, finished=True),))
    assert world.layer().again == second.numbers


def test_a_hello_of_a_layer_nobody_knows_is_told_that_it_is_gone() -> None:
    world = busy("a")
    grant = c.SendGrant(0, "x.1", "X", 7, RangeSet([(0, 3)]))
    assert only(c.SendGone, world.join("a", held=(world.held(grant, finished=True),))).layer == "X"


def overtaken(world: World) -> c.SendGrant:
    """A layer is merged before its agent says that it finished it, and opens again for the next job, which is paused;
    the grant by which it ran."""
    world.add(seed(count=1), job="first.1")
    world.enter("a")
    grant = world.last("a")
    world.commit("a", grant)
    world.add(seed(count=1), job="second.1", state="paused")
    world.handle(e.LayerMerged("first.1", "L", 0))
    world.handle(e.Resumed("second.1"))
    assert world.state.open_layers["L"].job == "second.1"
    return grant


def test_a_report_on_an_earlier_opening_of_a_layer_changes_nothing() -> None:
    world = World()
    grant = overtaken(world)
    world.finish("a", grant)
    (holding,) = world.state.agents["a"].holdings.values()
    assert holding.open == grant.numbers and not holding.finished, "its part is deleted: the shard has to run again"
    assert world.state.jobs["second.1"].used == 0.0


def test_a_hello_on_an_earlier_opening_of_a_layer_changes_nothing() -> None:
    """It was said before its agent heard that the shard was committed."""
    world = World()
    grant = overtaken(world)
    world.join("a", held=(world.held(grant, finished=True),))
    assert not world.state.agents["a"].holdings
    world.sync("a")
    assert world.last("a").numbers == grant.numbers and world.last("a").attempt > grant.attempt


def test_what_ran_for_an_earlier_opening_of_a_layer_is_dropped() -> None:
    world = World()
    grant = overtaken(world)
    said = world.join("a", held=(world.held(grant),))
    assert only(c.SendDrop, said).numbers == grant.numbers


def test_a_report_from_before_a_restart_that_no_hello_names_changes_nothing() -> None:
    """Its part was deleted before the restart, as its shard was committed then, for a job that has ended."""
    world = restarted(frozenset({"a"}))
    world.join("a")
    report = world.finished(old([(3, 4)]))
    world.sync("a", hungry=False, finished=(type(report)(**{**_fields(report), "boot": 1}),))
    assert not world.state.agents["a"].holdings


def test_a_report_from_before_a_hello_changes_nothing_where_that_said_that_the_shard_is_lost() -> None:
    world = busy("a", count=3)
    grant = world.last("a")
    lost = Loss(grant.job, grant.layer, 1, grant.attempt, grant.numbers.pairs(), False, "its part is damaged")
    world.join("a", losses=(lost,))
    world.finish("a", grant, hungry=False)
    assert not world.state.agents["a"].holdings


def test_a_report_on_shards_whose_commit_was_undone_changes_nothing() -> None:
    world = busy("a", count=1)
    (grant,) = world.grants["a"]
    world.commit("a", grant)
    world.handle(e.Uncommitted("L", 0, grant.numbers))
    world.join("a")
    world.finish("a", grant)
    assert world.last("a").attempt > grant.attempt


def test_what_an_agent_says_of_a_layer_before_it_hears_that_it_is_gone_is_void() -> None:
    world = busy("a", count=3)
    grant = world.last("a")
    world.handle(e.Retried("j.1", ("L",)))  # the layer is gone, and open again
    world.finish("a", grant, hungry=False)
    assert not world.state.agents["a"].holdings, "it forgets those parts on hearing the answer"


# --- what we think it has, and what it has --------------------------------------------------------------


def counted(world: World, seconds: float, counts: dict[str, int] | None, **more: Any) -> list[c.Action]:
    """It counts out what it has, once a heartbeat for so long, and asks for nothing."""
    said: list[c.Action] = []
    until = world.now + seconds
    while world.now < until:
        world.tick(5)
        said += world.sync("a", hungry=False, counts=counts, **more)
    return said


def test_an_agent_that_has_less_than_we_think_for_three_heartbeats_says_hello_again() -> None:
    world = busy("a", count=3)
    world.sync("a")  # by which it has heard of all that it was granted
    assert not every(c.Reject, counted(world, 15.0, {"L": 1}))
    said = counted(world, 5.0, {"L": 1})
    note = only(c.NoteMissing, said)
    assert (note.agent, note.layer, note.believed, note.said) == ("a", "L", 3, 1)
    assert only(c.Reject, said).code == "no-session" and not every(c.SendGrant, said)
    first, second = world.grants["a"]
    world.join("a", held=(world.held(first, finished=True),))
    assert world.layer().again == second.numbers


def test_an_agent_that_has_as_much_or_more_or_does_not_count_is_believed() -> None:
    for counts in ({"L": 3}, {"L": 4, "M": 9}, None):
        world = busy("a", count=3)
        assert not every(c.Reject, counted(world, 60.0, counts))


def test_what_is_missing_for_a_moment_is_forgiven() -> None:
    world = busy("a", count=3)
    for _ in range(5):
        assert not every(c.Reject, counted(world, 10.0, {"L": 1}) + counted(world, 5.0, {"L": 3}))


def test_what_it_was_granted_since_it_last_heard_of_us_is_not_missing() -> None:
    world = busy("a", count=1000)
    had = sum(len(grant.numbers) for grant in world.grants["a"])
    for _ in range(5):
        world.now += 5.0
        assert not every(c.Reject, world.finish("a", counts={"L": had}))
        had = sum(len(grant.numbers) for grant in world.grants["a"])


# --- identity -------------------------------------------------------------------------------------------


def test_the_newest_process_fences_the_old_one() -> None:
    world = busy("a")
    old = world.sessions["a"]
    refused = only(c.Reject, world.join("a", process="a-2"))
    assert (refused.session, refused.code) == (old, "fenced")
    assert only(c.Reject, world.join("a", process="a-1")).code == "fenced"
    assert world.state.agents["a"].hello.process == "a-2"


def test_a_process_that_was_replaced_while_it_was_gone_is_fenced_too() -> None:
    world = busy("a")
    world.tick(61)
    world.join("a", process="a-2")
    assert only(c.Reject, world.join("a", process="a-1")).code == "fenced"


def test_a_reconnection_of_the_same_process_is_welcome() -> None:
    world = busy("a")
    assert not every(c.Reject, world.join("a"))


def test_a_name_at_work_from_another_spool_is_refused() -> None:
    world = busy("a")
    assert only(c.Reject, world.join("a", spool="other")).code == "name-taken"


def test_a_name_that_is_free_may_go_to_another_machine_which_starts_afresh() -> None:
    world = busy("a")
    world.state.agents["a"].ineligible["j.1"] = Obstacle("barred", "it was bad")
    world.tick(61)
    assert not every(c.Reject, world.join("a", spool="other", process="b-1"))
    assert not world.state.agents["a"].ineligible


def test_a_session_that_ended_is_told_to_say_hello() -> None:
    world = busy("a")
    world.tick(61)
    assert only(c.Reject, world.sync("a")).code == "no-session"


# --- draining -------------------------------------------------------------------------------------------


def test_a_draining_agent_is_told_and_granted_nothing_more() -> None:
    world = busy("a")
    assert only(c.SendDrain, world.handle(e.DrainAsked("a")))
    world.finish("a")
    assert world.open_of("a") == 0


def test_a_drain_keeps_what_is_finished_and_what_runs() -> None:
    world = busy("a", count=3)
    world.enter("b")
    world.handle(e.DrainAsked("a"))
    world.sync("b")
    assert not any(grant.numbers & RangeSet([(0, 3)]) for grant in world.grants.get("b", []))
    assert len(world.state.agents["a"].holdings) == 2


def test_what_a_draining_agent_hands_back_goes_to_others() -> None:
    world = busy("a", count=3)
    world.enter("b")
    world.handle(e.DrainAsked("a"))
    world.give_back("a", world.last("a"), hungry=False)
    assert world.last("b").numbers == world.last("a").numbers


def test_a_drain_survives_a_reconnection_but_not_a_new_process() -> None:
    world = busy("a")
    world.handle(e.DrainAsked("a"))
    assert only(c.SendDrain, world.join("a"))
    assert not every(c.SendDrain, world.join("a", process="a-2"))
    assert world.state.agents["a"].state == "live"


def test_an_agent_that_left_is_not_expected_back() -> None:
    world = busy("a")
    assert only(c.StoreAgent, world.handle(e.Departed(world.sessions["a"]))) == c.StoreAgent("a", False)
    assert not world.layer().holdings


# --- restarts -------------------------------------------------------------------------------------------


def restarted(expected: frozenset[str], committed: RangeSet | None = None, **layer: Any) -> World:
    """A second boot: ten of a hundred shards may have been granted in the first."""
    world = World(boot=2, expected=expected)
    known = seed(state="open", high_water=10, committed=committed or RangeSet(), **layer)
    world.add(known, succeeded=True)
    return world


def old(numbers: list[tuple[int, int]], attempt: int = 1) -> c.SendGrant:
    return c.SendGrant(0, "j.1", "L", attempt, RangeSet(numbers))


def test_after_a_restart_granting_resumes_at_once_above_the_mark() -> None:
    world = restarted(frozenset({"a"}))
    world.enter("b")
    assert world.last("b").numbers.bottom == 10


def test_below_the_mark_shards_wait_for_their_agent_or_a_lease() -> None:
    world = restarted(frozenset({"a"}))
    world.tick(59)
    assert world.layer().limbo == RangeSet([(0, 10)])
    world.tick(2)
    assert world.layer().again == RangeSet([(0, 10)])


def test_they_are_released_as_soon_as_all_expected_agents_are_back() -> None:
    world = restarted(frozenset({"a", "b"}))
    world.join("a", held=(world.held(old([(0, 4)]), boot=1),))
    assert world.layer().limbo == RangeSet([(4, 10)])
    world.join("b")
    assert world.layer().again == RangeSet([(4, 10)])


def test_with_nobody_expected_nothing_waits() -> None:
    world = restarted(frozenset())
    world.tick(1)
    assert world.layer().again == RangeSet([(0, 10)])


def test_what_runs_and_what_is_finished_is_adopted_with_its_old_attempt() -> None:
    world = restarted(frozenset({"a"}))
    running, finished = old([(0, 4)], attempt=1), old([(4, 6)], attempt=2)
    said = world.join("a", held=(world.held(running, boot=1), world.held(finished, finished=True, boot=1)))
    holdings = world.state.agents["a"].holdings
    assert not every(c.SendDrop, said)
    assert holdings["L", 1, 1].open == running.numbers
    assert holdings["L", 1, 2].finished == finished.numbers


def test_of_two_that_claim_the_same_running_shards_one_is_told_to_drop_them() -> None:
    world = restarted(frozenset({"a", "b"}))
    world.join("a", held=(world.held(old([(0, 4)], attempt=1), boot=1),))
    said = world.join("b", held=(world.held(old([(0, 4)], attempt=2), boot=1),))
    assert only(c.SendDrop, said).numbers == RangeSet([(0, 4)])


def test_a_failure_stored_before_a_restart_is_not_counted_again() -> None:
    world = restarted(frozenset({"a", "b"}), failures={3: frozenset({("a", 1, 1)})})
    known, new = world.failure(old([(3, 4)], attempt=1)), world.failure(old([(4, 5)], attempt=1))
    told = [type(one)(**{**_fields(one), "boot": 1}) for one in (known, new)]
    said = world.join("a", failures=tuple(told))
    assert only(c.StoreFailure, said).failure.number == 4


def _fields(one: object) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__struct_fields__}  # type: ignore[attr-defined]


def test_a_failure_from_before_a_restart_leaves_its_shard_to_whoever_has_it() -> None:
    world = restarted(frozenset({"a", "b"}))
    one = world.failure(old([(3, 4)]))
    world.join("a", failures=(type(one)(**{**_fields(one), "boot": 1}),))
    said = world.join("b", held=(world.held(old([(3, 4)], attempt=2), boot=1),))
    assert not every(c.SendDrop, said)
    assert world.open_of("b") == 1


def test_a_grant_that_is_still_to_be_made_is_held_by_nobody() -> None:
    """An agent has it of a store that was lost: this one would make another grant of that number."""
    world = World(boot=2)
    world.add(seed(state="open", high_water=10, count=10))
    said = world.join("a", held=(Held("j.1", "L", 2, 1, [(4, 6)], [(0, 4)]), Held("j.1", "L", 3, 1, [], [(6, 8)])))
    assert only(c.SendDrop, said).numbers == RangeSet([(4, 6)])
    assert not world.state.agents["a"].holdings
    world.sync("a")
    assert world.grants["a"][0].attempt == 1


def test_two_jobs_never_have_the_same_layer_open_though_one_is_read_back_first() -> None:
    world = World(boot=2)
    world.add(seed(), job="first.1")
    world.add(seed(state="open", high_water=10), job="second.1")
    assert world.state.open_layers["L"].job == "second.1"


def test_who_names_a_grant_of_which_it_has_nothing_never_had_it() -> None:
    world = World()
    world.add()
    world.enter("a")
    world.join("bad", held=(world.held(world.last("a")),))
    assert not every(c.LookAtSource, world.sync("bad", changed=("L",)))
