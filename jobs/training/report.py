"""What trainings came to, as tables: over iterations, over time, and against one worker. Draws nothing."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from muster.jobs.training.progress import Mark, Point

Row = tuple[object, ...]

ACCURACY_BY_ITERATION = "accuracy-over-iterations"
ACCURACY_BY_TIME = "accuracy-over-time"
ITERATIONS_BY_TIME = "iterations-over-time"
SPEEDUP = "speed-up"
POINTS_MOST = 500  # of a run


@dataclass(frozen=True)
class Run:
    """One training as it was recorded. An iteration is a round, or in `async` a push."""

    mode: str
    workers: int  # that computed at the same time
    points: Sequence[Point]
    marks: Sequence[Mark]
    name: str = ""  # where mode and workers do not tell it from others
    simulated: bool = False  # whether its compute time was

    @property
    def short(self) -> str:
        """Beside others of its mode."""
        machines = f"{self.workers} worker{'s' if self.workers != 1 else ''}"
        return f"{self.name}: {machines}" if self.name else machines

    @property
    def label(self) -> str:
        machines = f"{self.workers} worker{'s' if self.workers != 1 else ''}"
        text = f"{self.name}: {self.mode}, {machines}" if self.name else f"{self.mode}, {machines}"
        return f"{text} (simulated)" if self.simulated else text

    @property
    def rate(self) -> float:
        """Iterations a second."""
        last = self.points[-1] if self.points else None
        return last.iteration / last.seconds if last and last.seconds > 0 else 0.0

    def thinned(self) -> Sequence[Point]:
        """As many of the points as a picture can show, the last one among them."""
        step = max(1, -(-len(self.points) // POINTS_MOST))
        return self.points[(len(self.points) - 1) % step :: step] if self.points else self.points

    def rows_to(self, mark: Mark) -> int:
        """That were trained on until then."""
        return sum(point.samples for point in self.points if point.iteration <= mark.iteration)

    def reached(self, target: float) -> Mark | None:
        """The first evaluation at or above the target."""
        return next((mark for mark in self.marks if mark.accuracy >= target), None)


@dataclass(frozen=True)
class Table:
    """A picture's numbers."""

    name: str
    columns: tuple[str, ...]
    rows: list[Row]

    def csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([[_shown(value) for value in row] for row in self.rows])
        return text.getvalue()


@dataclass(frozen=True)
class Speedup:
    """A run beside the one with the fewest workers of its mode: `ratio` is `throughput` times `steps`. In rows, for in
    `async` an iteration is as many workers' as happened to come at once."""

    run: Run
    seconds: float  # to the target
    iterations: int
    ratio: float
    throughput: float  # rows a second, against that run's
    steps: float  # its rows to the target, against ours


def tables(runs: Sequence[Run], target: float | None) -> list[Table]:
    """The numbers of all pictures; the last only where a target was reached by several numbers of workers."""
    found = [accuracy_by_iteration(runs), accuracy_by_time(runs), iterations_by_time(runs)]
    gains = speedups(runs, target) if target is not None else []
    return [*found, speedup_table(gains)] if gains else found


def accuracy_by_iteration(runs: Sequence[Run]) -> Table:
    rows: list[Row] = [
        (run.label, run.mode, run.workers, mark.iteration, mark.accuracy, mark.loss)
        for run in runs
        for mark in run.marks
    ]
    return Table(ACCURACY_BY_ITERATION, ("run", "mode", "workers", "iteration", "accuracy", "test_loss"), rows)


def accuracy_by_time(runs: Sequence[Run]) -> Table:
    rows: list[Row] = [
        (run.label, run.mode, run.workers, mark.seconds, mark.accuracy, mark.loss) for run in runs for mark in run.marks
    ]
    return Table(ACCURACY_BY_TIME, ("run", "mode", "workers", "seconds", "accuracy", "test_loss"), rows)


def iterations_by_time(runs: Sequence[Run]) -> Table:
    rows: list[Row] = [
        (run.label, run.mode, run.workers, point.seconds, point.iteration, point.samples, point.loss)
        for run in runs
        for point in run.thinned()
    ]
    columns = ("run", "mode", "workers", "seconds", "iteration", "samples", "loss")
    return Table(ITERATIONS_BY_TIME, columns, rows)


def speedups(runs: Sequence[Run], target: float) -> list[Speedup]:
    """Of every run that reached the target, in each mode of which several numbers of workers did."""
    found = []
    for kind in dict.fromkeys((run.mode, run.simulated) for run in runs):
        mine = [run for run in runs if (run.mode, run.simulated) == kind]
        reached = [(run, mark) for run in mine if (mark := run.reached(target)) is not None]
        if len({run.workers for run, _ in reached}) > 1:
            found += _beside(*min(reached, key=lambda pair: pair[0].workers), reached)
    return found


def _beside(first: Run, goal: Mark, reached: Sequence[tuple[Run, Mark]]) -> list[Speedup]:
    rows = first.rows_to(goal)
    return [
        Speedup(
            run=run,
            seconds=mark.seconds,
            iterations=mark.iteration,
            ratio=goal.seconds / mark.seconds,
            throughput=run.rows_to(mark) / mark.seconds / (rows / goal.seconds),
            steps=rows / run.rows_to(mark),
        )
        for run, mark in sorted(reached, key=lambda pair: pair[0].workers)
        if mark.seconds > 0 and run.rows_to(mark) and rows
    ]


def speedup_table(gains: Sequence[Speedup]) -> Table:
    rows: list[Row] = [
        (
            one.run.mode,
            one.run.workers,
            one.run.simulated,
            one.seconds,
            one.iterations,
            one.ratio,
            one.throughput,
            one.steps,
        )
        for one in gains
    ]
    columns = ("mode", "workers", "simulated", "seconds", "iterations", "speedup", "throughput", "steps")
    return Table(SPEEDUP, columns, rows)


def _shown(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value
