"""A study's page and pictures, written out of its lines. Measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.studies.points import QUIET_CORES, Line, Page, Point, Study
from muster.coordinator.report import drawing
from muster.jobs.common.units import counted

NOTHING = "Not measured yet."
Cell = str | float | int | None


def table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Of Markdown. None is a dash; without rows it says so."""
    if not rows:
        return [NOTHING]
    every: list[Sequence[Cell]] = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(map(shown, row))} |" for row in every]


def shown(value: Cell) -> str:
    """Three digits and more."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value


def whole(
    study: Study, points: Sequence[Point], lines: Mapping[str, Line], failed: Mapping[str, str], page: Page
) -> str:
    """The page with how it came about: command, machines, what is not measured yet and why, every point."""
    text = [f"# {page.title}", "", *_origin(study, points, lines, failed), "", *page.body]
    return "\n".join([*text, *_listed(lines), ""])


def _origin(study: Study, points: Sequence[Point], lines: Mapping[str, Line], failed: Mapping[str, str]) -> list[str]:
    machines = ", and on ".join(dict.fromkeys(line.machine for line in lines.values()))
    text = [
        f"`make study STUDY={study.name}` measures what {study.name}.jsonl has no line of, and makes this page of its",
        f"lines. Measured on {machines or 'nothing yet'}.",
    ]
    if missing := [point.name for point in points if point.name not in lines]:
        text += ["", f"**Not complete**: {len(missing)} of {counted(len(points), 'point')} are not measured yet."]
        text += ["", *_untold(missing, failed)]
    if disturbed := [name for name, line in lines.items() if line.is_disturbed]:
        told = f"**Not undisturbed**: {len(disturbed)} of {counted(len(points), 'point')} were measured while other"
        text += ["", f"{told} programs had more than {QUIET_CORES} cores, and are measured again by the same command."]
    return text


def _untold(missing: Sequence[str], failed: Mapping[str, str]) -> list[str]:
    """What is missing, and why where somebody tried."""
    rest = [f"`{name}`" for name in missing if name not in failed]
    told = [f"- `{name}`: {failed[name]}" for name in missing if name in failed]
    return [*told, *([f"- {', '.join(rest)}"] if rest else [])]


def _listed(lines: Mapping[str, Line]) -> list[str]:
    rows: list[list[Cell]] = [
        [f"`{line.name}`", line.day, line.tree or None, line.seconds, line.others] for line in lines.values()
    ]
    return [
        "## The points",
        "",
        "When, of which tree, and for how long each was measured, and the cores that other programs used, the more of",
        "before and after. (Of what is reckoned and not timed nobody asks.) `git log --format='%h %T'` tells the",
        "commit of a tree.",
        "",
        *table(["point", "day", "tree", "seconds", "cores of others"], rows),
    ]


def write(
    folder: Path, study: Study, points: Sequence[Point], lines: Mapping[str, Line], failed: Mapping[str, str]
) -> Path:
    """The page, and its pictures beside it; pictures that it has no more are gone."""
    page = study.page(lines)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{study.name}-*.svg"):
        old.unlink()
    for name, what in page.pictures.items():
        drawn = drawing.picture(what)
        if drawn is not None:
            (folder / f"{name}.svg").write_text(f"{drawn}\n")
    path = folder / f"{study.name}.md"
    path.write_text(whole(study, points, lines, failed, page))
    return path
