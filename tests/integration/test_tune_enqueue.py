"""Configurations that people add to a search while it runs: each is tried once, whoever is killed at whichever step."""

from __future__ import annotations

import os
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.client import Farm
from muster.coordinator.client.study import Study
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.errors import RefusedError, UsageError
from muster.jobs.tuning.journal import recalled
from muster.jobs.tuning.queue import Queue
from tests.integration.test_tune import SMALL, SPACE, WORK, best, drivers, result, rows_of, submit, table
from tests.support.farm import FarmHarness, Tracer, strace_obstacle, until
from tests.support.needs import skip_for
from tests.support.sshd import HOST, Sshd

SLOW = {"space": {**SPACE, "pause": 0.02}}
COMMAND_STEPS = {
    "the file is synced": "fsync:signal=SIGKILL:when=1",
    "the file has its place": "link,linkat:signal=SIGKILL:when=1",
    "its other name goes": "unlink,unlinkat:signal=SIGKILL:when=1",
    "the folder is synced": "fsync:signal=SIGKILL:when=2",
}
DRIVER_STEPS = {
    "the journal's file is synced": "fsync:signal=SIGKILL:when=1",
    "the journal's file is renamed": "rename:signal=SIGKILL:when=1",
    "the journal's folder is synced": "fsync:signal=SIGKILL:when=2",
}


def tried(farm: FarmHarness, job: str) -> list[float]:
    """The learning rates of all trials, once they are done."""
    farm.wait(job)
    return [float(row["lr"]) for row in rows_of(farm, job)]


@pytest.mark.parametrize("scheduler", ["fifo", "halving", "asha"])
def test_what_is_enqueued_is_a_trial_of_its_own_and_in_the_table(farm: FarmHarness, scheduler: str) -> None:
    job = submit(farm, **SLOW, scheduler=scheduler)
    done = farm.coordinator("enqueue", job, "lr=0.94", "--id", "mine")
    assert (done.returncode, done.stdout) == (0, f"{job} tries mine next\n"), done.stderr
    assert farm.coordinator("enqueue", job, "lr=0.94", "--id", "mine").returncode == 0
    until(lambda: "lr 0.94" in farm.coordinator("status", job).stdout, "the table to have it")
    shown = [line.split() for line in farm.coordinator("status", job).stdout.splitlines()]
    assert [line[:3] for line in shown if line[:1] == ["8"]] in ([["8", "waiting", "0"]], [["8", "running", "0"]])
    farm.agent("a", cpus=2).go()
    found = best(farm, job)
    assert (found["tried"], found["trials"], tried(farm, job).count(0.94)) == (9, 9, 1)
    assert (found["best"]["number"], found["best"]["config"]["lr"]) == (8, 0.94)
    longer = farm.coordinator("submit", "--from", job, "--set", "trials=10")
    assert longer.returncode == 0, longer.stderr
    again = tried(farm, f"{job.partition('.')[0]}.2")
    assert again.count(0.94) == 1 and len(again) == 10


