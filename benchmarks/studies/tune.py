"""The search over several computers: an mlp on MNIST, 10 and 16 samples, 1 and 2 processors a trial. Ours, Ray
Tune's, theirs.

As there: learning rate, momentum and width drawn from the same ranges, 0.99 of *training* accuracy. Capped here, so
that all of it ends within twenty minutes on two cores: the rows, the iterations of a trial, and no dropout. Each point
is timed, and goes by no other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.measure import CORES, give_up
from benchmarks.studies.pages import Cell, table
from benchmarks.studies.points import Figures, Line, Page, Point, Study
from benchmarks.tune import TARGET, Asked, Searched, configurations, laid_out, ours_running, ray_tune
from muster.jobs.contract.pictures import Bars, Picture

Side = Literal["ours", "first", "ray"]

SIDES: dict[Side, str] = {"ours": "Muster", "first": "Muster, `goal: first`", "ray": "Ray Tune"}
BARS: dict[Side, str] = {"ours": "ours", "first": "ours, first", "ray": "Ray Tune"}  # in few letters
HEADER = ("samples", "cpus a trial", "side", "seconds", "beside trials, s a trial", "first at the target, s",
          "trials at it", "iterations", "test accuracy", "tuning ratio")  # fmt: skip
SHORT: tuple[Side, ...] = ("ours", "first")  # Ray Tune wants more than the tests install
RUNS = ((10, 1), (16, 1), (16, 2))  # samples, and processors of a trial
THERE: dict[tuple[int, int], tuple[str | None, float | None]] = {  # seconds and tuning ratio that the study had
    (10, 1): ("90.19", 4.58),
    (16, 1): (None, 34.89),
    (16, 2): ("187.14, 25% faster than with 1", None),
}


class Setting(msgspec.Struct, frozen=True):
    """One search of one side."""

    side: Side
    samples: int
    cpus: int = 1  # of a trial
    data: str = "mnist"
    rows: int = 12_000
    iterations: int = 40
    target: float = TARGET
    cores: int = CORES
    seed: int = 0

    @property
    def slots(self) -> int:
        """Trials at a time."""
        return max(1, self.cores // self.cpus)


def points(short: bool) -> list[Point]:
    if short:
        return [_point(Setting(side, 4, data="digits", target=0.9)) for side in SHORT]
    return [_point(Setting(side, samples, cpus)) for samples, cpus in RUNS for side in ("ours", "ray", "first")]


def _point(setting: Setting) -> Point:
    return Point(_name(setting.side, setting.samples, setting.cpus), msgspec.to_builtins(setting))


def _name(side: str, samples: int, cpus: int) -> str:
    return f"{samples}x{cpus}/{side}"


# --- measuring ------------------------------------------------------------------------------------------------


def measure(point: Point, scratch: Path, lines: Mapping[str, Line]) -> Figures:
    setting = msgspec.convert(point.settings, Setting)
    if setting.cpus > CORES:
        give_up(f"a trial wants {setting.cpus} cores, and here are {CORES}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=scratch)))
        data = laid_out(folder, setting.data, setting.rows)
        if setting.side == "ray":
            search = stack.enter_context(ray_tune()).search
        else:
            search = stack.enter_context(ours_running(setting.slots, setting.cpus)).search
        configs = configurations(setting.samples, setting.seed, data=data)
        goal = "first" if setting.side == "first" else "all"
        asked = Asked("epoch", configs, setting.iterations, setting.target, goal=goal, cpus=setting.cpus)
        return _figures(search(asked), setting.slots)


def _figures(found: Searched, slots: int) -> Figures:
    return {
        "seconds": round(found.wall, 2),
        "target": round(found.target, 2) if found.target is not None else None,
        "reached": found.reached,
        "iterations": found.iterations,
        "beside": round(found.overhead(slots), 3),
        "test accuracy": round(found.best, 4),
    }


# --- the page -------------------------------------------------------------------------------------------------


def page(lines: Mapping[str, Line]) -> Page:
    rows = [row for run in _runs(lines) for row in _rows(lines, *run)]
    bars = [
        (f"{BARS[side]}, {samples} samples, {cpus} cpus", line.figures["seconds"])
        for samples, cpus in _runs(lines)
        for side, line in _sides(lines, samples, cpus).items()
    ]
    drawn = ["![seconds](tune-seconds.svg)", ""] if bars else []
    body = [*_what(), "## Runs", "", *table(HEADER, rows), "", *drawn, *_saved(lines), *_worse(lines)]
    pictures: dict[str, Picture] = {"tune-seconds": Bars("Seconds of a search", "s", bars)} if bars else {}
    return Page("A search over several computers", body, pictures)


def _what() -> list[str]:
    setting = Setting("ours", 10)
    return [
        f"MNIST's first {setting.rows:,} rows, an mlp with one hidden layer in numpy, at most {setting.iterations}",
        f"iterations of a trial, to {setting.target:g} of *training* accuracy, as the study had it; that is no",
        "accuracy on rows that were not seen. The same function, configurations and data on both sides, from submit",
        "to the end, both warm, on all cores of one machine; one run each, and nothing is replayed. *There*: what the",
        "study had, on its machines, with all rows and up to 300 iterations: its figures are beside ours to be seen,",
        "not to be compared. Beside trials: of the seconds of a search, what its slots were not inside trials, for",
        "each trial.",
        "",
        "The tuning ratio is the most iterations that a trial needed to the target over the fewest. It grows with the",
        "number of trials, and says nothing of a system.",
        "",
    ]


def _runs(lines: Mapping[str, Line]) -> list[tuple[int, int]]:
    """Those of which there is something: the study's, in its order, and those of a short form."""
    settings = (msgspec.convert(line.settings, Setting) for line in lines.values())
    found = list(dict.fromkeys((one.samples, one.cpus) for one in settings))
    return sorted(found, key=lambda run: RUNS.index(run) if run in RUNS else len(RUNS))


