"""Who gets what, and how much of it."""

from __future__ import annotations

from itertools import pairwise

from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.entities import Obstacle
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import Environment, ModelFile
from tests.support.sched import ROOM, World, added, every, only, seed


def warmed(*names: str, count: int = 10_000, shards_per_second: float = 10.0) -> World:
    """Agents whose speed is known; each finished its canary and what it was granted next."""
    world = World()
    world.add(seed(count=count))
    world.enter(*names)
    world.now += 0.1
    for name in names:
        world.finish(name)
    for name in names:
        world.commit(name, world.grants[name][0])
        world.now += len(world.last(name).numbers) / shards_per_second
        world.finish(name)
    return world


def test_each_agent_runs_one_shard_before_the_first_success() -> None:
    world = World()
    world.add()
    world.enter("a", "b", cpus=8)
    assert [len(world.last(name).numbers) for name in "ab"] == [1, 1]
    assert not every(c.SendGrant, world.sync("a"))


def test_after_the_first_success_there_is_a_shard_per_slot_and_one_ahead() -> None:
    world = World()
    world.add()
    world.enter("a", "b", cpus=4)
    world.finish("a")
    assert world.open_of("a") == world.open_of("b") == 5


def test_the_first_success_is_stored_once() -> None:
    world = World()
    world.add()
    world.enter("a", "b")
    assert only(c.StoreSuccess, world.finish("a")).job == "j.1"
    assert not every(c.StoreSuccess, world.finish("b"))


def test_a_bundle_that_is_faster_than_its_report_is_a_success_too() -> None:
    world = World()
    world.add()
    world.enter("a")
    said = world.commit("a", world.last("a"))
    assert only(c.StoreSuccess, said)
    assert len(only(c.SendGrant, said).numbers) == 2


def test_an_agent_holds_ten_seconds_of_its_own_work() -> None:
    world = warmed("a")
    for _ in range(20):
        world.now += len(world.last("a").numbers) / 10.0
        world.finish("a")
    assert 80 <= world.open_of("a") <= 110


def test_less_is_held_when_less_is_left() -> None:
    world = warmed("a", count=60)
    rate = world.state.agents["a"].rate("j.1")
    left = len(world.layer().fresh) + world.open_of("a")
    assert world.open_of("a") <= max(2, 0.25 * left / rate * rate + 1)


def test_agents_not_measured_yet_are_taken_to_be_as_fast_as_the_others() -> None:
    world = World()
    world.add(seed(count=1000))
    world.enter(*[f"a{i}" for i in range(10)])
    world.now += 0.1
    world.finish("a0")
    assert world.open_of("a0") <= 0.25 * 1000 / 10, "the first one measured must not take all there is"


def test_neighbours_go_to_the_same_agent() -> None:
    world = warmed("a", "b")
    assert all(len(grant.numbers.pairs()) == 1 for name in "ab" for grant in world.grants[name])


def test_a_grant_fits_the_room_on_the_agents_disk() -> None:
    world = World()
    world.add(seed(in_bytes=60, out_bytes=40))
    world.enter("a", cpus=8, in_place=False)
    world.finish("a", room=350)
    assert len(world.last("a").numbers) == 3


def test_inputs_read_in_place_take_no_room() -> None:
    world = World()
    world.add(seed(in_bytes=60, out_bytes=40))
    world.enter("a", cpus=8)
    world.finish("a", room=350)
    assert len(world.last("a").numbers) == 8


def test_an_agent_without_room_is_told_why_it_idles() -> None:
    world = World()
    world.add(seed(out_bytes=1000))
    world.join("a")
    world.sync("a", room=10)
    assert "1000 B" in str(world.state.agents["a"].idle_because)


def test_nothing_is_granted_above_the_stored_mark() -> None:
    world = World()
    world.add(seed(count=10_000))
    world.join("a", cpus=4000)
    world.handle = lambda event: world.scheduler.handle(event, world.now)  # type: ignore[method-assign]  # a slow store
    world.sync("a")
    mark = world.layer().high_water
    said = world.sync("a", finished=(world.finished(world.last("a") if "a" in world.grants else _first(world)),))
    granted = [n for one in every(c.SendGrant, said) for n in one.numbers]
    assert granted and max(granted) < mark
    raised = only(c.RaiseHighWater, said)
    more = world.scheduler.handle(e.HighWaterStored(raised.job, raised.layer, raised.value), world.now)
    assert min(only(c.SendGrant, more).numbers) >= mark


