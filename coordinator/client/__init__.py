"""The Python API: `from coordinator.client import Farm`. Names what people use; docs/api.md describes it."""

from coordinator.client.farm import Farm
from coordinator.client.job import Job
from coordinator.client.results import Result
from coordinator.client.shards import Shard

__all__ = ["Farm", "Job", "Result", "Shard"]
