"""The digest of a layer: everything its results depend on, and nothing else, so that parts of others never mix. And
that of what a row costs."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from muster.jobs.contract.plan import ArraySource, ItemsSource, Source, Work

FORMAT = 1  # raise it when what is digested changes its form

_encoder = msgspec.msgpack.Encoder(order="deterministic")


def layer_digest(
    work: Work, name: str, source: Source, shard_rows: int, only: tuple[tuple[int, int], ...] | None = None
) -> str:
    """32 hex digits; `only` as the layer has it. Not over what changes no result: attempts, timeout, memory, disk,
    priority, same_kernels, and the job's name.

    The layer's name is in: a kind is told it, and two names for one file are two layers.
    """
    kind, code = _of_work(work)
    some = () if only is None else (only,)
    return _digest((FORMAT, kind, code, name, source, shard_rows, *some))


def cost_digest(work: Work, source: ArraySource | ItemsSource) -> str:
    """Everything that the cost of a row depends on, as far as is known: what is computed, and the form of a row."""
    form = (source.shape[1:], source.dtype) if isinstance(source, ArraySource) else source.columns
    return _digest((FORMAT, *_of_work(work), form))


def _of_work(work: Work) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """What is computed, and by what."""
    model = () if work.model is None else (work.model.digest,)
    more: tuple[object, ...] = ((work.gpus, work.threads),) if work.gpus or work.threads else ()
    more += (work.variables,) if work.variables else ()
    return (work.kind, work.kernel, work.params), (work.code, work.entry, work.env, work.cpus, *model, *more)


def _digest(identity: tuple[object, ...]) -> str:
    return blake2b(_encoder.encode(identity), digest_size=16).hexdigest()