def _first(world: World) -> c.SendGrant:
    (holding,) = world.state.agents["a"].holdings.values()
    return c.SendGrant(1, holding.job, holding.layer, holding.attempt, holding.open.copy())


def test_what_was_lost_goes_behind_all_untouched_shards() -> None:
    world = World()
    world.add(seed(count=6))
    world.enter("a")
    world.finish("a")
    lost = world.last("a").numbers
    world.lose("a", running=False)
    assert world.last("a").numbers.bottom > lost.top - 1
    while world.layer().fresh:
        world.finish("a")
    assert world.last("a").numbers & lost


def test_a_failed_shard_goes_to_another_machine() -> None:
    world = World()
    world.add(seed(count=2))
    world.enter("a", "b")
    failed = world.last("a").numbers
    said = world.fail("a")
    assert not every(c.SendGrant, said)
    said = world.finish("b")
    assert [one.numbers for one in every(c.SendGrant, said) if one.session == world.sessions["b"]] == [failed]


def test_a_kicked_shard_goes_to_another_machine_and_counts_as_nothing() -> None:
    world = World()
    world.add(seed(count=2), attempts=1)
    world.enter("a", "b")
    kicked = world.last("a")
    said = world.handle(e.Kicked("L", kicked.numbers.bottom))
    assert only(c.SendDrop, said).session == world.sessions["a"] and not every(c.StoreFailure, said)
    assert not every(c.SendGrant, said), "the other one is busy, and able"
    said = world.finish("b")
    assert [one.numbers for one in every(c.SendGrant, said) if one.session == world.sessions["b"]] == [kicked.numbers]
    assert not every(c.SendGrant, world.sync("a")), "no copy where somebody wanted it away from"


def test_a_kicked_shard_runs_again_where_it_was_if_no_other_machine_is_there() -> None:
    world = World()
    world.add(seed(count=1))
    world.enter("a")
    said = world.handle(e.Kicked("L", 0))
    assert only(c.SendGrant, said).numbers.pairs() == only(c.SendDrop, said).numbers.pairs() == [(0, 1)]
    world.commit("a", world.last("a"))
    assert world.handle(e.Kicked("L", 0)) == [], "nobody has it"


def test_a_kicked_shard_that_is_finished_and_not_pushed_goes_to_another_machine() -> None:
    world = World()
    world.add(seed(count=1))
    world.enter("a", "b")
    world.finish("a")
    said = world.handle(e.Kicked("L", 0))
    assert only(c.SendGrant, said).session == world.sessions["b"] and not every(c.SendDrop, said)
    world.finish("a", world.grants["a"][0])
    assert world.open_of("b") == 1, "a report said twice does not undo it"
    world.commit("a", world.grants["a"][0])
    assert world.open_of("b") == 0, "the first result counts"


def test_a_failed_shard_goes_to_the_same_machine_where_no_other_can_take_it() -> None:
    world = World()
    world.add(seed(count=1, out_bytes=100))
    world.enter("a")
    world.join("b")
    world.sync("b", room=10)  # it is there, and has no room
    assert only(c.SendGrant, world.fail("a")).session == world.sessions["a"]


def test_an_agent_with_another_kernel_gets_nothing() -> None:
    world = World()
    job = world.add()
    world.enter("a", kernel=2)
    assert "a" not in world.grants
    assert "version 2" in str(world.state.obstacle(world.state.agents["a"], job))


def test_an_agent_without_a_package_gets_nothing_and_is_told_how_to_get_it() -> None:
    world = World()
    job = world.add(needs=("onnxruntime",))
    world.enter("a")
    assert not world.grants.get("a")
    needed = world.state.obstacle(world.state.agents["a"], job)
    assert "has no onnxruntime: `python -m pip install onnxruntime` there" in str(needed)
    world.enter("b", packages=["onnxruntime"])
    assert world.grants["b"]


