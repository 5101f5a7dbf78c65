"""A planned job taken over: its row, its folder, what it shares with others, and how the scheduler hears of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from pathlib import Path

from muster.coordinator.api import requests as a
from muster.coordinator.daemon.engine import Engine
from muster.coordinator.daemon.jobs import drivers
from muster.coordinator.daemon.jobs.live import LiveJob
from muster.coordinator.daemon.jobs.reuse import adopt
from muster.coordinator.farm_root import uploads
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.scheduler import events as e
from muster.jobs.common.durable import fsync_folder
from muster.jobs.common.errors import RefusedError
from muster.jobs.common.hashing import of_bytes
from muster.jobs.common.names import is_plain
from muster.jobs.contract.plan import ITEMS_LIST, ItemsSource, Layer, Plan, decode_plan, total_shards
from muster.jobs.contract.states import JobState

log = logging.getLogger("muster.daemon")


async def submit(engine: Engine, asked: a.Submit) -> a.Submitted:
    """Take a planned job over. Order: row, not ready → folder renamed and synced → ready → the scheduler."""
    engine.taking[asked.folder] = None
    try:
        origin = engine.job(asked.origin).id if asked.origin else None
        source = engine.root.tmp / asked.folder
        plan, digest = _submitted_plan(source / "plan.msgpack")
        if not is_plain(plan.name):  # ids are made of it, and nobody could read a list with such a one
            raise RefusedError(f"{plan.name[:80]!r} cannot name a job", "use 1 to 64 letters, digits, `_` and `-`")
        if len({layer.digest for layer in plan.layers}) != len(plan.layers):
            raise RefusedError("two layers of the plan are the same", "plan it again")
        if lists_of(plan) and not (source / ITEMS_LIST).is_file():
            raise RefusedError("the submission has no list of items", "submit it again")
        engine.taking[asked.folder] = plan  # from here on no `rm` takes an upload of it away
        uploads.check_there(engine.root, uploads.needed_by(engine.root, plan))
        for before in plan.after:  # none can come after this one, which is not there yet: there is no cycle
            engine.job(before)
        return a.Submitted(await _add(engine, source, plan, digest, origin))
    finally:
        engine.taking.pop(asked.folder, None)


def lists_of(plan: Plan) -> set[str]:
    """Digests of the lists of items that a plan reads."""
    return {layer.source.digest for layer in plan.layers if isinstance(layer.source, ItemsSource)}


def _submitted_plan(file: Path) -> tuple[Plan, str]:
    """With the digest it is held to from now on."""
    try:
        raw = file.read_bytes()
        return decode_plan(raw), of_bytes(raw)
    except FileNotFoundError:
        raise RefusedError("the submission has no plan", "submit the job again") from None


async def _add(engine: Engine, source: Path, plan: Plan, digest: str, origin: str | None) -> str:
    _keep_code(engine.root, source / "code.pack", plan)
    _keep_model(engine.root, source / "model", plan)
    _keep_items(engine.root, source / ITEMS_LIST, plan)
    created = time.time()
    state: JobState = "waiting" if plan.after else "running"
    digests = [(layer.digest, layer.out_bytes) for layer in plan.layers]
    job = await engine.ask(lambda store: store.add_job(plan.name, digests, plan.priority, created, digest, state))
    place = engine.root.job(job)
    (source / "bundles").mkdir(exist_ok=True)
    (source / "result").mkdir(exist_ok=True)
    adopted = await adopt(engine, job, plan, source / "result", origin) if origin else {}
    fsync_folder(source)
    source.rename(place.path)
    fsync_folder(engine.root.jobs)
    await engine.ask(lambda store: store.set_ready(job))
    engine.jobs[job] = LiveJob(place, plan, digest, created, outputs=adopted)
    engine.figures.opened(job, plan.work.kind, created, state)
    engine.handle(e.SpaceMeasured(engine.free_bytes()))
    engine.handle(added(job, plan, engine.boot, merged=adopted, state=state))
    log.info("%s submitted: %d layers, %d shards", job, len(plan.layers), total_shards(plan))
    drivers.start(engine, job)
    return job


def _keep_code(root: Root, source: Path, plan: Plan) -> None:
    """The user's files lie under their digest, for as long as any job wants them."""
    if plan.work.code is None:
        return
    if not source.is_file():
        raise RefusedError("the submission has no code.pack", "submit it again")
    _keep(source, root.pack(plan.work.code))


def _keep_model(root: Root, source: Path, plan: Plan) -> None:
    """Keep the model under its digest. An existing file may be in use and is not replaced."""
    if plan.work.model is None:
        return
    target = root.model(plan.work.model.digest)
    if not source.is_file() or source.stat().st_size != plan.work.model.nbytes:
        raise RefusedError("the submission has no model", "submit it again")
    if target.exists():
        source.unlink()
    else:
        _keep(source, target)


def _keep(source: Path, target: Path) -> None:
    source.replace(target)
    fsync_folder(target.parent)


def _keep_items(root: Root, source: Path, plan: Plan) -> None:
    """The list stays with the job; agents find it under its digest, whatever jobs of it come and go."""
    for digest in lists_of(plan):
        target = root.items(digest)
        if not target.exists():
            target.hardlink_to(source)
            fsync_folder(target.parent)


# --- as the scheduler takes it -------------------------------------------------------------------------------


def seed(layer: Layer, boot: int, **stored: object) -> e.LayerSeed:
    """A layer of a plan as the scheduler takes it; `stored` is what the store knows better after a restart. Numbers of
    shards that live in memory alone begin where no other life of the daemon has any."""
    values: dict[str, object] = {"count": layer.count, "out_bytes": layer.out_bytes, **stored}
    return e.LayerSeed(plan=layer, first=boot << 32 if layer.delivery.in_rounds else 0, **values)  # type: ignore[arg-type]


def added(job: str, plan: Plan, boot: int, merged: Collection[str] = (), **stored: object) -> e.JobAdded:
    """A plan as the scheduler takes it; `stored` is what the store adds after a restart. `merged`: digests of layers
    that are another job's, too, and done."""
    seeds = tuple(seed(one, boot, state="merged" if one.digest in merged else "waiting") for one in plan.layers)
    values: dict[str, object] = {"layers": seeds, "priority": plan.priority, **stored}
    return e.JobAdded(job=job, plan=plan, **values)  # type: ignore[arg-type]
