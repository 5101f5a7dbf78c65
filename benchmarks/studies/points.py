"""A study's points, and the line that is kept of each that was measured. Measures nothing and draws nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from muster.jobs.common.durable import write_durably
from muster.jobs.common.errors import DamagedError
from muster.jobs.contract.pictures import Picture

Figures = dict[str, Any]


class Point(msgspec.Struct, frozen=True):
    """What is measured at once, and never in part."""

    name: str
    settings: dict[str, Any]


class Line(msgspec.Struct, frozen=True):
    """A point that was measured."""

    name: str
    settings: dict[str, Any]
    figures: Figures
    day: str
    machine: str
    seconds: float  # that measuring it took
    others: float  # cores that other programs used, in a second before and in one after


class Kept:
    """A file with a line of JSON for each point. It is replaced as a whole, so that it is never half of anything."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lines = {line.name: line for line in _read(path)}

    def has(self, point: Point) -> bool:
        """Measured, and at the settings that it has now."""
        line = self.lines.get(point.name)
        return line is not None and line.settings == point.settings

    def of(self, points: Sequence[Point]) -> dict[str, Line]:
        """The lines of those that were measured, in their order."""
        return {point.name: self.lines[point.name] for point in points if self.has(point)}

    def keep(self, line: Line) -> None:
        self.lines[line.name] = line
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(self._path, b"".join(msgspec.json.encode(one) + b"\n" for one in self.lines.values()))


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
    """Its points in the order in which they are measured; a later one may go by what came of earlier ones."""

    name: str
    points: Callable[[bool], list[Point]]  # the short form's, or all
    measure: Callable[[Point, Path, Mapping[str, Line]], Figures]  # in a folder that lives as long as the process
    page: Callable[[Mapping[str, Line]], Page]  # pure; of those lines alone that are there