def test_an_agent_gets_only_the_kinds_and_the_code_that_its_user_lets_it_take() -> None:
    world = World()
    job = world.add(runs_code=True)
    world.enter("picky", kinds=["infer", "train"])
    world.enter("safe", no_code=True)
    assert not world.grants
    wanted = "takes the kinds infer, train alone: leave, and join it with other `--kinds`"
    assert str(world.state.obstacle(world.state.agents["picky"], job)) == wanted
    wanted = "runs no code of others: leave, and join it without `--no-code`"
    assert str(world.state.obstacle(world.state.agents["safe"], job)) == wanted
    world.add(seed("M"), job="k.1")
    world.sync("safe")
    assert {grant.job for grant in world.grants["safe"]} == {"k.1"}
    world.enter("safe", process="safe-2")
    assert world.state.obstacle(world.state.agents["safe"], job) is None, "it joined without"


def test_a_machine_that_would_leave_out_a_jobs_variables_gets_nothing_of_it() -> None:
    world = World()
    job = world.add(variables={"LANG": "C"})
    world.enter("older")
    assert not world.grants
    assert "leaves out `variables`" in str(world.state.obstacle(world.state.agents["older"], job))
    world.enter("newer", sets_variables=True)
    assert world.grants["newer"]


def test_gpus_limit_the_slots_and_who_lends_none_gets_nothing() -> None:
    world = World()
    job = world.add(gpus=2)
    world.enter("none", cpus=8)
    assert "lends 0 gpus, a shard wants 2" in str(world.state.agents["none"].idle_because) and not world.grants
    world.enter("a", cpus=8, gpus=["0", "1", "2", "3", "4"])
    assert world.state.agents["a"].slots(job) == 2 and world.open_of("a") == 1


def test_an_agent_without_the_jobs_environment_gets_nothing_and_is_told_how_to_get_it() -> None:
    world = World()
    own, nlp = Environment("3.11.2", {"numpy": "2.1"}), Environment("3.9.1", {"torch": "1.13"})
    world.add(env="nlp", packages=("torch>=2",))
    world.enter("bare", envs={"": own})
    assert "has no environment nlp" in str(world.state.agents["bare"].idle_because)
    world.enter("old", envs={"": own, "nlp": nlp})
    assert "torch>=2 (it has 1.13): in its environment nlp `python -m" in str(world.state.agents["old"].idle_because)
    assert not world.grants
    world.enter("old", envs={"nlp": Environment("3.9.1", {"torch": "2.4"})}, process="old-2")
    assert world.open_of("old") == 1 and not world.open_of("bare")


def test_packages_without_an_environment_are_the_agents_own() -> None:
    world = World()
    world.add(packages=("numpy>=2",))
    world.enter("a", envs={"": Environment("3.11.2", {"numpy": "1.26"})})
    world.enter("silent")
    assert not world.grants and "has no numpy>=2: `python" in str(world.state.agents["silent"].idle_because)
    world.enter("b", envs={"": Environment("3.11.2", {"numpy": "2.1"})})
    assert world.open_of("b") == 1


def test_a_job_may_want_a_version_of_the_interpreter_itself() -> None:
    world = World()
    world.add(packages=("python==3.11.*", "cloudpickle"))
    world.enter("old", envs={"": Environment("3.10.4", {"cloudpickle": "3.0"})})
    said = str(world.state.agents["old"].idle_because)
    assert "has no python==3.11.* (it has 3.10.4): join it with `--env NAME=PYTHON`" in said and "pip" not in said
    world.enter("bare", envs={"": Environment("3.10.4", {})})
    assert "pip install 'cloudpickle'`" in str(world.state.agents["bare"].idle_because) and not world.grants
    world.enter("a", envs={"": Environment("3.11.2", {"cloudpickle": "3.0"})})
    assert world.open_of("a") == 1


def test_an_agent_whose_disk_cannot_hold_the_model_gets_nothing_unless_it_reads_in_place() -> None:
    world = World()
    world.add(model=ModelFile("m.npz", "d" * 32, ROOM + 1))
    world.enter("far", in_place=False)
    assert not world.grants.get("far")
    world.enter("near")
    assert world.grants["near"]


def test_an_agent_with_too_few_cpus_gets_nothing() -> None:
    world = World()
    job = world.add(cpus=4)
    world.enter("a", cpus=2)
    assert "a" not in world.grants
    assert world.state.obstacle(world.state.agents["a"], job) == Obstacle("cpus", "has 2 cpus, a shard wants 4")


