"""What the shards of a job are now, from the first to the last, in so many cells at most. Only reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from muster.coordinator.api.requests import MapAsk
from muster.coordinator.api.status import MapRow, ShardMap
from muster.coordinator.daemon.engine import Engine
from muster.coordinator.scheduler.entities import Job, Layer
from muster.jobs.common.ranges import RangeSet

ROWS_MOST, COLUMNS_MOST = 24, 240
CELLS_MOST = 1920  # of all rows together


def shard_map(engine: Engine, asked: MapAsk) -> ShardMap:
    return map_of(engine.job(asked.job))


def map_of(job: Job) -> ShardMap:
    """Takes time by ranges and cells, never by shards."""
    if job.has_rounds:
        return ShardMap([])
    each = -(-len(job.layers) // ROWS_MOST)
    rows = [job.layers[i : i + each] for i in range(0, len(job.layers), max(1, each))]
    columns = min(COLUMNS_MOST, CELLS_MOST // max(1, len(rows)))
    return ShardMap([row(layers, columns) for layers in rows if any(layer.count for layer in layers)])


def row(layers: Sequence[Layer], columns: int) -> MapRow:
    """Of neighbours as if they were one layer. What several machines have at work counts once."""
    shards = sum(layer.count for layer in layers)
    cell = -(-shards // columns)
    counts = {state: [0] * -(-shards // cell) for state in ("committed", "finished", "running", "given_up")}
    first = 0
    for layer in layers:
        finished = RangeSet.union(one.finished for one in layer.holdings.values())
        running = RangeSet.union([*(one.open for one in layer.holdings.values()), layer.limbo]) - finished
        sets = layer.committed, finished, running, layer.quarantined
        for counted, numbers in zip(counts.values(), sets, strict=True):
            _count(counted, cell, ((lo + first, hi + first) for lo, hi in numbers.pairs()))
        first += layer.count
    name = layers[0].name if len(layers) == 1 else f"{layers[0].name} … {layers[-1].name}"
    return MapRow(name, shards, cell, **counts)


def _count(into: list[int], cell: int, ranges: Iterable[tuple[int, int]]) -> None:
    for lo, hi in ranges:
        for column in range(lo // cell, (hi - 1) // cell + 1):
            into[column] += min(hi, (column + 1) * cell) - max(lo, column * cell)
