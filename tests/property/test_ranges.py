"""RangeSet beside a plain set: every operation, in any order, gives the same numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from muster.jobs.common.ranges import Pairs, RangeSet

TOP = 40
NUMBER = st.integers(0, TOP)
PAIRS = st.lists(st.tuples(NUMBER, NUMBER), max_size=8)
NUMBERS = st.frozensets(NUMBER, max_size=20)


def model(pairs: Pairs) -> set[int]:
    return {n for lo, hi in pairs for n in range(lo, hi)}


def check(found: RangeSet, wanted: set[int]) -> None:
    """The same numbers, in the one form there is for them."""
    pairs = found.pairs()
    assert model(pairs) == wanted
    assert all(lo < hi for lo, hi in pairs)
    assert all(before[1] < after[0] for before, after in pairwise(pairs))
    assert len(found) == len(wanted)
    assert bool(found) == bool(wanted)
    assert found.top == max(wanted, default=-1) + 1
    assert list(found) == sorted(wanted)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.found = RangeSet()
        self.wanted: set[int] = set()

    @rule(lo=NUMBER, hi=NUMBER)
    def add(self, lo: int, hi: int) -> None:
        self.found.add(lo, hi)
        self.wanted |= set(range(lo, hi))

    @rule(lo=NUMBER, hi=NUMBER)
    def discard(self, lo: int, hi: int) -> None:
        self.found.discard(lo, hi)
        self.wanted -= set(range(lo, hi))

    @rule(pairs=PAIRS)
    def update(self, pairs: Pairs) -> None:
        self.found.update(RangeSet(pairs))
        self.wanted |= model(pairs)

    @rule(pairs=PAIRS)
    def remove(self, pairs: Pairs) -> None:
        self.found.remove(RangeSet(pairs))
        self.wanted -= model(pairs)

    @rule(parts=st.lists(PAIRS, max_size=4))
    def union(self, parts: list[Pairs]) -> None:
        others = [RangeSet(pairs) for pairs in parts]
        check(RangeSet.union([self.found, *others]), self.wanted.union(*map(model, parts)))
        assert [other.pairs() for other in others] == [RangeSet(pairs).pairs() for pairs in parts], "one was changed"

    @rule(parts=st.lists(PAIRS, max_size=3), others=st.lists(PAIRS, max_size=3), rest=st.booleans())
    def alike(self, parts: list[Pairs], others: list[Pairs], rest: bool) -> None:
        ones, those = [RangeSet(pairs) for pairs in parts], [RangeSet(pairs) for pairs in others]
        if rest:
            union = RangeSet.union(those)
            ones.append(union - RangeSet.union(ones))
            those = [union]
        numbers = [sorted(number for one in some for number in one) for some in (ones, those)]
        assert RangeSet.alike(ones, those) == (numbers[0] == numbers[1])

    @rule(step=st.integers(2, 5), start=st.integers(0, 3 * TOP), take_out=st.booleans(), more=st.booleans())
    def many(self, step: int, start: int, take_out: bool, more: bool) -> None:
        """Enough of them that both sets are gone through once, or that the other one is the larger by far."""
        pairs = [(n, n + 1) for n in range(start, start + step * (200 if more else 70), step)]
        others = RangeSet.canonical(pairs)
        check(self.found & others, self.wanted & model(pairs))
        if take_out:
            self.found.remove(others)
            self.wanted -= model(pairs)
        else:
            self.found.update(others)
            self.wanted |= model(pairs)

    @rule(count=st.integers(-1, 12))
    def take(self, count: int) -> None:
        lowest = set(sorted(self.wanted)[: max(count, 0)])
        check(self.found.take(count), lowest)
        self.wanted -= lowest

    @rule()
    def copy_is_apart(self) -> None:
        twin = self.found.copy()
        assert twin == self.found
        twin.add(0, TOP)
        twin.discard(3, 7)

    @rule()
    def remove_itself(self) -> None:
        self.found.remove(self.found)
        self.wanted.clear()

    @rule(number=st.integers(-2, TOP + 2))
    def contains(self, number: int) -> None:
        assert (number in self.found) == (number in self.wanted)

    @invariant()
    def same(self) -> None:
        check(self.found, self.wanted)


TestMachine = Machine.TestCase


@given(NUMBERS, NUMBERS)
def test_operators(one: frozenset[int], other: frozenset[int]) -> None:
    left, right = RangeSet.of(one), RangeSet.of(sorted(other))
    check(left & right, set(one & other))
    check(left | right, set(one | other))
    check(left - right, set(one - other))
    check(left, set(one))
    check(right, set(other))
    assert (left == right) == (one == other)


@given(PAIRS, NUMBER)
def test_checked_takes_only_what_is_in_order(pairs: Pairs, limit: int) -> None:
    flat = [edge for pair in pairs for edge in pair]
    in_order = flat == sorted(flat) and all(lo < hi for lo, hi in pairs) and max(flat, default=0) <= limit
    if in_order:
        check(RangeSet.checked(pairs, limit), model(pairs))
    else:
        with pytest.raises(ValueError, match="out of order or beyond"):
            RangeSet.checked(pairs, limit)


@pytest.mark.parametrize("pairs", [[(-1, 2)], [(0, 0)], [(5, 3)], [(0, 3), (2, 4)], [(3, 4), (0, 1)], [(0, 11)]])
def test_checked_refuses(pairs: Pairs) -> None:
    with pytest.raises(ValueError, match="out of order or beyond"):
        RangeSet.checked(pairs, 10)


@given(NUMBERS)
def test_text(numbers: frozenset[int]) -> None:
    shown = str(RangeSet.of(numbers))
    back: set[int] = set()
    for piece in filter(None, shown.split(",")):
        lo, _, hi = piece.partition("-")
        back |= set(range(int(lo), int(hi or lo) + 1))
    assert back == numbers


def test_a_billion_untouched_numbers_cost_one_range() -> None:
    many = RangeSet([(0, 1 << 30)])
    many.discard(5, 6)
    assert len(many) == (1 << 30) - 1
    assert many.pairs() == [(0, 5), (6, 1 << 30)]