def test_scratch_space_limits_the_slots_and_who_can_never_hold_it_gets_nothing() -> None:
    world = World()
    job = world.add(seed(out_bytes=1), disk=2 << 30)
    world.enter("small", cpus=8, room=1200 << 20)
    said = "has 1.2 GiB of disk for this, a shard wants 2.0 GiB"
    assert world.state.obstacle(world.state.agents["small"], job) == Obstacle("disk", said)
    assert str(world.state.agents["small"].idle_because) == f"j.1: {said}" and not world.grants
    world.enter("large", cpus=8, room=5 << 30)
    assert world.state.agents["large"].slots(job) == 2 and world.open_of("large") == 1


def test_memory_limits_the_slots() -> None:
    world = World()
    world.add(memory=10)
    world.enter("a", cpus=8, memory=25)
    world.finish("a")
    assert world.open_of("a") == 3


# --- the tail -------------------------------------------------------------------------------------------


def tail(seconds: float) -> World:
    """a and b finish a shard each 0.1 s; then a has the last ones for so many seconds, and b has nothing."""
    world = World()
    world.add(seed(count=8))
    world.enter("a", "b")
    while world.layer().fresh or world.open_of("b"):
        world.now += 0.1
        held = {name: list(world.state.agents[name].holdings.values()) for name in "ab"}
        for holding in held["b"] if world.open_of("b") else held["a"]:
            numbers = RangeSet([(holding.open.bottom, holding.open.bottom + 1)]) if holding.open else RangeSet()
            grant = c.SendGrant(0, "j.1", "L", holding.attempt, numbers)
            world.finish(holding.agent, grant, hungry=bool(world.layer().fresh)) if numbers else None
    world.sync("b", hungry=False)
    for _ in range(int(seconds)):
        world.tick()
        world.sync("a", hungry=False)
    return world


def test_an_idle_machine_copies_what_it_would_finish_sooner() -> None:
    world = tail(seconds=5)
    running = {number for holding in world.state.agents["a"].holdings.values() for number in holding.open}
    assert set(only(c.SendGrant, world.sync("b")).numbers) <= running


def test_nothing_is_copied_that_would_not_be_done_sooner() -> None:
    world = tail(seconds=0)
    assert not every(c.SendGrant, world.sync("b"))


def test_a_shard_is_copied_once() -> None:
    world = tail(seconds=5)
    world.sync("b")
    copied = world.layer().copied.copy()
    world.enter("c")
    world.now += 0.1
    world.tick(2)
    assert copied
    assert not [one for one in world.grants.get("c", []) if one.numbers & copied]


def test_a_copy_that_is_lost_leaves_its_other_where_it_is() -> None:
    world = tail(seconds=5)
    copy = only(c.SendGrant, world.sync("b"))
    world.lose("b", grant=copy)
    assert not world.layer().again & copy.numbers


def test_what_failed_before_is_tried_at_one_place_at_a_time() -> None:
    world = tail(seconds=5)
    for number in world.layer().held():
        world.layer().trouble(number).failures.add(("c", 1, number))
    assert not every(c.SendGrant, world.sync("b"))


def test_what_a_paused_machine_has_is_copied_at_once_whatever_it_was() -> None:
    world = World()
    world.add(seed(count=3))
    world.enter("a", "b")
    for name in ("a", "b"):
        world.finish(name, seconds=1.0)
    held = {name: world.last(name) for name in ("a", "b") if world.open_of(name)}
    [(slow, last)] = held.items()
    other = "b" if slow == "a" else "a"
    world.fail(slow, last)
    slow, last = next((name, world.last(name)) for name in ("a", "b") if world.open_of(name))
    other = "b" if slow == "a" else "a"
    assert not every(c.SendGrant, world.sync(other)), "what failed is tried at one place at a time"
    world.sync(slow, hungry=False, lent=0)
    world.tick()
    assert [one.numbers for one in every(c.SendGrant, world.sync(other))] == [last.numbers]
    assert not every(c.SendGrant, world.sync(slow, hungry=False))


