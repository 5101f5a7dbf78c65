"""Optuna as the searcher: what it asks follows from what was committed, and our trials are trials of its own."""

from __future__ import annotations

from typing import Any

import pytest

from muster.jobs.tuning import optuna_study
from muster.jobs.tuning.params import TuneParams
from muster.jobs.tuning.search import Search
from muster.jobs.tuning.space import Space
from muster.jobs.tuning.trials import Segment

optuna = pytest.importorskip("optuna")

SPACE: dict[str, Any] = {
    "lr": {"loguniform": [0.001, 1.0]},
    "width": {"int": [8, 64], "step": 8},
    "depth": {"logint": [1, 8]},
    "noise": {"normal": [0.0, 0.1]},
    "share": {"uniform": [0.0, 0.5], "step": 0.1},
    "layers": {"choice": [[32], [64, 32], [8]]},
    "optimizer": {"choice": ["sgd", "adamw"]},
    "momentum": {"uniform": [0.0, 0.9], "when": {"optimizer": "sgd"}},
    "batch": 64,
}


def search(**more: Any) -> Search:
    given = {"space": SPACE, "metric": "loss", "searcher": "optuna", "trials": 40, "stop": {"iterations": 1}, **more}
    return Search(TuneParams(**given))


def loss(config: Any) -> float:
    return abs(config["lr"] - 0.1) + abs(config["width"] - 32) / 32


def commit(where: Search, number: int) -> Segment:
    config = where.config(number)
    done = Segment(number, 0, 1, [{"loss": loss(config)}], [1.0], "iterations", config=config, state="s")
    assert where.commit(done)
    return done


def test_a_rebuilt_search_asks_the_same_and_what_was_committed_stays() -> None:
    first, journal = search(), []
    for number in range(15):
        journal.append(commit(first, number))
        second = search()
        for segment in journal:
            second.commit(segment)
        assert second.config(number + 1) == first.config(number + 1)
        assert [second.config(known) for known in range(number + 1)] == [one.config for one in journal]


def test_what_it_asks_lies_in_the_space_and_comes_to_be_good() -> None:
    made = search(trials=60)
    values = [commit(made, number).curve[0]["loss"] for number in range(60)]
    assert sum(values[-20:]) < 0.7 * sum(values[:20])
    for number in range(60):
        config = made.config(number)
        assert 0.001 <= config["lr"] <= 1 and config["width"] in range(8, 65, 8) and 1 <= config["depth"] <= 8
        assert config["layers"] in ([32], [64, 32], [8]) and config["batch"] == 64 and 0 <= config["share"] <= 0.5
        assert ("momentum" in config) == (config["optimizer"] == "sgd")


def test_trials_under_way_are_kept_away_from() -> None:
    made = search()
    for number in range(12):
        commit(made, number)
    asked = [made.config(number) for number in range(12, 20)]
    assert len({str(one) for one in asked}) == 8 and made.config(12) == asked[0]


def test_ours_are_trials_of_its_own() -> None:
    config = search().configurations.config(3)
    known = [
        (config, "done", [3.0, 2.0]),
        (config, "paused", [2.5]),
        (config, "failed", []),
        ({"lr": 7.0}, "target", [1.0]),
    ]
    study = optuna_study.study_of("digits.1", Space(SPACE), True, known)
    states = optuna.trial.TrialState
    assert [one.state for one in study.trials] == [states.COMPLETE, states.PRUNED, states.FAIL, states.COMPLETE]
    assert study.trials[0].value == 2.0 and study.trials[0].intermediate_values == {1: 3.0, 2: 2.0}
    assert study.trials[3].params == {} and study.best_value == 1.0 and study.trials[1].value is None
    assert study.trials[0].params["lr"] == config["lr"] and study.study_name == "digits.1"
