"""The one package that is installed: the front door, and links to the four folders beside it. Loads nothing unasked."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.coordinator.client.calls.errors import CallFailed, RemoteError
    from muster.coordinator.client.calls.executor import Executor
    from muster.coordinator.client.calls.joblib_backend import joblib
    from muster.coordinator.client.farm import Farm
    from muster.coordinator.client.job import Job
    from muster.coordinator.client.study import Study
    from muster.jobs.sources.layer_writer import LayerWriter

VERSION = "0.1.0"  # setup.cfg has the same; a test compares them

_DOORS = {
    "CallFailed": "muster.coordinator.client.calls.errors",
    "Executor": "muster.coordinator.client.calls.executor",
    "Farm": "muster.coordinator.client.farm",
    "Job": "muster.coordinator.client.job",
    "RemoteError": "muster.coordinator.client.calls.errors",
    "joblib": "muster.coordinator.client.calls.joblib_backend",
    "LayerWriter": "muster.jobs.sources.layer_writer",
    "Study": "muster.coordinator.client.study",
}

__all__ = ["VERSION", "CallFailed", "Executor", "Farm", "Job", "LayerWriter", "RemoteError", "Study", "joblib"]


def __getattr__(name: str) -> object:
    """Import what people use when they name it: commands and helpers start without numpy."""
    if name in _DOORS:
        return getattr(import_module(_DOORS[name]), name)
    raise AttributeError(f"module 'muster' has no attribute {name!r}")


def forget_current_folder() -> None:
    """Take the current folder, which may be anybody's, from before all others, where `python -m` put it.

    It stays where we lie in it ourselves.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    if sys.path[0] != home and not getattr(sys.flags, "safe_path", sys.flags.isolated):
        del sys.path[0]