def test_what_fails_for_good_is_not_kept_open_by_a_paused_machine_that_has_it_too() -> None:
    world = World()
    world.add(seed(count=1), attempts=2, succeeded=True)
    world.enter("a")
    world.sync("a", hungry=False, lent=0)
    world.enter("b")
    for _ in range(2):
        world.tick()
        world.sync("b")
        world.fail("b")
    assert world.layer().quarantined == RangeSet([(0, 1)])
    assert not world.open_of("a"), "nor does the paused one go on with it"


def test_a_paused_machine_is_nobody_to_wait_for() -> None:
    world = World()
    world.add(seed(count=2))
    world.enter("a", "b")
    world.sync("b", hungry=False, lent=0)
    assert only(c.SendGrant, world.fail("a")).session == world.sessions["a"], "the other one has work, and is paused"


def test_fewer_or_more_processors_are_heard_of_at_once() -> None:
    world = World()
    world.add(cpus=2)
    world.enter("a", cpus=2)
    world.finish("a", lent=1)
    assert "has 1 cpu, a shard wants 2" in str(world.state.agents["a"].idle_because)
    world.sync("a", lent=8)
    assert world.state.agents["a"].slots(world.state.jobs["j.1"]) == 4 and world.open_of("a") == 5


def test_a_copy_never_takes_more_than_the_room_there_is() -> None:
    world = tail(seconds=5)
    world.layer().out_bytes = 100
    assert not every(c.SendGrant, world.sync("b", room=99))


def test_the_first_commit_wins_and_the_other_copy_is_dropped() -> None:
    world = tail(seconds=5)
    copy = only(c.SendGrant, world.sync("b"))
    world.finish("b", copy, hungry=False)
    assert not world.state.agents["a"].holdings.get(("L", 1, copy.attempt))
    drops = [one for one in every(c.SendDrop, world.said) if one.session == world.sessions["a"]]
    assert drops and drops[-1].numbers == copy.numbers


# --- what a silent machine has finished -----------------------------------------------------------------


def unsent() -> World:
    """a has finished all of the only layer but what b has committed, and has handed none of it in; b has nothing to
    do."""
    world = World()
    world.add(seed(count=8))
    world.enter("a", "b")
    done = world.last("b")
    world.finish("b", hungry=False, seconds=0.1)
    world.commit("b", done)
    for _ in range(20):
        finish_all(world, "a")
    assert held_by(world, "a") == world.layer().whole - done.numbers and not world.open_of("a")
    return world


def finish_all(world: World, name: str) -> None:
    """It finished whatever it has a little later, and asks for more."""
    world.now += 0.1
    held = [h for h in world.state.agents[name].holdings.values() if h.open]
    grants = [c.SendGrant(0, h.job, h.layer, h.attempt, h.open.copy()) for h in held]
    world.sync(name, finished=tuple(world.finished(grant) for grant in grants))


def held_by(world: World, name: str) -> RangeSet:
    numbers = RangeSet()
    for holding in world.state.agents[name].holdings.values():
        numbers.update(holding.everything())
    return numbers


def silence(world: World, *talkers: str) -> None:
    """Time goes by until all but the talkers were not heard of for a quarter of a lease."""
    for _ in range(int(world.state.timing.silence) + 2):
        world.tick()
        for name in talkers:
            world.sync(name, hungry=False)


def work_off(world: World, name: str) -> RangeSet:
    """It takes what it gets until it gets nothing, and hands in all of it; what that was."""
    numbers = RangeSet()
    for _ in range(20):
        for grant in every(c.SendGrant, world.sync(name)):
            numbers.update(grant.numbers)
            world.finish(name, grant, seconds=0.1, hungry=False)
            world.commit(name, grant)
        world.tick()
    return numbers


def test_an_idle_machine_computes_what_a_silent_one_finished_and_did_not_hand_in() -> None:
    world = unsent()
    theirs = held_by(world, "a")
    world.handle(e.HungUp(world.sessions["a"]))
    silence(world, "b")
    assert world.state.agents["a"].present, "its lease is not over"
    assert work_off(world, "b") == theirs
    assert world.state.jobs["j.1"].left == 0 and not held_by(world, "a")


def test_so_does_one_of_which_nothing_was_measured() -> None:
    world = unsent()
    silence(world)
    world.enter("c", "d", cpus=2)
    assert held_by(world, "c") and held_by(world, "d") and not held_by(world, "c") & held_by(world, "d")


