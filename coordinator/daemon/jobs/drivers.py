"""Drivers: started by exec, one per running job of a kind that has one, and their questions. Does no numerics."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from pathlib import Path

import msgspec

from muster.coordinator.api.driver import (
    Advance,
    Advanced,
    DriveDamaged,
    DriveFailed,
    DriveGivenUp,
    DriveOpen,
    DriveState,
    DriveWait,
)
from muster.coordinator.api.requests import Done
from muster.coordinator.daemon.engine import Engine
from muster.coordinator.daemon.job_logs import store_failure_told, store_own_failure
from muster.coordinator.daemon.jobs.damage import has_folder
from muster.coordinator.daemon.merge.publish import bundle_damaged
from muster.coordinator.daemon.waiting import wait_until
from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.entities import Job
from muster.jobs.common import launch
from muster.jobs.common.errors import NotFoundError, RefusedError
from muster.jobs.common.hashing import of_bytes
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.text_limits import EVIDENCE_CHARS
from muster.jobs.parts.manifest import MANIFEST

log = logging.getLogger("muster.daemon")

GROUP = "muster.drivers"  # of entry points, so that another package can add one
RESTART_SECONDS = 0.25  # doubled with each life that moved nothing
CRASHES_TO_HALT = 5  # lives in a row that did not move the job's cursor
LAST_WORDS_SECONDS = 1.0  # after its end
PAGE = 4_096  # bundles named in one answer


def entry_of(kind: str) -> str:
    """Where the driver of a kind is, as `roots.python` takes it: under the kind's name in the group of all drivers."""
    from importlib.metadata import entry_points

    found = {point.name: point.value for point in entry_points(group=GROUP)}
    if kind not in found:
        raise NotFoundError(
            f"no driver of kind `{kind}` is installed with the coordinator", f"install what has it, under {GROUP}"
        )
    return found[kind]


def start(engine: Engine, job: str) -> None:
    """Keep a driver for `job`, if it is of a kind that has one and nobody keeps one already."""
    if engine.jobs[job].plan.driven:
        engine.background(_keep(engine, job, engine.jobs[job].driver_kept))


async def _keep(engine: Engine, job: str, kept: asyncio.Lock) -> None:
    """A driver for `job` for as long as it wants one: one that dies is started again."""
    if kept.locked():
        return
    async with kept:
        await _keep_alive(engine, job)
        _clear_rounds(engine, job)


async def _keep_alive(engine: Engine, job: str) -> None:
    """Until the job wants a driver no more, or none can get it on."""
    crashes, cursor = 0, -1
    while state := _wants_driver(engine, job):
        crashes, cursor = (crashes if state.cursor == cursor else 0), state.cursor
        try:
            code, said = await _run_driver(engine, job)
        except NotFoundError as error:
            driver_failed(engine, job, state.layers[0].count, f"{error.message}; {error.hint}", "")
            return
        state = _wants_driver(engine, job)
        if state is None or not has_folder(engine, job):
            return
        busy = code == RefusedError.exit_code and engine.jobs[job].driver is not None  # another process drives it
        crashes += not busy
        if crashes >= CRASHES_TO_HALT and state.cursor == cursor:
            why = f"its driver ended {crashes} times without getting on, the last time with {code}"
            driver_failed(engine, job, state.layers[0].count, why, said)
            return
        pause = RESTART_SECONDS * 2 ** max(0, crashes - 1)
        log.warning("the driver of %s ended with %s; it starts again in %.2g s: %s", job, code, pause, said)
        await asyncio.sleep(pause)


def _clear_rounds(engine: Engine, job: str) -> None:
    """Nobody reads any more what a driver laid out. Moved aside at once, so that one that is started by a retry finds
    none of it: deleting what a model of any size left takes its time."""
    if job in engine.jobs and has_folder(engine, job) and any(engine.root.job(job).rounds.glob("*")):
        aside = Path(tempfile.mkdtemp(prefix="rounds-", dir=engine.tmp))
        engine.root.job(job).rounds.rename(aside / job)
        engine.root.job(job).rounds.mkdir(mode=0o700)
        engine.background(asyncio.to_thread(shutil.rmtree, aside, True))


