"""What of a running job may be changed, and jobs that are deleted by their age, with simulated agents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.farm import FarmHarness, arrays, running, until


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[FarmHarness]:
    with running(tmp_path, heartbeat=0.1, tick=0.05) as made:
        yield made


def test_a_shard_that_fails_has_as_many_attempts_as_are_set_and_a_restart_keeps_them(farm: FarmHarness) -> None:
    job = farm.submit(arrays(), attempts=1)
    assert farm.coordinator("set", job, "attempts=4", "max_failures=7").returncode == 0
    farm.restart()
    agent = farm.agent("lab3")
    agent.fails.add(("a", 3))
    agent.work(lambda: farm.status(job).state == "incomplete")
    assert farm.status(job).failures == 4
    assert farm.plan(job).attempts == 1  # what was submitted stays as it was


def test_memory_and_timeout_reach_machines_that_know_the_layer(farm: FarmHarness) -> None:
    job = farm.submit(arrays(rows=480), resources={"memory": "1GiB"}, timeout="1h")
    agent = farm.agent("lab3")
    agent.join()
    until(lambda: agent.sync(wait=0.05) and agent.granted, "a grant")
    [digest] = [layer.digest for layer in farm.plan(job).layers]
    assert (agent.layers[digest].work.memory, agent.layers[digest].work.timeout) == (1 << 30, 3600)
    farm.coordinator("set", job, "memory=2MiB", "timeout=")
    until(lambda: agent.sync(hungry=False) and agent.layers[digest].work.memory == 2 << 20, "the new memory")
    assert agent.layers[digest].work.timeout is None


def test_a_machine_that_was_too_small_suits_once_the_memory_is_less(farm: FarmHarness) -> None:
    job = farm.submit(arrays(), resources={"memory": "1000TiB"})
    agent = farm.agent("lab3")
    agent.join()
    agent.sync()
    assert any("may use" in note for note in farm.status(job).notes)
    said = json.loads(farm.coordinator("set", job, "memory=1MiB", "--json").stdout)
    assert (said["job"], said["memory"]) == (job, 1 << 20)
    agent.work(lambda: farm.status(job).state == "complete")
    ended = farm.coordinator("set", job, "memory=1MiB")
    assert ended.returncode == 7


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("atempts=3", "did you mean `attempts`?"),
        ("attempts", "expected NAME=VALUE"),
        ("attempts=none", "expected a whole number"),
        ("attempts=0", ">= 1"),
        ("timeout=soon", "expected a duration"),
    ],
)
def test_settings_that_cannot_be_are_refused(setting: str, said: str, farm: FarmHarness) -> None:
    ended = farm.coordinator("set", farm.submit(arrays()), setting)
    assert ended.returncode == 2 and said in ended.stderr


def test_a_misspelt_job_with_its_number_names_the_nearest(farm: FarmHarness) -> None:
    job = farm.submit(arrays(), name="weights")
    ended = farm.coordinator("status", "weigths.1")
    assert ended.returncode == 6 and f"did you mean {job}?" in ended.stderr


def test_jobs_that_ended_long_ago_are_deleted_and_no_others(farm: FarmHarness) -> None:
    agent = farm.agent("lab3")
    done = [farm.submit(arrays(seed=seed)) for seed in range(2)]
    agent.work(lambda: all(farm.status(job).state == "complete" for job in done))
    held = farm.submit(arrays(seed=2))
    assert json.loads(farm.coordinator("rm", "--older-than", "1h", "--json").stdout)["jobs"] == []
    refused = farm.coordinator("rm", "--older-than", "1ms")
    assert refused.returncode == 2 and "or add --yes" in refused.stderr and len(farm.jobs()) == 3
    until(lambda: farm.coordinator("rm", "--older-than", "100ms", "--yes").returncode == 0 and len(farm.jobs()) == 1,
          "both to go")  # fmt: skip
    assert [status.id for status in farm.jobs()] == [held]
    assert farm.coordinator("rm").returncode == 2 and farm.coordinator("rm", held, "--older-than", "1d").returncode == 2
    assert farm.coordinator("rm", "--older-than", "soon").returncode == 2


def test_a_job_file_is_submitted_with_other_params_and_stays_as_it_is(farm: FarmHarness) -> None:
    file = farm.job_file(arrays(2))
    before = file.read_bytes()
    job = farm.coordinator("submit", str(file), "--set", "n_clusters=2").stdout.strip()
    assert farm.plan(job).work.params["n_clusters"] == 2
    other = farm.coordinator("submit", str(file), "--set", "n_clusters=3", "--layers", "b").stdout.strip()
    assert [(layer.params or {}).get("n_clusters") for layer in farm.plan(other).layers] == [None, 3]
    again = farm.coordinator("submit", str(file), "--from", job, "--set", "n_clusters=5").stdout.strip()
    assert farm.plan(again).work.params["n_clusters"] == 5
    planned = farm.coordinator("plan", str(file), "--set", "n_clusters=x")
    assert planned.returncode == 3 and "with --set" in planned.stderr
    assert file.read_bytes() == before
