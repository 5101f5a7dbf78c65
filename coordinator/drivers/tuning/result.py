"""A search's result: its tables, its best configuration, and the best model where one can be opened."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import msgspec
import numpy as np
import safetensors.numpy

from muster.coordinator.drivers.driver import Drive
from muster.coordinator.drivers.published import Written, publish, unit_of, write_file
from muster.jobs.inference.mlp import UNIT
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
from muster.jobs.user_code.runner import own_trials, trial


def publish_search(drive: Drive, search: Search, journal: Journal) -> None:
    def written(folder: Path) -> Written:
        files = {
            TRIALS_TABLE: trials_csv(search).encode(),
            CURVES_TABLE: curves_csv(search).encode(),
            TRIALS_FILE: msgspec.json.encode(trials_of(search)),
            BEST_FILE: msgspec.json.format(msgspec.json.encode(summarised(search)), indent=1),
        }
        best = search.table.best
        if best is not None and best.state:
            config, unit = search.config(best.number), unit_of(drive)
            name, raw = model_of(search.params, journal.state(best.state), config, unit)
            files[name] = raw
        return (), [write_file(folder, name, raw) for name, raw in files.items()]

    publish(drive, written)


def model_of(params: TuneParams, state: bytes, config: Config, unit: float) -> tuple[str, bytes]:
    """The name and the bytes of the best one's file, as `kind: infer` opens it. Where a user's function trained it, its
    state with the configuration. Each says what a `unit` of uint8 is to it, where others look for nothing."""
    if isinstance(params.trial, EstimatorSpec):
        return "best.skops", state if unit == 1 else _with_member(state, UNIT, repr(unit))
    if params.trial == "torch":
        module = {name: np.asarray(one) for name, one in trial.decoded(state)["module"].items()}
        return "best.safetensors", safetensors.numpy.save(module, None if unit == 1 else {UNIT: repr(unit)})
    with np.load(io.BytesIO(state), allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in arrays if not name.startswith(own_trials.SPEED)}
    if params.trial == "code":
        found["config"] = np.frombuffer(msgspec.json.encode(config), np.uint8)
    if params.trial == "conv1" and params.facts is not None:
        found["shape"] = np.array(params.facts.row, np.int64)  # of a row
    if unit != 1:
        found[UNIT] = np.array(unit, np.float32)
    raw = io.BytesIO()
    np.savez(raw, **found)
    return "best.npz", raw.getvalue()


def _with_member(archive: bytes, name: str, text: str) -> bytes:
    """A zip archive with one member more."""
    raw = io.BytesIO(archive)
    with zipfile.ZipFile(raw, "a") as opened:
        opened.writestr(zipfile.ZipInfo(name), text)
    return raw.getvalue()
