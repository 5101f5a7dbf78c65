"""Cutting what the job file leaves open: as the farm has the same layer, else by `shard_size`. Remembers why."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from muster.jobs.common.units import counted
from muster.jobs.contract.kind import EarlierJob
from muster.jobs.contract.plan import ArraySource, ItemsSource, Work
from muster.jobs.contract.shard_size import ITEM_SHARDS, ITEMS, SHARDS, RowCost, ShardSize, Uncut, shard_size
from muster.jobs.job_file.digest import cost_digest

REASONS_SAID = 2


class SameLayer(NamedTuple):
    """A layer that the farm has, and that differs from the one to be cut in its cut alone, if in anything."""

    job: str
    shard_rows: int
    in_bytes: int  # of a full shard
    cuts: bytes = b""  # of a list of items


class Precedents:
    """What is known of earlier jobs. Here: nothing."""

    def same_layer(self, work: Work, name: str, source: ArraySource | ItemsSource) -> SameLayer | None:
        """The same layer. What `source` has of cuts is not looked at."""
        return None

    def row_cost(self, work: Work, source: ArraySource | ItemsSource) -> RowCost | None:
        """What rows of this form took of the same work, where that was measured."""
        return None

    def job(self, name: str) -> EarlierJob | None:
        """The job of that name or id; a NotFoundError where the farm has none."""
        return None


class Cutter:
    """Cuts the layers of one job. `rows` and `nbytes` are those of its whole source, of which each layer is a share."""

    def __init__(self, precedents: Precedents, rows: int, nbytes: int) -> None:
        self._precedents = precedents
        self._rows, self._nbytes = rows, nbytes
        self._measured: dict[str, RowCost | None] = {}
        self._said: list[tuple[int, ShardSize]] = []  # shards of each layer

    def array(self, work: Work, name: str, source: ArraySource, row_bytes: int, cost: RowCost, grain: int) -> int:
        """Rows of a shard of an array. `cost`: what the kind says."""
        rows = source.shape[0]
        if same := self._precedents.same_layer(work, name, source):
            size = _as_in(same)
        else:
            share = max(rows / self._rows, rows * row_bytes / self._nbytes)
            layer = Uncut(rows, row_bytes, ceil(SHARDS * share), grain)
            size = shard_size(layer, self._known(work, source, cost))
        self._said.append((-(-rows // size.rows), size))
        return size.rows

    def items(self, work: Work, name: str, source: ItemsSource) -> SameLayer | ShardSize:
        """How many of the job's items a shard has at most; or the same layer, whose cuts hold."""
        if same := self._precedents.same_layer(work, name, source):
            return same
        cost = self._known(work, source, RowCost())
        size = shard_size(Uncut(self._rows, 1, ITEM_SHARDS, unit="an item"), cost)
        return size if cost.seconds else size._replace(rows=min(size.rows, ITEMS))

    def cut_items(self, shards: int, size: SameLayer | ShardSize) -> None:
        """So many shards came of it."""
        self._said.append((shards, _as_in(size) if isinstance(size, SameLayer) else size))

    def _known(self, work: Work, source: ArraySource | ItemsSource, cost: RowCost) -> RowCost:
        """What was measured goes before what the kind estimates."""
        digest = cost_digest(work, source)
        if digest not in self._measured:
            self._measured[digest] = self._precedents.row_cost(work, source)
        found = self._measured[digest]
        return cost if found is None else RowCost(found.seconds, found.basis, cost.least)

    def said(self, unit: str) -> str:
        """How the job was cut and why, in one line: of each reason what holds for the layer with the most shards."""
        by_reason: dict[str, list[tuple[int, ShardSize]]] = {}
        for shards, size in sorted(self._said, key=lambda one: -one[0]):
            by_reason.setdefault(size.reason, []).append((shards, size))
        sizes = sorted(size.rows for _, size in self._said)
        total = sum(shards for shards, _ in self._said)
        span = f"{sizes[0]:,}" if sizes[0] == sizes[-1] else f"{sizes[0]:,} to {sizes[-1]:,}"
        head = f"{counted(total, 'shard')} of {span} {unit}{'' if span == '1' else 's'}: "
        whys = [(len(those), those[0][1].why) for those in by_reason.values()]
        if len(whys) == 1:
            return head + whys[0][1]
        return head + "; ".join(f"{count:,} of {len(self._said):,} layers {why}" for count, why in whys[:REASONS_SAID])


def _as_in(same: SameLayer) -> ShardSize:
    return ShardSize(same.shard_rows, "shared", f"as {same.job} has the same layer")
