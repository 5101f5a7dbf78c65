"""Which shards are run again, what equal ones say of all others, and how it is told."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import pytest

from muster.coordinator.commands.rerun import RerunReport, page, percent
from muster.coordinator.submission.rerun import Pair, Run, bound


def least_that_shows(count: int, population: int) -> int:
    """The least number of shards that differ of which so many chosen ones miss all in at most 5 of 100 choices: every
    way to choose is counted."""
    for differing in range(population + 1):
        if Fraction(comb(population - differing, count), comb(population, count)) <= Fraction(1, 20):
            return differing
    raise AssertionError("all differ, and none shows")


def test_the_bound_is_that_of_counting_every_choice() -> None:
    for population in range(2, 61):
        for count in range(1, population):
            assert bound(count, population) == least_that_shows(count, population) / population, (count, population)


def test_of_many_shards_it_is_the_rule_of_three_and_of_all_there_is_none() -> None:
    for count in (10, 300, 3000):
        assert bound(count, 10_000_000) == pytest.approx(1 - 0.05 ** (1 / count), rel=1e-3)
    assert bound(300, 10_000_000) < 0.01
    assert bound(7, 7) == bound(9, 7) == 0.0


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.0099365, "1%"), (0.01, "1%"), (0.0101, "1.1%"), (0.000299, "0.03%"), (10 / 24, "42%"), (1, "100%")],
)
def test_a_share_is_never_told_less_than_it_is(share: float, shown: str) -> None:
    assert percent(share) == shown


def report(count: int, population: int, *pairs: Pair) -> RerunReport:
    made = RerunReport("weights.1", 7, population, count, count - len(pairs), differing=list(pairs))
    made.bound = None if pairs else bound(count, population)
    made.machines = {"right": (count, len(pairs))}
    return made


def test_what_equal_shards_are_worth_is_said() -> None:
    said = page(report(300, 1_000_000))
    assert said == "weights.1: 300 of 300 equal: with 95% confidence under 1% of the shards differ (seed 7)"
    assert page(report(12, 12)) == "weights.1: 12 of 12 equal: all shards were compared (seed 7)"
    assert "with 95% confidence none of the 100 shards differs" in page(report(95, 100))


def test_shards_that_differ_are_listed_with_both_machines_and_kernels() -> None:
    odd = Pair("conv1", 17, Run("left", "numpy 1", "aa"), Run("right", "numpy 2", "bb"), True)
    other = Pair("conv2", 3, Run("left", "numpy 1", "aa"), Run("right", "numpy 1", "bb"), False)
    assert page(report(9, 900, odd, other)).splitlines() == [
        "weights.1: 7 of 9 equal, of 900 shards (seed 7)",
        "conv1/17: then left (kernels 1), now right (kernels 2)",
        "conv2/3: then left (kernels 1), now right (kernels 1); of another input",
        "kernels 1: numpy 1",
        "kernels 2: numpy 2",
        "of what right computed now, 2 of 9 differ",
        "of those that differ, left had 2 computed then",
    ]
