"""`same_kernels: require`: a job stays on machines of one kernel fingerprint, at nobody's cost."""

from __future__ import annotations

from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import events as e
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import Environment
from tests.support.sched import World, every, only, seed

OLD, NEW = "numpy 2.4.5 AVX2, openblas 0.3.31 Haswell", "numpy 2.4.6 AVX2, openblas 0.3.31 Haswell"
APART = "has other kernels than the job's first machine: numpy 2.4.6 AVX2 here, numpy 2.4.5 AVX2 there"


def offer(world: World, name: str, numbers: RangeSet, fingerprint: str) -> list[c.Action]:
    return world.handle(e.Offered(world.sessions[name], "L", numbers, fingerprint))


def commit(world: World, name: str, numbers: RangeSet, fingerprint: str) -> list[c.Action]:
    return world.handle(e.BundleCommitted("j.1", "L", 0, name, numbers, 1, fingerprint))


def why_not(world: World, name: str) -> str:
    return str(world.state.obstacle(world.state.agents[name], world.state.jobs["j.1"]) or "")


def test_by_default_every_machine_takes_part() -> None:
    world = World()
    world.add()
    world.enter("one", fingerprint=OLD)
    world.enter("two", fingerprint=NEW)
    assert world.grants["one"] and world.grants["two"]


def test_the_first_machine_decides_and_others_are_told_what_differs() -> None:
    world = World()
    world.add(same_kernels=True)
    world.enter("one", "twin", fingerprint=OLD)
    world.enter("two", fingerprint=NEW)
    assert world.grants.keys() == {"one", "twin"} and why_not(world, "two") == APART
    world.finish("one", seconds=1.0)
    world.sync("two")
    assert "two" not in world.grants and world.open_of("one") > 1


def test_the_first_machine_gone_before_any_commit_leaves_the_choice_to_the_next() -> None:
    world = World(lease=3.0)
    world.add(same_kernels=True)
    world.enter("one", fingerprint=OLD)
    world.enter("two", fingerprint=NEW)
    world.handle(e.Departed(world.sessions["one"]))
    assert only(c.SendGrant, world.tick()).session == world.sessions["two"]
    world.enter("one", fingerprint=OLD)
    assert "other kernels" in why_not(world, "one")


def test_a_commit_decides_for_good() -> None:
    world = World()
    world.add(same_kernels=True)
    world.enter("one", fingerprint=OLD)
    world.finish("one")
    commit(world, "one", world.grants["one"][0].numbers, OLD)
    world.handle(e.Departed(world.sessions["one"]))
    world.enter("two", fingerprint=NEW)
    assert world.tick(3) == [] and "two" not in world.grants and why_not(world, "two") == APART


def test_after_a_restart_the_stored_one_holds() -> None:
    world = World(boot=2)
    world.add(seed(high_water=4, state="open"), same_kernels=True, kernels_fixed=OLD)
    world.enter("two", fingerprint=NEW)
    world.tick(70)
    assert "two" not in world.grants
    world.enter("one", fingerprint=OLD)
    assert world.grants["one"]


def test_what_another_machine_has_from_before_a_restart_is_not_taken() -> None:
    before = World()
    before.add(same_kernels=True)
    before.enter("two", fingerprint=NEW)
    held = before.held(before.last("two"), boot=1)
    world = World(boot=2, expected=frozenset({"one", "two"}))
    world.add(seed(high_water=4, state="open"), same_kernels=True, kernels_fixed=OLD)
    assert only(c.SendDrop, world.join("two", fingerprint=NEW, held=(held,))).numbers == before.last("two").numbers
    assert world.layer().troubles == {}


def test_the_first_commit_wins_over_the_first_grant() -> None:
    """A machine that was at work before a restart, and one that was given work after it."""
    world = World(boot=2, expected=frozenset({"one", "two"}))
    world.add(seed(high_water=4, state="open"), same_kernels=True)
    world.join("one", fingerprint=OLD)
    world.enter("two", fingerprint=NEW)
    theirs, ours = RangeSet([(2, 4)]), RangeSet([(50, 52)])
    assert world.open_of("two") and only(c.AcceptOffer, offer(world, "one", theirs, OLD))
    assert every(c.SendDrop, commit(world, "one", theirs, OLD)) and world.open_of("two") == 0
    assert only(c.RefuseOffer, offer(world, "two", ours, NEW)).code == "kernels"
    assert only(c.AcceptOffer, offer(world, "one", ours, OLD)) and world.layer().troubles == {}


