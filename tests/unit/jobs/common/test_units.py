"""Sizes and durations, both ways."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.jobs.common import units


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("128MiB", 128 << 20),
        ("1.5GB", 1_500_000_000),
        ("1.5 gib", 3 << 29),
        (7, 7),
        ("7", 7),
        ("7B", 7),
        (" 2 TiB ", 2 << 40),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert units.parse_size(text) == size


@pytest.mark.parametrize(
    "given", ["", "MiB", "2k", "-1", "0", 0, -1, True, 1.5, None, "1e9", "9" * 400, "2EiB", "1 Mi B", "١MiB"]
)
def test_no_sizes(given: Any) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        units.parse_size(given)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30m", 1800),
        ("90s", 90),
        ("1h30m", 5400),
        ("1 h 30 min", 5400),
        (7, 7),
        ("7", 7),
        ("1.5h", 5400),
        ("1d", 86400),
        ("500ms", 0.5),
    ],
)
def test_durations(text: str | int, seconds: float) -> None:
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize(
    "given",
    ["", "m", "30m1h", "1h1h", "1h30", "5x", "0", 0, -3, True, None, float("nan"), float("inf"), "1000000001", "- 1s"],
)
def test_no_durations(given: Any) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        units.parse_duration(given)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (128 << 20, "128 MiB"),
        ((1 << 30) - 1, "1.0 GiB"),
        (1 << 60, "1 EiB"),
    ],
)
def test_shown_sizes(size: int, text: str) -> None:
    assert units.format_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (1e-9, "1 µs"),
        (0.0009994, "999 µs"),
        (0.00321, "3.2 ms"),
        (0.00996, "10 ms"),
        (0.35, "350 ms"),
        (0.9999, "1.0 s"),
        (9.4, "9.4 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3599.6, "1 h"),
        (11520, "3 h 12 min"),
        (86399, "1 d"),
        (187200, "2 d 4 h"),
    ],
)
def test_shown_durations(seconds: float, text: str) -> None:
    assert units.format_duration(seconds) == text


@given(st.integers(1, units.SIZE_LIMIT))
def test_a_shown_size_reads_back_nearly(size: int) -> None:
    assert units.parse_size(units.format_size(size)) == pytest.approx(size, rel=0.06)


@given(st.floats(1, 1e8))
def test_a_shown_duration_reads_back_nearly(seconds: float) -> None:
    assert units.parse_duration(units.format_duration(seconds)) == pytest.approx(seconds, rel=0.06)
