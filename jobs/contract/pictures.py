"""What a kind shows of its jobs, as values that a report draws or prints. Draws nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Curves:
    """Lines over one pair of axes."""

    title: str
    x: str
    y: str
    curves: Sequence[tuple[str, Points]]  # each with its label
    steps: bool = False  # whether a value holds until the next point


@dataclass(frozen=True)
class Histogram:
    """How often which values came: bars beside each other, of one series or of several jobs."""

    title: str
    x: str
    series: Sequence[tuple[str, Sequence[tuple[float, float, int]]]]  # label → (from, to, count), ascending
    log: bool = False  # whether the values stand on a logarithmic axis
    marks: Sequence[tuple[str, float]] = ()  # values to point out
    unit: Literal["", "seconds", "bytes"] = ""  # of the values


@dataclass(frozen=True)
class Bars:
    """A bar for each thing."""

    title: str
    unit: str
    bars: Sequence[tuple[str, float]]


@dataclass(frozen=True)
class TextTable:
    title: str
    header: Sequence[str]
    right: str  # an `r` for each column that is aligned to the right, any other character for the others
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Parallel:
    """Parallel coordinates: an axis a parameter, a line a trial, the best ones last."""

    title: str
    axes: Sequence[tuple[str, str, str]]  # name, and what stands at its lower and upper end
    lines: Sequence[tuple[Sequence[float | None], float]]  # a place from 0 to 1 on each axis; how good, from 0 to 1


Picture = Curves | Histogram | Bars | TextTable | Parallel