def test_what_a_machine_that_talks_has_finished_is_not_computed_again() -> None:
    world = unsent()
    silence(world, "a", "b")
    assert not every(c.SendGrant, world.sync("b"))


def test_a_link_that_was_cut_for_a_moment_makes_nobody_compute_what_is_there() -> None:
    world = unsent()
    world.handle(e.HungUp(world.sessions["a"]))
    world.tick(int(world.state.timing.silence) - 1)
    assert not every(c.SendGrant, world.sync("b"))


def test_silence_while_the_daemon_stood_still_is_nobodys() -> None:
    world = unsent()
    world.tick()
    world.now += 1000.0
    assert not every(c.SendGrant, world.sync("b")), "before the clock"
    world.tick()
    assert not every(c.SendGrant, world.sync("b")), "nor after it"


def test_whoever_comes_back_with_its_finished_shards_has_the_copies_dropped() -> None:
    world = unsent()
    silence(world, "b")
    copies = held_by(world, "b") | only(c.SendGrant, world.sync("b")).numbers
    finished = [world.held(grant, finished=True) for grant in world.grants["a"]]
    world.join("a", held=finished)
    assert not held_by(world, "b"), "what is there need not be computed"
    drops = [one for one in every(c.SendDrop, world.said) if one.session == world.sessions["b"]]
    assert drops and drops[-1].numbers == copies
    for grant in world.grants["a"]:
        world.commit("a", grant)
    assert world.state.jobs["j.1"].left == 0


def test_a_bundle_of_a_machine_that_was_silent_counts_and_drops_the_copies() -> None:
    world = unsent()
    silence(world, "b")
    copy = only(c.SendGrant, world.sync("b"))
    for grant in world.grants["a"]:
        world.commit("a", grant)
    assert not held_by(world, "b") and world.state.jobs["j.1"].left == 0
    assert world.finish("b", copy, hungry=False) and world.state.jobs["j.1"].left == 0, "nothing is counted twice"


def test_what_waits_to_be_granted_comes_before_what_a_silent_machine_finished() -> None:
    world = unsent()
    world.sync("a", hungry=False)
    world.handle(added("j.2", seed("M", count=1), succeeded=True))
    silence(world)
    assert only(c.SendGrant, world.sync("b")).job == "j.2"


def test_a_copy_that_fails_is_not_made_again() -> None:
    world = unsent()
    silence(world, "b")
    copy = only(c.SendGrant, world.sync("b"))
    world.fail("b", copy, code="data")
    assert not world.layer().quarantined, "where it is finished it did well"
    assert not work_off(world, "b") & RangeSet([(copy.numbers.bottom, copy.numbers.bottom + 1)])


def test_much_of_what_a_silent_machine_finished_is_taken_over_at_once() -> None:
    world = warmed("a", "b", count=1_000, shards_per_second=100.0)
    for _ in range(200):
        finish_all(world, "a")
        finish_all(world, "b")
    silence(world, "b")
    assert len(only(c.SendGrant, world.sync("b")).numbers) > 10


# --- several jobs ---------------------------------------------------------------------------------------


def work_through(world: World, seconds: int) -> dict[str, int]:
    """Two agents, two slots each; a shard takes a second. Returns what each job got done."""
    done: dict[str, int] = {}
    world.enter("a", "b", cpus=2)
    for _ in range(seconds):
        world.now += 1.0
        world.handle(e.Ticked())
        for name in "ab":
            slots, finished = 2, []
            for holding in list(world.state.agents[name].holdings.values()):
                numbers = RangeSet()
                numbers.update(holding.open.copy().take(slots))
                slots -= len(numbers)
                if numbers:
                    done[holding.job] = done.get(holding.job, 0) + len(numbers)
                    grant = c.SendGrant(0, holding.job, holding.layer, holding.attempt, numbers)
                    finished.append((grant, world.finished(grant, compute=float(len(numbers)))))
            world.sync(name, finished=tuple(report for _, report in finished))
            for grant, _ in finished:
                world.commit(name, grant)
    return done


def test_jobs_share_by_priority() -> None:
    world = World()
    world.add(seed("L", 100_000), job="low.1", priority=1)
    world.add(seed("M", 100_000), job="high.1", priority=3)
    done = work_through(world, 600)
    assert 2.2 < done["high.1"] / done["low.1"] < 3.8, done


