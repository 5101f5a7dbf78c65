"""What each machine adds to others: more is never worse, and a link without a limit is as good as no link."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.coordinator.submission.makespan import FarmMachine, InputLeft, makespan, pace, payoffs

RATES = st.floats(1.0, 1e10)
LEFT = st.builds(InputLeft, st.floats(1.0, 1e15), st.floats(0.0, 1e15), st.floats(1e-12, 1e-3))
MACHINE = st.builds(
    FarmMachine,
    st.text("abc", min_size=1, max_size=3),
    st.integers(1, 256),
    st.floats(0.01, 100.0),
    st.booleans(),
    st.booleans(),
    st.none() | RATES,
    st.none() | RATES,
)
MACHINES = st.lists(MACHINE, min_size=1, max_size=6)
SLACK = 1 + 1e-9  # of sums of floats


@given(MACHINES, MACHINE, LEFT)
def test_another_machine_never_makes_it_later(machines: list[FarmMachine], one: FarmMachine, left: InputLeft) -> None:
    assert makespan([*machines, one], left) <= makespan(machines, left) * SLACK


@given(MACHINES, LEFT)
def test_a_link_without_limit_is_as_good_as_reading_in_place(machines: list[FarmMachine], left: InputLeft) -> None:
    linked = [replace(one, local=False, link_in=inf, link_out=inf) for one in machines]
    assert makespan(linked, left) == makespan([replace(one, local=True) for one in machines], left)


@given(MACHINES, LEFT, st.floats(1.0, 10.0))
def test_faster_links_and_less_work_are_never_later(machines: list[FarmMachine], left: InputLeft, times: float) -> None:
    faster = [replace(one, link_in=one.link_in and one.link_in * times) for one in machines]
    assert makespan(faster, left) <= makespan(machines, left) * SLACK
    assert makespan(machines, replace(left, bytes_out=left.bytes_out / times)) <= makespan(machines, left) * SLACK


@given(MACHINES, LEFT)
def test_the_order_of_machines_is_of_no_account(machines: list[FarmMachine], left: InputLeft) -> None:
    assert makespan(machines[::-1], left) == pytest.approx(makespan(machines, left), rel=1e-9)


@given(MACHINES, LEFT)
def test_nobody_is_faster_than_its_slots_its_link_or_all_of_them(machines: list[FarmMachine], left: InputLeft) -> None:
    together = left.bytes_in / makespan(machines, left)
    for one in machines:
        each, _ = pace(one, left)
        assert each <= one.slots * one.speed / left.slot_seconds * SLACK
        assert each <= together * SLACK
        assert one.local or one.link_in is None or each <= one.link_in * SLACK


@given(MACHINES, LEFT)
def test_with_it_is_never_later_than_without_and_with_a_copy_never_later_than_with_it(
    machines: list[FarmMachine], left: InputLeft
) -> None:
    for machine, one in zip(machines, payoffs(machines, left), strict=True):
        assert (one.seconds is None) == (not machine.is_known)
        if one.seconds is not None and one.without is not None:
            assert one.seconds <= one.without * SLACK
        if one.with_copy is not None:
            assert one.limit == "link" and one.seconds is not None and one.with_copy <= one.seconds * SLACK


@given(MACHINES, LEFT)
def test_a_machine_that_nothing_is_known_of_changes_no_estimate(machines: list[FarmMachine], left: InputLeft) -> None:
    unknown = FarmMachine("unknown", 64)
    *said, last = payoffs([*machines, unknown], left)
    assert tuple(said) == payoffs(machines, left)
    assert (last.seconds, last.limit, last.with_copy) == (None, None, None)
