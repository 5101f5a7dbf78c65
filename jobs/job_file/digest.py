"""The digest of a layer: everything its results depend on, and nothing else. Parts with another digest never mix."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from muster.jobs.contract.plan import Source, Work

FORMAT = 1  # raise it when what is digested changes its form

_encoder = msgspec.msgpack.Encoder(order="deterministic")


def layer_digest(work: Work, name: str, source: Source, shard_rows: int) -> str:
    """32 hex digits. Not over what changes no result: attempts, timeout, memory, disk, priority, same_kernels, and the
    job's name.

    The layer's name is in: a kind is told it, and two names for one file are two layers.
    """
    kind = (work.kind, work.kernel, work.params)
    model = () if work.model is None else (work.model.digest,)
    more = ((work.gpus, work.threads),) if work.gpus or work.threads else ()
    code = (work.code, work.entry, work.env, work.cpus, *model, *more)
    identity = (FORMAT, kind, code, name, source, shard_rows)
    return blake2b(_encoder.encode(identity), digest_size=16).hexdigest()
