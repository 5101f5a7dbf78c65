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
from muster.jobs.tuning.params import EstimatorSpec, TuneParams, check

SKLEARN_HINT = "such as sklearn.linear_model.SGDClassifier"


def prepare(params: TuneParams, site: Site) -> Prepared[TuneParams]:
    """Nothing is left to be found out; the data is laid ready where there is some."""
    params = msgspec.structs.replace(params, trial=_trial(params, site))
    check(params)
    if isinstance(params.trial, EstimatorSpec) and site.python is None:
        _check_estimator(params.trial.estimator, params)
    if params.data is None:
        return Prepared(params)
    found = dataset.load(params.data, site.base, params.seed)
    if round(len(found.x) * params.valid) >= len(found.x):
        raise JobFileError(f"params.valid: {params.valid} of {len(found.x)} rows leaves none to train on")
    folder = Path(tempfile.mkdtemp(prefix="muster-data-"))  # for as long as this process plans and submits
    atexit.register(shutil.rmtree, folder, True)
    dataset.write(found, folder / "data.safetensors")
    return Prepared(msgspec.structs.replace(params, facts=found.facts), str(folder / "data.safetensors"))


def _trial(params: TuneParams, site: Site) -> Any:
    if params.trial in (None, "code"):
        if not site.has_code or not site.entry:
            hint = "code: work.py:train, or `trial: mlp`"
            raise JobFileError("params.trial: missing: what is to be trained?", hint)
        return "code"
    if site.has_code:
        raise JobFileError("code: a trial of ours has no use for it", "leave `trial` out, or `code`")
    return params.trial


def _check_estimator(name: str, params: TuneParams) -> None:
    """Its parameters are those of the space, and it learns in parts."""
    where = f"params.trial.estimator: {one_line(name)}"
    module, _, cls = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), cls)
        takes = list(inspect.signature(found).parameters)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise JobFileError(f"{where}: {one_line(str(error))}", SKLEARN_HINT) from None
    if not hasattr(found, "partial_fit"):
        raise JobFileError(f"{where} has no partial_fit, and could not go on from a checkpoint", SKLEARN_HINT)
    for parameter in params.space:
        if parameter not in takes:
            near = nearest(parameter, takes)
            hint = f"did you mean `{near}`?" if near else f"it takes: {', '.join(takes[:8])}"
            raise JobFileError(f"params.space: {cls} has no parameter `{one_line(parameter)}`", hint)
