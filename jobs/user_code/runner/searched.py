"""The best state of a search's own function, for a runner: given to the user's function with rows to infer. Numpy,
Python 3.8 or later; nothing of ours."""

from __future__ import annotations

import inspect
import json
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

# By its path: a user's module may have the same name
loading = ModuleType("loading")
loading.__file__ = str(Path(__file__).with_name("loading.py"))
SourceFileLoader("loading", loading.__file__).exec_module(loading)


class Searched:
    """`predict(config, state, rows)`, with what the search kept of its best trial. A class gets the path, as with any
    other file."""

    def __init__(self, path: str, device: str, folder: str, code: str, args: dict[str, Any]) -> None:
        _, function = loading.named(folder, code)
        self._call = function
        self._first: tuple[Any, ...] = ()
        self._unit: Any = None
        self._args = args
        if inspect.isclass(function):
            opened: Any = function
            self._call, self._args = opened(path, device, **args), {}
            return
        raw = Path(path).read_bytes()
        with np.load(path, allow_pickle=False) as arrays:
            config = json.loads(arrays["config"].tobytes())
            self._unit = np.float32(arrays["unit"]) if "unit" in arrays else None
        self._first = (config, loading.sibling("trial").decoded(raw))

    def __call__(self, batch: Any) -> Any:
        """Rows of uint8 are scaled as those were that the search trained on."""
        rows = batch.astype(np.float32) * self._unit if self._unit is not None and batch.dtype == np.uint8 else batch
        return self._call(*self._first, rows, **self._args)
