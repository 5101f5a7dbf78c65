"""Making a plan: what a job will compute, fixed at submit and never recomputed. Ranges, not objects; runs nothing."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec

from muster.jobs.common import units
from muster.jobs.common.errors import JobFileError
from muster.jobs.common.validation import FieldError
from muster.jobs.contract.kind import Kind, Listed, Prepared, Shape, Site
from muster.jobs.contract.plan import (
    CUT,
    FORMAT,
    ITEMS_LIST,
    ArraySource,
    ItemsSource,
    Layer,
    MadeSource,
    Output,
    Plan,
    Work,
)
from muster.jobs.contract.requirements import canonical, named
from muster.jobs.contract.shard_size import SHARD_BYTES, RowCost
from muster.jobs.job_file import read
from muster.jobs.job_file.cut_layers import Cutter, Precedents, SameLayer
from muster.jobs.job_file.digest import layer_digest
from muster.jobs.job_file.read import JobFile, ShardSpec
from muster.jobs.kinds import registry
from muster.jobs.parts.part_file import Layout, unit_bytes
from muster.jobs.sources.discover import FoundLayer, SourceSpec, discover
from muster.jobs.sources.formats import npy

if TYPE_CHECKING:
    from muster.jobs.sources.items import ListedItems
    from muster.jobs.user_code.code_pack import CodeBundle

SHARDS_LIMIT = 1 << 31  # of a job
MADE = "made"
ITEMS_SHARDS_LIMIT = 1 << 19  # of a list: where each begins is in the plan, and a frame holds no more for an agent


def make_plan(
    job: JobFile,
    base: Path,
    code: CodeBundle | None,
    listed_at: Path | None = None,
    moved: Mapping[str, Path] | None = None,
    precedents: Precedents | None = None,
    may_try: bool = True,
) -> Plan:
    """The plan of a checked job file whose folder is `base`. Opens every input's header, reads no data.

    `listed_at`: where the list of items is written, where there are some; it belongs to the plan. `moved`: files that
    the job file names and that are elsewhere by now. `precedents`: what is known of earlier jobs. `may_try`: whether a
    model may be run here to see what comes out.
    """
    precedents = precedents or Precedents()
    kind = registry.load(job.kind)
    arrays = job.source is not None and not job.source.has_items
    source = discover(job.source, base) if job.source is not None and arrays else None
    found = source.layers if source is not None else None
    if job.overrides and found is None:
        raise JobFileError("overrides: only arrays have layers of their own", "leave it out")
    given = job
    shapes = dict.fromkeys(Shape(one.source.shape[1:], one.source.dtype) for one in found or ())
    entry = job.code.entry if job.code else None
    place = base, tuple(shapes), job.resources.cpus, job.code is not None, job.env, entry, moved or {}
    site = Site(*place, may_try, precedents.job)
    job, prepared = _prepared(job, kind, site)
    work = _work_of(job, kind, code, prepared, site)
    cut = ""
    if found is not None:
        jobs = _chosen(given, job, prepared, kind, site, found)
        layers, cut = _array_layers(jobs, work, kind, found, precedents, prepared.row_seconds)
    elif job.source is not None:
        layer, cut = _items_layer(job, job.source, work, kind, base, listed_at, precedents)
        layers = (layer,)
    else:
        layers = (_made_layer(work, kind, job.params),)
    if sum(layer.count for layer in layers) > SHARDS_LIMIT:
        total = sum(layer.count for layer in layers)
        raise JobFileError(f"shard: {total} shards, a job may have {SHARDS_LIMIT}", "choose larger shards")
    works = [work, *(msgspec.structs.replace(work, params=one.params) for one in layers if one.params is not None)]
    work = msgspec.structs.replace(work, runs_code=any(map(kind.runs_code, works)))
    if code is not None:
        _check_calls(kind, code, works)
    ahead = kind.forecast(_typed(kind, job.params), work.entry)
    return Plan(
        format=FORMAT,
        name=job.name,
        work=work,
        layers=layers,
        attempts=job.attempts,
        max_failures=job.max_failures,
        priority=job.priority,
        driver=job.kind if kind.driven else None,
        same_kernels=job.same_kernels == "require" or prepared.same_kernels,
        notify=job.notify.command if job.notify else "",
        counted=(ahead.total, ahead.unit) if ahead else None,
        cut=cut,
        at_once=job.at_once or 0,
        proven=prepared.proven,
        notes=source.notes if source is not None else (),
        after=tuple(job.after),
    )


def _check_calls(kind: Kind[Any], code: CodeBundle, works: Sequence[Work]) -> None:
    """Whether the user's function takes what it gets, with each layer's parameters."""
    from muster.jobs.user_code.code_pack import check_call

    for work in works:
        if (called := kind.called_with(_typed(kind, work.params))) is not None:
            check_call(code, called)


def _prepared(job: JobFile, kind: Kind[Any], site: Site) -> tuple[JobFile, Prepared[Any]]:
    """The job with nothing left open in its parameters, and what they ask for."""
    prepared = kind.prepare(_typed(kind, job.params), site)
    return msgspec.structs.replace(job, params=msgspec.to_builtins(prepared.params)), prepared


def _work_of(job: JobFile, kind: Kind[Any], code: CodeBundle | None, prepared: Prepared[Any], site: Site) -> Work:
    from muster.jobs.inference import model_file

    model = prepared.model
    return Work(
        model=model_file.described(model_file.find(model, site.base, site.moved), model) if model is not None else None,
        needs=prepared.needs,
        kind=job.kind,
        kernel=kind.kernel,
        params=job.params,
        code=code.digest if code else None,
        entry=(code.entry or None) if code else None,
        env=job.env,
        timeout=job.timeout,
        packages=tuple(job.packages),
        **msgspec.structs.asdict(job.resources),
        rests_on=_rests_on(job, kind, prepared, code is not None),
        variables=job.variables,
        flush=job.flush,
    )


def _rests_on(job: JobFile, kind: Kind[Any], prepared: Prepared[Any], has_code: bool) -> tuple[str, ...]:
    """What the kind says, and what the job says that its environment must have."""
    said = {canonical(name) for name in kind.rests_on(prepared.params, has_code)}
    return tuple(sorted(said | {named(text) for text in job.packages}))


def _chosen(
    given: JobFile, job: JobFile, prepared: Prepared[Any], kind: Kind[Any], site: Site, found: list[FoundLayer]
) -> list[JobFile]:
    """The job as it is for each layer: with what overrides say of it, each combination of them prepared once."""
    made: dict[tuple[int, ...], JobFile] = {(): job}
    chosen = []
    for one in found:
        which = tuple(i for i, override in enumerate(job.overrides) if override.is_for(one.name))
        if which not in made:
            params = dict(given.params)
            for i in which:
                params |= job.overrides[i].params
            made[which], other = _prepared(msgspec.structs.replace(given, params=params), kind, site)
            if (other.model, other.needs) != (prepared.model, prepared.needs):
                raise JobFileError("overrides: the model is one for all layers", "submit another job")
        chosen.append(made[which])
    idle = next((o for o in job.overrides if not any(o.is_for(one.name) for one in found)), None)
    if idle:
        known = ", ".join(one.name for one in found[:8])
        raise JobFileError(f"overrides: no layer is called {', '.join(idle.layers)}", f"layers: {known}")
    return chosen


def _array_layers(
    jobs: list[JobFile],
    work: Work,
    kind: Kind[Any],
    found: list[FoundLayer],
    precedents: Precedents,
    row_seconds: float | None,
) -> tuple[tuple[Layer, ...], str]:
    """Each layer by the job as it is for it, which says nothing of parameters that are the work's own; and how all were
    cut, where that is open."""
    declared: dict[int, _Declared] = {}
    layers = []
    cutter = Cutter(precedents, sum(one.source.shape[0] for one in found), sum(_nbytes(one.source) for one in found))
    for job, one in zip(jobs, found, strict=True):
        declared[id(job)] = declared.get(id(job)) or _Declared(kind, job.params, row_seconds)
        own = job.params if job.params != work.params else None
        of_layer = work if own is None else msgspec.structs.replace(work, params=own)
        layer = _array_layer(job, of_layer, declared[id(job)], one, cutter)
        layers.append(msgspec.structs.replace(layer, params=own))
    return tuple(layers), cutter.said("row") if jobs[0].shard.is_auto else ""


def _nbytes(source: ArraySource) -> int:
    return math.prod(source.shape) * npy.itemsize(source.stored or source.dtype)


class _Declared:
    """What a kind says of each distinct shape: asked once, as thousands of layers often share one."""

    def __init__(self, kind: Kind[Any], params: dict[str, Any], row_seconds: float | None = None) -> None:
        self._kind = kind
        self._params = _typed(kind, params)
        self._row_seconds = row_seconds
        self.grain = kind.grain(self._params)
        self.outputs = lru_cache(maxsize=None)(self._ask)

    def row_cost(self, shape: Shape, work: Work) -> RowCost:
        cost = self._kind.row_cost(self._params, shape, work)
        return cost if self._row_seconds is None else replace(cost, seconds=self._row_seconds)

    def _ask(self, shape: Shape | None) -> tuple[Output, ...] | None:
        self._kind.check(self._params, shape)
        outputs: tuple[Output, ...] | None = self._kind.declare(self._params, shape)
        return outputs


def _typed(kind: Kind[Any], params: dict[str, Any]) -> Any:
    try:
        return read.check_params(kind, params)
    except FieldError as error:
        raise error.as_user_error() from None


def _array_layer(job: JobFile, work: Work, declared: _Declared, found: FoundLayer, cutter: Cutter) -> Layer:
    source = found.source
    shape = Shape(source.shape[1:], source.dtype)
    try:
        outputs = declared.outputs(shape)
    except JobFileError as error:
        raise JobFileError(f"{error.message} (layer {found.name})", error.hint) from None
    rows = source.shape[0]
    row_bytes = _nbytes(source) // rows
    if job.shard.is_auto:
        cost = declared.row_cost(shape, work)
        shard_rows = cutter.array(work, found.name, source, row_bytes, cost, declared.grain)
    else:
        shard_rows = _shard_rows(job.shard, rows, row_bytes, declared.grain)
    return Layer(
        name=found.name,
        digest=layer_digest(work, found.name, source, shard_rows),
        source=source,
        rows=rows,
        shard_rows=shard_rows,
        count=-(-rows // shard_rows),
        in_bytes=shard_rows * row_bytes,
        out_bytes=_out_bytes(outputs, shard_rows, 1),
        outputs=outputs,
    )


def _shard_rows(given: ShardSpec, rows: int, row_bytes: int, grain: int = 1) -> int:
    """What the job file says: at least one row, at most all; whole grains where only a size was asked for."""
    wanted = given.rows or (given.size or 0) // row_bytes
    if given.rows is None and wanted > grain:
        wanted -= wanted % grain
    return max(1, min(wanted, rows))


def _items_layer(
    job: JobFile,
    spec: SourceSpec,
    work: Work,
    kind: Kind[Any],
    base: Path,
    listed_at: Path | None,
    precedents: Precedents,
) -> tuple[Layer, str]:
    """The layer, and how it was cut, where the job leaves that open."""
    from muster.jobs.sources import items
    from muster.jobs.sources.list_items import find_items

    with TemporaryDirectory() as scratch:
        found = find_items(spec, base, listed_at or Path(scratch, ITEMS_LIST))
        listed = Listed(found.columns, lambda: items.each(found.listed, found.columns))
        outputs = kind.declare_items(_typed(kind, job.params), listed)
    uncut = ItemsSource(found.folder, found.columns, found.listed.digest, b"")
    source, most, in_bytes, said = _cut_items(job, work, uncut, found.listed, precedents)
    count = len(source.cuts) // CUT.size - 1
    if count > ITEMS_SHARDS_LIMIT:
        text = f"shard: {count} shards of files or lines, a job may have {ITEMS_SHARDS_LIMIT}"
        raise JobFileError(text, "choose larger shards")
    layer = Layer(
        name=items.LAYER,
        digest=layer_digest(work, items.LAYER, source, most),
        source=source,
        rows=len(found.listed),
        shard_rows=most,
        count=count,
        in_bytes=in_bytes,
        out_bytes=_out_bytes(outputs, most, 1),
        outputs=outputs,
    )
    return layer, said


def _cut_items(
    job: JobFile, work: Work, source: ItemsSource, listed: ListedItems, precedents: Precedents
) -> tuple[ItemsSource, int, int, str]:
    """The source with its cuts; the most items and the most bytes that a shard has; and why, where that was open."""
    from muster.jobs.sources import items

    shard, total = job.shard, len(listed)
    if not shard.is_auto:
        most_items, most_bytes = shard.files or shard.rows or total, shard.size or units.SIZE_LIMIT
        cuts, most, in_bytes = items.cut(listed, most_items, most_bytes)
        return msgspec.structs.replace(source, cuts=cuts), most, in_bytes, ""
    cutter = Cutter(precedents, total, sum(listed.sizes))
    size = cutter.items(work, items.LAYER, source)
    if isinstance(size, SameLayer):
        cuts, most, in_bytes = size.cuts, size.shard_rows, size.in_bytes
    else:
        cuts, most, in_bytes = items.cut(listed, size.rows, SHARD_BYTES)
    cutter.cut_items(len(cuts) // CUT.size - 1, size)
    unit = "line" if source.columns else "file"
    return msgspec.structs.replace(source, cuts=cuts), most, in_bytes, cutter.said(unit)


def _made_layer(work: Work, kind: Kind[Any], params: dict[str, Any]) -> Layer:
    outputs = _Declared(kind, params).outputs(None)
    source = MadeSource(kind.rounds(_typed(kind, params)))
    return Layer(
        name=MADE,
        digest=layer_digest(work, f"{MADE} {uuid.uuid4().hex}", source, 1),  # payloads come later: like no other job's
        source=source,
        rows=0,
        shard_rows=1,
        count=0,
        in_bytes=0,
        out_bytes=_out_bytes(outputs, 1, 1),
        outputs=outputs,
    )


def _out_bytes(outputs: tuple[Output, ...] | None, rows: int, shards: int) -> int:
    """Bytes that `shards` shards of `rows` rows together put out; 0 where a part of it can only be found by running."""
    if outputs is None or any(output.form in {"ragged", "files"} for output in outputs):
        return 0
    per_row = sum(unit_bytes(output) for output in outputs if output.form == "rows")
    return rows * per_row + shards * sum(Layout(outputs).sum_sizes)


def out_bytes_total(plan: Plan) -> int:
    """As declared; layers whose outputs nobody knows yet count for nothing."""
    return sum(_out_bytes(layer.outputs, layer.rows, layer.count) for layer in plan.layers)
