"""Round numbers on axes: in the unit that people count in, few, and never none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.coordinator.report import drawing
from muster.coordinator.report.ticks import UNITS, log_ticks, round_ticks, time_ticks
from muster.jobs.common.units import format_size
from muster.jobs.contract.pictures import Histogram


@pytest.mark.parametrize(
    "until, said",
    [
        (18, ["0 ms", "5.0 s", "10 s", "15 s"]),
        (740, ["0 ms", "5 min", "10 min"]),
        (2.0, ["0 ms", "500 ms", "1.0 s", "1.5 s", "2.0 s"]),
        (90_000, ["0 ms", "6 h", "12 h", "18 h", "1 d"]),
    ],
)
def test_time_is_counted_in_minutes_and_hours_and_not_in_hundreds_of_seconds(until: float, said: list[str]) -> None:
    assert [UNITS["seconds"](tick) for tick in time_ticks(until)] == said


@given(st.floats(1e-3, 1e9))
def test_time_from_0_has_few_ticks_within_it(until: float) -> None:
    ticks = time_ticks(until)
    assert ticks[0] == 0 and len(ticks) <= 12 and ticks[-1] <= until * 1.001


@given(st.floats(1e-6, 1e12), st.floats(1.05, 1e12), st.sampled_from(["", "seconds", "bytes"]))
def test_a_logarithmic_axis_has_some_ticks_and_not_too_many(low: float, times: float, unit: str) -> None:
    high = low * times
    ticks = log_ticks(low, high, unit)
    assert 1 <= len(ticks) <= 10 and all(low * 0.99 <= one <= high * 1.01 for one in ticks)
    assert ticks == sorted(ticks)


def test_bytes_stand_at_round_sizes() -> None:
    mib = 1 << 20
    assert [format_size(round(one)) for one in log_ticks(40 * mib, 300 * mib, "bytes")] == [
        "64 MiB",
        "128 MiB",
        "256 MiB",
    ]
    assert [format_size(round(one)) for one in log_ticks(45 * mib, 55 * mib, "bytes")][:2] == ["45 MiB", "50 MiB"]


def test_no_two_of_many_lines_look_the_same() -> None:
    looks = [tuple(drawing._look(i).items()) for i in range(36)]
    assert len(set(looks)) == 36


def test_whole_numbers_have_whole_ticks_and_no_word_stands_beyond_its_picture() -> None:
    drawn = drawing.histogram(Histogram("h", "x", [("", [(0.5, 1.5, 9), (1.5, 2.5, 1)])]))
    assert ">1<" in drawn and ">2<" in drawn and ">1.5<" not in drawn
    assert round_ticks(3, 3) == [3]