def test_a_header_that_is_not_its_senders_costs_that_process_alone() -> None:
    world = World()
    world.add()
    world.enter("bad", "good", fingerprint=OLD)
    world.finish("bad")
    numbers, before = world.last("bad").numbers, len(world.grants["good"])
    said = world.handle(e.Offered(world.sessions["bad"], "L", numbers, OLD, ("good",)))
    assert only(c.RefuseOffer, said).code == "sender" and "under the name good" in why_not(world, "bad")
    assert not world.state.agents["bad"].holdings and not world.layer().committed
    world.finish("good")
    assert len(world.grants["good"]) > before and why_not(world, "good") == ""
    world.join("bad", process="another", fingerprint=OLD)
    assert why_not(world, "bad") == ""


def test_what_its_spool_told_of_before_is_its_own() -> None:
    world = World()
    world.add()
    world.join("new", fingerprint=NEW, names=frozenset({"old"}), fingerprints=(OLD,))
    numbers = RangeSet([(0, 2)])
    made = e.Offered(world.sessions["new"], "L", numbers, OLD, ("old",))
    assert only(c.AcceptOffer, world.handle(made))
    other = e.Offered(world.sessions["new"], "L", numbers, "numpy 1", ("old",))
    assert only(c.RefuseOffer, world.handle(other)).code == "sender"


def test_no_job_pays_for_more_time_than_there_was() -> None:
    world = World()
    job = world.add()
    world.enter("one", cpus=2)
    world.now += 3.0
    world.sync("one", finished=(world.finished(world.last("one"), compute=1e9),))
    assert job.used == 3.0


def test_a_job_that_rests_on_more_tells_machines_apart_by_that() -> None:
    world = World()
    world.add(same_kernels=True, rests_on=("torch",), env="nlp")
    for name, torch in (("one", "2.9"), ("two", "2.8"), ("twin", "2.9")):
        envs = {"": Environment("3.12", {}), "nlp": Environment("3.11.4", {"torch": torch, "numpy": "1.26"})}
        world.enter(name, fingerprint=OLD, envs=envs, names_rest=True)
    assert world.grants.keys() == {"one", "twin"}
    assert (
        why_not(world, "two")
        == "has other kernels than the job's first machine: nlp torch 2.8 here, nlp torch 2.9 there"
    )
    whole = f"{OLD}, nlp python 3.11.4, nlp numpy 1.26, nlp torch 2.9"
    ours, numbers = world.state.agents["one"], world.last("one").numbers
    assert ours.fingerprints == (OLD, whole) and c.StoreAgent("one", True) in world.said
    assert only(c.AcceptOffer, offer(world, "one", numbers, whole))
    assert only(c.RefuseOffer, offer(world, "one", numbers, whole.replace("2.9", "3.0"))).code == "sender"


def test_an_agent_or_a_plan_of_before_goes_by_the_machines_own() -> None:
    world = World()
    world.add(same_kernels=True, rests_on=("torch",))
    world.add(seed("M"), job="old.1", same_kernels=True)
    world.enter("one", fingerprint=OLD)
    world.enter("two", fingerprint=OLD, envs={"": Environment("3.12", {"torch": "2.9"})}, names_rest=True)
    jobs = world.state.jobs
    assert jobs["j.1"].fingerprint == jobs["old.1"].fingerprint == OLD
    assert world.state.agents["two"].kernels_for(jobs["old.1"]) == OLD


def test_a_machine_that_computes_a_kind_wrong_takes_no_part_in_it() -> None:
    world = World()
    world.add()
    world.enter("bad", "good")
    grant = world.last("bad")
    why = "centers of a problem with a known answer are off by 0.001"
    world.lose("bad", running=False, grant=grant, hungry=False)
    world.join("bad", unfit={"cluster": why})
    world.sync("bad")
    assert why_not(world, "bad") == f"computes cluster jobs wrong: {why}" and world.last("bad") is grant
    assert world.layer().troubles == {} and world.open_of("bad") == 0
