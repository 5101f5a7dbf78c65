"""A study's page and pictures, written out of its lines. Measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.studies.points import Line, Page, Point, Study
from muster.coordinator.report import drawing
from muster.jobs.common.units import counted

Cell = str | float | int | None


def table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Of Markdown. None is a dash."""
    every: list[Sequence[Cell]] = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(map(shown, row))} |" for row in every]


def shown(value: Cell) -> str:
    """Three digits and more."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value


def whole(study: Study, points: Sequence[Point], lines: Mapping[str, Line], page: Page) -> str:
    """The page with how it came about: command, machines, what is not measured yet, every point."""
    text = [f"# {page.title}", "", *_origin(study, points, lines), "", *page.body, "", *_listed(study, lines), ""]
    return "\n".join(text)


def _origin(study: Study, points: Sequence[Point], lines: Mapping[str, Line]) -> list[str]:
    machines = ", and on ".join(dict.fromkeys(line.machine for line in lines.values()))
    text = [
        f"`python -m benchmarks.studies {study.name}` measures what {study.name}.jsonl has no line of, and makes this",
        f"page of its lines. Measured on {machines or 'nothing yet'}.",
    ]
    if missing := [f"`{point.name}`" for point in points if point.name not in lines]:
        said = f"{len(missing)} of {counted(len(points), 'point')} are not measured yet: {', '.join(missing)}."
        text += ["", f"**Not complete**: {said}"]
    return text


def _listed(study: Study, lines: Mapping[str, Line]) -> list[str]:
    """What was measured while others had the cores may be measured again."""
    again = f"`python -m benchmarks.studies {study.name} --loaded 0.3`"
    rows: list[list[Cell]] = [[f"`{line.name}`", line.day, line.seconds, line.others] for line in lines.values()]
    return [
        "## The points",
        "",
        "Seconds that measuring took, and the cores that other programs used meanwhile (the more of a second before",
        f"and a second after). {again} measures once more what others disturbed.",
        "",
        *table(["point", "day", "seconds", "cores of others"], rows),
    ]


def write(folder: Path, study: Study, points: Sequence[Point], lines: Mapping[str, Line]) -> Path:
    """The page, and its pictures beside it."""
    page = study.page(lines)
    folder.mkdir(parents=True, exist_ok=True)
    for name, what in page.pictures.items():
        drawn = drawing.picture(what)
        if drawn is not None:
            (folder / f"{name}.svg").write_text(f"{drawn}\n")
    path = folder / f"{study.name}.md"
    path.write_text(whole(study, points, lines, page))
    return path
