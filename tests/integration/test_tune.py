"""Searches: however many machines there are, and whoever is killed, the same table."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from muster.coordinator.client import Farm
from muster.coordinator.client.study import Study
from muster.jobs.common.errors import JobFileError
from muster.jobs.tuning.journal import Journal, recalled
from muster.jobs.tuning.trial_runner import TrialOrder
from tests.support.farm import FarmHarness, arrays, running, until

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "tune.py"

WORK = """
import os
import signal
import time

def train(config, state, budget, trial):
    at = 0 if state is None else state["at"]
    if "CALLS" in os.environ:
        with open(os.environ["CALLS"], "a") as calls:
            calls.write(f"{trial} {at}\\n")
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
    return len(done(farm, job))


def done(farm: FarmHarness, job: str) -> list[tuple[int, int]]:
    """Each of them: its trial, and how many came before it there."""
    segments = Journal(farm.root.job(job).checkpoints).segments()
    return [(one.trial, one.start + step) for one in segments for step in range(len(one.curve))]


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
    assert report["jobs"][0]["effect"]["of_kind"]["best"]["number"] == int(rows[0]["trial"])
    assert farm.coordinator("report", job, "--plots", str(farm.folder / "plots")).returncode == 0


PEACE: dict[str, str] = {}  # scheduler → the table of a search that nobody disturbed
SEEDS = range(int(os.environ.get("MUSTER_TUNE_SEEDS", "3")))  # 20 in the long form
SCHEDULERS = ("fifo", "halving", "asha")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("who", ["coordinator", "agent", "driver"])
def test_who_is_killed_in_the_middle_of_a_rung_costs_nothing_that_was_committed(
    farm: FarmHarness, who: str, seed: int
) -> None:
    """The table is that of a search in peace, and of any scheduler no worker computes a committed iteration again."""
    luck, scheduler, calls = Random(f"{who} {seed}"), SCHEDULERS[seed % 3], farm.folder / "calls"
    first = farm.agent("a", cpus=2).go()
    params = {"scheduler": scheduler, "space": {**SPACE, "pause": 0.01}}
    if scheduler != "asha" and scheduler not in PEACE:
        PEACE[scheduler] = table(farm, submit(farm, **params))
    second = farm.agent("b").go()
    fields: dict[str, Any] = {"work": WORK, "kind": "tune", "code": "work.py:train", "variables": {"CALLS": str(calls)}}
    job = farm.submit({}, **fields, params={**SMALL, "segment": 0.02, **params})
    moment = luck.randrange(2, 20 if scheduler != "asha" else 12)
    until(lambda: committed(farm, job) >= moment, f"{moment} iterations")
    safe, told = set(done(farm, job)), first.told | second.told
    before = len(calls.read_text().splitlines())
    if who == "coordinator":
        farm.restart()
    elif who == "agent":
        second.die()
    else:
        for pid in drivers(farm, job):
            os.kill(pid, signal.SIGKILL)
    found = best(farm, job)
    if scheduler != "asha":
        assert table(farm, job) == PEACE[scheduler]
    every = done(farm, job)
    assert len(every) == len(set(every)) == found["iterations"] and found["tried"] == 8
    assert found["best"]["iterations"] == 9 and safe <= set(every)
    called = [(int(trial), int(at)) for trial, at in map(str.split, calls.read_text().splitlines())]
    assert set(called) >= set(every)
    assert not safe & covered((first.told | second.told) - told), "what was committed is asked for again"
    copied = covered(first.told & second.told)  # an idle machine gets a copy of what another has not done yet
    assert safe & set(called[before:]) <= copied, "what was committed is computed again"


def covered(told: set[tuple[int, int, bytes]]) -> set[tuple[int, int]]:
    """The iterations that orders of these payloads are for."""
    orders = [msgspec.msgpack.decode(raw, type=TrialOrder) for *_, raw in told]
    return {(order.trial, at) for order in orders for at in range(order.start, order.to) if not order.score}


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


