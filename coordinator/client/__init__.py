"""The Python API: `from muster import Farm`. Names what people use; docs/api.md describes it."""

from muster.coordinator.client.farm import Farm
from muster.coordinator.client.job import Job
from muster.coordinator.client.results import Result
from muster.coordinator.client.shards import Shard

__all__ = ["Farm", "Job", "Result", "Shard"]
