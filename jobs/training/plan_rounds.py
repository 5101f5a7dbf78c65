"""What a submit finds out of a training before all else: its data, the facts of it, how many local steps."""

from __future__ import annotations

import atexit
import math
import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from muster.jobs.common.errors import JobFileError
from muster.jobs.contract.kind import Prepared, ShardFailure, Site
from muster.jobs.training import plan_rounds
from muster.jobs.training.aggregation.synchronous import SynchronousRounds
from muster.jobs.training.data import dataset
from muster.jobs.training.data.dataset import Born, Data
from muster.jobs.training.params import TORCH_MODELS, TrainParams, settled
from muster.jobs.training.steps.learner import Learner
from muster.jobs.training.steps.models import open_model
from muster.jobs.training.steps.torch_trainer import TorchTrainer, TrainerPlace

TRIED_ROWS = 8
TIMED = 3  # steps, of which the fastest counts
TRIAL_SECONDS = 300.0
TORCH_HINT = "the module is made once where the job is submitted, with torch there or in the `env` that is a path"
WAITING_SHARE = 0.15  # of a round
STEPS_MOST = 10_000
ASSUMED_MACHINES = 4
ASSUMED_RATE = 117e6  # bytes a second: what a link of 1 Gbit/s carries
ASSUMED_OVERHEAD = 0.025  # seconds a round, beside the bytes
COMPRESSED = 0.13  # of 8-bit values, once packed


def prepare(params: TrainParams, site: Site) -> Prepared[TrainParams]:
    """Nothing is left to be found out; the data is laid ready where it is in files."""
    _check_code(params, site)
    if params.deterministic and site.cpus > 1:
        wrong = f"params.deterministic: one thread, but a shard may use {site.cpus}"
        raise JobFileError(wrong, "resources: {cpus: 1}")
    found = dataset.load(params.data, site.base, params.seed)
    params = msgspec.structs.replace(settled(params), facts=found.facts)
    open_model(params, found.facts)
    if params.model in TORCH_MODELS:
        return _with_torch(params, found, site)
    if params.local_steps == "auto":
        params = msgspec.structs.replace(params, local_steps=_steps(params, Learner(_one_step(params), found)))
    model = None if isinstance(params.data, str) else str(_laid_ready(found))
    return Prepared(params, model, same_kernels=params.deterministic)


def _check_code(params: TrainParams, site: Site) -> None:
    """Code is for a model of the user's, and the other way round."""
    if params.model == "code" and not site.has_code:
        raise JobFileError("params.model: `code` is a factory of yours, and there is none", "code: work.py:factory")
    if params.model != "code" and site.has_code:
        raise JobFileError(f"code: {params.model} has no use for it", "write `model: code`, or leave `code` out")
    if params.model != "code" and params.args:
        raise JobFileError("params.args: only a factory of your own takes arguments", "leave it out")


def _with_torch(params: TrainParams, found: Data, site: Site) -> Prepared[TrainParams]:
    """The module is made here once: its sizes go into the plan, its first weights beside the data."""
    file = _laid_ready(found)
    python = os.path.expanduser(site.python) if site.python and "/" in site.python else None  # noqa: PTH111
    place = TrainerPlace(file, file.parent / "scratch", python, site.base, site.entry, timeout=TRIAL_SECONDS)
    try:
        learner = Learner(_one_step(params), found, site.cpus, place)
        try:
            model = learner.model
            facts = msgspec.structs.replace(found.facts, stepped=model.stepped, buffers=model.buffers)
            steps = _steps(params, learner) if params.local_steps == "auto" else params.local_steps
            assert isinstance(model, TorchTrainer)
            _attempt(model, params, found)
            dataset.write(replace(found, born=Born(learner.start(), model.names)), file)
        finally:
            learner.close()
    except ShardFailure as failure:
        raise JobFileError(
            f"params.model: {params.model} cannot be opened here: {failure.message}", TORCH_HINT
        ) from None
    params = msgspec.structs.replace(params, facts=facts, local_steps=steps)
    return Prepared(params, str(file), () if site.python else ("torch",), params.deterministic)


def _attempt(model: TorchTrainer, params: TrainParams, found: Data) -> None:
    try:
        model.attempt(np.arange(min(TRIED_ROWS, params.microbatch, len(found.x))))
    except ShardFailure as failure:
        wrong = f"params.model: {params.model} fails with rows of shape {found.x.shape[1:]}: {failure.message}"
        hint = "images come to the module as (channels, height, width), other rows as they are"
        raise JobFileError(wrong, hint) from None


def _one_step(params: TrainParams) -> TrainParams:
    return msgspec.structs.replace(params, local_steps=1)


def _steps(params: TrainParams, learner: Learner) -> int:
    """By what a step takes on this machine."""
    one = _one_step(params)
    outer = SynchronousRounds(one, learner.start(), learner.model.stepped)
    seconds = []
    for _ in range(TIMED):
        begun = time.perf_counter()
        learner.contribute(outer.weights, outer.header(), 0)
        seconds.append(time.perf_counter() - begun)
    return plan_rounds.planned_steps(one, learner.dim, min(seconds))


def _laid_ready(found: Data) -> Path:
    """A file for as long as this process plans and submits."""
    folder = Path(tempfile.mkdtemp(prefix="muster-data-"))
    atexit.register(shutil.rmtree, folder, True)
    dataset.write(found, folder / "data.safetensors")
    return folder / "data.safetensors"


def smallest_steps(step_seconds: float, exchange_seconds: float) -> int:
    """The fewest steps of which a round's exchange is at most WAITING_SHARE."""
    if not (step_seconds > 0 and exchange_seconds > 0):
        return 1
    wanted = exchange_seconds * (1 - WAITING_SHARE) / WAITING_SHARE / step_seconds
    return max(1, min(math.ceil(wanted), STEPS_MOST))


def assumed_exchange(params: TrainParams, dim: int) -> float:
    """Seconds a round spends moving its values up and its update down, over a link of 1 Gbit/s."""
    share = COMPRESSED if params.bits == 8 else params.bits / 32
    return ASSUMED_OVERHEAD + 2 * 4 * dim * share / ASSUMED_RATE


def planned_steps(params: TrainParams, dim: int, step_seconds: float) -> int:
    """For `local_steps: auto`, where all that is known is how long one virtual worker's step takes here."""
    workers = math.ceil(params.workers / ASSUMED_MACHINES)
    return smallest_steps(step_seconds * workers, assumed_exchange(params, dim))