def test_the_first_that_is_good_enough_ends_the_search(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    job = submit(
        farm, trials=500, goal="first", stop={"iterations": 50, "accuracy": 0.6}, space={**SPACE, "pause": 0.01}
    )
    found = best(farm, job)
    assert found["reached"] >= 1 and found["ended"] == "the target was reached" and found["tried"] < 100
    assert found["best"]["metrics"]["accuracy"] >= 0.6 and found["tuning_ratio"] >= 1
    *_, account, ended, last = farm.coordinator("report", job).stdout.splitlines()
    assert account.startswith(f"{job}: {found['iterations']:,} iterations in ")
    assert ended == f"{job}: ended: the target was reached"
    assert last.endswith(f"tuning ratio {found['tuning_ratio']:.2f}") and f"{found['reached']:,} trials at" in last


def test_a_target_that_nobody_reaches_ends_by_the_budget_and_is_told(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    stop = {"iterations": 1000, "accuracy": 2.0}
    job = submit(farm, stop=stop, budget={"iterations": 30}, segment=0.05, space={**SPACE, "pause": 0.01})
    until(
        lambda: re.search(r"search .*, ([1-9]\d?|100)% of the budget", farm.coordinator("status", job).stdout),
        "a share",
    )
    found = best(farm, job)
    assert 30 <= found["iterations"] < 100 and found["ended"] == "the budget of 30 iterations is spent"
    lines = farm.coordinator("status", job).stdout
    assert "the budget of 30 iterations is spent; nobody reached the target" in lines


def test_a_target_that_nobody_reaches_is_told_of_when_all_trials_are_done(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    found = best(farm, job := submit(farm, trials=2, stop={"iterations": 3, "accuracy": 2.0}, goal="first"))
    assert (found["ended"], found["reached"]) == ("", 0)
    for name in ("status", "report"):
        assert "all trials are done; nobody reached the target" in farm.coordinator(name, job).stdout


def test_trials_that_fail_are_shown_and_the_search_goes_on(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    found_of = best(farm, job := submit(farm, space={**SPACE, "most": 0.5}))
    rows = rows_of(farm, job)
    failed = [row for row in rows if row["state"] == "failed"]
    assert 0 < len(failed) == found_of["failed"] < 8 and rows[-len(failed) :] == failed
    assert {row["message"] for row in failed} == {"exception: ValueError: too steep"}
    told = json.loads((result(farm, job) / "trials.json").read_text())
    assert all('raise ValueError("too steep")' in one["evidence"] for one in told if one["state"] == "failed")
    logs = farm.coordinator("logs", job).stdout
    assert f": exception: trial {failed[0]['trial']}: ValueError: too steep" in logs and "on a at" in logs
    assert logs.count('raise ValueError("too steep")') == 3 * len(failed)  # `attempts` of each
    assert f" failed; `coordinator logs {job}` has the evidence" in farm.coordinator("report", job).stdout
    assert f"see `coordinator logs {job}" in farm.coordinator("status", job).stdout


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


def test_a_search_that_was_halted_tries_again_what_failed_once_it_is_retried(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    there = farm.folder / "there"
    work = WORK.replace(
        "time.sleep(", f"assert at < 3 or os.path.exists({str(there)!r}), 'not yet'\n    time.sleep(", 1
    )
    params = {**SMALL, "segment": 0.001}
    job = farm.submit({}, work=work, kind="tune", code="work.py:train", max_failures=2, params=params)
    assert failures_told(farm.wait(job, "halted").why) >= 2  # more may come in one bundle
    assert committed(farm, job) >= 6 and farm.coordinator("set", job, "max_failures=5").returncode == 0
    assert farm.coordinator("retry", job).returncode == 0
    assert failures_told(farm.wait(job, "halted").why) >= 5
    farm.restart()
    there.touch()
    assert farm.coordinator("retry", job).returncode == 0
    found = best(farm, job)
    assert (found["failed"], found["iterations"], committed(farm, job)) == (0, 8 * 9, 8 * 9)
    assert {row["message"] for row in rows_of(farm, job)} == {""}
    assert farm.coordinator("verify", job).returncode == 0


def failures_told(why: str) -> int:
    found = re.match(r"(\d+) trials failed \(max_failures\), such as: exception: AssertionError", why)
    assert found is not None, why
    return int(found[1])


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
    found = best(farm, job := farm.submit({}, kind="tune", params=params, resources={"cpus": 2}))
    assert found["test"]["accuracy"] > 0.85 and found["checkpoint_bytes"] > 0
    report = json.loads(farm.coordinator("report", job, "--json").stdout)
    assert report["jobs"][0]["effect"]["of_kind"]["core_seconds"] == found["core_seconds"]
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
    done = farm.coordinator("submit", "--from", study.job.id, "--set", "trials=6")
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
    assert study.extend(trials=3).summary.iterations == 3 * 2  # arrays lie elsewhere then, and are the same
    with pytest.raises(JobFileError, match=f"params.data is not that of {study.job.id}"):
        study.extend(trials=3, data={**rows, "x": rows["x"] + 1})
    with pytest.raises(JobFileError, match="trails"):
        Farm(farm.root.path).tune(climbs, SPACE, metric="accuracy", trails=5)


def waits(config: dict[str, Any], state: Any, budget: int) -> Any:
    import pathlib
    import time

    at = (state or 0) + 1
    time.sleep(0.01)  # or a segment had more than one iteration
    while at == 3 and not pathlib.Path(config["file"]).exists():
        time.sleep(0.01)
    return {"accuracy": config["lr"] * at}, at


def test_iterations_are_yielded_as_they_are_committed_and_not_at_the_end(farm: FarmHarness) -> None:
    farm.agent("a", cpus=1).go()
    file = farm.folder / "go on"
    space = {"lr": 0.5, "file": str(file)}
    study = Farm(farm.root.path).tune(waits, space, metric="accuracy", trials=2, stop={"iterations": 3}, segment=0.001)
    stream = study.stream()
    seen = [next(stream), next(stream)]
    assert all(said["accuracy"] == 0.5 * at for _, at, said in seen) and not study.job.status().is_over
    file.touch()
    assert sorted((trial, at) for trial, at, _ in (*seen, *stream)) == [(n, at) for n in range(2) for at in (1, 2, 3)]


@pytest.mark.filterwarnings("ignore:.*is experimental")
def test_a_search_asks_optuna_and_is_a_study_of_optunas(farm: FarmHarness) -> None:
    optuna = pytest.importorskip("optuna")
    pytest.importorskip("matplotlib").use("agg")
    farm.agent("a", cpus=2).go()
    where = Farm(farm.root.path)
    given: dict[str, Any] = {"metric": "accuracy", "trials": 14, "stop": {"iterations": 3}, "first": [{"lr": 0.2}]}
    study = where.tune(climbs, SPACE, searcher="optuna", scheduler="asha", **given)
    study.wait(progress=False)
    mine = study.optuna()
    assert mine.study_name == study.job.id and len(mine.trials) == 14 and mine.trials[0].params == {"lr": 0.2}
    assert mine.best_value == study.best.metrics["accuracy"] and mine.best_params == study.best.config
    assert optuna.importance.get_param_importances(mine) == {"lr": pytest.approx(1.0)}
    drawn = optuna.visualization.matplotlib
    for plot in (drawn.plot_optimization_history, drawn.plot_parallel_coordinate, drawn.plot_intermediate_values):
        assert plot(mine).has_data()
    states = {one.state for one in mine.trials}
    assert states == {optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED}
    again = recalled(farm.root.job(study.job.id).checkpoints)
    assert {one.number: again.config(one.number) for one in study.trials} == {
        one.number: one.config for one in study.trials
    }


def test_a_search_that_cannot_be_extended_is_refused_at_submit(farm: FarmHarness) -> None:
    fields: dict[str, Any] = {"work": WORK, "kind": "tune", "code": "work.py:train", "params": SMALL}
    other, waits = farm.submit(arrays(), name="other"), farm.submit({}, **fields, name="waits")
    over = farm.submit({}, **fields, name="over")
    assert farm.coordinator("cancel", over).returncode == 0
    until((farm.root.job(over).checkpoints / "search.json").exists, "the search to have begun")
    for params, said in (
        ({"extends": "job.9"}, "params.extends: there is no job 'job.9'"),
        ({"extends": "../over.1"}, "params.extends: job name '../over.1' is not allowed"),
        ({"extends": other}, f"params.extends: {other} is of the kind `cluster`, and not a search"),
        ({"extends": waits}, f"params.extends: {waits} is not over"),
        ({"extends": over, "space": {"lr": 1}}, f"params.space is not that of {over}"),
        ({"extends": "over", "trials": 4}, f"params.trials: 4 trials, and {over} has 8"),
    ):
        file = farm.job_file({}, **{**fields, "params": {**SMALL, **params}})
        done = farm.coordinator("submit", str(file))
        assert done.returncode and said in done.stderr and "hint:" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


def test_from_a_search_another_goes_on_unless_it_is_said_to_begin_anew(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    first = submit(farm, trials=3)
    farm.wait(first)

    def onward(old: str, *words: str) -> tuple[int, int]:
        """Trials, and of the iterations those that it did itself."""
        done = farm.coordinator("submit", *words, "--from", old)
        assert done.returncode == 0, done.stderr
        job = done.stdout.split()[-1]
        found = best(farm, job)
        return found["tried"], found["iterations"] - sum(
            int(row["iterations"]) for row in rows_of(farm, old) if farm.plan(job).work.params["extends"] == old
        )

    assert onward(first, "--set", "trials=4") == (4, 9)
    assert onward("job.2", "--set", "trials=6", "--set", "stop.iterations=10") == (6, 4 + 2 * 10)
    assert onward(first, "--set", "extends=null") == (3, 27)
    file = farm.job_file({}, work=WORK, kind="tune", code="work.py:train", params={**SMALL, "trials": 5})
    assert onward(first, str(file)) == (5, 2 * 9)
    assert "goes on from job.1" in farm.coordinator("plan", "--from", first).stdout


def test_a_higher_target_is_gone_on_to(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    given: dict[str, Any] = {"metric": "accuracy", "trials": 5, "goal": "first", "first": [{"lr": 0.9}]}
    study = Farm(farm.root.path).tune(climbs, SPACE, stop={"accuracy": 1.7, "iterations": 9}, **given)
    assert study.summary.ended == "the target was reached" and study.summary.reached
    further = study.extend(stop={"accuracy": 4.4, "iterations": 9})
    assert further.summary.ended == "the target was reached" and further.summary.iterations > study.summary.iterations
    assert max(further.table()["accuracy"]) >= 4.4 > max(study.table()["accuracy"])


def test_a_grid_of_a_million_is_counted_before_it_is_run(farm: FarmHarness) -> None:
    space = {name: {"grid": list(range(100))} for name in "abc"}
    params = {**SMALL, "space": space, "trials": 1}
    file = farm.job_file({}, work=WORK, kind="tune", code="work.py:train", params=params)
    told = farm.coordinator("plan", str(file)).stdout
    assert "1,000,000: 1,000,000 points of a grid" in told and "9,000,000 in all" in told


@pytest.mark.parametrize("scheduler", ["fifo", "halving"])
def test_a_grid_of_a_million_runs_until_its_budget_is_spent(farm: FarmHarness, scheduler: str) -> None:
    farm.agent("a", cpus=2).go()
    space = {"lr": {"grid": [one / 1000 for one in range(1, 1001)]}, "b": {"grid": list(range(1000))}}
    found = best(farm, job := submit(farm, space=space, trials=1, scheduler=scheduler, budget={"iterations": 40}))
    assert (found["trials"], found["ended"]) == (10**6, "the budget of 40 iterations is spent")
    assert 40 <= found["iterations"] < 200 and found["tried"] == len(rows_of(farm, job)) < 200
    assert farm.status(job).progress.total == 10**6


def test_a_trial_ends_after_the_seconds_that_it_may_take(farm: FarmHarness) -> None:
    farm.agent("a", cpus=2).go()
    found = best(
        farm, job := submit(farm, trials=3, stop={"seconds": 0.05}, space={**SPACE, "pause": 0.02}, segment=0.01)
    )
    assert [row["state"] for row in rows_of(farm, job)] == ["seconds"] * 3
    told = json.loads((result(farm, job) / "trials.json").read_text())
    assert all(one["seconds"] >= 0.05 and one["iterations"] < 100 for one in told) and found["failed"] == 0


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
        assert (found["ended"], found["best"]["number"]) == ("the target was reached", 1)
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
