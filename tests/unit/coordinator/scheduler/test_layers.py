"""Layers: opening within the root's space, committing, merging, changing, running again; and how jobs end."""

from __future__ import annotations

from typing import Any

from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.layers import SPACE_MARGIN_BYTES
from muster.jobs.common.ranges import RangeSet
from tests.support.sched import World, every, only, seed


def all_done(*layers: e.LayerSeed, **job: Any) -> World:
    """One agent, and everything is committed."""
    world = World()
    world.add(*layers, **job)
    world.enter("a")
    while world.open_of("a"):
        grant = world.last("a")
        world.finish("a", grant, hungry=False)
        world.commit("a", grant)
        world.sync("a")
    return world


def opened(world: World) -> set[str]:
    return set(world.state.open_layers)


# --- bundles --------------------------------------------------------------------------------------------


def test_a_bundle_with_a_committed_shard_is_refused_by_name() -> None:
    world = World()
    world.add()
    world.enter("a")
    grant = world.last("a")
    world.commit("a", grant)
    offer = e.Offered(world.sessions["a"], "L", grant.numbers | RangeSet([(5, 7)]))
    (refused,) = every(c.RefuseOffer, world.handle(offer))
    assert (refused.code, refused.numbers) == ("committed", grant.numbers)


def test_a_bundle_of_no_known_layer_is_gone() -> None:
    world = World()
    world.enter("a")
    said = world.handle(e.Offered(world.sessions["a"], "X", RangeSet([(0, 1)])))
    assert only(c.RefuseOffer, said).code == "gone"


def test_a_bundle_of_a_merged_layer_is_committed() -> None:
    world = all_done(seed(count=3))
    world.handle(e.LayerMerged("j.1", "L", 0))
    said = world.handle(e.Offered(world.sessions["a"], "L", RangeSet([(0, 1)])))
    assert only(c.RefuseOffer, said).code == "committed"


def test_a_bundle_of_a_session_that_ended_is_refused() -> None:
    world = World()
    world.add()
    assert only(c.RefuseOffer, world.handle(e.Offered(99, "L", RangeSet([(0, 1)])))).code == "no-session"


def test_whoever_else_has_it_finished_is_told_that_it_is_committed() -> None:
    world = World()
    world.add(seed(count=5))
    world.enter("a")
    grant = world.last("a")
    world.finish("a", hungry=False)
    world.tick(61)
    world.join("b")
    world.commit("b", grant)
    world.join("a", held=(world.held(grant, finished=True),))
    assert every(c.SendCommitted, world.said)[-1].numbers == grant.numbers


def test_rows_that_arrive_while_their_layer_is_closed_are_not_forgotten() -> None:
    world = World()
    world.add(seed(count=5))
    world.enter("a")
    grant = world.last("a")
    world.handle(e.Cancelled("j.1"))
    world.handle(e.BundleCommitted("j.1", "L", 0, "a", grant.numbers, 1))
    world.handle(e.Retried("j.1"))
    assert world.layer().committed == grant.numbers


# --- merging and ending ---------------------------------------------------------------------------------


def test_a_complete_layer_is_merged_and_a_job_of_merged_layers_is_complete() -> None:
    world = all_done(seed(count=10))
    assert only(c.StartMerge, world.said) == c.StartMerge("j.1", "L", 0)
    world.handle(e.LayerMerged("j.1", "L", 0))
    assert world.state.jobs["j.1"].state == "complete"


def test_damaged_shards_run_again_and_then_the_layer_is_merged() -> None:
    world = all_done(seed(count=10))
    world.handle(e.Uncommitted("L", 0, RangeSet([(2, 4)])))
    world.sync("a")
    assert world.last("a").numbers == RangeSet([(2, 4)])
    world.commit("a", world.last("a"))
    assert len(every(c.StartMerge, world.said)) == 2


def test_a_merge_of_an_earlier_generation_changes_nothing() -> None:
    world = all_done(seed(count=10))
    world.handle(e.Retried("j.1", ("L",)))
    world.handle(e.LayerMerged("j.1", "L", 0))
    assert world.layer().state == "open"


def test_a_changed_source_stops_its_layer_and_the_rest_goes_on() -> None:
    world = World()
    world.add(seed("L", 5), seed("M", 5))
    world.enter("a")
    world.sync("a")
    assert only(c.LookAtSource, world.sync("a", changed=("L",))).layer == "L"
    assert world.layer("L").state == "open", "nobody looked yet"
    said = world.handle(e.SourceChanged("j.1", "L"))
    assert only(c.SendGone, said).layer == "L"
    assert world.layer("L").state == "changed"
    assert world.last("a").layer == "M"


def test_a_job_whose_source_changed_ends_incomplete_and_says_so() -> None:
    world = World()
    world.add(seed(count=5))
    world.enter("a")
    world.handle(e.SourceChanged("j.1", "L"))
    job = world.state.jobs["j.1"]
    assert (job.state, job.why) == ("incomplete", "source changed: L")


def test_a_layer_that_is_complete_does_not_mind_a_changed_source() -> None:
    world = all_done(seed(count=10))
    assert not every(c.LookAtSource, world.sync("a", changed=("L",)))
    world.handle(e.SourceChanged("j.1", "L"))
    assert world.layer().state == "merging"


