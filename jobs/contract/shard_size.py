"""How many rows a shard gets where the job file leaves that open: decided from bytes, rows and what a row costs."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal, NamedTuple

from muster.jobs.common.units import format_duration, format_size

AUTO = "auto"  # what a job file says for it, and means where it says nothing
SHARD_BYTES = 128 << 20  # of input, at most
SHARD_SECONDS = 10.0  # that no shard is meant to take much longer than
WORTH_SECONDS = 0.02  # of work, at least, where rows are known to be cheap: to hand a shard out costs about 0.001
SHARDS = 64  # that a source falls into at least, where it has the rows: many machines share it, and end together
ITEM_SHARDS = 256  # of files or lines, each of which is opened or started by itself and costs more than a row
ITEMS = 1000  # in a shard at most, until it is known what one costs
SHARDS_LIMIT = 1 << 17  # of one layer: rather than into more, it is cut into longer ones

Reason = Literal["shared", "spread", "seconds", "worth", "batch", "limit", "bytes"]


@dataclass(frozen=True)
class RowCost:
    """What is known of the rows of a layer before they run."""

    seconds: float | None = None  # of one row in one slot; None: only running it can tell
    basis: str = "as the kind reckons"  # what the seconds are taken from
    least: int = 1  # rows that take as long as one does: a batch that is filled up


class ShardSize(NamedTuple):
    """Rows of a full shard, and why so many, for people."""

    rows: int
    reason: Reason
    why: str


class Uncut(NamedTuple):
    """What is to be cut."""

    rows: int
    row_bytes: int
    shards: int = SHARDS  # that it falls into at least, as its share of the source is
    grain: int = 1  # rows that a shard had better be a multiple of
    unit: str = "a row"


def shard_size(layer: Uncut, cost: RowCost) -> ShardSize:
    """At least one row, at most `SHARD_BYTES`; within that a shard takes about `SHARD_SECONDS` at most, and is worth
    handing out; within that there are as many shards as were wished for."""
    size = _spread(layer, cost)
    if cost.seconds:
        size = _timed(size, layer, cost.seconds, cost.basis)
    if size.rows < cost.least:
        size = ShardSize(cost.least, "batch", f"whole batches of {cost.least:,}")
    if size.rows < (fewest := ceil(layer.rows / SHARDS_LIMIT)):
        size = ShardSize(fewest, "limit", f"{SHARDS_LIMIT:,} of a layer at most")
    if size.rows > (most := max(1, SHARD_BYTES // max(1, layer.row_bytes))):
        size = ShardSize(most, "bytes", f"{format_size(SHARD_BYTES)} at most")
    return size._replace(rows=_even(layer, size.rows))


def _spread(layer: Uncut, cost: RowCost) -> ShardSize:
    unknown = "" if cost.seconds else f"; nobody knows yet what {layer.unit} takes"
    return ShardSize(max(1, layer.rows // layer.shards), "spread", f"for many machines to share{unknown}")


def _timed(size: ShardSize, layer: Uncut, seconds: float, basis: str) -> ShardSize:
    """As many rows as are worth a shard, and no more than take its time."""
    said = f"{layer.unit} takes about {_short(seconds)} {basis}"
    if size.rows * seconds > SHARD_SECONDS:
        rows = max(1, int(SHARD_SECONDS / seconds))
        return ShardSize(rows, "seconds", f"about {SHARD_SECONDS:g} s each; {said}")
    if size.rows * seconds < WORTH_SECONDS:
        rows = layer.rows if layer.rows * seconds <= WORTH_SECONDS else ceil(WORTH_SECONDS / seconds)
        return ShardSize(rows, "worth", f"less is not worth handing out; {said}")
    return size


def _short(seconds: float) -> str:
    return format_duration(seconds) if seconds >= 0.001 else f"{seconds * 1e6:.2g} µs"


def _even(layer: Uncut, rows: int) -> int:
    """No more rows and no more shards than with so many, and the last one no mere rest; whole grains, where given."""
    rows = max(1, min(rows, layer.rows))
    if layer.grain > 1:
        return rows - rows % layer.grain if rows > layer.grain else rows
    return ceil(layer.rows / ceil(layer.rows / rows))


def fitting(rows: int, seconds: float, per_row: float = 0.0) -> int:
    """Rows of a shard that would take `SHARD_SECONDS`, where one of `rows` runs for `seconds` already, and others took
    `per_row` seconds for each of theirs."""
    return max(1, min(rows, int(SHARD_SECONDS / max(seconds / rows, per_row))))