async def _run_driver(engine: Engine, job: str) -> tuple[int, str]:
    """One life of a driver; its exit code, and the end of what it said."""
    entry = await asyncio.to_thread(entry_of, engine.jobs[job].work.kind)
    process = await asyncio.create_subprocess_exec(
        *launch.python(entry, str(engine.root.path), job), stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, cwd="/"
    )
    assert process.stdout is not None
    said = bytearray()
    listening = asyncio.ensure_future(_keep_end(process.stdout, said))
    try:
        code = await process.wait()
        await asyncio.wait([listening], timeout=LAST_WORDS_SECONDS)  # children of its own may hold the pipe
        return code, said.decode(errors="replace").strip()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    finally:
        listening.cancel()


def _wants_driver(engine: Engine, job: str) -> Job | None:
    """The job, while it wants one."""
    state = engine.state.jobs.get(job)
    wanted = state is not None and state.state in {"running", "paused"} and not state.layers[0].closed
    return state if wanted else None


def driver_failed(engine: Engine, job: str, number: int, message: str, evidence: str) -> None:
    """A driver that cannot go on: the job is halted, with the evidence where that of shards is, under the shard it
    was to make next. It counts against none."""
    if job not in engine.jobs:  # damaged meanwhile
        return
    store_own_failure(engine, job, engine.jobs[job].plan.layers[0].digest, number, "driver", message, evidence)
    engine.handle(e.DriverFailed(job, message))


# --- what drivers ask -----------------------------------------------------------------------------------------


def open_job(engine: Engine, asked: DriveOpen, connection: object) -> DriveState:
    _job(engine, asked.job)
    live = engine.jobs[asked.job]
    if live.driver not in (None, connection):
        raise RefusedError(f"{asked.job} has a driver", "let one process drive a job")
    live.driven_by(connection)
    engine.handle(e.DriverOpened(asked.job, asked.goes_on))
    _forget_rounds(engine, asked.job)
    return _state(engine, asked.job, 0)


def close(engine: Engine, connection: object) -> None:
    """The driver's socket closed: another may take its place."""
    for job, live in engine.jobs.items():
        if live.driver is connection:
            live.driven_by(None)
            _forget_rounds(engine, job)


def _forget_rounds(engine: Engine, job: str) -> None:
    """Rounds end with their driver: what was made for it is retired."""
    state = engine.state.jobs[job]
    if state.has_rounds:
        engine.jobs[job].forget_rounds()
        made = RangeSet([(state.layers[0].first, state.layers[0].count)])
        engine.handle(e.Advanced(job, state.cursor, (), False, made))


async def wait(engine: Engine, asked: DriveWait) -> DriveState:
    deadline = asyncio.get_running_loop().time() + min(asked.wait, 30.0)
    while True:
        said = _state(engine, asked.job, asked.known)
        left = deadline - asyncio.get_running_loop().time()
        if said.bundles or said.given_up or said.ended or left <= 0:
            return said
        await wait_until(engine.jobs[asked.job].moved.next, left)


async def damaged(engine: Engine, asked: DriveDamaged, connection: object) -> Done:
    """Drop a bundle's rows, as the merge does with one it cannot read."""
    _driven(engine, asked.job, connection)
    await bundle_damaged(engine, asked.job, asked.bundle)
    return Done("its shards run again")


def failed(engine: Engine, asked: DriveFailed, connection: object) -> Done:
    """Keep the evidence of a shard's result that is a failure."""
    layer, failure = _driven(engine, asked.job, connection).layers[0], asked.failure
    if (failure.job, failure.layer) != (asked.job, layer.digest) or failure.number >= layer.count:
        raise RefusedError(f"{asked.job} has no such shard", "name one that was made")
    store_failure_told(engine, asked.job, asked.agent, failure)
    return Done("the evidence is kept")


def give_up(engine: Engine, asked: DriveGivenUp, connection: object) -> Done:
    job = _driven(engine, asked.job, connection)
    driver_failed(engine, asked.job, job.layers[0].count, asked.why, "")
    return Done("the job is halted")


