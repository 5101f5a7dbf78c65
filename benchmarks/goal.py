"""MNIST to an accuracy: the data, the judge, when it was reached. Trains nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import give_up
from benchmarks.train import model_of
from muster.jobs.common.errors import MusterError
from muster.jobs.training.data import dataset
from muster.jobs.training.data.dataset import Data, Feeder
from muster.jobs.training.params import DataSpec, TrainParams

Array = np.ndarray[Any, Any]

JUDGED_ROWS = 1000  # at a time


@dataclass(frozen=True)
class Reached:
    """When the target was; evaluations are off the clock."""

    seconds: float
    steps: int  # one after the other
    accuracy: float


class Judge:
    """The whole test set's word."""

    def __init__(self, params: TrainParams, found: Data) -> None:
        self._model, self._rows = model_of(params), len(found.test_x)
        self._feeder = Feeder(found.test_x, found.test_y, found.unit)

    def accuracy(self, weights: Array) -> float:
        cuts = [np.arange(at, min(at + JUDGED_ROWS, self._rows)) for at in range(0, self._rows, JUDGED_ROWS)]
        return sum(self._model.judge(weights, *self._feeder.batch(cut))[0] for cut in cuts) / self._rows


def named(name: str) -> DataSpec:
    """Fetched, if it is not here."""
    try:
        dataset.load(spec := DataSpec(name=name), Path())
    except MusterError as error:
        give_up(f"{error.message}: {error.hint}")
    return spec


def laid(spec: DataSpec, folder: Path) -> Data:
    """Read, and in one file `folder`/data as machines of a farm have it."""
    found = dataset.load(spec, folder)
    dataset.write(found, folder / "data")
    return found
