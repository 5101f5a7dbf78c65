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

from muster.jobs.common.errors import JobFileError
from muster.jobs.common.validation import nearest, one_line
from muster.jobs.contract.kind import Prepared, Site
from muster.jobs.training.data import dataset
from muster.jobs.training.steps.models import image_of
from muster.jobs.tuning import optuna_study
from muster.jobs.tuning.params import EstimatorSpec, TuneParams, check

SKLEARN_HINT = "such as sklearn.linear_model.SGDClassifier"


def prepare(params: TuneParams, site: Site) -> Prepared[TuneParams]:
    """Nothing is left to be found out; the data is laid ready where there is some."""
    params = msgspec.structs.replace(params, trial=_trial(params, site))
    check(params)
    if params.searcher == "optuna" and not optuna_study.is_there():
        raise JobFileError("params.searcher: optuna is not installed where the coordinator is", optuna_study.HINT)
    needs = ("torch",) if params.trial == "torch" and site.python is None else ()
    if params.data is None:
        return Prepared(params)
    found = dataset.load(params.data, site.base, params.seed)
    if params.trial == "conv1":
        image_of(found.facts, "conv1", 4, "params.trial")
    if round(len(found.x) * params.valid) >= len(found.x):
        raise JobFileError(f"params.valid: {params.valid} of {len(found.x)} rows leaves none to train on")
    folder = Path(tempfile.mkdtemp(prefix="muster-data-"))  # for as long as this process plans and submits
    atexit.register(shutil.rmtree, folder, True)
    dataset.write(found, folder / "data.safetensors")
    return Prepared(msgspec.structs.replace(params, facts=found.facts), str(folder / "data.safetensors"), needs)


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
    from sklearn.base import ClassifierMixin

    where = f"params.trial.estimator: {one_line(spec.estimator)}"
    module, _, cls = spec.estimator.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), cls)
        takes = list(inspect.signature(found).parameters)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise JobFileError(f"{where}: {one_line(str(error))}", SKLEARN_HINT) from None
    if not (issubclass(found, ClassifierMixin) and hasattr(found, "fit")):
        raise JobFileError(f"{where} is no classifier: the data has rows and labels", SKLEARN_HINT)
    for parameter in params.space:
        if parameter not in takes:
            near = nearest(parameter, takes)
            hint = f"did you mean `{near}`?" if near else f"it takes: {', '.join(takes[:8])}"
            raise JobFileError(f"params.space: {cls} has no parameter `{one_line(parameter)}`", hint)
    in_parts = hasattr(found, "partial_fit")
    if spec.refits is False and not in_parts:
        raise JobFileError(f"{where} has no partial_fit, and cannot go on from where it was", "leave `refits` out")
    return msgspec.structs.replace(spec, refits=not in_parts if spec.refits is None else spec.refits)
