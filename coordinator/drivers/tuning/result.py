"""A search's result: its tables, its best configuration, and the best model where one can be opened."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import numpy as np
import safetensors.numpy

from muster.coordinator.drivers.driver import Drive
from muster.coordinator.drivers.published import Written, publish, write_file
from muster.jobs.tuning.journal import Journal
from muster.jobs.tuning.params import EstimatorSpec, TuneParams
from muster.jobs.tuning.search import Search
from muster.jobs.tuning.summary import (
    BEST_FILE,
    CURVES_TABLE,
    TRIALS_FILE,
    TRIALS_TABLE,
    curves_csv,
    summarised,
    trials_csv,
    trials_of,
)
from muster.jobs.user_code.runner import trial

MOMENTS = "speed_"  # of a checkpoint, what is no part of the model


def publish_search(drive: Drive, search: Search, journal: Journal, cpus: int) -> None:
    def written(folder: Path) -> Written:
        files = {
            TRIALS_TABLE: trials_csv(search).encode(),
            CURVES_TABLE: curves_csv(search).encode(),
            TRIALS_FILE: msgspec.json.encode(trials_of(search)),
            BEST_FILE: msgspec.json.format(msgspec.json.encode(summarised(search, cpus)), indent=1),
        }
        best = search.table.best
        if best is not None and best.state:
            name, raw = model_of(search.params, journal.state(best.state))
            files[name] = raw
        return (), [write_file(folder, name, raw) for name, raw in files.items()]

    publish(drive, written)


def model_of(params: TuneParams, state: bytes) -> tuple[str, bytes]:
    """The name and the bytes of the best one's file: as `kind: infer` opens it, or the state as the user's code has
    it."""
    if isinstance(params.trial, EstimatorSpec):
        return "best.skops", state
    if params.trial == "torch":
        module = {name: np.asarray(one) for name, one in trial.decoded(state)["module"].items()}
        return "best.safetensors", safetensors.numpy.save(module)
    if params.trial == "code":
        return "best.npz", state
    with np.load(io.BytesIO(state), allow_pickle=False) as arrays:
        raw = io.BytesIO()
        np.savez(raw, **{name: arrays[name] for name in arrays if not name.startswith(MOMENTS)})
    return "best.npz", raw.getvalue()
