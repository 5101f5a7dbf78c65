"""Jobs as the store and their folders have them, told to the scheduler at start. What cannot be so is damaged."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from dataclasses import replace
from typing import Any, get_args

import msgspec

from muster.coordinator.api.status import JobStatus, Tally
from muster.coordinator.api.values import Weight
from muster.coordinator.daemon.engine import Engine
from muster.coordinator.daemon.jobs.damage import MEND, set_apart
from muster.coordinator.daemon.jobs.live import LiveJob
from muster.coordinator.daemon.jobs.settings import JobSettings
from muster.coordinator.daemon.jobs.submit import added, seed
from muster.coordinator.daemon.store.statements import StoredJob, StoredLayer
from muster.coordinator.farm_root import plans
from muster.coordinator.farm_root.paths import JobFolder
from muster.coordinator.protocol.values import Count, Seconds
from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.state_machine import Scheduler
from muster.jobs.common.durable import is_full
from muster.jobs.common.errors import DamagedError, MusterError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import Layer, Plan
from muster.jobs.contract.states import ENDED, JobState, LayerState

log = logging.getLogger("muster.daemon")


async def restore(engine: Engine, stored: StoredJob, failures: int) -> None:
    """A job as it was; whatever is wrong with it is its own trouble. `failures`: of its attempts, stored."""
    plan = None
    try:
        plan, digest = plans.read(engine.root.job(stored.id), stored.plan)
        if wrong := _fault(stored, plan):
            raise DamagedError(f"{engine.root.store}: what cannot be of {stored.id}: {wrong}", MEND.format(stored.id))
        await _clear_folder(engine, stored.id)
        live = await _live(engine, stored, plan, digest, failures)
        event = _event(engine, stored, live.plan)
        Scheduler(engine.boot, engine.state.timing).handle(event, 0.0)  # what it cannot take breaks no other job
    except Exception as error:
        if isinstance(error, sqlite3.Error) or (isinstance(error, OSError) and is_full(error)):
            raise  # no fault of this job's
        await _set_apart(engine, stored, plan, error)
        return
    if stored.plan is None:
        await engine.ask(lambda store: store.set_plan(stored.id, digest))
    engine.jobs[stored.id] = live
    if stored.state not in ENDED:
        await engine.figures.restored(stored.id, plan.work.kind, stored.created, stored.started, stored.state)
    engine.handle(event)


def _told(stored: StoredJob, error: Exception) -> DamagedError:
    """The same for people."""
    if isinstance(error, MusterError):
        return DamagedError(error.message, error.hint)
    if isinstance(error, OSError):
        return DamagedError(f"{error.filename}: {error.strerror}", MEND.format(stored.id))
    log.error("%s cannot be read back", stored.id, exc_info=error)
    return DamagedError(f"it cannot be read back: {type(error).__name__}: {error}", MEND.format(stored.id))


async def _set_apart(engine: Engine, stored: StoredJob, plan: Plan | None, error: Exception) -> None:
    """What agents finished of its layers, by its rows or its plan, is theirs to keep."""
    digests = set(await engine.ask(lambda store: store.digests_of(stored.id)))
    digests.update(layer.digest for layer in (plan.layers if plan else ()))
    status = JobStatus(
        id=stored.id,
        kind="-",
        state="damaged",
        why="",
        priority=stored.priority if _is_a(stored.priority, Weight) else 1,
        created=stored.created if _is_a(stored.created, Seconds) else 0.0,
        started=None,
        ended=None,
        totals=Tally(),
        failures=0,
        layers_total=len(digests),
        plan=stored.plan if isinstance(stored.plan, str) else "",
    )
    set_apart(engine, status, _told(stored, error), tuple(digests))


# --- what is wrong with its rows ------------------------------------------------------------------------------


def _fault(stored: StoredJob, plan: Plan) -> str:
    """Which row cannot be of a job with this plan; "" for none."""
    if stored.fault:
        return stored.fault
    if stored.state not in get_args(JobState) or stored.state == "damaged":
        return f"the state {stored.state!r}"
    for what, value, kind in (
        ("priority", stored.priority, Weight),
        ("cursor", stored.cursor, Count),
        ("created", stored.created, Seconds),
        ("started", stored.started, Seconds | None),
        ("ended", stored.ended, Seconds | None),
        ("untold", stored.untold, Seconds | None),
        ("retried", stored.retried, Seconds | None),
        ("why", stored.why, str),
    ):
        if not _is_a(value, kind):
            return f"the {what} {value!r}"
    known = _rows(stored, plan)
    for layer in plan.layers:
        row = known.get(layer.digest)
        if wrong := "no row" if row is None else _layer_fault(row, _count(layer, row)):
            return f"{wrong} of layer {layer.name}"
    return ""


def _rows(stored: StoredJob, plan: Plan) -> dict[str, StoredLayer]:
    """By digest. Shards of rounds went with the life of the daemon that had them, and so did what failed of them."""
    gone = {layer.digest for layer in plan.layers if layer.delivery.in_rounds}
    nothing: dict[str, Any] = {"failures": {}, "quarantined": RangeSet()}
    return {row.digest: replace(row, **nothing) if row.digest in gone else row for row in stored.layers}


def _layer_fault(row: StoredLayer, count: int) -> str:
    if row.state not in get_args(LayerState):
        return f"the state {row.state!r}"
    for what, value in (
        ("generation", row.generation),
        ("high_water", row.high_water),
        ("out_bytes", row.out_bytes),
    ):
        if not _is_a(value, Count):
            return f"the {what} {value!r}"
    odd = [number for number in (*row.failures, *row.payloads) if not 0 <= number < count]
    for numbers in (row.committed, row.quarantined):
        odd += [] if numbers.bottom >= 0 and numbers.top <= count else [numbers.bottom, numbers.top - 1]
    if beyond := [number for number in odd if not 0 <= number < count]:
        return f"shard {beyond[0]} among the {count}"
    return ""


def _count(layer: Layer, row: StoredLayer) -> int:
    return max(row.payloads, default=-1) + 1 if layer.made else layer.count


def _is_a(value: object, kind: object) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


# --- as it was ------------------------------------------------------------------------------------------------


async def _live(engine: Engine, stored: StoredJob, plan: Plan, digest: str, failures: int) -> LiveJob:
    bundles = await engine.ask(lambda store: store.bundles_of(stored.id)) if plan.driven else []
    live = LiveJob(
        engine.root.job(stored.id),
        plan,
        digest,
        stored.created,
        stored.started,
        stored.ended,
        failures=failures,
        news=stored.news,
        bundles=[file for _, file, _ in bundles],
        outputs={layer.digest: layer.outputs for layer in stored.layers if layer.outputs is not None},
        settings=msgspec.msgpack.decode(stored.settings, type=JobSettings) if stored.settings else JobSettings(),
        untold=stored.untold,
        retried=stored.retried,
    )
    for agent, shards, nbytes in await engine.ask(lambda store: store.committed_by(stored.id)):
        live.figures.count_committed(agent, shards, nbytes)
    return live


def _event(engine: Engine, stored: StoredJob, plan: Plan) -> e.JobAdded:
    return added(
        stored.id,
        plan,
        engine.boot,
        layers=_seeds(plan, _rows(stored, plan), engine.boot),
        state=stored.state,
        why=stored.why,
        priority=stored.priority,
        succeeded=stored.succeeded,
        cursor=stored.cursor,
        kernels_fixed=stored.kernels,
        payloads=stored.layers[0].payloads if plan.driven else {},
    )


def _seeds(plan: Plan, stored: dict[str, StoredLayer], boot: int) -> tuple[e.LayerSeed, ...]:
    seeds = []
    for layer in plan.layers:
        known = stored[layer.digest]
        seeds.append(
            seed(
                layer,
                boot,
                count=_count(layer, known),
                out_bytes=max(layer.out_bytes, known.out_bytes),
                state=known.state,
                generation=known.generation,
                high_water=known.high_water,
                committed=known.committed,
                quarantined=known.quarantined,
                failures=known.failures,
                closed=known.closed,
            )
        )
    return tuple(seeds)


async def _clear_folder(engine: Engine, job: str) -> None:
    """What rounds left, and bundles without a row. A row without its bundle shows when it is merged."""
    place: JobFolder = engine.root.job(job)
    shutil.rmtree(place.rounds, ignore_errors=True)
    place.bundles.mkdir(exist_ok=True)
    named = {file for _, file, _ in await engine.ask(lambda store: store.bundles_of(job))}
    for path in place.bundles.iterdir():
        if path.name in named:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
