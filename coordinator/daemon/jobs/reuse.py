"""Layers that a new job takes over from an old one, as hard links: either may go without harm to the other."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import msgspec

from muster.coordinator.daemon.engine import Engine
from muster.jobs.common.durable import fsync_folder, make_folder, write_durably
from muster.jobs.common.errors import MusterError
from muster.jobs.common.hashing import of_bytes
from muster.jobs.contract.plan import Layer, Output, Plan
from muster.jobs.parts.manifest import MANIFEST, encode_manifest, link_files, read_manifest

log = logging.getLogger("muster.daemon")


async def adopt(engine: Engine, job: str, plan: Plan, result: Path, origin: str) -> dict[str, tuple[Output, ...]]:
    """Link what `origin` has merged of the same layers into `result`; their digests, with their outputs."""
    adopted: dict[str, tuple[Output, ...]] = {}
    manifests = await engine.ask(lambda store: store.manifests_of(origin))
    for layer in plan.layers:
        generation = _generation(engine, origin, layer.digest)
        if generation is None:
            continue
        there, here = engine.root.job(origin).result / layer.name, result / layer.name
        try:
            manifest = await asyncio.to_thread(_link, there, here, job, layer, manifests.get(layer.digest))
        except (OSError, MusterError) as error:
            log.warning("%s/%s is not taken over from %s: %s", job, layer.name, origin, error)
            await asyncio.to_thread(_unlink, here)
            continue
        if _generation(engine, origin, layer.digest) != generation:  # a retry came between
            await asyncio.to_thread(_unlink, here)
            continue
        outputs = engine.jobs[origin].outputs[layer.digest]
        adopted[layer.digest] = await _keep(engine, job, layer, outputs, manifest)
    return adopted


async def _keep(
    engine: Engine, job: str, layer: Layer, outputs: tuple[Output, ...], manifest: str
) -> tuple[Output, ...]:
    await engine.ask(lambda store: store.adopt_layer(job, layer.digest, outputs, [(0, layer.count)], manifest))
    return outputs


def _generation(engine: Engine, job: str, digest: str) -> int | None:
    """Of the job's merged layer; None while it has none."""
    found = engine.state.by_digest.get(digest, ())
    return next((layer.generation for layer in found if layer.job == job and layer.state == "merged"), None)


def _link(there: Path, here: Path, job: str, layer: Layer, known: str | None) -> str:
    """The files, then a manifest that says whose they are now; its digest. `known`: that of the one there."""
    manifest = read_manifest(there, known)
    if manifest.digest != layer.digest:
        raise FileNotFoundError(f"{there} is of another layer")
    make_folder(here)
    link_files(manifest, there, here)
    raw = encode_manifest(msgspec.structs.replace(manifest, job=job))
    write_durably(here / MANIFEST, raw)
    fsync_folder(here)
    return of_bytes(raw)


def _unlink(here: Path) -> None:
    """What was linked of one; no layer below it was taken over yet, as layers come by name."""
    shutil.rmtree(here, ignore_errors=True)