def test_whoever_says_so_of_a_source_that_is_as_planned_gets_no_more_of_the_job() -> None:
    world = World()
    world.add(seed("L", 5))
    world.enter("a")
    world.handle(e.SourceKept("j.1", "L", "a"))
    assert not world.open_of("a") and world.layer().pending == 5
    assert not every(c.SendGrant, world.sync("a"))
    world.handle(e.Retried("j.1"))
    world.sync("a")
    assert world.open_of("a")


def test_a_source_is_not_looked_at_for_whoever_has_nothing_of_its_layer() -> None:
    world = World()
    world.add(seed("L", 1))
    world.enter("a", "b")
    assert not every(c.LookAtSource, world.sync("b", changed=("L",)))


# --- retrying, cancelling -------------------------------------------------------------------------------


def test_a_retry_of_a_layer_discards_it_under_the_next_generation() -> None:
    world = all_done(seed(count=10))
    world.handle(e.LayerMerged("j.1", "L", 0))
    said = world.handle(e.Retried("j.1", ("L",)))
    assert only(c.DiscardLayer, said).generation == 1
    assert not world.layer().committed
    assert world.state.jobs["j.1"].state == "running"


def test_a_retry_gives_quarantined_shards_a_new_life() -> None:
    world = World()
    world.add(seed(count=2), attempts=1)
    world.enter("a")
    world.fail("a")
    world.handle(e.Retried("j.1"))
    assert not world.layer().quarantined
    assert not world.layer().troubles


def test_a_cancelled_job_takes_everything_back_and_keeps_what_is_committed() -> None:
    world = World()
    world.add(seed(count=5))
    world.enter("a")
    grant = world.last("a")
    world.finish("a", hungry=False)
    world.commit("a", grant)
    world.sync("a")
    assert only(c.SendGone, world.handle(e.Cancelled("j.1")))
    assert world.layer().committed == grant.numbers
    world.finish("a", world.last("a"))
    assert world.open_of("a") == 0


def test_a_paused_job_is_granted_no_more_and_keeps_what_runs() -> None:
    world = World()
    world.add(seed(count=5))
    world.enter("a")
    world.handle(e.Paused("j.1"))
    world.finish("a")
    assert world.open_of("a") == 0
    world.handle(e.Resumed("j.1"))
    assert world.open_of("a") == 2


# --- space ----------------------------------------------------------------------------------------------

MIB = 1 << 20


def test_a_layer_opens_only_when_twice_its_output_is_free() -> None:
    world = World()
    world.handle(e.SpaceMeasured(SPACE_MARGIN_BYTES + 199 * MIB))
    world.add(seed(count=100, out_bytes=MIB))
    assert not opened(world)
    assert "200" in str(world.state.jobs["j.1"].why.replace(str(200 * MIB), "200"))
    world.handle(e.SpaceMeasured(SPACE_MARGIN_BYTES + 200 * MIB))
    assert opened(world) == {"L"}
    assert world.state.jobs["j.1"].why == ""


def test_what_is_open_already_has_its_space_reserved() -> None:
    world = World()
    world.handle(e.SpaceMeasured(SPACE_MARGIN_BYTES + 300 * MIB))
    world.add(seed("L", 100, out_bytes=MIB), seed("M", 100, out_bytes=MIB))
    assert opened(world) == {"L"}


def test_where_the_size_of_a_result_is_unknown_the_largest_that_came_counts_whatever_agents_say() -> None:
    world = World()
    world.handle(e.SpaceMeasured(SPACE_MARGIN_BYTES + 100 * MIB))
    world.add(seed("L", 300), seed("M", 300))
    world.enter("a")
    grant = world.last("a")
    report = world.finished(grant)
    report = type(report)(**{**{n: getattr(report, n) for n in report.__struct_fields__}, "out_bytes": 1 << 50})
    world.sync("a", finished=(report,))
    assert world.state.jobs["j.1"].out_bytes == 0
    world.handle(e.BundleCommitted("j.1", "L", 0, "a", grant.numbers, MIB * len(grant.numbers)))
    assert world.state.jobs["j.1"].out_bytes == MIB
    world.add(seed("N", 10), job="k.1")
    assert world.state.jobs["k.1"].out_bytes == 0


def test_many_small_layers_open_together_and_few_large_ones() -> None:
    world = World()
    world.add(*[seed(f"s{i}", 1) for i in range(1000)], job="small.1")
    assert len(opened(world)) == 256
    world.add(*[seed(f"l{i}", 1000) for i in range(10)], job="large.1")
    assert sum(digest.startswith("l") for digest in opened(world)) == 2


def test_a_mark_that_comes_back_while_the_layer_is_closed_is_asked_for_again() -> None:
    world = World()
    world.add(seed(count=5), state="paused")
    world.scheduler.handle(e.Resumed("j.1"), world.now)  # it asks for a mark, which does not come back yet
    world.handle(e.Cancelled("j.1"))
    world.handle(e.HighWaterStored("j.1", "L", 5))
    world.handle(e.Retried("j.1"))
    assert world.layer().high_water == 5


