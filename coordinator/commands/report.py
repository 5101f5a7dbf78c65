"""`coordinator report`: how trainings went, from their newest checkpoints; as text, JSON, pictures and CSV."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from muster.coordinator.commands.options import json_option, root_option, say, say_json
from muster.coordinator.display import tables
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example
from muster.jobs.common.errors import NotFoundError
from muster.jobs.common.units import format_duration

if TYPE_CHECKING:
    from muster.jobs.training.checkpoint import Told
    from muster.jobs.training.report import Run

HEADER = ("job", "mode", "workers", "bits", "round", "time", "rounds/s", "loss", "accuracy", "best", "to target")


class Training(msgspec.Struct, frozen=True):
    """One job's line."""

    job: str
    mode: str
    workers: int  # virtual ones
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


@click.command(epilog=example("coordinator report fashion", "coordinator report sync async --target 0.88 --plots out"))
@click.argument("jobs", metavar="JOB…", nargs=-1, required=True)
@click.option(
    "--plots", type=click.Path(path_type=Path), metavar="DIR", help="Write pictures, and their numbers as CSV."
)
@click.option("--target", type=click.FloatRange(0, 1), help="An accuracy to compare by; default: the first job's own.")
@root_option
@json_option
def command(jobs: tuple[str, ...], plots: Path | None, target: float | None, root: Path | None, as_json: bool) -> None:
    """Show how trainings went: rounds, loss, accuracy on the test set, time to a target.

    Works while they run, from their newest checkpoints, and without a coordinator.
    """
    found = roots.existing(root)
    named = [roots.resolve_job(found, job) for job in jobs]
    told = {name: _told(found, name) for name in named}
    target = target if target is not None else told[named[0]].params.target
    lines = [_line(name, one, target) for name, one in told.items()]
    if as_json:
        say_json(lines)
    else:
        say(page(lines))
    if plots is not None:
        from muster.jobs.training import plots as pictures

        written = pictures.write(plots, [_run(name, one) for name, one in told.items()], target)
        click.echo(f"wrote {tables.counted(len(written), 'file')} to {plots}", err=True)


def _told(root: roots.Root, job: str) -> Told:
    from muster.jobs.training import checkpoint

    told = checkpoint.newest_told(root.job(job).checkpoints)
    if told is None:
        raise NotFoundError(
            f"{job} has no checkpoint", "only `kind: train` has them, a few seconds after its first round"
        )
    return told


def _line(job: str, told: Told, target: float | None) -> Training:
    params, points, marks = told.params, told.record.points, told.record.marks
    seconds = points[-1].seconds if points else 0.0
    reached = _run(job, told).reached(target) if target is not None else None
    return Training(
        job=job,
        mode=params.mode,
        workers=params.workers,
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


def _run(job: str, told: Told) -> Run:
    from muster.jobs.training.report import Run

    return Run(told.params.mode, told.params.workers, told.record.points, told.record.marks, job)


def page(lines: list[Training]) -> str:
    """A line a job."""
    return tables.table(HEADER, [_cells(line) for line in lines], right="..rrrrrrrrr")


def _cells(line: Training) -> list[str]:
    return [
        tables.short(line.job),
        line.mode,
        str(line.workers),
        str(line.bits),
        tables.count(line.round),
        format_duration(line.seconds),
        f"{line.rounds_per_second:.3g}",
        *(f"{value:.4f}" if value is not None else "-" for value in (line.loss, line.accuracy, line.best)),
        format_duration(line.seconds_to_target) if line.seconds_to_target is not None else "-",
    ]
