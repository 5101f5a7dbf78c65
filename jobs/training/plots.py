"""Trainings' tables as PNG and CSV side by side. The only place that imports matplotlib."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from muster.jobs.common.durable import write_durably
from muster.jobs.common.errors import NotFoundError
from muster.jobs.contract.requirements import pip_line
from muster.jobs.training import report
from muster.jobs.training.report import Speedup, TrainingRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Draw = Callable[[Axes, "Panel"], None]

INCHES = (8.0, 5.0)  # of a lone panel
PANEL_INCHES = (5.5, 3.8)
DOTS = 120  # per inch
LABEL_CHARS = 40  # a line of the legend
LOG_FROM = 5.0  # times the shortest run's seconds that the longest took: on a plain axis the short ones are a smear
DIFFERENCE = 0.05  # of throughput and speed-up, worth a line of its own
COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#000000",
)  # that all people can tell apart
LINES = {"sync": "-", "local": "-.", "async": "--"}
ITERATIONS = {"sync": "rounds", "local": "rounds", "async": "pushes"}


def write(folder: Path, runs: Sequence[TrainingRun], target: float | None = None) -> list[Path]:
    """Every table as CSV and PNG. NotFoundError without matplotlib; the CSVs are written all the same."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in report.tables(runs, target):
        written.append(folder / f"{table.name}.csv")
        write_durably(written[-1], table.csv().encode())
    if find_spec("matplotlib") is None:
        raise NotFoundError(
            "matplotlib is not installed: only the CSV files were written", pip_line("matplotlib", sys.executable)
        )
    return written + _draw(folder, runs, target)


Line = tuple[tuple[float, ...], tuple[float, ...]]


class Panel(NamedTuple):
    """Runs that are drawn on one pair of axes, each with what it looks like."""

    title: str
    runs: list[tuple[TrainingRun, str, dict[str, Any]]]  # with its label

    @property
    def iterations(self) -> str:
        return ", ".join(dict.fromkeys(ITERATIONS[run.mode] for run, _, _ in self.runs))


def _panels(runs: Sequence[TrainingRun]) -> list[Panel]:
    """One; where there are more runs than colours, one for each mode: a colour is so many workers."""
    if len(runs) <= len(COLOURS):
        return [Panel("", [(run, run.label, _look(number, run)) for number, run in enumerate(runs)])]
    counts, found = sorted({run.workers for run in runs}), []
    for mode in dict.fromkeys(run.mode for run in runs):
        mine = [run for run in runs if run.mode == mode]
        found.append(Panel(mode, [(run, run.short, _look(counts.index(run.workers), run)) for run in mine]))
    return found


def _draw(folder: Path, runs: Sequence[TrainingRun], target: float | None) -> list[Path]:
    panels = _panels(runs)
    up = "test accuracy"
    drawn = [
        _picture(
            folder, report.ACCURACY_BY_ITERATION, "iterations", up, _accuracies("iteration", target), panels, True
        ),
        _picture(folder, report.ACCURACY_BY_TIME, "seconds", up, _accuracies("seconds", target), panels, True),
        _picture(folder, report.ITERATIONS_BY_TIME, "seconds", "iterations", _iterations, panels),
    ]
    gains = report.speedups(runs, target) if target is not None else []
    if gains:
        lone = [Panel("", [])]
        drawn.append(
            _picture(folder, report.SPEEDUP, f"{gains[0].run.unit}s", f"speed-up to {target:g}", _speedups(gains), lone)
        )
    return drawn


def _picture(
    folder: Path, name: str, across: str, up: str, draw: Draw, panels: Sequence[Panel], alike: bool = False
) -> Path:
    """`alike`: what goes up is on one scale in all panels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    inches = INCHES if len(panels) == 1 else (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows)
    figure = Figure(figsize=inches, dpi=DOTS, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=alike).flat
    for axes, panel in zip(grid, panels, strict=False):
        draw(axes, panel)
        told = f"{across}, on a log scale" if axes.get_xscale() == "log" else across
        axes.set_xlabel(f"{told} ({panel.iterations})" if told == "iterations" else told)
        axes.set_ylabel(f"{up} ({panel.iterations})" if up == "iterations" else up)
        axes.set_title(panel.title, fontsize="medium")
        axes.grid(True, which="both" if axes.get_xscale() == "log" else "major", alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small")
    for axes in list(grid)[len(panels) :]:
        axes.set_visible(False)
    figure.suptitle(name.replace("-over-", " over "))
    path = folder / f"{name}.png"
    figure.savefig(path)
    return path


def _accuracies(across: str, target: float | None) -> Draw:
    from matplotlib.ticker import LogLocator, NullFormatter

    def draw(axes: Axes, panel: Panel) -> None:
        for line, (labels, look) in _lines(panel, across).items():
            axes.plot(*line, marker=".", label=fill(" = ".join(labels).replace(" w", "\u00a0w"), LABEL_CHARS), **look)
        if target is not None:
            axes.axhline(target, color="0.5", linewidth=1, label=f"target {target:g}")
        if across == "seconds" and _is_wide([run for run, _, _ in panel.runs]):
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())

    return draw


def _lines(panel: Panel, across: str) -> dict[Line, tuple[list[str], dict[str, Any]]]:
    """What is to be drawn, with the labels of all runs that were the same: in rounds their number does not show."""
    lines: dict[Line, tuple[list[str], dict[str, Any]]] = {}
    for run, label, look in panel.runs:
        x, y = [getattr(mark, across) for mark in run.marks], [mark.accuracy for mark in run.marks]
        lines.setdefault((tuple(x), tuple(y)), ([], look))[0].append(label)
    return lines


def _is_wide(runs: Sequence[TrainingRun]) -> bool:
    """Whether the longest run hides how the shortest went."""
    ends = [run.marks[-1].seconds for run in runs if run.marks]
    return len(ends) > 1 and max(ends) > LOG_FROM * min(ends) > 0


def _iterations(axes: Axes, panel: Panel) -> None:
    for run, label, look in panel.runs:
        points = run.thinned()
        x, y = [point.seconds for point in points], [point.iteration for point in points]
        axes.plot(x, y, label=label, **look)


def _speedups(gains: Sequence[Speedup]) -> Draw:
    def draw(axes: Axes, panel: Panel) -> None:
        most = max(one.run.workers for one in gains)
        axes.plot([1, most], [1, most], color="0.7", linewidth=1, label="ideal")
        for colour, mode in zip(COLOURS, dict.fromkeys(one.run.mode for one in gains), strict=False):
            mine = [one for one in gains if one.run.mode == mode]
            x, style = [one.run.workers for one in mine], LINES.get(mode, "-")
            axes.plot(x, [one.ratio for one in mine], style, color=colour, marker="o", label=mode)
            if any(abs(one.throughput - one.ratio) > DIFFERENCE * one.ratio for one in mine):
                alone = f"{mode}: rows/s alone"
                axes.plot(x, [one.throughput for one in mine], ":", color=colour, marker=".", label=alone)
        axes.set_xticks(sorted({one.run.workers for one in gains}))

    return draw


def _look(number: int, run: TrainingRun) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": LINES.get(run.mode, "-")}