# --- made shards ----------------------------------------------------------------------------------------


def made() -> World:
    world = World()
    world.add(seed(count=0, made=True))
    world.enter("a")
    return world


def test_shards_made_by_a_driver_are_granted_as_they_come() -> None:
    world = made()
    assert "a" not in world.grants
    world.handle(e.Advanced("j.1", 1, ((0, b"x"),), finish=False))
    assert world.last("a").numbers == RangeSet([(0, 1)])
    assert world.layer().payloads == {0: b"x"}


def test_a_layer_that_may_still_grow_is_not_merged() -> None:
    world = made()
    world.handle(e.Advanced("j.1", 1, ((0, b"x"),), finish=False))
    world.commit("a", world.last("a"))
    assert not every(c.StartMerge, world.said)
    world.handle(e.Advanced("j.1", 2, (), finish=True))
    assert every(c.StartMerge, world.said)


def test_a_driver_that_makes_nothing_at_all_completes_its_job() -> None:
    world = made()
    world.handle(e.Advanced("j.1", 1, (), finish=True))
    assert world.state.jobs["j.1"].state == "complete"


def test_a_merge_that_can_never_be_halts_its_job_and_a_retry_tries_again() -> None:
    world = all_done(seed(count=3))
    world.handle(e.MergeRefused("j.1", "L", 1, "of another generation"))
    assert world.state.jobs["j.1"].state == "running"
    world.handle(e.MergeRefused("j.1", "L", 0, "two items wrote 'a'"))
    job = world.state.jobs["j.1"]
    assert (job.state, job.why) == ("halted", "two items wrote 'a'")
    again = every(c.StartMerge, world.handle(e.Retried("j.1", ())))
    assert [(one.layer, one.generation) for one in again] == [("L", 0)]
    world.handle(e.LayerMerged("j.1", "L", 0))
    assert world.state.jobs["j.1"].state == "complete"


def test_two_jobs_that_wait_for_a_retry_of_what_the_other_is_to_have_hold_up_neither() -> None:
    """Each has a layer open of which a shard failed for good, and waits for the one that the other has open."""
    world = World()
    failed: dict[str, Any] = {"quarantined": RangeSet([(0, 1)])}
    world.add(seed("x", 1), job="first")
    left = world.add(seed("x", 1), seed("y", 1, **failed), seed("z", 1), job="left")
    right = world.add(seed("x", 1, **failed), seed("y", 1), job="right")
    world.enter("a", cpus=4)
    _compute(world, "z")  # so that it is the other job's turn to open a layer
    world.handle(e.Cancelled("first"))
    for digest in ("y", "x"):
        world.sync("a")
        _compute(world, digest)
    assert [left.state, right.state] == ["incomplete", "incomplete"]


def _compute(world: World, digest: str) -> None:
    """The last that was granted of this layer is finished, committed and merged."""
    (grant,) = [one for one in world.grants["a"] if one.layer == digest][-1:]
    world.finish("a", grant)
    merge = only(c.StartMerge, world.commit("a", grant))
    world.handle(e.LayerMerged(merge.job, merge.layer, merge.generation))


# --- some shards of a layer ------------------------------------------------------------------------------------


def some(**more: Any) -> e.LayerSeed:
    """Two of a million shards are wanted."""
    return seed(count=1_000_000, only=((3, 4), (900_000, 900_001)), **more)


def test_the_shards_that_nobody_wants_are_not_run_and_not_waited_for() -> None:
    world = all_done(some())
    assert sorted(n for grant in world.grants["a"] for n in grant.numbers) == [3, 900_000]
    assert len([action for action in world.said if isinstance(action, c.RaiseHighWater)]) == 1
    assert [action.layer for action in world.said if isinstance(action, c.StartMerge)] == ["L"]


def test_a_layer_of_some_shards_is_run_anew_without_the_others() -> None:
    world = all_done(some())
    world.handle(e.LayerMerged("j.1", "L", 0))
    world.handle(e.Retried("j.1", ("L",)))
    world.sync("a")
    assert world.state.jobs["j.1"].left == 2 and world.state.jobs["j.1"].layers[0].planned == 2


def test_room_is_kept_for_the_shards_that_are_run() -> None:
    world = World()
    world.handle(e.SpaceMeasured(SPACE_MARGIN_BYTES + 4 * 1000))
    world.add(some(out_bytes=1000))
    assert opened(world) == {"L"}


def test_after_a_restart_only_the_wanted_ones_may_still_be_held() -> None:
    world = World(boot=2)
    world.add(some(state="open", high_water=1_000_000, committed=RangeSet([(3, 4)])))
    assert world.state.jobs["j.1"].layers[0].limbo == RangeSet([(900_000, 900_001)])


def test_a_job_of_one_machine_waits_for_that() -> None:
    world = World()
    job = world.add(machine="b")
    world.enter("a")
    obstacle = world.state.obstacle(world.state.agents["a"], job)
    assert "a" not in world.grants and str(obstacle) == "is not b, which alone is to run it"
    world.enter("b")
    assert world.grants["b"]
