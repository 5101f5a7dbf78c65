"""A kind of job in a package of its own: the quantiles of each row. docs/kinds.md explains it, and the tests run it."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from muster.jobs.kinds import Bench, Kind, Output, Result, Runner, Shape, Shard, ShardFailure


class QuantilesParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `params` of the job file may say."""

    at: tuple[Annotated[float, Meta(ge=0, le=1)], ...] = (0.25, 0.5, 0.75)


class Quantiles(Kind[QuantilesParams]):
    """Quantiles over all values of a row, whatever its shape."""

    name = "quantiles"
    kernel = 1
    Params = QuantilesParams

    def declare(self, params: QuantilesParams, shape: Shape | None) -> tuple[Output, ...]:
        return (Output("quantiles", "rows", "<f8", (len(params.at),)),)

    def repeats(self, params: QuantilesParams, shape: Shape | None, threads: int, has_code: bool) -> bool:
        return True  # numpy alone computes, and each row by itself

    def open(self, bench: Bench) -> Runner:
        return QuantilesRunner(bench.params)


class QuantilesRunner(Runner):
    """Lives in one worker, for shard after shard of one job."""

    def __init__(self, params: QuantilesParams) -> None:
        self._at = np.array(params.at)

    def run(self, shard: Shard) -> Result:
        assert shard.rows is not None, "a kind over rows gets rows"
        values = shard.rows.reshape(len(shard.rows), -1).astype(np.float64)
        bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
        if len(bad):
            number = shard.first_row + int(bad[0])
            raise ShardFailure("data", f"{shard.layer}: row {number} has NaN or infinity")
        return {"quantiles": np.quantile(values, self._at, axis=1).T}
