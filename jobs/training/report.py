"""What trainings came to: side by side, over iterations, over time, and against one worker. Draws nothing itself."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from muster.jobs.common.errors import NotFoundError
from muster.jobs.common.units import counted, format_duration
from muster.jobs.contract.kind import KindReport
from muster.jobs.contract.pictures import Curves, Picture
from muster.jobs.training import checkpoint
from muster.jobs.training.checkpoint import CheckpointTold
from muster.jobs.training.progress import BestMark, Point

Row = tuple[object, ...]

ACCURACY_BY_ITERATION = "accuracy-over-iterations"
ACCURACY_BY_TIME = "accuracy-over-time"
ITERATIONS_BY_TIME = "iterations-over-time"
SPEEDUP = "speed-up"
POINTS_MOST = 500  # of a run
HEADER = ("mode", "workers", "machines", "bits", "round", "time", "rounds/s", "loss", "accuracy", "best", "to target")


@dataclass(frozen=True)
class TrainingRun:
    """One training as it was recorded. An iteration is a round, or in `async` a push."""

    mode: str
    workers: int  # that computed at the same time: machines where it is known how many those were, else virtual ones
    points: Sequence[Point]
    marks: Sequence[BestMark]
    name: str = ""  # where mode and workers do not tell it from others
    unit: str = "worker"  # or "machine"

    @property
    def short(self) -> str:
        """Beside others of its mode."""
        machines = counted(self.workers, self.unit)
        return f"{self.name}: {machines}" if self.name else machines

    @property
    def label(self) -> str:
        machines = counted(self.workers, self.unit)
        return f"{self.name}: {self.mode}, {machines}" if self.name else f"{self.mode}, {machines}"

    @property
    def rate(self) -> float:
        """Iterations a second."""
        last = self.points[-1] if self.points else None
        return last.iteration / last.seconds if last and last.seconds > 0 else 0.0

    def thinned(self) -> Sequence[Point]:
        """As many of the points as a picture can show, the last one among them."""
        step = max(1, -(-len(self.points) // POINTS_MOST))
        return self.points[(len(self.points) - 1) % step :: step] if self.points else self.points

    def rows_to(self, mark: BestMark) -> int:
        """That were trained on until then."""
        return sum(point.samples for point in self.points if point.iteration <= mark.iteration)

    def reached(self, target: float) -> BestMark | None:
        """The first evaluation at or above the target."""
        return next((mark for mark in self.marks if mark.accuracy >= target), None)


@dataclass(frozen=True)
class ReportTable:
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

    run: TrainingRun
    seconds: float  # to the target
    iterations: int
    ratio: float
    throughput: float  # rows a second, against that run's
    steps: float  # its rows to the target, against ours


def tables(runs: Sequence[TrainingRun], target: float | None) -> list[ReportTable]:
    """The numbers of all pictures; the last only where a target was reached by several numbers of workers."""
    found = [accuracy_by_iteration(runs), accuracy_by_time(runs), iterations_by_time(runs)]
    gains = speedups(runs, target) if target is not None else []
    return [*found, speedup_table(gains)] if gains else found


def accuracy_by_iteration(runs: Sequence[TrainingRun]) -> ReportTable:
    rows: list[Row] = [
        (run.label, run.mode, run.workers, mark.iteration, mark.accuracy, mark.loss)
        for run in runs
        for mark in run.marks
    ]
    return ReportTable(ACCURACY_BY_ITERATION, ("run", "mode", "workers", "iteration", "accuracy", "test_loss"), rows)


def accuracy_by_time(runs: Sequence[TrainingRun]) -> ReportTable:
    rows: list[Row] = [
        (run.label, run.mode, run.workers, mark.seconds, mark.accuracy, mark.loss) for run in runs for mark in run.marks
    ]
    return ReportTable(ACCURACY_BY_TIME, ("run", "mode", "workers", "seconds", "accuracy", "test_loss"), rows)


def iterations_by_time(runs: Sequence[TrainingRun]) -> ReportTable:
    rows: list[Row] = [
        (run.label, run.mode, run.workers, point.seconds, point.iteration, point.samples, point.loss, point.machines)
        for run in runs
        for point in run.thinned()
    ]
    columns = ("run", "mode", "workers", "seconds", "iteration", "samples", "loss", "machines")
    return ReportTable(ITERATIONS_BY_TIME, columns, rows)


def speedups(runs: Sequence[TrainingRun], target: float) -> list[Speedup]:
    """Of every run that reached the target, in each mode of which several numbers of workers did."""
    found = []
    for mode in dict.fromkeys(run.mode for run in runs):
        reached = [(run, mark) for run in runs if run.mode == mode and (mark := run.reached(target)) is not None]
        if len({run.workers for run, _ in reached}) > 1:
            found += _beside(*min(reached, key=lambda pair: pair[0].workers), reached)
    return found


def _beside(first: TrainingRun, goal: BestMark, reached: Sequence[tuple[TrainingRun, BestMark]]) -> list[Speedup]:
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


def speedup_table(gains: Sequence[Speedup]) -> ReportTable:
    rows: list[Row] = [
        (one.run.mode, one.run.workers, one.seconds, one.iterations, one.ratio, one.throughput, one.steps)
        for one in gains
    ]
    columns = ("mode", "workers", "seconds", "iterations", "speedup", "throughput", "steps")
    return ReportTable(SPEEDUP, columns, rows)


# --- side by side --------------------------------------------------------------------------------------------


class Standing(msgspec.Struct, frozen=True):
    """One training by its newest checkpoint."""

    job: str
    mode: str
    workers: int  # virtual ones
    machines: float | None  # that had a part in an iteration, on average; None where they were not counted
    bits: int
    steps: int
    round: int
    seconds: float
    rounds_per_second: float
    loss: float | None
    accuracy: float | None
    best: float | None
    target: float | None
    seconds_to_target: float | None
    iterations_to_target: int | None
    redone: int


def side_by_side(checkpoints: Mapping[str, Path], target: float | None) -> KindReport:
    """The jobs that keep their checkpoints in these folders. `target`: None for the first job's own."""
    told = {job: _told(job, folder) for job, folder in checkpoints.items()}
    target = target if target is not None else next(iter(told.values())).params.target
    runs = _runs(told)
    standings = [_standing(run, one, target) for run, one in zip(runs, told.values(), strict=True)]

    def draw(folder: Path) -> list[Path]:
        from muster.jobs.training import plots

        return plots.write(folder, runs, target)

    return KindReport(
        HEADER, ".rrrrrrrrrr", [_cells(one) for one in standings], standings, draw, pictures(runs, target)
    )