async def advance(engine: Engine, asked: Advance, connection: object) -> Advanced:
    """Applied at once if and only if `from_seq` is the cursor; the store is the judge where it is durable."""
    q, job = asked, _driven(engine, asked.job, connection)
    numbers = [number for number, _ in q.create]
    next_number = job.layers[0].count
    if job.cursor != q.from_seq or numbers != list(range(next_number, next_number + len(numbers))):
        return Advanced(job.cursor, False)
    if job.has_rounds:
        return await _advance_rounds(engine, job, q)
    if not q.durable or q.retire or q.sheet:
        raise RefusedError(f"{q.job} has no rounds: what it makes is stored", "say durable")
    moved = await engine.ask(lambda s: s.advance(q.job, q.from_seq, q.to_seq, list(q.create), q.finish))
    if moved and q.job in engine.jobs:  # it may have been removed meanwhile
        engine.jobs[q.job].made(numbers)
        engine.handle(e.Advanced(q.job, q.to_seq, tuple(q.create), q.finish))
    return Advanced(job.cursor, moved)


async def _advance_rounds(engine: Engine, job: Job, q: Advance) -> Advanced:
    """What is made lives in memory; the cursor is stored where that is asked for, and before it counts."""
    live = engine.jobs[q.job]
    try:
        retire = RangeSet.checked(q.retire, job.layers[0].count)
    except ValueError as error:
        raise RefusedError(f"shards that cannot be retired: {error}", "retire those that were made") from None
    if not q.durable and q.to_seq != q.from_seq:
        raise RefusedError("the cursor of rounds moves where it is stored only", "say durable")
    if q.durable:
        news = msgspec.msgpack.encode(q.progress) if q.progress is not None else None
        manifest = _manifest_of(engine, q.job) if q.finish else None
        await engine.ask(lambda store: store.keep_cursor(q.job, q.to_seq, q.finish, news, manifest))
    if q.job not in engine.jobs:
        return Advanced(q.from_seq, False)
    live.advance(q, retire)
    if q.took is None:
        live.made(number for number, _ in q.create)
    else:
        engine.figures.took(q.job, q.took)
    engine.handle(e.Advanced(q.job, q.to_seq, tuple(q.create), q.finish, retire, q.aside, q.near))
    return Advanced(job.cursor, True)


def _manifest_of(engine: Engine, job: str) -> str | None:
    """The digest of what the driver of rounds said of its result a moment ago; None where it has none."""
    file = engine.root.job(job).result / engine.jobs[job].plan.layers[0].name / MANIFEST
    return of_bytes(file.read_bytes()) if file.is_file() else None


def _driven(engine: Engine, job: str, connection: object) -> Job:
    """The job, if it is this connection that drives it."""
    found = _job(engine, job)
    if engine.jobs[job].driver is not connection:
        raise RefusedError(f"another process drives {job}", "open it first")
    return found


def _job(engine: Engine, job: str) -> Job:
    found = engine.state.jobs.get(job)
    if found is None or not engine.jobs[job].plan.driven:
        raise NotFoundError(f"{job} is not a job with a driver")
    return found


def _state(engine: Engine, job_id: str, known: int) -> DriveState:
    job = _job(engine, job_id)
    layer = job.layers[0]
    live = engine.jobs[job_id]
    if job.has_rounds:
        live.drop_taken(known)
    start = max(0, known - live.taken)
    page = live.bundles[start : start + PAGE]
    return DriveState(
        kind=live.work.kind,
        params=live.work.params,
        layer=layer.name,
        digest=layer.digest,
        cursor=job.cursor,
        created=RangeSet([(layer.first, layer.count)]).pairs(),
        committed=layer.committed.pairs(),
        quarantined=layer.quarantined.pairs(),
        finished=layer.closed,
        ended=job.ended,
        bundles=[file for file in page if file],
        seen=max(known, live.taken) + len(page),
        more=len(live.bundles) > start + len(page),
        next=layer.count,
        rounds=job.has_rounds,
        given_up=list(live.given_up.values()),
        attempts=live.plan.attempts,
        max_failures=live.plan.max_failures,
        retried=live.retried,
        slots=sum(agent.slots(job) for agent in engine.state.by_session.values() if engine.state.eligible(agent, job)),
    )


async def _keep_end(stream: asyncio.StreamReader, said: bytearray) -> None:
    """Read to the end, so that the writer never stands still; the last of it is kept."""
    while piece := await stream.read(EVIDENCE_CHARS):
        said += piece
        del said[:-EVIDENCE_CHARS]
