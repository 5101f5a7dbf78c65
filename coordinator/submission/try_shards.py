"""A few shards of a planned job, run here, one after the other, as a worker would. Talks to no coordinator."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import msgspec

from muster.coordinator.farm_root import tried_rows
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.farm_root.tried_rows import TriedRows
from muster.coordinator.submission.eta import MERGE_RATE
from muster.coordinator.submission.forecast import MeasuredPace
from muster.coordinator.submission.submit import Planned
from muster.jobs.common.errors import JobFileError
from muster.jobs.common.units import DURATION_LIMIT
from muster.jobs.contract.plan import ArraySource, ItemsSource, Layer, MadeSource, Output, Plan, in_bytes_total
from muster.jobs.inference import model_file
from muster.jobs.job_file.digest import cost_digest
from muster.jobs.parts.part_file import read_index
from muster.jobs.sources.items import located
from muster.jobs.user_code import code_pack
from muster.jobs.workbench.batch import Batch, Item, Mishap
from muster.jobs.workbench.workbench import Workbench

SPREAD_TRIED = 0.3  # of a forecast from a few shards on one machine


@dataclass(frozen=True)
class Tried:
    """One shard: what it put out, or what went wrong."""

    layer: str
    number: int
    rows: int
    bytes_in: int
    bytes_out: int
    seconds: float
    peak: int  # bytes
    outputs: tuple[Output, ...]
    printed: str
    mishap: Mishap | None


def choose(layers: Sequence[Layer], count: int) -> list[tuple[Layer, int]]:
    """So many shards of as many layers as there are: the first of each, then the second of each."""
    columns = [[(layer, number) for number in range(min(count, layer.count))] for layer in layers]
    return [one for row in zip_longest(*columns) for one in row if one is not None][:count]


def run(planned: Planned, count: int, python: str | None) -> Iterator[Tried]:
    """Each as soon as it is done; none after one that failed."""
    chosen = choose(planned.plan.layers, count)
    if any(isinstance(layer.source, MadeSource) for layer, _ in chosen) or not chosen:
        raise JobFileError("there is no shard to try: this job makes its shards while it runs", "submit it")
    with _bench(planned, python) as (bench, batch_of):
        for layer, number in chosen:
            tried = _tried(bench, batch_of(layer, number))
            yield tried
            if tried.mishap:
                return


class _Batches:
    """Makes a batch of one shard, its files in a folder that is soon gone."""

    def __init__(self, planned: Planned, folder: Path, python: str | None) -> None:
        self._plan = planned.plan
        self._items = planned.items.path
        self._folder = folder
        self._python = python
        self._code: Path | None = None
        if planned.code is not None:
            self._code = folder / "code"
            code_pack.unpack(code_pack.pack(planned.code), self._code, planned.code.digest)
        model = self._plan.work.model
        self._model = model_file.find(model.name, planned.base) if model is not None else None

    def __call__(self, layer: Layer, number: int) -> Batch:
        return Batch(
            farm="try",
            agent="here",
            job="try",
            layer=layer,
            work=self._plan.work_of(layer),
            items=(Item(number, 0, 0, located(layer.window(number), self._items)),),
            tmp=str(self._folder / "part.tmp"),
            done=str(self._folder / "part"),
            mark=str(self._folder / "mark"),
            scratch=str(self._folder / "scratch"),
            code=str(self._code) if self._code else None,
            python=self._python,
            model=str(self._model) if self._model else None,
        )


@contextmanager
def _bench(planned: Planned, python: str | None) -> Iterator[tuple[Workbench, _Batches]]:
    bench = Workbench()
    with tempfile.TemporaryDirectory(prefix="muster-try-") as folder:
        try:
            yield bench, _Batches(planned, Path(folder), python)
        finally:
            bench.close()


def _tried(bench: Workbench, batch: Batch) -> Tried:
    [item] = batch.items
    outcome = bench.run(batch)
    if outcome.mishaps or not outcome.numbers:
        why = outcome.full or (f"its source changed: {outcome.change}" if outcome.changed else "it gave no result")
        mishap = next(iter(outcome.mishaps), Mishap(item.number, "lost", why, "", 0.0, 0))
        return Tried(batch.layer.name, item.number, 0, 0, 0, mishap.seconds, mishap.peak, (), bench.printed, mishap)
    index = read_index(Path(batch.done))
    Path(batch.done).unlink()
    [entry] = index.entries
    return Tried(
        layer=batch.layer.name,
        number=item.number,
        rows=entry.rows,
        bytes_in=entry.in_bytes,
        bytes_out=sum(entry.sizes),
        seconds=entry.seconds,
        peak=entry.peak,
        outputs=index.outputs,
        printed=bench.printed,
        mishap=None,
    )


def measured(plan: Plan, tried: Sequence[Tried]) -> Plan:
    """The plan, its unknown sizes of output as they were here: those of each layer, else those of the first."""
    per_row = {one.layer: one.bytes_out / one.rows for one in tried if one.rows}
    first = next(iter(per_row.values()), 0.0)
    layers = [
        layer
        if layer.out_bytes
        else msgspec.structs.replace(layer, out_bytes=round(per_row.get(layer.name, first) * layer.shard_rows))
        for layer in plan.layers
    ]
    return msgspec.structs.replace(plan, layers=tuple(layers))


def pace_of(tried: Sequence[Tried]) -> MeasuredPace | None:
    """How fast these went, in one slot of this machine. The first starts what is needed: it counts only where alone."""
    good = [one for one in tried if one.mishap is None]
    good = good[1:] or good
    seconds, nbytes = sum(one.seconds for one in good), sum(one.bytes_in for one in good)
    if not seconds or not nbytes:
        return None
    shards = "the shard" if len(good) == 1 else f"the {len(good)} shards"
    return MeasuredPace(nbytes / seconds, MERGE_RATE, SPREAD_TRIED, f"as {shards} tried here went")


def keep(root: Root, plan: Plan, tried: Sequence[Tried]) -> bool:
    """Let the root remember what rows took, for those who cut such a job next. Whether it does."""
    layers = {layer.name: layer for layer in plan.layers}
    alike: dict[str, list[Tried]] = {}
    for one in tried:
        source = layers[one.layer].source
        if one.mishap is None and one.rows and isinstance(source, ArraySource | ItemsSource):
            alike.setdefault(cost_digest(plan.work_of(layers[one.layer]), source), []).append(one)
    kept = False
    for digest, those in alike.items():
        good = those[1:] or those  # the first starts what is needed
        seconds = sum(one.seconds for one in good) / sum(one.rows for one in good)
        if 0 < seconds <= DURATION_LIMIT:
            kept = tried_rows.keep(root, digest, TriedRows(seconds)) or kept
    return kept


def seconds_here(plan: Plan, pace: MeasuredPace | None) -> float | None:
    """What the whole job would take one slot of this machine."""
    return in_bytes_total(plan) / pace.bytes_in if pace else None