def _sides(lines: Mapping[str, Line], samples: int, cpus: int) -> dict[Side, Line]:
    """Those that are measured."""
    named = ((side, lines.get(_name(side, samples, cpus))) for side in SIDES)
    return {side: line for side, line in named if line is not None}


def _rows(lines: Mapping[str, Line], samples: int, cpus: int) -> list[Sequence[Cell]]:
    found: list[Sequence[Cell]] = []
    if (samples, cpus) in THERE:
        seconds, ratio = THERE[samples, cpus]
        found.append([samples, cpus, "there", seconds, None, None, None, None, None, ratio])
    for side, line in _sides(lines, samples, cpus).items():
        figures, is_whole = line.figures, side != "first"
        reached = figures["reached"]
        times = (figures["seconds"], figures["beside"] if is_whole else None, figures["target"])
        counts = (len(reached), figures["iterations"], figures["test accuracy"])
        found.append([samples, cpus, SIDES[side], *times, *counts, ratio_of(reached) if is_whole else None])
    return found


def ratio_of(reached: Sequence[int]) -> float | None:
    """The most iterations over the fewest."""
    return max(reached) / min(reached) if reached else None


def _saved(lines: Mapping[str, Line]) -> list[str]:
    """What the goal saves that the study wanted."""
    rows: list[Sequence[Cell]] = []
    for samples, cpus in _runs(lines):
        sides = _sides(lines, samples, cpus)
        if {"ours", "first"} <= sides.keys():
            whole, spent = (sides[side].figures["seconds"] for side in SHORT)
            rows.append([samples, cpus, whole, spent, f"{1 - spent / whole:.0%}"])
    header = ("samples", "cpus a trial", "all trials, s", "until the first at the target, s", "saved")
    return ["## What `goal: first` saves", "", *table(header, rows), ""]


def _worse(lines: Mapping[str, Line]) -> list[str]:
    told = [*_start(lines), *_ray_ahead(lines), *_slower_with_more(lines)]
    return [
        "## Where ours is worse",
        "",
        *(f"- {one}" for one in told or ["Nothing that is measured says so yet."]),
        "",
    ]


def _start(lines: Mapping[str, Line]) -> list[str]:
    """What a search costs that is in no trial."""
    found = [line.figures["beside"] for run in _runs(lines) if (line := _sides(lines, *run).get("ours"))]
    if not found:
        return []
    return [
        "A search is a job: submitted, planned, its driver started, its result durably in place. That, and a slot that"
        f" has no trial any more while the last one runs, is up to {max(found):.2f} s a trial of every figure."
    ]


def _ray_ahead(lines: Mapping[str, Line]) -> list[str]:
    told = []
    for samples, cpus in _runs(lines):
        sides, run = _sides(lines, samples, cpus), f"{samples} samples, {cpus} cpus a trial"
        if not {"ours", "ray"} <= sides.keys():
            continue
        ours, ray = sides["ours"].figures, sides["ray"].figures
        for what, label in (("seconds", "ends"), ("target", "has its first trial at the target")):
            if ours[what] is not None and ray[what] is not None and ray[what] < ours[what]:
                told.append(f"{run}: Ray Tune {label} after {ray[what]:.3g} s, ours after {ours[what]:.3g}.")
    return told


def _slower_with_more(lines: Mapping[str, Line]) -> list[str]:
    """Where more processors for a trial lengthen a search, which shortened it there."""
    told = []
    for samples, cpus in _runs(lines):
        one, more = (lines.get(_name("ours", samples, count)) for count in (1, cpus))
        if one and more and more.figures["seconds"] > one.figures["seconds"]:
            times = more.figures["seconds"] / one.figures["seconds"]
            told.append(
                f"{samples} samples: with {cpus} cpus a trial a search takes {times:.2g} times as long as with 1."
            )
    return told


STUDY = Study("tune", points, measure, page)
