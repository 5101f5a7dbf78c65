"""What becomes of layers and bundles: published once merged, withdrawn, found damaged. Merges nothing."""

from __future__ import annotations

import asyncio
import logging
import shutil
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import msgspec

from muster.coordinator.api.process_messages import MergeReply
from muster.coordinator.daemon.engine import Engine
from muster.coordinator.daemon.job_logs import store_own_failure
from muster.coordinator.daemon.jobs.damage import has_folder
from muster.coordinator.daemon.merge.queue import QueuedMerge
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import events as e
from muster.jobs.common.durable import fsync_folder, make_folder
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import ItemsSource, Layer
from muster.jobs.parts.manifest import MANIFEST, folders_of_files

log = logging.getLogger("muster.daemon")

# --- files ----------------------------------------------------------------------------------------------------


def publish(folder: Path, target: Path) -> None:
    """Rename a merged layer into place. A reader that finds the manifest finds everything it names."""
    make_folder(target)
    (target / MANIFEST).unlink(missing_ok=True)
    fsync_folder(target)
    files = sorted(path for path in folder.iterdir() if path.name != MANIFEST)
    for path in files:
        if path.is_dir() and (target / path.name).is_dir():  # of a publication that was cut short
            (target / path.name).rename(folder / f".{path.name}")
        path.rename(target / path.name)
    (folder / MANIFEST).rename(target / MANIFEST)
    fsync_folder(target)


def withdraw(target: Path) -> None:
    """Take a layer's result away, the manifest first. Folders of other layers below it stay."""
    if not target.is_dir():
        return
    (target / MANIFEST).unlink(missing_ok=True)
    fsync_folder(target)
    for folder in folders_of_files(target):
        shutil.rmtree(folder)
    for path in target.iterdir():
        if path.is_file():
            path.unlink(missing_ok=True)


# --- merging --------------------------------------------------------------------------------------------------


def start_merge(engine: Engine, action: c.StartMerge) -> None:
    job, digest, generation = action.job, action.layer, action.generation
    live, place = engine.jobs[job], engine.root.job(job)
    layer = live.layers[digest]
    count = engine.state.open_layers[digest].count
    layer = msgspec.structs.replace(layer, count=count, outputs=live.outputs.get(digest, layer.outputs))
    items = str(place.items) if isinstance(layer.source, ItemsSource) else ""
    find = partial(_bundles, engine, job, layer, generation)
    settle = partial(_settle, engine, job, layer, generation)
    engine.merging.put(QueuedMerge(job, layer, find, settle, items, engine.jobs[job].created))


async def _bundles(engine: Engine, job: str, layer: Layer, generation: int) -> list[str] | None:
    if not _still_wanted(engine, job, layer, generation):
        return None
    folder = engine.root.job(job).bundles
    return [str(folder / file) for _, file, _ in await engine.ask(lambda store: store.bundles_of(job, layer.digest))]


async def _settle(
    engine: Engine, job: str, layer: Layer, generation: int, reply: MergeReply, folder: Path, seconds: float
) -> bool:
    """What comes of a merge. Return False if it must be tried again."""
    if not (_still_wanted(engine, job, layer, generation) and has_folder(engine, job)):
        return True
    if reply.damaged:
        await _uncommit_bundle(engine, job, layer, generation, Path(reply.damaged), reply.message)
        return True
    if reply.missing:
        missing = RangeSet(reply.missing)
        log.error("%s/%s: %s; they run again", job, layer.name, reply.message)
        await engine.ask(lambda store: store.forget_shards(job, layer.digest, missing))
        await _uncommit(engine, job, layer, generation, missing)
        return True
    if reply.hopeless:
        _refuse_merge(engine, job, layer, generation, reply)
        return True
    if reply.message:
        return False
    await _finish_merge(engine, job, layer, generation, folder, reply.manifest)
    if live := engine.jobs.get(job):
        live.figures.merged(reply.nbytes, seconds)
    return True