def test_what_cannot_be_tried_is_refused_in_a_line(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    job = submit(farm)
    farm.wait(job)
    other = farm.submit({}, work=WORK, kind="tune", code="work.py:train", params={**SMALL, "trials": 500, **SLOW})
    for args, said in (
        ([other, "lr=2"], f"{other}: lr 2 lies outside the space"),
        ([other, "rate=2"], f"{other}: there is no parameter `rate`"),
        ([other, "lr"], "'lr': expected NAME=VALUE"),
        ([other, "lr=0.5", "lr=0.6"], "lr is given twice"),
        ([other, "lr=0.5", "--id", "a b"], "configuration name 'a b' is not allowed"),
        ([job, "lr=0.5"], f"{job}: the search has ended"),
        (["nothing.1", "lr=0.5"], "nothing.1"),
    ):
        done = farm.coordinator("enqueue", *args)
        assert done.returncode and said in done.stderr and "Traceback" not in done.stderr, done.stderr
        assert done.stdout == ""
    assert farm.coordinator("cancel", other).returncode == 0
    done = farm.coordinator("enqueue", other, "lr=0.5")
    assert done.returncode and "the search has ended" in done.stderr
    assert not Queue(farm.root.job(other).checkpoints).since(0)


def climbs(config: dict[str, Any], state: Any, budget: int) -> Any:
    import time

    time.sleep(0.02)
    at = (state or 0) + 1
    return {"accuracy": config["lr"] * at}, at


def test_a_study_that_runs_takes_configurations_and_one_that_is_over_keeps_them(farm: FarmHarness) -> None:
    given: dict[str, Any] = {"metric": "accuracy", "trials": 5, "stop": {"iterations": 4}}
    space = {**SPACE, "layers": {"choice": [[64, 32], [16]]}}
    study: Study = Farm(farm.root.path).tune(climbs, space, **given)
    for _ in range(2):
        study.enqueue({"lr": 0.6}, id="once")
    study.enqueue({"lr": 0.7})
    with pytest.raises(UsageError, match="lr 7 lies outside the space"):
        study.enqueue({"lr": 7})
    farm.agent("a", cpus=2).go()
    found = study.table()["lr"]
    assert len(found) == 7 and found.count(0.6) == found.count(0.7) == 1
    with pytest.raises(UsageError, match=r"layers \[64\] lies outside the space"):
        study.enqueue({"layers": [64]})
    study.enqueue({"lr": 0.8, "layers": [64, 32]})
    more = study.extend()
    assert [more.table()["lr"].count(value) for value in (0.6, 0.7, 0.8)] == [1, 1, 1] and len(more.trials) == 8
    assert {"lr": 0.8, "layers": [64, 32]} in [one.config for one in more.trials]


def test_a_study_that_is_stopped_has_the_best_of_what_there_was(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    study = Farm(farm.root.path).tune(climbs, SPACE, metric="accuracy", trials=500, stop={"iterations": 4})
    until(lambda: (study.progress.get("iterations") or 0) >= 8, "two trials")
    study.stop()
    study.stop()
    with pytest.raises(RefusedError, match="the search has ended"):
        study.job.enqueue({"lr": 0.6}, "late")
    assert study.summary.ended == "it was stopped" and 2 <= study.summary.tried < 500
    assert study.best.metrics["accuracy"] == max(one.metrics["accuracy"] or 0 for one in study.trials)
    assert "ended: it was stopped" in farm.coordinator("report", study.job.id).stdout
    assert "it was stopped" in farm.coordinator("status", study.job.id).stdout
    assert len(study.extend(trials=500, budget={"iterations": study.summary.iterations + 4}).trials) >= len(
        study.trials
    )
    done = farm.coordinator("enqueue", study.job.id, "--end")
    assert (done.returncode, done.stdout) == (0, f"{study.job.id} ends already\n")
    assert farm.coordinator("enqueue", study.job.id, "lr=0.5", "--end").returncode == 2


def test_a_search_that_is_stopped_stays_so_whoever_is_killed(farm: FarmHarness) -> None:
    job = submit(farm, **SLOW)
    until((farm.root.job(job).checkpoints / "search.json").exists, "the search to have begun")
    farm.kill()
    for pid in drivers(farm, job):
        os.kill(pid, signal.SIGKILL)
    assert Queue(farm.root.job(job).checkpoints).end()  # as the command does once it has asked
    farm.start()
    found = best(farm, job)
    assert (found["ended"], found["tried"], found["best"]) == ("it was stopped", 0, None)


def test_a_search_that_was_halted_may_end_with_what_it_has(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    fields = {"work": WORK, "kind": "tune", "code": "work.py:train", "max_failures": 1}
    job = farm.submit({}, **fields, params={**SMALL, "first": [{"lr": 0.3}], "space": {**SPACE, "most": 0.5}})  # type: ignore[arg-type]
    farm.wait(job, "halted")
    said = farm.coordinator("enqueue", job, "--end").stdout
    assert said == f"{job} ends with what it has, once `coordinator retry {job}` goes on with it\n"
    assert farm.coordinator("retry", job).returncode == 0
    found = best(farm, job)
    assert found["ended"] == "it was stopped" and found["best"]["config"]["lr"] <= 0.5


def rate(number: int) -> float:
    return 0.5 + number / 100


def is_gone(farm: FarmHarness, job: str, driver: int) -> bool:
    return driver not in drivers(farm, job)


def test_a_study_of_a_farm_behind_ssh_takes_configurations_too(farm: FarmHarness, server: Sshd, tmp_path: Path) -> None:
    job = submit(farm, space={**SPACE, "hidden": {"choice": [[64, 32], [16]]}, "act": {"choice": ["relu", "7"]}})
    far = Farm(f"{HOST}:{farm.root.path}", ssh_config=server.ssh_config(), cache=tmp_path / "cache")
    study = Study(far.job(job))
    for _ in range(2):
        study.enqueue({"lr": 1e-1, "hidden": [64, 32], "act": "7"}, id="far")
    with pytest.raises(UsageError, match=r"hidden \[64\] lies outside the space"):
        study.enqueue({"hidden": [64]})
    farm.agent("a", cpus=2).go()
    [added] = [one for one in study.trials if one.number == 8]
    assert added.config == {"lr": 0.1, "hidden": [64, 32], "act": "7"} and len(study.trials) == 9


def test_what_is_enqueued_outlives_whoever_is_killed_at_whichever_step(farm: FarmHarness) -> None:
    skip_for(strace_obstacle())
    wanted: list[float] = []
    job = submit(farm, **SLOW, scheduler="halving")
    folder = farm.root.job(job).checkpoints
    until((folder / "search.json").exists, "the search to have begun")

    def enqueue(name: str, *prefix: str) -> int:
        command = [*prefix, *roots.command("enqueue", farm.root.path), job, f"lr={rate(len(wanted))}", "--id", name]
        done = subprocess.run(command, env=farm.environment(), capture_output=True, check=False, timeout=60)
        return done.returncode

    for number, fault in enumerate(COMMAND_STEPS.values()):
        trace = ["strace", "-f", "-o", os.devnull, "-e", f"trace={fault.split(':')[0]}", "-e", f"inject={fault}"]
        assert enqueue(f"c{number}", *trace) != 0
        assert enqueue(f"c{number}") == 0
        wanted.append(rate(len(wanted)))
    until(lambda: len(recalled(folder).table.added) == len(wanted), "the driver to know of all")
    for number, fault in enumerate(DRIVER_STEPS.values()):
        until(lambda: len(drivers(farm, job)) == 1, "a driver")
        [pid] = drivers(farm, job)
        with Tracer(farm, pid, fault):
            assert enqueue(f"d{number}") == 0
            until(partial(is_gone, farm, job, pid), "the driver to be killed")
        wanted.append(rate(len(wanted)))
    farm.kill()
    farm.start()
    assert enqueue("last") == 0
    wanted.append(rate(len(wanted)))
    farm.kill()
    farm.start()
    farm.agent("a", cpus=2).go()
    assert table(farm, job)
    found = tried(farm, job)
    assert [found.count(value) for value in wanted] == [1] * len(wanted) and len(found) == 8 + len(wanted)
    assert (result(farm, job) / "best.json").exists()
