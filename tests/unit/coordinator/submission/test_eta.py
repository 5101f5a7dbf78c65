"""The ETA: what it knows, when it says nothing, and which step it blames."""

from __future__ import annotations

from typing import Any

import pytest

from muster.coordinator.api.status import AgentRate, JobStatus, LayerStatus, Tally, Window
from muster.coordinator.submission import eta as progress

MIB = 1 << 20
NOW = 1000.0


def agent(name: str = "a", **given: Any) -> AgentRate:
    fields: dict[str, Any] = {
        "live": True,
        "slots": 2,
        "running": 2,
        "finished": 0,
        "shards": 100,
        "rows": 100,
        "bytes_in": 100 * MIB,
        "bytes_out": 100 * MIB,
        "seconds": 1.0,
        "busy": 100.0,
    }
    return AgentRate(name=name, **{**fields, **given})


def job(tally: Tally, **given: Any) -> JobStatus:
    fields: dict[str, Any] = {
        "kind": "cluster",
        "state": "running",
        "why": "",
        "priority": 1,
        "created": 1.0,
        "started": 2.0,
        "ended": None,
        "failures": 0,
        "layers_total": 1,
    }
    return JobStatus(id="weights.1", totals=tally, **{**fields, **given})


def eta(seen: JobStatus) -> progress.Eta:
    return progress.eta(seen, NOW)


def tally(shards: int = 1000, out: int = MIB, **given: int) -> Tally:
    done = sum(given.values())
    return Tally(shards=shards, pending=shards - done, rows=shards, bytes_out=shards * out, **given)


def test_nothing_is_claimed_before_a_shard_was_measured() -> None:
    fresh = job(tally(), agents=[agent(seconds=0.0, shards=0, busy=0.0)])
    assert eta(fresh) == progress.Eta("measuring")


def test_without_a_live_machine_there_is_no_eta() -> None:
    assert eta(job(tally())).bottleneck == "no agents"
    assert eta(job(tally(), agents=[agent(live=False)])).bottleneck == "no agents"
    assert eta(job(tally(), agents=[agent()], state="paused")).likely is None


def test_shards_left_over_the_rate_of_all_machines() -> None:
    seen = eta(job(tally(committed=200, out=1), agents=[agent("a"), agent("b", seconds=2.0)]))
    assert seen.bottleneck == "compute"
    assert seen.likely == pytest.approx(800 / 3, rel=0.02)  # 2 + 1 shards a second
    assert seen.low is not None and seen.likely is not None and seen.high is not None
    assert seen.low < seen.likely < seen.high


def test_an_unmeasured_machine_counts_as_fast_as_the_others() -> None:
    one = eta(job(tally(out=1), agents=[agent("a")]))
    two = eta(job(tally(out=1), agents=[agent("a"), agent("b", seconds=0.0, shards=0)]))
    assert one.likely is not None and two.likely == pytest.approx(one.likely / 2, rel=0.01)


def test_what_was_observed_counts_more_than_what_shards_take() -> None:
    slow = Window(seconds=60.0, finished=60)  # 1 a second, where two slots of 1 s promise 2
    seen = eta(job(tally(out=1), agents=[agent()], recent=slow))
    assert seen.likely == pytest.approx(1000, rel=0.01)


def test_a_machine_that_left_is_not_counted_on_any_more() -> None:
    both = Window(seconds=60.0, finished=240)
    seen = eta(job(tally(out=1), agents=[agent("a"), agent("b", live=False)], recent=both))
    assert seen.likely == pytest.approx(500, rel=0.01)


def test_finished_shards_that_pile_up_make_push_the_bottleneck() -> None:
    clogged = Window(seconds=60.0, finished=600, committed=60)
    seen = eta(job(tally(committed=60, finished=540, out=1), agents=[agent()], recent=clogged))
    assert seen.bottleneck == "push"
    assert seen.likely == pytest.approx(940, rel=0.01)


def test_pushes_that_stand_still_have_no_eta() -> None:
    stuck = job(tally(finished=1000), agents=[agent()], recent=Window(60.0, finished=600), started=NOW - 100)
    assert eta(stuck) == progress.Eta("push")
    young = job(tally(finished=1000), agents=[agent()], recent=Window(60.0, finished=1000), started=NOW - 4)
    assert eta(young).likely is not None  # a bundle may wait that long


def test_the_merge_is_counted_even_when_all_is_committed() -> None:
    done = job(tally(1000, committed=1000), bytes_merged=100 * MIB, merge_seconds=1.0)
    seen = eta(done)
    assert (seen.bottleneck, seen.likely) == ("merge", pytest.approx(10.0))


def test_merged_layers_are_not_merged_again() -> None:
    half = tally(500, committed=500)
    layers = [LayerStatus("a", "merged", half), LayerStatus("b", "merging", half)]
    seen = eta(job(tally(committed=1000), layers=layers, bytes_merged=100 * MIB, merge_seconds=1.0))
    assert seen.likely == pytest.approx(5.0)


def test_output_of_unknown_size_is_taken_from_what_is_committed() -> None:
    seen = Tally(shards=100, committed=10, pending=90, bytes_committed=10 * MIB)
    assert progress.load_of(job(seen, agents=[agent()]), NOW).merge_bytes == 100 * MIB


def test_the_last_shards_make_a_tail() -> None:
    seen = eta(job(tally(1000, committed=998, running=2, out=1), agents=[agent(seconds=600.0)]))
    assert seen.high is not None and seen.high >= 600


def test_more_samples_narrow_the_range() -> None:
    def width(shards: int) -> float:
        seen = eta(job(tally(out=1), agents=[agent(shards=shards)]))
        assert seen.likely and seen.low is not None and seen.high
        return (seen.high - seen.low) / seen.likely

    assert width(400) < width(10) < width(3)


def test_an_empty_job_divides_by_nothing() -> None:
    empty = job(Tally(), layers_total=0)
    assert eta(empty).likely == 0
    assert progress.share(empty.totals) == 0
    assert progress.speed(empty, NOW) == progress.Speed()


def test_short_shards_are_measured_before_anything_is_claimed() -> None:
    """12 ms of compute say nothing where a shard's way takes 200."""
    seen = job(tally(out=1), agents=[agent(seconds=0.012)], recent=Window(2.0, finished=10))
    assert eta(seen).bottleneck == "measuring"
    later = job(tally(out=1), agents=[agent(seconds=0.012)], recent=Window(10.0, finished=50))
    assert eta(later).likely == pytest.approx(200, rel=0.02)


def test_the_wait_for_a_first_machine_is_not_counted() -> None:
    late = job(tally(out=1), agents=[agent(seconds=0.01)], recent=Window(60.0, finished=50), started=NOW - 10)
    assert eta(late).likely == pytest.approx(200, rel=0.02)
    assert progress.speed(late, NOW).shards == 5.0


def test_a_trace_tells_each_machine_as_it_is_now() -> None:
    trace = progress.Trace()
    for now, shards in ((0.0, 0), (10.0, 10), (20.0, 50), (21.0, 54)):
        trace.add(job(tally(), agents=[agent(shards=shards, bytes_in=shards * MIB)]), now)
    assert trace.speed("a") == progress.Speed(4.0, 4.0 * MIB)
    assert trace.speed("b") == progress.Speed()
