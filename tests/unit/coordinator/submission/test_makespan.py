"""What the farm measured of its machines, and what that says of a job: in seconds and in words."""

from __future__ import annotations

from typing import Any

import pytest

from muster.coordinator.api.status import AgentStatus, Tally
from muster.coordinator.daemon.measures import TOLD_BYTES, TransferRate
from muster.coordinator.display.agents import agents_table, payoff_lines, payoffs_of_jobs
from muster.coordinator.display.forecasts import forecast_page
from muster.coordinator.submission.forecast import forecast
from muster.coordinator.submission.makespan import FarmMachine, InputLeft, computed, payoffs
from tests.unit.coordinator.submission.test_eta import MIB, agent, job, tally
from tests.unit.coordinator.submission.test_forecast import layer, plan

MINUTES = 60.0
LEFT = InputLeft(36 * MINUTES * 100 * MIB, 0, 4 / (100 * MIB))  # four slots get through 100 MiB a second
DESK = FarmMachine("desk", 4, local=True)


def machine(name: str, cpus: int = 4, **given: Any) -> AgentStatus:
    return AgentStatus(name, "host", "live", 1.0, cpus, 0, 0, 0, 0, 0, "print", "0.1", **given)


def far(name: str = "lab3", rate: float = 10.0, **given: Any) -> AgentStatus:
    return machine(name, in_place=False, link_in=rate * MIB, **given)


def test_a_thin_link_is_named_as_the_limit_and_a_copy_as_the_way_out() -> None:
    lab = FarmMachine("lab3", 4, link_in=10 * MIB)
    assert payoff_lines(payoffs([DESK, lab], LEFT)) == [
        "alone 36 min; with lab3 32 min 44 s, its link is the limit; a copy of the source there would make it 18 min"
    ]


def test_where_the_slots_are_the_limit_no_copy_is_spoken_of() -> None:
    lab, other = FarmMachine("lab3", 4, link_in=1e12), FarmMachine("other", 4, local=True)
    assert payoff_lines(payoffs([DESK, lab], LEFT)) == ["alone 36 min; with lab3 18 min"]
    assert payoff_lines(payoffs([DESK, lab, other], LEFT)) == ["without lab3 18 min; with lab3 12 min"]


def test_results_too_take_a_link() -> None:
    lab = FarmMachine("lab3", 4, has_copy=True, link_in=1e12, link_out=5 * MIB)
    (said,) = payoff_lines(payoffs([DESK, lab], InputLeft(LEFT.bytes_in, LEFT.bytes_in, LEFT.slot_seconds)))
    assert said == "alone 36 min; with lab3 34 min 17 s, its link is the limit"


def test_of_a_link_that_was_not_measured_nothing_else_is_said() -> None:
    lines = payoff_lines(payoffs([DESK, FarmMachine("lab3", 4)], LEFT))
    assert lines == ["lab3: how fast inputs reach it is not measured yet"]


def test_machines_are_compared_by_what_computing_took_them() -> None:
    slow, fast = agent("slow", bytes_in=100 * MIB, busy=30.0), agent("fast", bytes_in=100 * MIB, busy=10.0)
    found = computed([job(tally(), agents=[slow, fast, agent("idle", busy=0.0)])])
    assert found is not None
    assert found.slot_seconds == pytest.approx(0.2 / MIB)
    assert found.speeds == {"slow": pytest.approx(2 / 3), "fast": pytest.approx(2.0)}
    assert computed([job(tally())]) is None


def test_a_plan_says_what_a_far_machine_adds_and_reckons_with_its_link() -> None:
    earlier = job(tally(), agents=[agent("desk", bytes_in=100 * MIB, busy=10.0)])  # 10 MiB/s in a slot
    alone = forecast(plan(layer("a")), [machine("desk")], [earlier], None)
    seen = forecast(plan(layer("a")), [machine("desk"), far()], [earlier], None)
    assert alone.seconds == pytest.approx(25.0)
    assert (seen.seconds, seen.bottleneck) == (pytest.approx(20.0), "links")
    assert "  pays     alone 25 s; with lab3 20 s, its link is the limit; a copy" in forecast_page(seen)
    assert "pays" not in forecast_page(alone)


def test_without_anything_measured_a_plan_says_nothing_of_machines() -> None:
    seen = forecast(plan(layer("a")), [machine("desk"), far()], [], None)
    assert not seen.payoffs
    assert "pays" not in forecast_page(seen)


def test_agents_says_of_each_running_job_what_far_machines_add_to_the_rest_of_it() -> None:
    half = Tally(shards=1000, pending=500, committed=500, bytes_in=2000 * MIB)
    rates = [agent("desk", slots=4, busy=10.0), agent("lab3", slots=4, busy=10.0)]
    running = job(half, agents=rates)
    said = [
        "weights.1: alone 25 s; with lab3 20 s, its link is the limit; a copy of the source there would make it 12 s"
    ]
    assert payoffs_of_jobs([running], [machine("desk"), far()]) == said
    assert not payoffs_of_jobs([running], [machine("desk")])
    fresh = job(half, agents=[agent("lab3", bytes_in=0, busy=0.0)])
    assert payoffs_of_jobs([fresh], [far()]) == ["weights.1: what each machine adds is not measured yet"]


def test_agents_shows_a_clusters_nodes_with_their_slots_a_line_each() -> None:
    lines = agents_table([machine("cluster", places={"10.0.0.3": 1, "10.0.0.2": 4})], 1.0).splitlines()
    assert lines[-2:] == ["cluster: node 10.0.0.2: 4 slots", "cluster: node 10.0.0.3: 1 slot"]


def test_agents_says_how_fast_inputs_come_and_what_a_copy_spared() -> None:
    lines = agents_table([far(have="/mnt/data", bytes_spared=3 * MIB, bytes_pulled=MIB)], 1.0).splitlines()
    assert lines[-1] == "lab3: inputs come at 10 MiB/s, /mnt/data spared its link 3 MiB of 4 MiB"


def test_a_rate_is_of_late_and_wants_more_than_a_little() -> None:
    moved = TransferRate()
    moved.moved(TOLD_BYTES - 1, 1.0)
    assert moved.rate == 0.0
    moved.moved(99 * MIB, 9.0)
    assert moved.rate == pytest.approx(10 * MIB, rel=0.01)
    for _ in range(20):
        moved.moved(60 * MIB, 60.0)
    assert moved.rate == pytest.approx(MIB, rel=0.01)
    moved.moved(1 << 53, 0.0)  # a clock that stood still says nothing
    assert moved.rate == pytest.approx(MIB, rel=0.01)
