"""What a submit finds out of a training before all else: its data, the facts of it, how many local steps."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from pathlib import Path

import msgspec

from jobs.kinds import Prepared, Site
from jobs.train import data, pace
from jobs.train.data import Data
from jobs.train.learner import Learner
from jobs.train.outer import Outer
from jobs.train.params import TrainParams, settled

TIMED = 3  # steps, of which the fastest counts


def prepare(params: TrainParams, site: Site) -> Prepared[TrainParams]:
    """Nothing is left to be found out; the data is laid ready where it is in files."""
    found = data.load(params.data, site.base, params.seed)
    params = msgspec.structs.replace(settled(params), facts=found.facts)
    if params.local_steps == "auto":
        params = msgspec.structs.replace(params, local_steps=_steps(params, found))
    model = None if isinstance(params.data, str) else _laid_ready(found)
    return Prepared(params, model, same_kernels=params.deterministic)


def _steps(params: TrainParams, found: Data) -> int:
    """By what a step takes on this machine."""
    one = msgspec.structs.replace(params, local_steps=1)
    learner = Learner(one, found)
    outer = Outer(one, learner.start(), learner.model.stepped)
    seconds = []
    for _ in range(TIMED):
        begun = time.perf_counter()
        learner.contribute(outer.weights, outer.header(), 0)
        seconds.append(time.perf_counter() - begun)
    return pace.planned_steps(one, learner.dim, min(seconds))


def _laid_ready(found: Data) -> str:
    """A file for as long as this process plans and submits."""
    folder = Path(tempfile.mkdtemp(prefix="muster-data-"))
    atexit.register(shutil.rmtree, folder, True)
    data.write(found, folder / "data.safetensors")
    return str(folder / "data.safetensors")
