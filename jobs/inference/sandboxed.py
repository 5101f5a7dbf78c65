"""The sandbox that a model runs in which is another library's, or the user's class. MLPs are `mlp`'s."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

from muster.jobs.contract.kind import Bench
from muster.jobs.inference.params import InferParams
from muster.jobs.user_code import runner
from muster.jobs.user_code.sandbox import Sandbox

SEARCHED = {"tree.npy", "config.npy"}  # in such a file
CLASSES = {"skops": "Skops", "pickle": "Pickle", "onnx": "Onnx", "torchscript": "TorchScript"}


def sandbox(bench: Bench, form: str | None) -> Sandbox:
    """What runs a model of this form, or of the user's class where there is none."""
    params: InferParams = bench.params
    ours, args = form is not None, _arguments(params, form)
    folder = Path(runner.__file__).parent if ours else bench.code
    entry = f"models.py:{CLASSES[form]}" if form is not None else bench.entry
    assert folder is not None and entry is not None, "a plan without a model's format has code"
    if form is None and _is_searched(bench.model):
        args = {"folder": str(folder), "code": entry, "args": args}
        folder, entry = Path(runner.__file__).parent, "searched.py:Searched"
    return Sandbox(
        python=bench.python or sys.executable,
        folder=folder,
        entry=entry,
        scratch=bench.scratch,
        env=bench.env,
        threads=bench.cpus,
        check=bench.check_code,
        args=args,
        model={
            "path": str(bench.model) if bench.model is not None else None,
            "device": params.device,
            "batch": params.batch,
            "pad": ours,
        },
    )


def _is_searched(path: Path | None) -> bool:
    """Whether it is what a search kept of its best trial, of a function of the user's."""
    if path is None:
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return set(archive.namelist()) >= SEARCHED
    except (OSError, zipfile.BadZipFile):
        return False


def _arguments(params: InferParams, form: str | None) -> dict[str, Any]:
    if form is None:
        return params.args
    method = {"method": params.method} if form in ("skops", "pickle") else {}
    return method | ({"trusted": params.trusted} if form == "skops" else {})
