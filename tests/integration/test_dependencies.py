"""Jobs that start after others: by the job file, the command line and Python, over restarts, and what halts them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.client import Farm
from muster.jobs.common.errors import NotFoundError
from tests.support.farm import FarmHarness, arrays, running, until

SEARCH = {
    "trial": "mlp",
    "data": "digits",
    "space": {"lr": {"loguniform": [0.01, 0.1]}},
    "metric": "accuracy",
    "trials": 2,
    "stop": {"iterations": 2},
}


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[FarmHarness]:
    with running(tmp_path, heartbeat=0.1, tick=0.05) as made:
        yield made


def submit(farm: FarmHarness, name: str, *after: str, seed: int = 0, **fields: Any) -> str:
    """By the job file where it says after which, and not by the command line."""
    more: dict[str, Any] = {"after": list(after)} if after else {}
    return farm.submit(arrays(rows=8, seed=seed), name=name, **more, **fields)


def test_jobs_in_a_row_run_in_that_order_and_a_restart_changes_nothing(farm: FarmHarness) -> None:
    first = submit(farm, "prepare", seed=1)
    second = submit(farm, "cluster", "prepare", seed=2)
    third = submit(farm, "report", "prepare.1", "cluster", seed=3)
    assert (farm.plan(second).after, farm.plan(third).after) == ((first,), (first, second))
    assert [status.state for status in farm.jobs()] == ["running", "waiting", "waiting"]
    farm.restart()
    assert farm.status(third).why == f"waits for {first} and {second}"
    assert f"is waiting: waits for {first}; " in farm.coordinator("explain", second).stdout
    farm.agent().work(lambda: farm.status(third).state == "complete")
    ended = [status.ended for status in farm.jobs()]
    assert None not in ended and ended == sorted(ended, key=lambda at: at or 0.0)
    started = farm.status(second).started
    assert started is not None and ended[0] is not None and started >= ended[0]
    farm.check_result(third)


def test_a_daemon_that_dies_while_the_first_one_ends_starts_the_second_when_it_is_back(farm: FarmHarness) -> None:
    first = submit(farm, "prepare", seed=1)
    second = submit(farm, "cluster", "prepare", seed=2)
    agent = farm.agent()
    agent.work(lambda: farm.status(first).totals.committed > 0)
    farm.kill()
    farm.start()
    agent.work(lambda: farm.status(second).state == "complete")
    assert farm.status(first).state == "complete"


def test_what_becomes_of_the_first_halts_the_others_until_both_are_retried(farm: FarmHarness) -> None:
    first = submit(farm, "prepare", seed=1)
    second, third = submit(farm, "cluster", "prepare", seed=2), submit(farm, "report", "cluster", seed=3)
    assert farm.coordinator("cancel", first).returncode == 0
    assert farm.status(second).why == f"it was to start after {first}, which is cancelled"
    assert farm.status(third).why == f"it was to start after {second}, which is halted"
    watched = farm.coordinator("watch", third)
    assert watched.returncode == 11 and f"after {second}, which is halted" in watched.stderr
    early = farm.coordinator("retry", second)
    assert early.returncode == 7 and f"{second} cannot start: it was to start after {first}" in early.stderr
    farm.restart()
    assert farm.coordinator("retry", first).returncode == 0
    assert f"{second} starts once {first} is complete" in farm.coordinator("retry", second).stdout
    assert farm.coordinator("retry", third).returncode == 0
    farm.agent().work(lambda: farm.status(third).state == "complete")


def test_one_that_is_deleted_is_named_and_no_other_comes_to_have_its_id(farm: FarmHarness) -> None:
    first, other = submit(farm, "prepare", seed=1), submit(farm, "clean", seed=4)
    second = submit(farm, "cluster", "prepare", "clean", seed=2)
    agent = farm.agent()
    farm.coordinator("pause", other)
    agent.work(lambda: farm.status(first).state == "complete")
    assert farm.status(second).why == f"waits for {other}"
    assert farm.coordinator("rm", first).returncode == 0
    assert farm.status(second).why == f"it was to start after {first}, which is deleted"
    assert submit(farm, "prepare", seed=1) == "prepare.2"
    assert "which is deleted" in farm.coordinator("retry", second).stderr


@pytest.mark.parametrize(("name", "after"), [("cluster", "prepare"), ("cluster", "cluster"), ("cluster", "cluster.1")])
def test_a_job_that_is_not_there_is_refused_in_a_line_and_so_is_the_job_itself(
    farm: FarmHarness, name: str, after: str
) -> None:
    file = farm.job_file(arrays(rows=8), name=name)
    ended = farm.coordinator("submit", str(file), "--after", after)
    assert (ended.returncode, ended.stdout) == (6, "")
    assert f"there is no job '{after}'" in ended.stderr or f"there is no job {after}" in ended.stderr
    assert len([line for line in ended.stderr.splitlines() if line.startswith("error:")]) == 1
    assert not farm.jobs()


def test_a_name_is_the_latest_of_it_and_a_job_may_follow_its_own_forerunner(farm: FarmHarness) -> None:
    first = submit(farm, "nightly", seed=1)
    file = farm.job_file(arrays(rows=8, seed=2), name="nightly")
    said = farm.coordinator("submit", str(file), "--after", "nightly", "--after", first)
    assert said.stdout == "nightly.2\n" and farm.plan("nightly.2").after == (first,)
    farm.agent().work(lambda: farm.status("nightly.2").state == "complete")


def test_python_names_jobs_by_their_values_or_names(farm: FarmHarness) -> None:
    ours = Farm(farm.root.path)
    rows = arrays(rows=8)["a"]
    first = ours.submit(kind="cluster", source=rows, params={"n_clusters": 2}, name="prepare", progress=False)
    second = ours.submit(farm.job_file(arrays(rows=8, seed=2), name="cluster"), after=first, progress=False)
    third = ours.submit(
        kind="cluster", source=rows + 1, params={"n_clusters": 2}, name="report", after=["prepare", second],
        progress=False,
    )  # fmt: skip
    assert farm.plan(third.id).after == (first.id, second.id) and third.status().state == "waiting"
    with pytest.raises(NotFoundError, match="nobody"):
        ours.submit(kind="cluster", source=rows, params={"n_clusters": 2}, after="nobody", progress=False)
    farm.agent().work(lambda: third.status().state == "complete")


def test_a_search_that_waits_has_no_driver_before_it_starts(farm: FarmHarness) -> None:
    first = submit(farm, "prepare", seed=1)
    file = farm.job_file({}, kind="tune", after=["prepare"], name="search", params=SEARCH)
    search = farm.coordinator("submit", str(file)).stdout.strip()
    farm.restart()
    assert farm.status(search).state == "waiting" and not farm.processes("drivers.tuning")
    farm.join("lab3", "--cpus", "2")
    farm.wait(first)
    until(lambda: farm.processes("drivers.tuning") or farm.status(search).is_over, "a driver")
    farm.wait(search)