def _still_wanted(engine: Engine, job: str, layer: Layer, generation: int) -> bool:
    state = engine.open_layer(layer.digest)
    return state is not None and (state.job, state.state, state.generation) == (job, "merging", generation)


def _refuse_merge(engine: Engine, job: str, layer: Layer, generation: int, reply: MergeReply) -> None:
    """A layer that does not merge: its job is halted, with the evidence where that of shards is, under a shard
    that there is not. It counts against none."""
    why = f"{layer.name} does not merge: {reply.message}"
    log.error("%s/%s", job, why)
    store_own_failure(engine, job, layer.digest, layer.count, "merge", why, reply.evidence)
    engine.handle(e.MergeRefused(job, layer.digest, generation, why))


async def _finish_merge(engine: Engine, job: str, layer: Layer, generation: int, folder: Path, manifest: str) -> None:
    target = engine.root.job(job).result / layer.name
    await asyncio.to_thread(publish, folder, target)
    files = await engine.ask(lambda store: store.set_merged(job, layer.digest, generation, manifest))
    if files is None:  # a retry came between, and took the result away before this one was there
        await asyncio.to_thread(withdraw, target)
        return
    await asyncio.to_thread(_delete_bundles, engine.root, job, files)
    engine.figures.merged(job)
    engine.handle(e.LayerMerged(job, layer.digest, generation))


def _delete_bundles(root: Root, job: str, files: list[str]) -> None:
    """Of which the store knows nothing any more. What stays goes at the next start."""
    for file in files:
        try:
            (root.job(job).bundles / file).unlink(missing_ok=True)
        except OSError as error:
            log.warning("a bundle of %s is not deleted: %s", job, error)


# --- taking back ----------------------------------------------------------------------------------------------


def discard_layer(engine: Engine, action: c.DiscardLayer) -> None:
    """Asked for at once: the store must hear of it before the layer opens again, and the next commit fixes its
    outputs anew."""
    job, digest, generation = action.job, action.layer, action.generation
    engine.jobs[job].free_outputs(digest)
    discarded = engine.write(lambda store: store.discard_layer(job, digest, generation))
    engine.background(_discard_layer(engine, job, digest, discarded))


async def _discard_layer(engine: Engine, job: str, digest: str, discarded: Future[list[str]]) -> None:
    files = await asyncio.wrap_future(discarded)
    if live := engine.jobs.get(job):
        await asyncio.to_thread(withdraw, engine.root.job(job).result / live.layers[digest].name)
    await asyncio.to_thread(_delete_bundles, engine.root, job, files)


async def bundle_damaged(engine: Engine, job: str, file: str) -> None:
    """Whoever read a bundle of a driver's job found it so."""
    live = engine.jobs[job]
    layer = live.plan.layers[0]
    state = engine.open_layer(layer.digest)
    if state is not None and state.job == job and file in live.bundles and has_folder(engine, job):
        path = engine.root.job(job).bundles / file
        await _uncommit_bundle(engine, job, layer, state.generation, path, "its driver cannot read it")


async def _uncommit_bundle(engine: Engine, job: str, layer: Layer, generation: int, bundle: Path, why: str) -> None:
    log.error("%s/%s: a committed bundle is damaged (%s); its shards run again", job, layer.name, why)
    if live := engine.jobs.get(job):
        live.bundle_damaged(bundle.name)
    numbers = await engine.ask(lambda store: store.forget_bundle(job, layer.digest, bundle.name))
    await _uncommit(engine, job, layer, generation, numbers)
    await asyncio.to_thread(_delete_bundles, engine.root, job, [bundle.name])


async def _uncommit(engine: Engine, job: str, layer: Layer, generation: int, numbers: RangeSet) -> None:
    payloads = await engine.ask(lambda store: store.payloads_of(job, layer.digest, numbers))
    engine.shard_history.note("uncommitted", layer.digest, "", numbers)
    engine.figures.uncommitted(job, len(numbers))
    engine.handle(e.Uncommitted(layer.digest, generation, numbers, payloads))