def test_people_share_alike_whatever_jobs_they_have() -> None:
    world = World()
    world.add(seed("L", 100_000), job="mine.1")
    for number in range(1, 4):
        world.add(seed(f"M{number}", 100_000), job=f"ann-much.{number}", owner="ann", priority=1000)
    done = work_through(world, 600)
    hers = [done[f"ann-much.{number}"] for number in range(1, 4)]
    assert 0.6 < done["mine.1"] / sum(hers) < 1.6, done
    assert max(hers) < 2 * min(hers), done


def test_a_person_who_had_nothing_to_run_has_saved_up_nothing() -> None:
    world = World()
    world.add(seed("L", 100_000), job="mine.1")
    world.add(seed("M", 8), job="ann-little.1", owner="ann")
    work_through(world, 200)
    world.add(seed("N", 100_000), job="ann-much.1", owner="ann")
    done = work_through(world, 200)
    assert 0.5 < done["mine.1"] / done["ann-much.1"] < 2.0, done


def test_a_job_that_stood_still_has_saved_up_nothing() -> None:
    world = World()
    world.add(seed("L", 100_000), job="one.1")
    world.add(seed("M", 100_000), job="two.1")
    world.handle(e.Paused("two.1"))
    work_through(world, 100)
    world.handle(e.Resumed("two.1"))
    done = work_through(world, 200)
    assert 0.5 < done["one.1"] / done["two.1"] < 2.0, done


def test_an_agent_stays_with_a_job_until_another_is_owed_thirty_seconds() -> None:
    world = World()
    world.add(seed("L", 100_000), job="one.1")
    world.add(seed("M", 100_000), job="two.1")
    work_through(world, 200)
    order = [grant.job for grant in world.grants["a"][10:]]
    changes = sum(one != two for one, two in pairwise(order))
    assert changes <= 24, order


def test_a_machine_whose_link_is_slower_than_its_processors_gets_as_much_as_it_can_hand_in() -> None:
    world = World()
    world.add(seed(count=10_000, out_bytes=1000))
    world.enter("thin", "wide")
    for _ in range(8):
        world.now += 1.0
        for name, link in (("thin", 1000.0), ("wide", 1e9)):
            opened = [grant for grant in world.grants[name] if world.is_open(name, grant)][:1]
            world.sync(name, finished=tuple(map(world.finished, opened)), link_out=link)
            for grant in opened if name == "wide" else ():
                world.commit(name, grant)
    thin = world.state.agents["thin"]
    waiting = sum(len(holding.finished) for holding in thin.holdings.values())
    assert 30 < waiting < 100 and not world.open_of("thin")
    told = f"j.1: its link takes {waiting} s for what it has finished; it gets more after that"
    assert str(thin.idle_because) == told
    assert world.open_of("wide") and world.layer().fresh
    for grant in world.grants["thin"]:
        world.commit("thin", grant)
    world.sync("thin", link_out=1000.0)
    assert world.open_of("thin")


def test_no_more_of_a_job_is_out_than_may_run_at_once() -> None:
    world = World()
    world.add(seed(count=100), at_once=3)
    world.enter("a", "b", cpus=8)
    for _ in range(5):
        for name in "ab":
            if world.open_of(name):
                world.finish(name, seconds=0.1)
            assert 1 <= world.open_of("a") + world.open_of("b") <= 3
    world.enter("c", cpus=8)
    idle = world.state.agents["c"].idle_because
    assert not world.open_of("c") and idle is not None and "as many as it may have" in idle.text


def test_a_copy_counts_as_one_that_is_out() -> None:
    world = World()
    world.add(seed(count=2), at_once=2, proven=True)
    world.enter("a", cpus=2)
    assert world.open_of("a") == 2
    world.enter("b", cpus=2)
    for _ in range(5):
        world.tick()
        world.sync("a", hungry=False)
        world.sync("b")
        assert (world.open_of("a"), world.open_of("b")) == (2, 0)


def test_a_job_that_only_machines_can_fail_waits_for_no_first_success() -> None:
    world = World()
    world.add(proven=True)
    world.enter("a", "b", cpus=4)
    assert world.open_of("a") == world.open_of("b") == 5
