"""What pairs of measurements say: the interval of the median, the direction of a figure, and when new is worse."""

from __future__ import annotations

import math
import random

import pytest

from benchmarks.verdict import CONFIDENCE, Pair, coverage, judge, median_interval


def pairs(*ratios: float) -> list[Pair]:
    """As rates: more is better."""
    return [Pair(old=100.0, new=100.0 * ratio) for ratio in ratios]


def test_the_coverage_is_that_of_coins() -> None:
    assert coverage(5, 1) == 1 - 2 / 32
    assert coverage(7, 2) == 1 - 2 * (1 + 7) / 128


@pytest.mark.parametrize("count", range(1, 5))
def test_fewer_than_five_pairs_say_nothing(count: int) -> None:
    assert median_interval([0.5] * count) is None
    assert judge(pairs(*[0.5] * count), less_is_better=False).worse is None


def test_seven_values_have_their_interval_between_the_outermost_two() -> None:
    low, high = median_interval([7.0, 3.0, 1.0, 2.0, 6.0, 5.0, 4.0]) or (0, 0)
    assert low == pytest.approx(1.953, abs=0.001) and high == pytest.approx(6.047, abs=0.001)


def test_one_value_far_off_hardly_moves_the_interval() -> None:
    low, high = median_interval([0.01, 0.99, 1.0, 1.0, 1.0, 1.01, 1.02]) or (0, 0)
    assert 0.94 < low < 0.99 and 1.0 < high < 1.02


@pytest.mark.parametrize("count", [5, 7, 8, 20])
@pytest.mark.parametrize("spread", ["normal", "exponential"])
def test_nine_intervals_of_ten_hold_the_median(count: int, spread: str) -> None:
    rng = random.Random(count)
    draw, median = (
        (lambda: rng.gauss(1.0, 0.1), 1.0) if spread == "normal" else (lambda: rng.expovariate(1.0), math.log(2))
    )
    held, tries = 0, 4000
    for _ in range(tries):
        low, high = median_interval([draw() for _ in range(count)]) or (0.0, 0.0)
        held += low <= median <= high
    assert abs(held / tries - CONFIDENCE) < 0.025


def test_worse_is_only_what_lies_wholly_beyond_the_bound() -> None:
    assert judge(pairs(0.90, 0.91, 0.92, 0.90, 0.93, 0.89, 0.94), less_is_better=False).worse is True
    assert judge(pairs(0.90, 0.91, 0.92, 0.90, 0.93, 0.97, 0.98), less_is_better=False).worse is False
    assert judge(pairs(0.96, 0.96, 0.96, 0.96, 0.96, 0.96, 0.96), less_is_better=False).worse is False


def test_the_median_is_of_the_ratios_of_pairs() -> None:
    """Of sides that both halve half way, no pair says that one is worse."""
    drifting = [Pair(speed, 0.99 * speed) for speed in (100.0, 100.0, 100.0, 50.0, 50.0)]
    assert judge(drifting, less_is_better=False).median == pytest.approx(0.99)


def test_less_is_better_turns_the_ratio_over() -> None:
    dearer = [Pair(old=10.0, new=12.0)] * 7
    assert judge(dearer, less_is_better=True).worse is True
    assert judge(dearer, less_is_better=True).median == pytest.approx(10 / 12)
    assert judge(dearer, less_is_better=False).worse is False
