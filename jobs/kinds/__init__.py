"""The kinds of jobs, a file each, and what a kind of another package needs: the contract, under a name that stays."""

from __future__ import annotations

from muster.jobs.contract.kind import (
    Bench,
    EarlierJob,
    Items,
    JobPlace,
    Kind,
    KindForecast,
    KindReport,
    Listed,
    Prepared,
    Ragged,
    Result,
    Runner,
    RunnerLost,
    Shape,
    Shard,
    ShardFailure,
    Site,
    Total,
    Written,
)
from muster.jobs.contract.plan import Output, Work
from muster.jobs.contract.shard_size import RowCost

__all__ = [
    "Bench",
    "EarlierJob",
    "Items",
    "JobPlace",
    "Kind",
    "KindForecast",
    "KindReport",
    "Listed",
    "Output",
    "Prepared",
    "Ragged",
    "Result",
    "RowCost",
    "Runner",
    "RunnerLost",
    "Shape",
    "Shard",
    "ShardFailure",
    "Site",
    "Total",
    "Work",
    "Written",
]