def pictures(runs: Sequence[TrainingRun], target: float | None) -> list[Picture]:
    """The four pictures: of several runs on axes that they share."""
    found: list[Picture] = [
        Curves("Accuracy over iterations", "iteration", "accuracy", _curves(runs, lambda mark: float(mark.iteration))),
        Curves("Accuracy over time", "seconds of training", "accuracy", _curves(runs, lambda mark: mark.seconds)),
        Curves(
            "Iterations over time",
            "seconds of training",
            "iteration",
            [(run.label, [(point.seconds, float(point.iteration)) for point in run.thinned()]) for run in runs],
        ),
        Curves(
            "Loss over time",
            "seconds of training",
            "loss",
            [(run.label, [(point.seconds, point.loss) for point in run.thinned()]) for run in runs],
        ),
    ]
    gains = speedups(runs, target) if target is not None else []
    return [*found, _speedup_picture(gains)] if gains else found


def _curves(
    runs: Sequence[TrainingRun], at: Callable[[BestMark], float]
) -> list[tuple[str, list[tuple[float, float]]]]:
    return [(run.label, [(at(mark), mark.accuracy) for mark in run.marks]) for run in runs]


def _speedup_picture(gains: Sequence[Speedup]) -> Curves:
    """To the target, by mode, with the line of a speed-up that is as large as there are more workers."""
    least, most = min(one.run.workers for one in gains), max(one.run.workers for one in gains)
    modes = dict.fromkeys(one.run.mode for one in gains)
    lines = [(mode, [(float(one.run.workers), one.ratio) for one in gains if one.run.mode == mode]) for mode in modes]
    even = ("as many times as fast", [(float(least), 1.0), (float(most), most / least)])
    return Curves("Speed-up to the target", f"{gains[0].run.unit}s", "times as fast", [*lines, even])


def _runs(told: Mapping[str, CheckpointTold]) -> list[TrainingRun]:
    """By machines, if it is known of all how many those were: virtual workers may share one."""
    machines = {job: machines_of(one.record.points) for job, one in told.items()}
    known = all(machines.values())
    return [
        TrainingRun(
            one.params.mode,
            max(1, round(machines[job] or 0)) if known else one.params.workers,
            one.record.points,
            one.record.marks,
            job,
            unit="machine" if known else "worker",
        )
        for job, one in told.items()
    ]


def machines_of(points: Sequence[Point]) -> float | None:
    """How many had a part in an iteration, on average; None where that was not counted."""
    counts = [point.machines for point in points if point.machines]
    return sum(counts) / len(counts) if counts else None


def _told(job: str, folder: Path) -> CheckpointTold:
    told = checkpoint.newest_told(folder)
    if told is None:
        raise NotFoundError(f"{job} has no checkpoint", "there is one a few seconds after its first round")
    return told


def _standing(run: TrainingRun, told: CheckpointTold, target: float | None) -> Standing:
    params, points, marks = told.params, run.points, run.marks
    seconds = points[-1].seconds if points else 0.0
    reached = run.reached(target) if target is not None else None
    return Standing(
        job=run.name,
        mode=run.mode,
        workers=params.workers,
        machines=machines_of(points),
        bits=params.bits,
        steps=params.steps,
        round=told.round,
        seconds=seconds,
        rounds_per_second=told.round / seconds if seconds else 0.0,
        loss=points[-1].loss if points else None,
        accuracy=marks[-1].accuracy if marks else None,
        best=told.best.accuracy if told.best else None,
        target=target,
        seconds_to_target=reached.seconds if reached else None,
        iterations_to_target=reached.iteration if reached else None,
        redone=told.record.redone,
    )


def _cells(one: Standing) -> tuple[str, ...]:
    return (
        one.mode,
        str(one.workers),
        f"{one.machines:.3g}" if one.machines is not None else "-",
        str(one.bits),
        f"{one.round:,}",
        format_duration(one.seconds),
        f"{one.rounds_per_second:.3g}",
        *(f"{value:.4f}" if value is not None else "-" for value in (one.loss, one.accuracy, one.best)),
        format_duration(one.seconds_to_target) if one.seconds_to_target is not None else "-",
    )


def _shown(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value
