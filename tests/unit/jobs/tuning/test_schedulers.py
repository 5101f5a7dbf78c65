"""Schedulers: whatever order results come in, however segments are cut and whoever dies, the same table."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.jobs.common.errors import JobFileError
from muster.jobs.tuning.params import Budget, TuneParams, check, check_threads, stop_of
from muster.jobs.tuning.schedulers import rungs
from muster.jobs.tuning.search import Search
from muster.jobs.tuning.stopping import Judge, Why
from muster.jobs.tuning.trials import Segment

SPACE = {"lr": {"uniform": [0.0, 1.0]}}


def params(**given: Any) -> TuneParams:
    return TuneParams(**{"space": SPACE, "metric": "accuracy", "trials": 9, "stop": {"iterations": 27}, **given})


def curve_of(search: Search, trial: int) -> list[float]:
    """As a training would go: some are worse at first and better later, some diverge."""
    lr = search.config(trial)["lr"]
    if lr > 0.93:
        return [0.1, math.nan]
    return [lr * (1 - math.exp(-iteration * (1.1 - lr) / 5)) for iteration in range(1, 28)]


def trained(search: Search, trial: int, to: int, most: int) -> Segment:
    """What a worker gives, with at most so many iterations of it."""
    table = search.table.trials
    known = table[trial].curve if trial in table else []
    before = Judge(search.params)
    before.recall(one["accuracy"] for one in known)
    judge = Judge(search.params, before.standing)
    why: Why = ""
    curve: list[dict[str, float]] = []
    for value in curve_of(search, trial)[len(known) : min(to, len(known) + most)]:
        curve.append({"accuracy": value})
        if why := judge.after(len(known) + len(curve), curve[-1], 0.0):
            break
    return Segment(trial, len(known), to, curve, [0.0] * len(curve), why, state=f"{trial}")


def told(search: Search) -> list[tuple[int, str, str]]:
    return [(trial.number, trial.why, repr(trial.curve)) for trial in search.table.ranked()]


def run(given: TuneParams, random: Random, machines: int, kills: float = 0.0) -> tuple[Search, list[Segment]]:
    """A search on so many machines, with results in any order, some of them twice, and drivers that die."""
    search = Search(given)
    journal: list[Segment] = []
    busy: dict[int, int] = {}
    while True:
        busy.update(search.orders(busy, machines - len(busy)))
        if not busy:
            return search, journal
        trial = random.choice(sorted(busy))
        segment = trained(search, trial, busy.pop(trial), random.randint(1, 9))
        assert search.commit(segment)
        journal.append(segment)
        assert not search.commit(segment) or not segment.curve
        if random.random() < kills:
            search, busy = Search(given), {}
            assert all(search.commit(one) for one in journal)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**9), st.integers(1, 12), st.sampled_from([0.0, 0.3]), st.sampled_from(["fifo", "halving"]))
def test_any_order_of_results_and_deaths_gives_the_same_table(
    seed: int, machines: int, kills: float, scheduler: str
) -> None:
    given = params(scheduler=scheduler, seed=seed % 7, stop={"iterations": 27, "accuracy": 0.8})
    peace, _ = run(given, Random(0), 1)
    wild, _ = run(given, Random(seed), machines, kills)
    assert told(wild) == told(peace)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**9), st.integers(1, 12), st.sampled_from([0.0, 0.3]))
def test_asha_computes_no_committed_iteration_twice_and_ends_with_one_that_was_trained_whole(
    seed: int, machines: int, kills: float
) -> None:
    search, journal = run(params(scheduler="asha", seed=seed % 7, trials=30), Random(seed), machines, kills)
    done = [(one.trial, one.start + step) for one in journal for step in range(len(one.curve))]
    assert len(done) == len(set(done)) == search.table.iterations
    assert any(trial.iterations == 27 for trial in search.table.trials.values())
    assert len(search.table.trials) == 30 and search.table.iterations < 30 * 27 * 0.7


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 10**9), st.integers(1, 6), st.sampled_from(["fifo", "halving", "asha"]))
def test_what_people_add_is_tried_once_and_a_search_that_is_rebuilt_goes_on_the_same(
    seed: int, machines: int, scheduler: str
) -> None:
    """Some fail for good, and are tried again when the driver is started the next time."""
    given, random = params(scheduler=scheduler, seed=seed % 7), Random(seed)
    search, journal, added = Search(given), list[Segment](), dict[int, float]()
    busy: dict[int, int] = {}
    while True:
        if len(added) < 4 and random.random() < 0.3:
            new = search.added(len(added), {"lr": random.random()}, 0.0)
            assert search.commit(new) and not search.commit(new) and new.config is not None
            added[new.trial] = new.config["lr"]
            journal.append(new)
        again = Search(given)
        assert all(again.commit(one) for one in journal)
        assert again.orders(busy, 1000) == search.orders(busy, 1000)
        busy.update(search.orders(busy, machines - len(busy)))
        if not busy:
            break
        trial = random.choice(sorted(busy))
        segment = trained(search, trial, busy.pop(trial), random.randint(1, 9))
        if random.random() < 0.05:
            segment = Segment(trial, segment.start, segment.to, why="failed", final=True)
        assert search.commit(segment)
        journal.append(segment)
        if search.table.failed and (random.random() < 0.1 or not search.orders(busy, 1)):
            journal.append(Segment(-1, 0, 0, retried=float(len(journal))))
            search, busy = Search(given), {}
            assert all(search.commit(one) for one in journal)
    trials = search.table.trials
    assert sorted(trials) == list(range(9 + len(added))) and search.table.begun == len(trials)
    assert {number: search.config(number)["lr"] for number in added} == added
    done = [(one.trial, one.start + step) for one in journal for step in range(len(one.curve))]
    assert len(done) == len(set(done)) == search.table.iterations and not search.table.failed
    if not search.retried:  # else others may have come before those that had gone on
        assert all(trials[one.trial].iterations >= min(one.to, 27) or trials[one.trial].ended for one in journal)


def test_what_is_added_while_all_are_at_a_rung_is_compared_there_first() -> None:
    search = Search(params(scheduler="halving", trials=9))
    for trial in range(9):
        search.commit(trained(search, trial, 1, 27))
    new = search.added(0, {"lr": 0.9}, 0.0)
    assert (new.trial, new.to) == (9, 3) and search.commit(new)
    assert search.orders((), 1) == [(9, 3)] and len(search.orders((), 100)) == 4


def test_halving_promotes_a_third_at_each_rung() -> None:
    search, _ = run(params(scheduler="halving", trials=27), Random(1), 4)
    assert rungs(search.params) == [1, 3, 9, 27]
    goals = [trial.goal for trial in search.table.trials.values()]
    assert [sum(goal >= rung for goal in goals) for rung in (3, 9, 27)] == [9, 3, 1]
    assert search.table.best is not None


def test_fifo_runs_all_to_their_end_in_order() -> None:
    search = Search(params())
    assert search.orders({}, 3) == [(0, 27), (1, 27), (2, 27)]
    assert search.orders({0: 27, 1: 27}, 1) == [(2, 27)]
    search.commit(Segment(0, 0, 27, [{"accuracy": 0.5}], [0.0]))
    assert search.orders({1: 27}, 2) == [(0, 27), (2, 27)]


def test_what_diverged_or_failed_ranks_last_and_is_no_best() -> None:
    search = Search(params(trials=3))
    search.commit(Segment(0, 0, 27, [{"accuracy": math.nan}], [0.0], "diverged"))
    search.commit(Segment(1, 0, 27, why="failed", message="ValueError: no"))
    assert search.table.best is None
    search.commit(Segment(2, 0, 27, [{"accuracy": 0.1}], [0.0], "iterations"))
    assert [trial.number for trial in search.table.ranked()] == [2, 0, 1]
    assert search.table.best is not None and search.table.best.number == 2 and not search.hopeless(100)


def test_a_trial_that_fails_is_tried_again_and_then_given_up() -> None:
    search = Search(params(trials=2))
    assert search.commit(Segment(0, 0, 27, why="failed", message="once"))
    assert search.orders({}, 1) == [(0, 27)]
    assert search.table.failures(0) == 1 and search.table.failures(1) == 0
    assert search.commit(Segment(0, 0, 27, why="failed", message="twice", final=True))
    assert search.orders({}, 9) == [(1, 27)] and search.table.failed == 1 and not search.hopeless(100)
    search.commit(Segment(1, 0, 27, why="failed", message="no", final=True))
    assert search.hopeless(100) == "all of the first 2 trials failed: twice"


def test_trials_that_failed_are_tried_again_from_where_they_were_once_somebody_wants_it() -> None:
    search = Search(params(trials=2))
    search.commit(Segment(0, 0, 27, [{"accuracy": 0.5}] * 3, [0.0] * 3, state="s"))
    for trial, start in ((0, 3), (1, 0)):
        search.commit(Segment(trial, start, 27, why="failed", message="no room", final=True))
    assert search.hopeless(2) and search.hopeless(100) and search.orders({}, 9) == []
    search.commit(Segment(-1, 0, 0, retried=7.5))
    assert (search.retried, search.hopeless(1), search.table.failed) == (7.5, "", 0)
    assert search.orders({}, 9) == [(0, 27), (1, 27)]
    again = search.table.trials[0]
    assert (again.iterations, again.state, again.message, again.failures) == (3, "s", "", 0)


def test_failures_count_for_the_stretch_that_failed_and_are_forgotten_once_it_got_on() -> None:
    search = Search(params(trials=1))
    search.commit(Segment(0, 0, 27, why="failed", message="once"))
    search.commit(Segment(0, 0, 27, [{"accuracy": 0.5}], [0.0], state="s"))
    trial = search.table.trials[0]
    assert (search.table.failures(0), trial.message, trial.begun) == (0, "", True)


def test_a_checkpoint_is_moved_where_another_machine_goes_on_from_it() -> None:
    search = Search(params())
    for start, machine in enumerate("aabba"):
        curve = [{"accuracy": 0.5}]
        search.commit(Segment(0, start, 27, curve, [0.0], machine=machine, state=f"{start}", state_bytes=100))
    assert (search.table.state_bytes, search.table.moved_bytes) == (500, 200)
    search.commit(Segment(0, 5, 27, why="failed", machine="a"))
    assert search.table.trials[0].nearest == "", "it had better be tried elsewhere"


def test_a_search_ends_by_its_budget_or_at_the_first_that_is_good_enough() -> None:
    search = Search(params(budget=Budget(seconds=9.0, iterations=2)))
    assert not search.ending(8.9) and search.ending(9.0) == "the budget of 9 seconds is spent"
    search.commit(Segment(0, 0, 27, [{"accuracy": 0.5}] * 2, [0.0] * 2))
    assert search.ending(0.0) == "the budget of 2 iterations is spent" and search.orders({}, 5) == []
    search = Search(params(goal="first", stop={"accuracy": 0.9}))
    search.commit(Segment(3, 0, 27, [{"accuracy": 0.95}], [0.0], "target", at=4.0))
    assert search.ending(0.0) == "the target was reached" and search.table.reached[0].reached_at == 4.0


@pytest.mark.parametrize("scheduler", ["fifo", "halving", "asha"])
def test_a_budget_of_trials_lets_no_more_begin_and_those_that_did_end(scheduler: str) -> None:
    given = params(scheduler=scheduler, trials=None, space={"lr": {"grid": [0.1, 0.5, 0.9]}, "b": {"grid": [1, 2, 3]}})
    cut = msgspec.structs.replace(given, budget=Budget(trials=4))
    search, _ = run(cut, Random(1), 3)
    assert (search.configurations.count, search.table.count, search.table.begun) == (9, 4, 4)
    assert search.ending(0.0) == "the budget of 4 trials is spent"
    assert any(trial.iterations == 27 for trial in search.table.trials.values())
    for place in range(2):
        assert search.commit(new := search.added(place, {"lr": 0.5, "b": 1}, 0.0)) and new.trial == 9 + place
    assert search.table.count == 6 and {one for one, _ in search.orders((), 99)} <= {0, 1, 2, 3, 9, 10}
    whole, _ = run(given, Random(1), 3)
    assert [search.config(one) for one in range(4)] == [whole.config(one) for one in range(4)] and not whole.ending(0.0)


def test_stop_is_directed_by_the_name_of_the_metric_or_by_a_sign() -> None:
    stop = stop_of(params(stop={"accuracy": 0.9, "val_loss": 0.05, "f1": "<=0.1", "iterations": 5}))
    assert [(aim.metric, aim.smaller) for aim in stop.aims] == [("accuracy", False), ("val_loss", True), ("f1", True)]
    assert params(metric="loss").smaller and not params(metric="loss", mode="max").smaller


def test_a_plateau_is_judged_over_segments() -> None:
    given = params(stop={"plateau": {"iterations": 3, "delta": 0.01}})
    before = Judge(given)
    before.recall([0.5, 0.505])
    judge = Judge(given, before.standing)
    assert judge.after(3, {"accuracy": 0.509}, 0.0) == "" and judge.after(4, {"accuracy": 0.5}, 0.0) == "plateau"


BAD = [
    ({"goal": "first"}, "params.goal: `first` to reach what?"),
    ({"grace": 50}, "params.grace: 50 iterations before the first rung, but a trial has 27"),
    ({"stop": {"iterations": 0}}, "params.stop.iterations: Expected `int` >= 1"),
    ({"stop": {"iteration": 5}}, "params.stop: there is no `iteration`"),
    ({"stop": {"second": 60}}, "params.stop: there is no `second`"),
    ({"stop": {"plataeu": {"iterations": 3}}}, "params.stop: there is no `plataeu`"),
    ({"stop": {"second": ">=60", "f1": 0.9}}, None),
    ({"stop": {"accuracy": "high"}}, 'params.stop.accuracy: expected a number, or "<=0.05"'),
    ({"trial": "mlp", "data": "digits"}, None),
    ({"trial": "mlp"}, "params.data: missing: what is the model to learn?"),
    ({"trial": "mlp", "data": "digits", "space": {"rate": 1}}, "params.space: there is no `rate` here"),
    ({"trial": "mlp", "data": "digits", "metric": "f1"}, "params.metric: there is no `f1` here"),
]


@pytest.mark.parametrize(
    ("threads", "first", "wrong"),
    [
        (2, {}, None),
        ({"choice": [1, 2]}, {"threads": 1}, None),
        ({"int": [1, 4]}, {}, "4"),
        ({"choice": [0, 1]}, {}, "0"),
        ({"uniform": [1, 2]}, {}, "1.0"),
        ("two", {}, "'two'"),
        (1, {"threads": 3}, "3"),
    ],
)
def test_a_network_has_no_more_threads_than_its_trial_has_cpus(
    threads: Any, first: dict[str, Any], wrong: str | None
) -> None:
    given = params(trial="mlp", data="digits", space={"lr": 0.1, "threads": threads}, first=[first])
    check(given)
    if wrong is None:
        return check_threads(given, 2)
    with pytest.raises(JobFileError) as caught:
        check_threads(given, 2)
    assert caught.value.message == f"params.space.threads: {wrong}, and a trial has 2 cpus"
    check_threads(params(space={"threads": 99}), 2)  # of a function of one's own it may be anything
    return None


@pytest.mark.parametrize(("given", "message"), BAD)
def test_parameters_that_do_not_fit_are_refused_in_a_line(given: dict[str, Any], message: str | None) -> None:
    if message is None:
        return check(params(**given))
    with pytest.raises(JobFileError) as caught:
        check(params(**given))
    assert caught.value.message == message
    return None
