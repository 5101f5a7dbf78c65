"""A study's points, the line that is kept of each that was measured, and which is due. Measures and draws nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from muster.jobs.common.durable import write_durably
from muster.jobs.common.errors import DamagedError
from muster.jobs.common.hashing import of_bytes
from muster.jobs.contract.pictures import Picture

Figures = dict[str, Any]

QUIET_CORES = 0.3  # that other programs may use while something is timed
NEVER, DISTURBED, FAILED = range(3)  # in this order things are measured


class Point(msgspec.Struct, frozen=True):
    """What is measured at once, and never in part."""

    name: str
    settings: dict[str, Any]
    by: tuple[str, ...] = ()  # earlier points that it is reckoned from
    timed: bool = True  # whether what else the machine is at changes what comes of it


class Line(msgspec.Struct, frozen=True):
    """A point that was measured, or that could not be."""

    name: str
    settings: dict[str, Any]
    figures: Figures
    day: str
    machine: str
    seconds: float  # that measuring it took
    others: float  # cores that other programs used, before or after
    tree: str = ""  # that measured it
    by: str = ""  # the digest of the figures that it was reckoned from
    failed: str = ""  # why there are no figures

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs had a part in what came of it."""
        return self.others > QUIET_CORES


class Kept:
    """A file with a line of JSON for each point. It is replaced as a whole, so that it is never half of anything."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = {line.name: line for line in _read(path)}

    def of(self, points: Sequence[Point]) -> dict[str, Line]:
        """The lines of those that were measured, in their order, at the settings and from the figures of now."""
        found: dict[str, Line] = {}
        for point in points:
            line = self._at_settings(point)
            if line is not None and not line.failed and line.by == basis(point, found):
                found[point.name] = line
        return found

    def failed(self, points: Sequence[Point]) -> dict[str, str]:
        """Why those that could not be measured could not, by name."""
        lines = [line for point in points if (line := self._at_settings(point)) is not None]
        return {line.name: line.failed for line in lines if line.failed}

    def keep(self, line: Line) -> None:
        self._lines[line.name] = line
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(self._path, b"".join(msgspec.json.encode(one) + b"\n" for one in self._lines.values()))

    def _at_settings(self, point: Point) -> Line | None:
        line = self._lines.get(point.name)
        return line if line is not None and line.settings == point.settings else None


def basis(point: Point, lines: Mapping[str, Line]) -> str | None:
    """The digest of what a point is reckoned from, "" where that is nothing; None where some of it is not measured."""
    if any(name not in lines for name in point.by):
        return None
    return of_bytes(b"".join(msgspec.json.encode(lines[name].figures) for name in point.by)) if point.by else ""


def in_order(points: Sequence[Point], kept: Kept) -> list[Point]:
    """What was never measured comes first, then what others disturbed, and last what failed, so that none of these
    keeps a study from going on. What is reckoned from others comes after all of them."""
    lines, failed = kept.of(points), kept.failed(points)
    ranks: dict[str, int] = {}
    for point in points:
        line = lines.get(point.name)
        own = FAILED if point.name in failed else DISTURBED if line is not None and line.is_disturbed else NEVER
        ranks[point.name] = max([own, *(ranks[name] for name in point.by)])
    return sorted(points, key=lambda point: ranks[point.name])


def waves(points: Sequence[Point]) -> Iterator[list[Point]]:
    """What can be measured at the same time: what is timed alone, all else until a point goes by one of these."""
    wave: list[Point] = []
    for point in points:
        if wave and (point.timed or wave[0].timed or not {one.name for one in wave}.isdisjoint(point.by)):
            yield wave
            wave = []
        wave.append(point)
    if wave:
        yield wave


def _read(path: Path) -> list[Line]:
    lines = []
    for number, raw in enumerate(path.read_bytes().splitlines() if path.exists() else [], 1):
        try:
            lines.append(msgspec.json.decode(raw, type=Line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            hint = "take it out of the file: its point is then measured again"
            raise DamagedError(f"{path}: line {number} is none of a study's: {error}", hint) from None
    return lines


@dataclass(frozen=True)
class Page:
    """What the lines come to."""

    title: str
    body: list[str]  # of Markdown
    pictures: Mapping[str, Picture]  # by the name of their file, without what it ends in


@dataclass(frozen=True)
class Study:
    """Its points in the order in which they are measured; a later one may be reckoned from earlier ones."""

    name: str
    points: Callable[[bool], list[Point]]  # the short form's, or all
    measure: Callable[[Point, Path, Mapping[str, Line]], Figures]  # in a folder, from what the point goes by
    page: Callable[[Mapping[str, Line]], Page]  # pure; of those lines alone that are there
