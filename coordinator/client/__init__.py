"""The Python API: `from muster import Farm`. Names what people use; docs/api.md describes it. Loads nothing unasked."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.coordinator.client.farm import Farm
    from muster.coordinator.client.job import Job
    from muster.coordinator.client.results import Result
    from muster.coordinator.client.shards import Shard

_DOORS = {"Farm": "farm", "Job": "job", "Result": "results", "Shard": "shards"}

__all__ = ["Farm", "Job", "Result", "Shard"]


def __getattr__(name: str) -> object:
    """Import what is named: commands that speak to a server by ssh start without numpy."""
    if name in _DOORS:
        return getattr(import_module(f"{__name__}.{_DOORS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
