"""The plan: what a job will compute, fixed at submit and never recomputed. Ranges, not objects; runs nothing."""

from __future__ import annotations

import math
import uuid
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from jobs import jobfile, kinds, npy
from jobs.digest import layer_digest
from jobs.errors import DamagedError, JobFileError, RefusedError
from jobs.fields import FieldError
from jobs.jobfile import DEFAULT_SHARD_BYTES, JobFile
from jobs.kinds import Kind, Prepared, Shape, Site
from jobs.model import Layer, MadeSource, Output, Work
from jobs.parts import Layout, unit_bytes
from jobs.source import FoundLayer, discover

if TYPE_CHECKING:
    from jobs.code import CodeBundle

FORMAT = 1
SHARDS_LIMIT = 1 << 31  # of a job
MADE = "made"


class Plan(msgspec.Struct, frozen=True):
    """A job as it is stored and run."""

    format: int
    name: str
    work: Work
    layers: tuple[Layer, ...]  # by name
    attempts: int
    max_failures: int
    priority: int
    driver: str | None  # "module:function" of the process that makes shards
    same_kernels: bool = False  # only on machines with the kernel fingerprint of its first result


class _Format(msgspec.Struct):
    format: int


def make_plan(job: JobFile, base: Path, code: CodeBundle | None) -> Plan:
    """The plan of a checked job file whose folder is `base`. Opens every input's header, reads no data."""
    kind = kinds.load(job.kind)
    found = discover(job.source, base) if job.source is not None else None
    job, prepared = _prepared(job, kind, base, found or [])
    work = _work_of(job, kind, code, prepared, base)
    if found is not None:
        layers = _array_layers(job, work, kind, found)
    else:
        layers = (_made_layer(work, kind, job.params),)
    if sum(layer.count for layer in layers) > SHARDS_LIMIT:
        total = sum(layer.count for layer in layers)
        raise JobFileError(f"shard: {total} shards, a job may have {SHARDS_LIMIT}", "choose larger shards")
    return Plan(
        format=FORMAT,
        name=job.name,
        work=work,
        layers=layers,
        attempts=job.attempts,
        max_failures=job.max_failures,
        priority=job.priority,
        driver=kind.driver,
        same_kernels=job.same_kernels == "require",
    )


def _prepared(job: JobFile, kind: Kind[Any], base: Path, found: list[FoundLayer]) -> tuple[JobFile, Prepared[Any]]:
    """The job with nothing left open in its parameters, and what they ask for."""
    shapes = dict.fromkeys(Shape(one.source.shape[1:], one.source.dtype) for one in found)
    site = Site(base, tuple(shapes), job.resources.cpus, job.code is not None, job.env)
    prepared = kind.prepare(_typed(kind, job.params), site)
    return msgspec.structs.replace(job, params=msgspec.to_builtins(prepared.params)), prepared


def _work_of(job: JobFile, kind: Kind[Any], code: CodeBundle | None, prepared: Prepared[Any], base: Path) -> Work:
    from jobs import modelfile

    model = prepared.model
    return Work(
        model=modelfile.described(modelfile.find(model, base), model) if model is not None else None,
        needs=prepared.needs,
        kind=job.kind,
        kernel=kind.kernel,
        params=job.params,
        code=code.digest if code else None,
        entry=code.entry if code else None,
        env=job.env,
        cpus=job.resources.cpus,
        memory=job.resources.memory,
        timeout=job.timeout,
    )


def _array_layers(job: JobFile, work: Work, kind: Kind[Any], found: list[FoundLayer]) -> tuple[Layer, ...]:
    declared = _Declared(kind, job.params)
    return tuple(_array_layer(job, work, declared, one) for one in found)


class _Declared:
    """What a kind says of each distinct shape: asked once, as thousands of layers often share one."""

    def __init__(self, kind: Kind[Any], params: dict[str, Any]) -> None:
        self._kind = kind
        self._params = _typed(kind, params)
        self.grain = kind.grain(self._params)
        self.outputs = lru_cache(maxsize=None)(self._ask)

    def _ask(self, shape: Shape | None) -> tuple[Output, ...] | None:
        self._kind.check(self._params, shape)
        outputs: tuple[Output, ...] | None = self._kind.declare(self._params, shape)
        return outputs


def _typed(kind: Kind[Any], params: dict[str, Any]) -> Any:
    try:
        return jobfile.check_params(kind, params)
    except FieldError as error:
        raise error.as_user_error() from None


def _array_layer(job: JobFile, work: Work, declared: _Declared, found: FoundLayer) -> Layer:
    source = found.source
    try:
        outputs = declared.outputs(Shape(source.shape[1:], source.dtype))
    except JobFileError as error:
        raise JobFileError(f"{error.message} (layer {found.name})", error.hint) from None
    row_bytes = math.prod(source.shape[1:]) * npy.itemsize(source.dtype)
    rows = source.shape[0]
    shard_rows = _shard_rows(job, rows, row_bytes, declared.grain)
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


def _shard_rows(job: JobFile, rows: int, row_bytes: int, grain: int = 1) -> int:
    """At least one row, at most all; whole grains where only a size was asked for."""
    wanted = job.shard.rows or (job.shard.size or DEFAULT_SHARD_BYTES) // row_bytes
    if job.shard.rows is None and wanted > grain:
        wanted -= wanted % grain
    return max(1, min(wanted, rows))


def _made_layer(work: Work, kind: Kind[Any], params: dict[str, Any]) -> Layer:
    outputs = _Declared(kind, params).outputs(None)
    source = MadeSource()
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


# --- what a plan adds up to ------------------------------------------------------------------------------


def total_shards(plan: Plan) -> int:
    return sum(layer.count for layer in plan.layers)


def in_bytes_total(plan: Plan) -> int:
    return sum(layer.rows * layer.in_bytes // layer.shard_rows for layer in plan.layers)


def out_bytes_total(plan: Plan) -> int:
    """As declared; layers whose outputs nobody knows yet count for nothing."""
    return sum(_out_bytes(layer.outputs, layer.rows, layer.count) for layer in plan.layers)


# --- as bytes ----------------------------------------------------------------------------------------------


def encode_plan(plan: Plan) -> bytes:
    return msgspec.msgpack.encode(plan)


def decode_plan(raw: bytes) -> Plan:
    """A stored plan; an error with a hint for one that another version wrote."""
    try:
        found = msgspec.msgpack.decode(raw, type=_Format).format
        if found != FORMAT:
            raise RefusedError(f"a plan of format {found}, this version reads {FORMAT}", "submit the job again")
        return msgspec.msgpack.decode(raw, type=Plan)
    except (msgspec.DecodeError, ValueError) as error:
        raise DamagedError(f"a stored plan does not decode: {error}", "submit the job again") from None
