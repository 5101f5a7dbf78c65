"""A training's result: the final weights, the curve, the journal, and a manifest with their digests. Trains nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import save

from muster.coordinator.drivers import published
from muster.coordinator.drivers.driver import Drive
from muster.coordinator.drivers.published import Written, npy_bytes, write_file
from muster.jobs.inference.mlp import UNIT
from muster.jobs.parts.manifest import Product
from muster.jobs.training.aggregation.asynchronous import AsynchronousPushes
from muster.jobs.training.aggregation.synchronous import SynchronousRounds
from muster.jobs.training.checkpoint import model_text
from muster.jobs.training.data import dataset
from muster.jobs.training.params import TrainParams
from muster.jobs.training.progress import TrainingCourse
from muster.jobs.training.steps.learner import digest_of
from muster.jobs.training.steps.models import TrainableModel

Array = np.ndarray[Any, Any]

WEIGHTS, TENSORS, CURVE, SUMMARY = "weights.npy", "weights.safetensors", "curve.csv", "training.json"


class Summary(msgspec.Struct, frozen=True):
    """What a training came to."""

    digest: str  # xxh3_128 of the final weights
    model: str
    mode: str
    rounds: int
    iteration: int  # whose weights these are: a round, or in `async` a push
    seconds: float  # of training
    accuracy: float | None
    best_accuracy: float | None
    best_iteration: int | None
    reached_target: bool
    redone: int  # rounds done again at another scale
    params: dict[str, Any]
    points: list[Any]  # iteration, seconds, loss, samples
    marks: list[Any]  # iteration, seconds, accuracy, loss on the test set
    journal: list[Any]  # of `async`: version, workers, scale, buffer scale


def publish(
    drive: Drive,
    params: TrainParams,
    model: TrainableModel,
    outer: SynchronousRounds | AsynchronousPushes,
    course: TrainingCourse,
    seconds: float,
) -> None:
    """What the training came to, as files."""
    weights = course.reached_weights if course.reached_weights is not None else outer.weights
    flat = np.ascontiguousarray(weights, "<f4")
    summary = _summary(params, outer, course, weights, seconds)
    unit = published.unit_of(drive, dataset.DIGITS_UNIT)  # no other data is had by each machine

    def written(tmp: Path) -> Written:
        kept = write_file(tmp, WEIGHTS, npy_bytes(flat), flat)
        told = {"digest": summary.digest, "model": summary.model, **({UNIT: repr(unit)} if unit != 1 else {})}
        tensors = {name: np.ascontiguousarray(one) for name, one in model.arrays(flat).items()}
        more = (
            write_file(tmp, TENSORS, save(tensors, told)),
            write_file(tmp, CURVE, curve_of(course).encode()),
            write_file(tmp, SUMMARY, msgspec.json.format(msgspec.json.encode(summary), indent=1)),
        )
        return (Product("weights", "sum", (kept,)),), more

    record = course.record
    whole = sum(record.kernels.values()) >= len(record.points)  # else it began in a version that did not count them
    published.publish(drive, written, record.kernels if whole else {})


def _summary(
    params: TrainParams,
    outer: SynchronousRounds | AsynchronousPushes,
    course: TrainingCourse,
    weights: Array,
    seconds: float,
) -> Summary:
    record, reached, best = course.record, course.reached, course.best
    at = reached.iteration if reached else (outer.round if isinstance(outer, SynchronousRounds) else outer.version)
    scored = [mark.accuracy for mark in record.marks if mark.iteration == at]
    return Summary(
        digest=digest_of(weights),
        model=model_text(params, params.facts),
        mode=params.mode,
        rounds=outer.round,
        iteration=at,
        seconds=seconds,
        accuracy=scored[-1] if scored else None,
        best_accuracy=best.accuracy if best else None,
        best_iteration=best.iteration if best else None,
        reached_target=reached is not None,
        redone=record.redone,
        params=msgspec.to_builtins(params),
        points=msgspec.to_builtins(record.points),
        marks=msgspec.to_builtins(record.marks),
        journal=msgspec.to_builtins(outer.journal) if isinstance(outer, AsynchronousPushes) else [],
    )


def curve_of(course: TrainingCourse) -> str:
    """A line for each iteration; accuracy and loss on the test set where they were taken."""
    marks = {mark.iteration: mark for mark in course.record.marks}
    lines = ["iteration,seconds,loss,samples,accuracy,test_loss"]
    for point in course.record.points:
        mark = marks.get(point.iteration)
        scored = f"{mark.accuracy!r},{mark.loss!r}" if mark else ","
        lines.append(f"{point.iteration},{point.seconds:.6f},{point.loss!r},{point.samples},{scored}")
    return "\n".join(lines) + "\n"
