"""Searches: however many machines there are, and whoever is killed, the same table."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from muster.coordinator.client import Farm
from muster.coordinator.client.study import Study
from muster.jobs.common.errors import JobFileError
from muster.jobs.tuning.journal import Journal, recalled
from tests.support.farm import FarmHarness, running, until

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "tune.py"

WORK = """
import os
import signal
import time

def train(config, state, budget, trial):
    at = 0 if state is None else state["at"]
    if trial == config.get("kills"):
        os.kill(os.getpid(), signal.SIGKILL)
    if config["lr"] > config.get("most", 9):
        raise ValueError("too steep")
    if config.get("bad"):
        return {"accuracy": float("nan")}, {"at": at + 1}
    time.sleep(config.get("pause", 0.0) + (config.get("stall", 0.0) if at else 0.0))
    lr = config["lr"]
    return {"accuracy": lr * (1 - (1 - lr) ** (at + 1)), "loss": 1 - lr}, {"at": at + 1}
"""
SPACE = {"lr": {"uniform": [0.05, 0.95]}}
SMALL: dict[str, Any] = {"space": SPACE, "metric": "accuracy", "trials": 8, "stop": {"iterations": 9}, "seed": 3}


def submit(farm: FarmHarness, **params: Any) -> str:
    return farm.submit({}, work=WORK, kind="tune", code="work.py:train", params={**SMALL, **params})


def result(farm: FarmHarness, job: str) -> Path:
    return farm.root.job(job).result / "made"


def table(farm: FarmHarness, job: str) -> str:
    """All that does not tell of time and machines."""
    farm.wait(job)
    return (result(farm, job) / "trials.csv").read_text() + (result(farm, job) / "curves.csv").read_text()


def best(farm: FarmHarness, job: str) -> dict[str, Any]:
    farm.wait(job)
    found: dict[str, Any] = json.loads((result(farm, job) / "best.json").read_text())
    return found


def rows_of(farm: FarmHarness, job: str) -> list[dict[str, str]]:
    return list(csv.DictReader((result(farm, job) / "trials.csv").read_text().splitlines()))


def committed(farm: FarmHarness, job: str) -> int:
    """Iterations that are in the journal."""
    folder = farm.root.job(job).checkpoints
    return sum(len(one.curve) for one in Journal(folder).segments())


def drivers(farm: FarmHarness, job: str) -> list[int]:
    return farm.processes("muster.coordinator.drivers.tuning.main", job)


def test_a_search_tries_all_and_its_result_is_the_best(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    job = submit(farm)
    found = best(farm, job)
    assert (found["tried"], found["iterations"], found["ended"]) == (8, 72, "")
    rows = rows_of(farm, job)
    assert [row["state"] for row in rows] == ["done"] * 8
    assert float(rows[0]["lr"]) == max(float(row["lr"]) for row in rows) == found["best"]["config"]["lr"]
    told = farm.status(job).progress
    assert told is not None and (told.done, told.total, told.unit) == (8, 8, "trial")
    with np.load(result(farm, job) / "best.npz") as state:
        assert json.loads(state["tree"].tobytes()) == {"d": [["at", {"v": 9}]]}
    assert not list(farm.root.job(job).rounds.iterdir())
    assert farm.coordinator("verify", job).returncode == 0
    page = farm.coordinator("status", job).stdout
    assert "trials    8/8 (100%)" in page
    shown = [line.split() for line in page.splitlines()]
    at = shown.index(["trial", "state", "iterations", "accuracy", "time", "machine", "parameters"])
    assert [line[:3] for line in shown[at + 1 : at + 9]] == [[row["trial"], "done", "9"] for row in rows]
    report = json.loads(farm.coordinator("report", job, "--json").stdout)
    assert report["jobs"][0]["effect"]["of_kind"]["best"]["trial"] == int(rows[0]["trial"])
    assert farm.coordinator("report", job, "--plots", str(farm.folder / "plots")).returncode == 0


PEACE: dict[str, str] = {}  # scheduler → the table of a search that nobody disturbed
SEEDS = range(int(os.environ.get("MUSTER_TUNE_SEEDS", "3")))  # 20 in the long form


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("who", ["coordinator", "agent", "driver"])
def test_who_is_killed_in_the_middle_of_a_rung_leaves_the_table_as_in_peace(
    farm: FarmHarness, who: str, seed: int
) -> None:
    luck = Random(f"{who} {seed}")
    scheduler = luck.choice(["fifo", "halving"])
    farm.agent("a", cpus=2).go()
    params = {"scheduler": scheduler, "space": {**SPACE, "pause": 0.01}}
    if scheduler not in PEACE:
        PEACE[scheduler] = table(farm, submit(farm, **params))
    second = farm.agent("b").go()
    job = submit(farm, segment=0.02, **params)
    moment = luck.randrange(2, 20)
    until(lambda: committed(farm, job) >= moment, f"{moment} iterations")
    if who == "coordinator":
        farm.restart()
    elif who == "agent":
        second.die()
    else:
        for pid in drivers(farm, job):
            os.kill(pid, signal.SIGKILL)
    assert table(farm, job) == PEACE[scheduler]
    assert len(rows_of(farm, job)) == 8 and committed(farm, job) == best(farm, job)["iterations"]


@pytest.mark.parametrize("scheduler", ["fifo", "halving"])
def test_the_table_does_not_tell_how_many_machines_there_were_or_who_was_killed(
    farm: FarmHarness, scheduler: str
) -> None:
    farm.agent("a", cpus=2).go()
    params = {"scheduler": scheduler, "space": {**SPACE, "pause": 0.01}}
    peace = table(farm, submit(farm, **params))
    second = farm.agent("b").go()
    job = submit(farm, segment=0.02, **params)
    until(lambda: committed(farm, job) >= 5, "a few iterations")
    for pid in drivers(farm, job):
        os.kill(pid, signal.SIGKILL)
    until(lambda: committed(farm, job) >= 10, "some more")
    farm.restart()
    until(lambda: committed(farm, job) >= 15, "some more")
    second.die()
    assert table(farm, job) == peace
    assert len(list(farm.root.job(job).checkpoints.glob("*.state"))) <= 8


def test_a_trial_stays_with_the_machine_that_has_it(farm: FarmHarness) -> None:
    for name in "ab":
        farm.agent(name, cpus=1).go()
    found = best(farm, submit(farm, trials=12, segment=0.001, space={**SPACE, "pause": 0.01}))
    assert found["moved_bytes"] < found["checkpoint_bytes"] / 4


def test_asha_uses_every_committed_rung_once_after_a_restart(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    job = submit(farm, scheduler="asha", trials=12, space={**SPACE, "pause": 0.01})
    until(lambda: committed(farm, job) >= 5, "a few iterations")
    farm.restart()
    found = best(farm, job)
    assert committed(farm, job) == found["iterations"] == recalled(farm.root.job(job).checkpoints).table.iterations
    assert found["tried"] == 12 and found["best"]["iterations"] == 9 and found["iterations"] < 12 * 9


def test_the_first_that_is_good_enough_ends_the_search(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    job = submit(
        farm, trials=500, goal="first", stop={"iterations": 50, "accuracy": 0.6}, space={**SPACE, "pause": 0.01}
    )
    found = best(farm, job)
    assert found["reached"] >= 1 and found["ended"] == "the target was reached" and found["tried"] < 100
    assert found["best"]["metrics"]["accuracy"] >= 0.6 and found["tuning_ratio"] >= 1
    *_, account, last = farm.coordinator("report", job).stdout.splitlines()
    assert account.startswith(f"{job}: {found['iterations']:,} iterations in ") and "the target was reached" in account
    assert last.endswith(f"tuning ratio {found['tuning_ratio']:.2f}") and f"{found['reached']:,} trials at" in last


def test_a_target_that_nobody_reaches_ends_by_the_budget_and_is_told(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    stop = {"iterations": 1000, "accuracy": 2.0}
    job = submit(farm, stop=stop, budget={"iterations": 30}, segment=0.05, space={**SPACE, "pause": 0.01})
    found = best(farm, job)
    assert 30 <= found["iterations"] < 100 and found["ended"] == "the budget of 30 iterations is spent"
    lines = farm.coordinator("status", job).stdout
    assert "the budget of 30 iterations is spent; nobody reached the target" in lines


def test_trials_that_fail_are_shown_and_the_search_goes_on(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    found_of = best(farm, job := submit(farm, space={**SPACE, "most": 0.5}))
    rows = rows_of(farm, job)
    failed = [row for row in rows if row["state"] == "failed"]
    assert 0 < len(failed) == found_of["failed"] < 8 and rows[-len(failed) :] == failed
    assert {row["message"] for row in failed} == {"exception: ValueError: too steep"}


def test_a_trial_that_is_lost_again_and_again_fails_and_the_search_goes_on(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    found = best(farm, job := submit(farm, space={**SPACE, "kills": 3}))
    assert (found["tried"], found["failed"], found["iterations"]) == (8, 1, 7 * 9)
    last = rows_of(farm, job)[-1]
    assert (last["trial"], last["state"]) == ("3", "failed") and "lost 5 times while running" in last["message"]
    assert farm.coordinator("verify", job).returncode == 0


def test_so_many_trials_may_fail_as_the_job_says(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    params = {**SMALL, "space": {**SPACE, "kills": 3}}
    job = farm.submit({}, work=WORK, kind="tune", code="work.py:train", max_failures=1, params=params)
    assert "1 trial failed (max_failures), such as: lost 5 times" in farm.wait(job, "halted").why


def test_where_every_trial_fails_the_job_halts_and_says_why(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    job = submit(farm, space={**SPACE, "most": 0.0})
    until(lambda: farm.status(job).state == "halted", "it to halt")
    assert "too steep" in farm.status(job).why


def test_an_mlp_on_rows_is_scored_on_rows_that_nothing_else_saw(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    params = {
        "trial": "mlp",
        "data": "digits",
        "space": {"lr": {"loguniform": [0.003, 0.3]}, "hidden": {"randint": [8, 65]}, "momentum": 0.9},
        "metric": "accuracy",
        "trials": 4,
        "scheduler": "halving",
        "stop": {"iterations": 9, "train_accuracy": 0.99},
    }
    found = best(farm, job := farm.submit({}, kind="tune", params=params))
    assert found["test"]["accuracy"] > 0.85 and found["checkpoint_bytes"] > 0
    with np.load(result(farm, job) / "best.npz") as weights:
        assert (
            set(weights) == {"w0", "b0", "w1", "b1", "unit"}
            and weights["unit"] == 1 / 16
            and weights["w0"].shape[0] == 64
        )
    assert "accuracy" in farm.coordinator("report", job).stdout or farm.coordinator("report", job).returncode == 0


def climbs(config: dict[str, Any], state: Any, budget: int) -> Any:
    at = (state or [0])[0] + budget
    return {"accuracy": config["lr"] * at}, [at, config["lr"]]


def study_curve(study: Study, number: int) -> Any:
    return next(one.curve for one in study.trials if one.number == number)


def test_a_study_is_asked_for_from_python(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    study = Farm(farm.root.path).tune(climbs, SPACE, metric="accuracy", trials=5, stop={"iterations": 4})
    assert study.best.number == study.trials[0].number and study.best.iterations == 4
    table = study.table()
    assert table["accuracy"] == sorted(table["accuracy"], reverse=True) and len(table["lr"]) == 5
    assert study.best.curve[0]["accuracy"] == study.best.config["lr"]
    seen = list(study.stream())
    assert len(seen) == len({one[:2] for one in seen}) == 20 and (0, 1, study_curve(study, 0)[0]) in seen
    assert study.progress["best"] == study.best.metrics["accuracy"] and study.wait(progress=False).state == "complete"
    longer = study.extend(trials=7, stop={"iterations": 6})
    assert len(longer.trials) == 7 and {one.iterations for one in longer.trials} <= {4, 6}
    assert sum(one.iterations == 6 for one in longer.trials) == 3 + 2  # whose checkpoints were kept, and the new ones
    assert {one.number: one.config for one in study.trials}.items() <= {
        one.number: one.config for one in longer.trials
    }.items()
    done = farm.coordinator("submit", "--from", study.job.id, "--set", f"extends={study.job.id}", "--set", "trials=6")
    assert done.returncode == 0, done.stderr
    more = Study(Farm(farm.root.path).job(study.job.id.partition(".")[0]))
    assert len(more.trials) == 6 and more.trials != study.trials and more.summary.iterations == 6 * 4
    study.enqueue({"lr": 0.5})
    assert study.extend().table()["lr"].count(0.5) == 1 and study.extend().summary.tried == 6
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(200, 5)).astype("f4"), "y": rng.integers(0, 2, 200)}
    given: dict[str, Any] = {"metric": "accuracy", "data": rows, "trials": 2, "stop": {"iterations": 2}}
    study = Farm(farm.root.path).tune({"estimator": "sklearn.linear_model.SGDClassifier"}, {"alpha": 0.001}, **given)
    assert study.summary.test and study.model is not None and study.model.name == "best.skops"
    with pytest.raises(JobFileError, match="trails"):
        Farm(farm.root.path).tune(climbs, SPACE, metric="accuracy", trails=5)


def test_a_search_asks_optuna_and_is_a_study_of_optunas(farm: FarmHarness) -> None:
    optuna = pytest.importorskip("optuna")
    farm.agent("a", cpus=2).go()
    where = Farm(farm.root.path)
    given: dict[str, Any] = {"metric": "accuracy", "trials": 14, "stop": {"iterations": 3}, "first": [{"lr": 0.2}]}
    study = where.tune(climbs, SPACE, searcher="optuna", scheduler="asha", **given)
    study.wait(progress=False)
    mine = study.optuna()
    assert mine.study_name == study.job.id and len(mine.trials) == 14 and mine.trials[0].params == {"lr": 0.2}
    assert mine.best_value == study.best.metrics["accuracy"] and mine.best_params == study.best.config
    states = {one.state for one in mine.trials}
    assert states == {optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED}
    again = recalled(farm.root.job(study.job.id).checkpoints)
    assert {one.number: again.config(one.number) for one in study.trials} == {
        one.number: one.config for one in study.trials
    }


def test_a_search_that_cannot_be_extended_halts_and_says_why(farm: FarmHarness) -> None:
    farm.agent("a").go()
    job = submit(farm, extends="job.9")
    until(lambda: farm.status(job).state == "halted", "it to halt")
    assert "has not begun" in farm.status(job).why


def test_a_grid_of_a_million_is_counted_before_it_is_run(farm: FarmHarness) -> None:
    space = {name: {"grid": list(range(100))} for name in "abc"}
    params = {**SMALL, "space": space, "trials": 1}
    file = farm.job_file({}, work=WORK, kind="tune", code="work.py:train", params=params)
    told = farm.coordinator("plan", str(file)).stdout
    assert "1,000,000: 1,000,000 points of a grid" in told and "9,000,000 in all" in told


def test_what_could_never_run_is_a_line_at_submit(farm: FarmHarness) -> None:
    for params, said in (
        ({"space": {"lr": {"uniform": [1, 0]}}}, "params.space.lr.uniform: the range 1 to 0 is empty"),
        ({"space": {"lr": [1, 2]}}, "params.space.lr: a bare list"),
        ({"metric": None}, "params.metric"),
        ({"goal": "first"}, "params.goal: `first` to reach what?"),
        ({"space": {"lr": {"loguniform": [0, 1]}}}, "params.space.lr.loguniform: from 0 on a log scale"),
        ({"spaces": SPACE}, "params.spaces"),
        ({"first": [{"rate": 1}]}, "params.first[0]: there is no parameter `rate`"),
        ({"enqueued": [{"trial": 9, "config": {"rate": 1}}]}, "params.enqueued.9: there is no parameter `rate`"),
        ({"data": {"name": "mnst"}}, "params.data.name: there is no data set 'mnst'"),
        ({"stop": {"plateau": 3}}, "params.stop.plateau"),
        ({"extends": ""}, "params.extends"),
    ):
        file = farm.job_file({}, work=WORK, kind="tune", code="work.py:train", params={**SMALL, **params})
        done = farm.coordinator("submit", str(file))
        assert done.returncode and said in done.stderr and "Traceback" not in done.stderr


def test_a_metric_that_is_never_reported_ends_the_search_with_a_line(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    job = submit(farm, metric="f1")
    why = farm.wait(job, "halted").why
    assert "it reports accuracy, loss, and no `f1` (params.metric)" in why


def test_a_metric_that_is_no_number_ends_its_trial_and_not_the_search(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    job = submit(farm, first=[{"bad": 1.0}, {"bad": 1.0}], space={**SPACE, "bad": 0.0})
    found, rows = best(farm, job), rows_of(farm, job)
    assert (found["diverged"], found["failed"], found["tried"]) == (2, 0, 8)
    assert [(row["trial"], row["state"]) for row in rows[-2:]] == [("0", "diverged"), ("1", "diverged")]


def test_a_state_that_is_too_large_is_told(farm: FarmHarness) -> None:
    farm.agent("a", cpus=1).go()
    work = """
