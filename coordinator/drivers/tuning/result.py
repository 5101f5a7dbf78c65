"""A search's result: its tables, its best configuration, and the best model where one can be opened."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import numpy as np
import safetensors
import safetensors.numpy

from muster.coordinator.drivers.driver import Drive
from muster.coordinator.drivers.published import Written, publish, write_file
from muster.coordinator.farm_root import plans
from muster.coordinator.farm_root.paths import Root
from muster.jobs.tuning.journal import Journal
from muster.jobs.tuning.params import EstimatorSpec, TuneParams
from muster.jobs.tuning.search import Search
from muster.jobs.tuning.space import Config
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
            config, unit = search.config(best.number), unit_of(drive)
            name, raw = model_of(search.params, journal.state(best.state), config, unit)
            files[name] = raw
        return (), [write_file(folder, name, raw) for name, raw in files.items()]

    publish(drive, written)


def unit_of(drive: Drive) -> float:
    """What 1 of the data's rows was to the trials: rows of uint8 are scaled, others are taken as they are."""
    root, model = Root(drive.place.path.parents[1]), plans.load(drive.place).work.model
    if model is None:
        return 1.0
    with safetensors.safe_open(root.model(model.digest), "np") as data:
        return float(data.get_tensor("unit")[0])


def model_of(params: TuneParams, state: bytes, config: Config, unit: float) -> tuple[str, bytes]:
    """The name and the bytes of the best one's file, as `kind: infer` opens it. Where a user's function trained it, its
    state with the configuration."""
    if isinstance(params.trial, EstimatorSpec):
        return "best.skops", state
    if params.trial == "torch":
        module = {name: np.asarray(one) for name, one in trial.decoded(state)["module"].items()}
        return "best.safetensors", safetensors.numpy.save(module)
    with np.load(io.BytesIO(state), allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in arrays if not name.startswith(MOMENTS)}
    if params.trial == "code":
        found["config"] = np.frombuffer(msgspec.json.encode(config), np.uint8)
    if params.trial == "conv1" and params.facts is not None:
        found["shape"] = np.array(params.facts.row, np.int64)  # of a row
    if unit != 1:
        found["unit"] = np.array(unit, np.float32)
    raw = io.BytesIO()
    np.savez(raw, **found)
    return "best.npz", raw.getvalue()
