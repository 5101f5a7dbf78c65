"""What `plan` says of a job that has not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.api.status import AgentStatus
from muster.coordinator.display import forecasts
from muster.coordinator.submission.forecast import forecast, root_bytes
from muster.coordinator.submission.submit import plan_file
from muster.jobs.contract.plan import FORMAT, ArraySource, Layer, Plan, Stamp, Work
from tests.unit.coordinator.submission.test_eta import agent, job, tally

MIB = 1 << 20


def layer(name: str, rows: int = 1000, out_bytes: int = 10 * MIB) -> Layer:
    source = ArraySource("/data/w.npy", 128, "<f4", (rows, 262144), Stamp(1, 2, 3, 4))
    return Layer(name, "0" * 32, source, rows, 100, -(-rows // 100), 100 * MIB, out_bytes, None)


def plan(*layers: Layer, **work: Any) -> Plan:
    fields: dict[str, Any] = {"kind": "cluster", "kernel": 1, "params": {}, "code": None, "entry": None, "env": None}
    made = Work(**{**fields, "cpus": 1, "memory": None, "timeout": None, "runs_code": False, **work})
    return Plan(FORMAT, "weights", made, layers, 3, 20, 1, None)


def machine(cpus: int = 4, state: Any = "live") -> AgentStatus:
    return AgentStatus(f"of-{cpus}", "host", state, 1.0, cpus, 0, 0, 0, 0, 0, "print", "0.1")


def test_sizes_add_up_with_a_short_last_shard() -> None:
    seen = forecast(plan(layer("a"), layer("b", rows=150)), [], [], None)
    assert (seen.shards, seen.rows, seen.bytes_in, seen.bytes_out) == (12, 1150, 1150 * MIB, 115 * MIB)


def test_the_root_holds_the_result_and_two_open_layers_twice() -> None:
    assert root_bytes([10, 30, 20]) == 60 + 50
    assert root_bytes([10]) == 20
    assert root_bytes([10, None]) is None


def test_no_time_is_guessed_without_history() -> None:
    seen = forecast(plan(layer("a")), [machine()], [], None)
    assert seen.seconds is None
    assert seen.bottleneck == "unknown"
    assert "unknown until the first shards ran" in forecasts.forecast_page(seen)


def test_earlier_jobs_and_all_slots_give_the_time() -> None:
    earlier = job(tally(), agents=[agent(bytes_in=100 * MIB, busy=10.0)])  # 10 MiB/s in a slot
    seen = forecast(plan(layer("a")), [machine(4), machine(6), machine(9, "gone")], [earlier], None)
    assert seen.slots == 10
    assert seen.seconds == pytest.approx(10.0)
    assert seen.bottleneck == "compute"
    assert seen.basis == "as weights.1 went"


def test_a_job_of_another_name_says_less() -> None:
    earlier = job(tally(), agents=[agent()])
    mine = forecast(plan(layer("a")), [machine()], [earlier], None)
    other = forecast(Plan(FORMAT, "other", plan().work, (layer("a"),), 3, 20, 1, None), [machine()], [earlier], None)
    assert other.low is not None and mine.low is not None and other.low < mine.low


def test_a_function_is_forecast_from_jobs_of_the_same_function_alone() -> None:
    new = plan(layer("a"), kind="map", code="0" * 32, entry="work.py:new", runs_code=True)
    old = job(
        tally(),
        kind="map",
        agents=[agent()],
        of_submitter=plan(kind="map", code="1" * 32, runs_code=True).work.of_submitter,
    )
    assert forecast(new, [machine()], [old], None).seconds is None
    same = job(tally(), kind="map", agents=[agent()], of_submitter=new.work.of_submitter)
    assert forecast(new, [machine()], [old, same], None).basis == "as weights.1 went"


def test_a_command_is_forecast_from_jobs_of_the_same_command_alone() -> None:
    run, other = (plan(layer("a"), kind="command", params={"run": text}, runs_code=True) for text in ("a", "b"))
    old = job(tally(), kind="command", agents=[agent()], of_submitter=other.work.of_submitter)
    assert forecast(run, [machine()], [old], None).seconds is None


def test_a_large_output_is_bound_by_its_merge() -> None:
    earlier = job(tally(), agents=[agent(busy=1.0)], bytes_merged=MIB, merge_seconds=1.0)
    seen = forecast(plan(layer("a")), [machine(100)], [earlier], None)
    assert (seen.bottleneck, seen.seconds) == ("merge", pytest.approx(100.0))


def test_unknown_output_and_too_little_room_are_said() -> None:
    unknown = forecasts.forecast_page(forecast(plan(layer("a", out_bytes=0)), [], [], None))
    assert "unknown until the first shards ran" in unknown
    small = forecasts.forecast_page(forecast(plan(layer("a")), [], [], 5 * MIB))
    assert "needs 200 MiB, 5 MiB free: not enough" in small


def test_the_page_fits_a_terminal() -> None:
    layers = [layer(f"encoder.layers.{i}.attention.output.dense.weight") for i in range(40)]
    page = forecasts.forecast_page(forecast(plan(*layers), [machine()], [job(tally(), agents=[agent()])], 1 << 40))
    assert max(len(line) for line in page.splitlines()) <= 100
    assert "… and 10 layers more" in page


def test_of_a_training_it_says_model_data_rounds_and_bytes(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: digits\nkind: train\nparams: {rounds: 7, layers: [8], bits: 16}\n")
    seen = forecast(plan_file(file).plan, [machine()], [], None)
    assert forecasts.forecast_page(seen).splitlines() == [
        "digits: train, mlp with 610 parameters",
        "  data     1,437 rows, 360 to test on",
        "  rounds   7, sync; each of 12 × 64 = 768 rows",
        "  link     about 1.2 KiB a round to each machine, and as much from it",
        "  farm     1 machine, 4 shards at once",
    ]