import numpy as np

def train(config, state, budget):
    return {"accuracy": 1.0}, np.zeros((1 << 30) + 1, "u1")
"""
    params = {**SMALL, "trials": 1, "stop": {"iterations": 1}}
    job = farm.submit({}, work=work, kind="tune", code="work.py:train", params=params)
    assert "bytes, at most 1,073,741,824 can be kept" in farm.wait(job, "halted", seconds=120).why


def test_two_searches_at_once_disturb_each_other_in_nothing(farm: FarmHarness) -> None:
    for name in "ab":
        farm.agent(name, cpus=1).go()
    params = {"scheduler": "halving", "space": {**SPACE, "pause": 0.005}}
    one, other = (submit(farm, seed=seed, segment=0.02, **params) for seed in (3, 4))
    both = [table(farm, job) for job in (one, other)]
    assert both == [table(farm, submit(farm, seed=seed, **params)) for seed in (3, 4)] and both[0] != both[1]


def test_what_runs_is_stopped_once_the_first_has_reached_the_target(tmp_path: Path) -> None:
    space = {"lr": 0.9, "stall": {"choice": [0.0, 1000.0]}}
    first = [{"stall": 1000.0}, {"stall": 0.0}]
    with running(tmp_path) as farm:
        farm.join("a", "--cpus", "2")
        params = {"space": space, "first": first, "stop": {"iterations": 5, "accuracy": 0.85}, "goal": "first"}
        found = best(farm, submit(farm, **params))
        assert (found["ended"], found["best"]["trial"]) == ("the target was reached", 1)
        both = farm.submit({}, work=WORK, kind="tune", code="work.py:train", params=SMALL, resources={"cpus": 2})
        farm.wait(both, seconds=120)
        assert best(farm, both)["tried"] == 8


def test_real_machines_are_killed_in_the_middle_of_a_rung_and_the_table_is_the_same(tmp_path: Path) -> None:
    params = {"scheduler": "halving", "space": {**SPACE, "pause": 0.05}, "segment": 0.2}
    with running(tmp_path) as farm:
        farm.lease = 5.0
        farm.restart()
        farm.join("a", "--cpus", "1")
        peace = table(farm, submit(farm, **{**params, "space": {**SPACE, "pause": 0.0}}))
        other = farm.join("b", "--cpus", "1")
        job = submit(farm, **params)
        until(lambda: committed(farm, job) >= 5, "a few iterations")
        for pid in drivers(farm, job):
            os.kill(pid, signal.SIGKILL)
        until(lambda: committed(farm, job) >= 10, "some more")
        farm.restart()
        other.kill()
        assert strip(table(farm, job)) == strip(peace)
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), str(farm.root.path)], capture_output=True, text=True, timeout=100, check=True
        )
        assert "iterations: {'lr':" in done.stdout and "test rows: {'accuracy': 0.9" in done.stdout


def strip(text: str) -> str:
    """Without how long an iteration was made to take."""
    return text.replace(",0.05,", ",").replace(",0.0,", ",")
