"""Which shards run too long: told from what reports carry, and never of machines that are only slow or silent."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from muster.coordinator.api.status import AgentRate, JobStatus, SlowShard, Tally
from muster.coordinator.daemon.measures import JobFigures
from muster.coordinator.daemon.views import long_shards
from muster.coordinator.daemon.views.long_shards import misjudged, slow_shards
from muster.coordinator.display import agents, jobs
from muster.coordinator.protocol.control import Finished
from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler.events import LayerSeed
from muster.coordinator.submission.eta import Trace
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import Plan
from tests.support.sched import World, plan, seed

MEDIAN = 2.0


def at_work(cpus: int = 1, **more: Any) -> World:
    """A job past its first success, and an agent with a grant of some shards."""
    world = World(lease=150.0, heartbeat=5.0)
    world.add(seed(count=1000), succeeded=True, **more)
    world.enter("one", cpus=cpus)
    assert len(world.last("one").numbers) > cpus
    return world


def slow(world: World, job: str = "j.1") -> list[tuple[int, str, float]]:
    found = slow_shards(world.state, world.state.jobs[job], MEDIAN, world.now)
    return [(one.number, one.agent, one.seconds) for one in found]


def done(world: World, name: str, grant: c.SendGrant, *numbers: int, hungry: bool = False) -> None:
    told = RangeSet.of(numbers).pairs()
    report = Finished(grant.job, grant.layer, 1, grant.attempt, told, len(numbers), 1.0, 0.0, 0, 0, 0)
    world.sync(name, hungry=hungry, finished=(report,))


def test_one_that_hangs_on_a_machine_of_one_slot_is_named() -> None:
    world = at_work()
    grant = world.last("one")
    done(world, "one", grant, 0)
    world.now += 19.0
    world.sync("one", hungry=False)
    assert slow(world) == []
    world.now += 2.0
    world.sync("one", hungry=False)
    assert slow(world) == [(1, "one", 21.0)]
    done(world, "one", grant, 1)
    assert slow(world) == []


def test_one_that_hangs_beside_others_that_do_not_is_named() -> None:
    world = at_work(cpus=2)
    for _ in range(8):
        world.now += 3.0
        grant = world.last("one")
        done(world, "one", grant, *(n for n in grant.numbers if n), hungry=True)
    assert slow(world) == [(0, "one", 21.0)]


def test_neither_before_a_median_nor_of_a_silent_machine() -> None:
    world = at_work()
    world.now += 70.0
    world.sync("one", hungry=False)
    assert slow(world) and not slow_shards(world.state, world.state.jobs["j.1"], 0.0, world.now)
    world.tick(38)
    assert slow(world)
    world.tick()
    assert slow(world) == [], "others may compute what it has, and its link is what ails it"


def test_a_job_that_waits_behind_another_is_not_blamed() -> None:
    world = World(lease=150.0)
    world.add()
    world.add(seed("M"), job="j.2")
    world.enter("one")
    assert world.state.agents["one"].load() == {"j.1": 1, "j.2": 1}
    world.now += 70.0
    world.sync("one", hungry=False)
    assert slow(world) == [] and slow(world, "j.2") == []


def test_a_shard_that_the_cut_misjudged_is_named_with_what_would_fit() -> None:
    world = World(lease=150.0, heartbeat=5.0)
    rows = msgspec.structs.replace(seed(count=40).plan, rows=4000, shard_rows=100)
    world.add(LayerSeed(rows, 40, 0), succeeded=True)
    world.enter("one")
    job, auto = world.state.jobs["j.1"], plan(rows, cut="40 shards")

    def named(of: Plan = auto, per_row: float = 0.0) -> str:
        return misjudged(world.state, job, of, per_row, world.now)

    world.now += 59.0
    world.sync("one", hungry=False)
    assert named() == ""
    world.now += 41.0
    world.sync("one", hungry=False)
    assert named() == (
        "L/0 has been at work on one for 1 min 40 s; a shard is meant to take about 10 s: `shard: {rows: 10}` or less"
        " would fit"
    )
    assert "{rows: 5}` or less" in named(per_row=2.0) and "{rows: 1}` would fit" in named(per_row=7.0)
    assert named(plan(rows)) == "", "the job file's own numbers are not argued with"
    done(world, "one", world.last("one"), 0)
    assert named() == ""


@pytest.mark.parametrize("of_one", [{"rows": 40, "shard_rows": 1}, {"in_bytes": 100 << 20}])
def test_neither_a_single_row_nor_what_may_still_be_pulled_is_misjudged(of_one: dict[str, int]) -> None:
    world = World(lease=150.0, heartbeat=5.0)
    layer = msgspec.structs.replace(seed(count=40).plan, **{"rows": 4000, "shard_rows": 100, **of_one})
    world.add(LayerSeed(layer, 40, 0), succeeded=True)
    world.enter("one", in_place=False)
    world.now += 100.0
    world.sync("one", hungry=False)
    assert misjudged(world.state, world.state.jobs["j.1"], plan(layer, cut="40 shards"), 0.0, world.now) == ""


def test_the_log_has_it_once_of_each_job(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    world, rounds = World(lease=150.0, heartbeat=5.0), iter(range(3))
    rows = msgspec.structs.replace(seed(count=40).plan, rows=4000, shard_rows=100)
    world.add(LayerSeed(rows, 40, 0), succeeded=True)
    world.enter("one")
    live = SimpleNamespace(plan=plan(rows, cut="40 shards"), figures=JobFigures())
    engine: Any = SimpleNamespace(state=world.state, jobs={"j.1": live})

    async def pass_by(seconds: float) -> None:
        """A minute, and no more than three of them."""
        next(rounds)
        world.now += 70.0
        world.sync("one", hungry=False)

    monkeypatch.setattr(long_shards, "time", SimpleNamespace(monotonic=lambda: world.now))
    monkeypatch.setattr(long_shards, "asyncio", SimpleNamespace(sleep=pass_by))
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(long_shards.log_forever(engine))
    (line,) = caplog.messages
    assert line.startswith("j.1: L/0 has been at work on one for 1 min 10 s")


def test_the_median_is_that_of_shards_to_a_tenth() -> None:
    figures = JobFigures()
    for seconds, count in ((0.01, 2), (900.0, 1), (3.0, 5)):
        assert figures.median() == 0.0
        report = Finished("j", "L", 1, 1, [], count, seconds * count, 0.0, 0, 0, 0)
        figures.finished("one", report, count, count)
    assert 2.7 < figures.median() < 3.3


def test_it_is_said_in_a_line() -> None:
    stuck = SlowShard("conv1", 17, "left", 312.4, 10.0)
    job = JobStatus("w.1", "map", "running", "", 1, 1.0, 2.0, None, Tally(), 0, slow=[stuck])
    (line,) = jobs.remarks(job)
    assert line == "w.1/conv1/17 has been at work on left for 5 min 12 s, others take 10 s; there is no `timeout`"
    assert line in jobs.job_page(job, 3.0)


def test_who_watches_sees_it_with_its_machine() -> None:
    stuck = SlowShard("conv1", 17, "left", 312.4, 10.0)
    left, right = (AgentRate(name, True, 1, 1, 0, 3, 3, 9, 9, 1.0, 3.0) for name in ("left", "right"))
    job = JobStatus("w.1", "map", "running", "", 1, 1.0, 2.0, None, Tally(), 0, agents=[left, right], slow=[stuck])
    trace = Trace()
    trace.add(job, 3.0)
    first, second = agents.machine_lines(job, trace)
    assert first.endswith("conv1/17 runs for 5 min 12 s") and "runs" not in second
