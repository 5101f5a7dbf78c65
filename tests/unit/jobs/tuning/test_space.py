"""The space of a search, and which configuration a trial has."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.jobs.common.errors import JobFileError, UsageError
from muster.jobs.tuning.searchers import Configurations
from muster.jobs.tuning.space import Space, differing

POINTS = st.floats(0, 1, exclude_max=True)
STUDY = {"lr": {"uniform": [0.001, 0.1]}, "momentum": {"uniform": [0.1, 0.9]}, "hidden": {"randint": [32, 512]}}


def one(said: Any) -> Any:
    return Space({"p": said}).domains[0]


@given(POINTS, st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_uniform_stays_within_its_ends(point: float, low: float, width: float) -> None:
    assert low <= one({"uniform": [low, low + width]}).at(point) <= low + width


@given(POINTS, st.floats(1e-9, 1e3), st.floats(1.01, 1e6))
def test_loguniform_stays_within_its_ends_and_halves_lie_at_the_geometric_mean(
    point: float, low: float, ratio: float
) -> None:
    domain = one({"loguniform": [low, low * ratio]})
    assert low <= domain.at(point) <= low * ratio
    assert math.isclose(domain.at(0.5), low * math.sqrt(ratio), rel_tol=1e-9)


@given(POINTS, st.integers(-1000, 1000), st.integers(1, 1000))
def test_randint_leaves_its_upper_end_out_and_int_has_it(point: float, low: int, width: int) -> None:
    ends = [low, low + width]
    assert low <= one({"randint": ends}).at(point) < low + width
    value = one({"int": ends}).at(point)
    assert low <= value <= low + width and isinstance(value, int)
    assert one({"int": ends}).at(1 - 2**-53) == low + width


@given(POINTS, st.integers(1, 1000), st.integers(1, 1000))
def test_logint_gives_whole_numbers_within_its_ends(point: float, low: int, width: int) -> None:
    value = one({"logint": [low, low + width]}).at(point)
    assert low <= value <= low + width and isinstance(value, int)


@given(POINTS, st.sampled_from(["uniform", "loguniform", "int", "logint"]), st.integers(1, 9))
def test_a_step_is_kept_to(point: float, form: str, step: int) -> None:
    domain = one({form: [1, 60], "step": step})
    value = domain.at(point)
    assert 1 <= value <= 60 and math.isclose((value - 1) / step, round((value - 1) / step), abs_tol=1e-6)
    assert [domain.nth(n) for n in range(domain.count)] == pytest.approx(list(range(1, 61, step)))


def test_steps_of_a_tenth_reach_the_upper_end() -> None:
    domain = one({"uniform": [0.1, 0.9], "step": 0.1})
    assert domain.count == 9 and math.isclose(domain.nth(8), 0.9)


def test_normal_has_its_mean_in_the_middle() -> None:
    domain = one({"normal": [3, 2]})
    assert domain.at(0.5) == pytest.approx(3) and math.isfinite(domain.at(0.0))
    assert domain.at(0.8413447) == pytest.approx(5, abs=1e-4)


BAD = [
    ({"p": {"uniform": [0.9, 0.1]}}, "params.space.p.uniform: the range 0.9 to 0.1 is empty"),
    ({"p": {"loguniform": [0, 0.1]}}, "params.space.p.loguniform: from 0 on a log scale"),
    ({"p": {"logint": [-1, 3]}}, "params.space.p.logint: from -1 on a log scale"),
    ({"p": {"randint": [4, 4]}}, "params.space.p.randint: the range 4 to 4 is empty"),
    ({"p": {"int": [1.5, 4]}}, "params.space.p.int: 1.5 to 4 are not whole numbers"),
    ({"p": {"uniform": [0, math.inf]}}, "params.space.p.uniform: expected two numbers, such as [0.1, 0.9]"),
    ({"p": {"uniform": [0]}}, "params.space.p.uniform: expected two numbers, such as [0.1, 0.9]"),
    ({"p": {"normal": [0, 0]}}, "params.space.p.normal: a deviation of 0"),
    ({"p": [1, 2]}, "params.space.p: a bare list"),
    ({"p": {"choise": [1]}}, "params.space.p: there is no `choise`"),
    ({"p": {}}, "params.space.p: 0 forms, expected 1"),
    ({"p": {"choice": []}}, "params.space.p.choice: expected a list of values, such as [16, 32]"),
    ({"p": {"choice": [{}]}}, "params.space.p.choice: {} is no finite number, text, or list of such"),
    ({"p": {"choice": [1], "step": 1}}, "params.space.p.choice: a list has no `step`"),
    ({"p": {"uniform": [0, 1], "step": 0}}, "params.space.p.step: expected a number above zero"),
    ({"p": {"uniform": [0, 1], "when": {"q": 1}}}, "params.space.p.when: there is no other parameter `q`"),
    ({"p": {"uniform": [0, 1], "when": 3}}, "params.space.p.when: expected a mapping, such as {optimizer: sgd}"),
    ({"a b": 1}, "params.space.a b: not a name that a parameter can have"),
    ({"p": math.nan}, "params.space.p: expected a finite number, a text or a mapping such as {uniform: [0, 1]}"),
    (
        {"p": {"choice": [1], "when": {"q": 1}}, "q": {"choice": [1], "when": {"p": 1}}},
        "params.space: p, q: each waits for another's `when`",
    ),
    (
        {"p": {"uniform": [0, 1], "when": {"q": ["sgd", "adma"]}}, "q": {"choice": ["sgd", "adam"]}},
        "params.space.p.when: q is never 'adma'",
    ),
    ({"p": {"choice": [1], "when": {"q": 7}}, "q": {"int": [1, 6]}}, "params.space.p.when: q is never 7"),
]


@pytest.mark.parametrize(("space", "message"), BAD, ids=[message for _, message in BAD])
def test_a_space_that_is_none_is_refused_in_a_line(space: dict[str, Any], message: str) -> None:
    with pytest.raises(JobFileError) as caught:
        Space(space)
    assert caught.value.message == message


@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6))
def test_a_configuration_comes_of_the_seed_and_its_number_alone(seed: int, number: int) -> None:
    few, many = (Configurations(Space(STUDY), seed=seed, trials=trials) for trials in (1, 1000))
    assert few.config(number) == many.config(number)
    more = Configurations(Space({"batch": {"choice": [16, 32]}, **STUDY}), seed=seed).config(number)
    assert {name: more[name] for name in STUDY} == few.config(number)


def test_configurations_spread_over_the_space() -> None:
    found = [Configurations(Space(STUDY), trials=400).config(number) for number in range(400)]
    assert len({str(config) for config in found}) == 400
    assert sum(config["lr"] for config in found) / 400 == pytest.approx(0.0505, abs=0.005)


def test_a_grid_is_walked_whole_and_as_often_as_there_are_trials() -> None:
    space = Space({"a": {"grid": [1, 2]}, "b": {"grid": ["x", "y", "z"]}, "c": {"uniform": [0, 1]}})
    search = Configurations(space, trials=2)
    found = [search.config(number) for number in range(search.count)]
    assert search.count == 12
    assert [(one["a"], one["b"]) for one in found[:6]] == [(a, b) for a in (1, 2) for b in "xyz"]
    assert len({one["c"] for one in found}) == 12


def test_the_searcher_grid_takes_all_that_has_a_number_of_values() -> None:
    space = Space({"a": {"choice": [1, 2]}, "b": {"int": [1, 4]}, "c": {"uniform": [0, 1], "step": 0.5}, "d": 7})
    assert Configurations(space, "grid").count == 24
    with pytest.raises(JobFileError, match="no end of values of uniform"):
        Configurations(Space({"a": {"uniform": [0, 1]}}), "grid")


def test_a_grid_of_a_million_is_counted_and_not_laid_out() -> None:
    space = Space({name: {"grid": list(range(100))} for name in "abc"})
    assert Configurations(space).count == 10**6
    assert Configurations(space).config(999_999) == {"a": 99, "b": 99, "c": 99}
    with pytest.raises(JobFileError, match="100,000,000 trials"):
        Configurations(Space({name: {"grid": list(range(100))} for name in "abcd"}))


NESTED = {
    "optimizer": {"grid": ["sgd", "adam", "none"]},
    "momentum": {"grid": [0.1, 0.5, 0.9], "when": {"optimizer": ["sgd", "adam"]}},
    "nesterov": {"grid": [True, False], "when": {"momentum": [0.5, 0.9], "optimizer": "sgd"}},
    "batch": {"grid": [16, 32]},
}


def test_a_grid_has_each_configuration_once_where_some_have_fewer_parameters() -> None:
    for space, searcher, count in ((NESTED, "random", 18), (NESTED, "grid", 18), ({**NESTED, "n": 5}, "grid", 18)):
        search = Configurations(Space(space), searcher)  # type: ignore[arg-type]
        found = [search.config(number) for number in range(search.count)]
        assert search.count == len({str(one) for one in found}) == count
        assert [one["optimizer"] for one in found] == ["sgd"] * 10 + ["adam"] * 6 + ["none"] * 2
        assert all(("momentum" in one) == (one["optimizer"] != "none") for one in found)
        assert [one["batch"] for one in found] == [16] * 5 + [32] * 5 + [16] * 3 + [32] * 3 + [16, 32]


def test_a_grid_of_more_than_there_may_be_is_refused_before_it_is_walked() -> None:
    space = {"a": {"int": [1, 2**40]}, "b": {"choice": [1], "when": {"a": 1}}}
    with pytest.raises(JobFileError, match="1,099,511,627,776 trials"):
        Configurations(Space(space), "grid")


def test_given_configurations_come_first_and_what_they_leave_open_is_drawn() -> None:
    search = Configurations(Space(STUDY), trials=3, first=[{"lr": 0.05, "momentum": 0.9, "hidden": 256}, {"lr": 0.1}])
    assert search.count == 3 and search.config(0) == {"lr": 0.05, "momentum": 0.9, "hidden": 256}
    assert search.config(1)["lr"] == 0.1 and 0.1 <= search.config(1)["momentum"] <= 0.9
    assert search.config(2) == Configurations(Space(STUDY)).config(2)
    with pytest.raises(JobFileError, match=r"params.first\[0\]: there is no parameter `rate`"):
        Configurations(Space(STUDY), first=[{"rate": 1}])


def test_a_list_may_be_given_as_it_may_be_chosen() -> None:
    layers = Space({"layers": {"choice": [[64, 32], [128]]}, **STUDY})
    search = Configurations(layers, trials=3, first=[{"layers": [64, 32]}], enqueued={2: {"layers": [128]}})
    assert [search.config(number)["layers"] for number in (0, 2)] == [[64, 32], [128]]
    with pytest.raises(JobFileError, match=r"params.first\[0\].layers: expected a finite number"):
        Configurations(layers, first=[{"layers": [[64]]}])


def test_a_parameter_whose_when_does_not_hold_is_left_out() -> None:
    space = Space(
        {
            "momentum": {"uniform": [0, 1], "when": {"optimizer": ["sgd", "rmsprop"]}},
            "optimizer": {"grid": ["sgd", "adam", "rmsprop"]},
            "nesterov": {"choice": [True], "when": {"momentum": 0.5}},
        }
    )
    first, second = (Configurations(space).config(number) for number in (0, 1))
    assert set(first) == {"optimizer", "momentum"} and set(second) == {"optimizer"}


def test_only_parameters_that_differ_are_worth_a_column() -> None:
    assert differing([{"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1, "b": 3, "c": 4}]) == ["b", "c"]


WIDE = {
    "lr": {"loguniform": [0.001, 0.1]},
    "momentum": {"uniform": [0.1, 0.9], "step": 0.1, "when": {"optimizer": "sgd"}},
    "hidden": {"randint": [32, 512]},
    "layers": {"choice": [[64, 32], [128]]},
    "optimizer": {"choice": ["sgd", "adam"]},
    "shift": {"normal": [0, 1]},
    "flag": {"choice": [True, False]},
    "batch": 128,
}


@given(st.integers(0, 1000))
def test_whatever_is_drawn_lies_within_the_space(number: int) -> None:
    config = Configurations(Space(WIDE), seed=number).config(number)
    Space(WIDE).check_within(config, "job.1")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"lr": 0.2}, "job.1: lr 0.2 lies outside the space"),
        ({"lr": math.nan}, "job.1: lr nan lies outside the space"),
        ({"lr": "0.05"}, "job.1: lr '0.05' lies outside the space"),
        ({"hidden": 512}, "job.1: hidden 512 lies outside the space"),
        ({"hidden": 32.5}, "job.1: hidden 32.5 lies outside the space"),
        ({"optimizer": "sgd", "momentum": 0.25}, "job.1: momentum 0.25 lies outside the space"),
        ({"optimizer": "adam", "momentum": 0.2}, "job.1: momentum is there only beside other values"),
        ({"layers": [64]}, "job.1: layers [64] lies outside the space"),
        ({"flag": 1}, "job.1: flag 1 lies outside the space"),
        ({"batch": 64}, "job.1: batch 64 lies outside the space"),
        ({"rate": 1}, "job.1: there is no parameter `rate`"),
    ],
)
def test_what_lies_outside_the_space_is_refused_in_a_line(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Space(WIDE).check_within(config, "job.1")
    assert caught.value.message == message and caught.value.hint
