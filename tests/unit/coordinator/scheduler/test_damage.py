"""A damaged job: nothing of it is granted or taken, what agents finished of it is theirs to keep, others go on."""

from __future__ import annotations

from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import events as e
from muster.jobs.common.ranges import RangeSet
from tests.support.sched import World, every, only, seed


def damaged(world: World, *digests: str, job: str = "j.1") -> list[c.Action]:
    return world.handle(e.JobDamaged(job, digests or ("L",)))


def offer(world: World, name: str, numbers: RangeSet, digest: str = "L") -> c.Action:
    (verdict,) = world.handle(e.Offered(world.sessions[name], digest, numbers))
    return verdict


def test_what_is_unfinished_is_taken_back_and_what_is_finished_is_kept() -> None:
    world = World()
    world.add()
    world.enter("one")
    done = world.last("one")
    world.finish("one")
    held = world.last("one")
    said = damaged(world)
    assert only(c.SendDrop, said).numbers == held.numbers
    assert not every(c.SendGone, said) and not every(c.StoreJob, said) and not every(c.StoreLayer, said)
    assert offer(world, "one", done.numbers) == c.RefuseOffer(world.sessions["one"], "later", RangeSet())
    assert not every(c.SendGrant, world.sync("one"))


def test_a_report_or_a_hello_of_it_is_not_answered_gone() -> None:
    world = World()
    world.add()
    world.enter("one")
    grant = world.last("one")
    damaged(world)
    assert not every(c.SendGone, world.sync("one", finished=(world.finished(grant),)))
    assert not every(c.SendGone, world.join("one", held=(world.held(grant, finished=True),)))
    said = world.join("one", held=(world.held(grant),))
    assert only(c.SendDrop, said).numbers == grant.numbers and not every(c.SendGone, said)


def test_one_that_was_never_read_back_is_known_by_its_layers() -> None:
    world = World(boot=2)
    damaged(world, "L", "M")
    world.join("one")
    assert isinstance(verdict := offer(world, "one", RangeSet([(0, 3)]), "M"), c.RefuseOffer)
    assert verdict.code == "later"
    assert isinstance(verdict := offer(world, "one", RangeSet([(0, 3)]), "N"), c.RefuseOffer)
    assert verdict.code == "gone"


def test_once_it_is_removed_nobody_keeps_anything_of_it() -> None:
    world = World()
    world.add()
    world.enter("one")
    grant = world.last("one")
    damaged(world)
    world.handle(e.Removed("j.1"))
    assert isinstance(verdict := offer(world, "one", grant.numbers), c.RefuseOffer)
    assert verdict.code == "gone"


def test_another_job_with_the_same_layer_computes_it_and_takes_what_there_is() -> None:
    world = World()
    world.add()
    world.enter("one")
    done = world.last("one")
    world.finish("one")
    world.add(job="j.2")
    damaged(world)
    assert world.layer().job == "j.2" and world.layer().state == "open"
    assert isinstance(verdict := offer(world, "one", done.numbers), c.AcceptOffer)
    assert verdict.job == "j.2"


def test_a_layer_that_another_job_merged_is_kept_for_the_damaged_one_too() -> None:
    world = World()
    world.add()
    world.add(seed(state="merged"), job="j.2")
    world.enter("one")
    grant = world.last("one")
    damaged(world)
    assert not every(c.SendCommitted, world.sync("one", finished=(world.finished(grant),)))


def test_other_jobs_are_granted_on() -> None:
    world = World()
    world.add()
    world.add(seed("M"), job="j.2")
    world.enter("one", cpus=4)
    damaged(world)
    world.sync("one")
    assert world.last("one").job == "j.2"


def test_a_layer_that_goes_to_another_job_is_taken_back_where_it_runs() -> None:
    world = World()
    world.add()
    world.enter("one")
    held = world.last("one")
    world.add(job="j.2")
    said = world.handle(e.Cancelled("j.1"))
    assert only(c.SendDrop, said).numbers == held.numbers and not every(c.SendGone, said)
