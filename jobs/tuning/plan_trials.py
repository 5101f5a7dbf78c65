"""What a submit finds out of a search before all else: what a trial is, its data, whether it takes the parameters."""

from __future__ import annotations

import atexit
import importlib
import inspect
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from muster.jobs.common.errors import DamagedError, JobFileError, NotFoundError, UsageError
from muster.jobs.common.hashing import of_file
from muster.jobs.common.validation import nearest, one_line
from muster.jobs.contract.kind import EarlierJob, Prepared, Site
from muster.jobs.training.data import dataset
from muster.jobs.training.steps.models import image_of
from muster.jobs.tuning import optuna_study
from muster.jobs.tuning.journal import head_of
from muster.jobs.tuning.params import ERRORS, SCORES, EstimatorSpec, TuneParams, check, check_threads, unlike

SKLEARN_HINT = "such as sklearn.linear_model.SGDClassifier"


def prepare(params: TuneParams, site: Site) -> Prepared[TuneParams]:
    """Nothing is left to be found out; the data is laid ready where there is some."""
    params = msgspec.structs.replace(params, trial=_trial(params, site))
    check(params)
    check_threads(params, site.cpus)
    if params.searcher == "optuna" and not optuna_study.is_there():
        raise JobFileError("params.searcher: optuna is not installed where the coordinator is", optuna_study.HINT)
    needs = ("torch",) if params.trial == "torch" and site.python is None else ()
    if params.data is None:
        return Prepared(_extending(params, site, None))
    found = dataset.load(params.data, site.base, params.seed, numbers=params.regresses or not params.is_ours)
    if params.trial == "conv1":
        image_of(found.facts, "conv1", 4, "params.trial")
    if round(len(found.x) * params.valid) >= len(found.x):
        raise JobFileError(f"params.valid: {params.valid} of {len(found.x)} rows leaves none to train on")
    folder = Path(tempfile.mkdtemp(prefix="muster-data-"))  # for as long as this process plans and submits
    atexit.register(shutil.rmtree, folder, True)
    path = folder / "data.safetensors"
    dataset.write(found, path)
    return Prepared(_extending(msgspec.structs.replace(params, facts=found.facts), site, path), str(path), needs)


def _extending(params: TuneParams, site: Site, data: Path | None) -> TuneParams:
    """With the full id of the search that it goes on from, held to what that was."""
    if params.extends is None:
        return params
    try:
        before = site.earlier(params.extends)
        if before is None:  # nobody knows here
            return params
        params = msgspec.structs.replace(params, extends=before.id)
        wrong, hint = _cannot_extend(params, before, data)
    except (NotFoundError, UsageError, DamagedError) as error:
        raise JobFileError(f"params.extends: {error.message}", error.hint) from None
    if wrong:
        raise JobFileError(wrong, hint)
    return params


def _cannot_extend(params: TuneParams, before: EarlierJob, data: Path | None) -> tuple[str, str]:
    """Why not, and what to do; "" where it can."""
    if before.kind != "tune":
        return f"params.extends: {before.id} is of the kind `{before.kind}`, and not a search", "name a search"
    if not before.stands:
        return f"params.extends: {before.id} is not over", f"wait for it: `coordinator wait {before.id}`"
    same = "extend it with the same, or begin anew: `extends: null`"
    if wrong := unlike(head_of(before.place.checkpoints).params, params):
        return wrong, same
    return ("", "") if _digest(data) == before.model else (f"params.data is not that of {before.id}", same)


def _digest(path: Path | None) -> str | None:
    if path is None:
        return None
    with path.open("rb") as file:
        return of_file(file.fileno())


def _trial(params: TuneParams, site: Site) -> Any:
    """What is trained, with nothing left open."""
    if params.trial in (None, "code", "torch"):
        if not site.has_code or not site.entry:
            hint = "code: work.py:train, or `trial: mlp`"
            what = "its factory, in a file of yours" if params.trial == "torch" else "what is to be trained?"
            raise JobFileError(f"params.trial: missing: {what}", hint)
        return params.trial or "code"
    if site.has_code:
        raise JobFileError("code: a trial of ours has no use for it", "leave `trial` out, or `code`")
    if not isinstance(params.trial, EstimatorSpec):
        return params.trial
    if site.python is not None:  # another interpreter's packages: what it lacks fails the trials, with that as evidence
        return msgspec.structs.replace(params.trial, refits=bool(params.trial.refits))
    return _checked(params.trial, params)


def _checked(spec: EstimatorSpec, params: TuneParams) -> EstimatorSpec:
    """The estimator is there, and its parameters are those of the space."""
    from sklearn.base import ClassifierMixin, RegressorMixin

    where = f"params.trial.estimator: {one_line(spec.estimator)}"
    module, _, cls = spec.estimator.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), cls)
        takes = list(inspect.signature(found).parameters)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise JobFileError(f"{where}: {one_line(str(error))}", SKLEARN_HINT) from None
    kinds = {"classifier": (ClassifierMixin, SCORES), "regressor": (RegressorMixin, ERRORS)}
    scores = {kind: known for kind, (mixin, known) in kinds.items() if issubclass(found, mixin)}
    if not scores or not hasattr(found, "fit"):
        raise JobFileError(f"{where} is neither a classifier nor a regressor", SKLEARN_HINT)
    if all(params.metric not in known for known in scores.values()):
        kind, known = next(iter(scores.items()))
        raise JobFileError(
            f"params.metric: {cls} is a {kind}: there is no {params.metric}", f"one of: {', '.join(known)}"
        )
    for parameter in params.space:
        if parameter not in takes:
            near = nearest(parameter, takes)
            hint = f"did you mean `{near}`?" if near else f"it takes: {', '.join(takes[:8])}"
            raise JobFileError(f"params.space: {cls} has no parameter `{one_line(parameter)}`", hint)
    in_parts = hasattr(found, "partial_fit")
    if spec.refits is False and not in_parts:
        raise JobFileError(f"{where} has no partial_fit, and cannot go on from where it was", "leave `refits` out")
    return msgspec.structs.replace(spec, refits=not in_parts if spec.refits is None else spec.refits)
