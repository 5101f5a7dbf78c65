"""Trainings' tables as PNG and CSV side by side. The only place that imports matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.commit import write_durably
from jobs.errors import NotFoundError
from jobs.train import report
from jobs.train.report import Run, Speedup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INCHES = (8.0, 5.0)
DOTS = 120  # per inch
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


def write(folder: Path, runs: Sequence[Run], target: float | None = None) -> list[Path]:
    """Every table as CSV and PNG. NotFoundError without matplotlib; the CSVs are written all the same."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in report.tables(runs, target):
        written.append(folder / f"{table.name}.csv")
        write_durably(written[-1], table.csv().encode())
    if find_spec("matplotlib") is None:
        raise NotFoundError(
            "matplotlib is not installed: only the CSV files were written", "pip install 'muster[report]'"
        )
    return written + _draw(folder, runs, target)


def _draw(folder: Path, runs: Sequence[Run], target: float | None) -> list[Path]:
    drawn = [
        _picture(
            folder, report.ACCURACY_BY_ITERATION, "iterations", "test accuracy", _accuracies(runs, "iteration", target)
        ),
        _picture(folder, report.ACCURACY_BY_TIME, "seconds", "test accuracy", _accuracies(runs, "seconds", target)),
        _picture(folder, report.ITERATIONS_BY_TIME, "seconds", "iterations", _iterations(runs)),
    ]
    gains = report.speedups(runs, target) if target is not None else []
    if gains:
        drawn.append(_picture(folder, report.SPEEDUP, "workers", f"speed-up to {target:g}", _speedups(gains)))
    return drawn


def _picture(folder: Path, name: str, across: str, up: str, draw: Any) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, dpi=DOTS, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw(axes)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_title(name.replace("-over-", " over "))
    axes.grid(True, alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")
    path = folder / f"{name}.png"
    figure.savefig(path)
    return path


def _accuracies(runs: Sequence[Run], across: str, target: float | None) -> Any:
    def draw(axes: Axes) -> None:
        for number, run in enumerate(runs):
            x = [getattr(mark, across) for mark in run.marks]
            axes.plot(x, [mark.accuracy for mark in run.marks], marker=".", label=run.label, **_look(number, run))
        if target is not None:
            axes.axhline(target, color="0.5", linewidth=1, label=f"target {target:g}")

    return draw


def _iterations(runs: Sequence[Run]) -> Any:
    def draw(axes: Axes) -> None:
        for number, run in enumerate(runs):
            points = run.thinned()
            x, y = [point.seconds for point in points], [point.iteration for point in points]
            axes.plot(x, y, label=run.label, **_look(number, run))

    return draw


def _speedups(gains: Sequence[Speedup]) -> Any:
    def draw(axes: Axes) -> None:
        most = max(one.run.workers for one in gains)
        axes.plot([1, most], [1, most], color="0.7", linewidth=1, label="ideal")
        kinds = list(dict.fromkeys((one.run.mode, one.run.simulated) for one in gains))
        for colour, (mode, simulated) in zip(COLOURS, kinds, strict=False):
            mine = [one for one in gains if (one.run.mode, one.run.simulated) == (mode, simulated)]
            x, style, label = [one.run.workers for one in mine], LINES.get(mode, "-"), f"{mode}{_told(simulated)}"
            axes.plot(x, [one.ratio for one in mine], style, color=colour, marker="o", label=label)
            axes.plot(x, [one.throughput for one in mine], ":", color=colour, label=f"{label}: rows/s alone")

    return draw


def _told(simulated: bool) -> str:
    return ", compute time simulated" if simulated else ""


def _look(number: int, run: Run) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": LINES.get(run.mode, "-")}
