"""Drivers: started by exec, one per running job of a kind that has one, and their questions. Does no numerics."""

from __future__ import annotations

import asyncio
import logging
from asyncio.subprocess import DEVNULL, PIPE, STDOUT

import msgspec

from muster.coordinator.api.driver import (
    Advance,
    Advanced,
    DriveDamaged,
    DriveGivenUp,
    DriveOpen,
    DriveState,
    DriveWait,
)
from muster.coordinator.api.requests import Done
from muster.coordinator.api.status import Progress
from muster.coordinator.daemon.engine import Engine
from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.entities import Job
from muster.jobs.common import launch
from muster.jobs.common.errors import NotFoundError, RefusedError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.text_limits import EVIDENCE_CHARS

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


def recalled(news: bytes | None) -> Progress | None:
    """What the store has of a driver's progress: None where there is nothing, or nothing that can be read."""
    if news is None:
        return None
    try:
        found = msgspec.msgpack.decode(news)
        if "rounds" in found:  # by 0.1.0, which knew one kind that counts, and stored its numbers alone
            found = {"done": found["round"], "total": found["rounds"], "unit": "round", "numbers": found}
        return msgspec.convert(found, Progress)
    except (msgspec.MsgspecError, KeyError, TypeError):
        return None


class Driving:
    """Which connection drives which job, and the processes that should."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._drivers: dict[str, object] = {}  # job → the connection that drives it
        self._kept: set[str] = set()  # jobs that have a `keep`

    async def keep(self, job: str) -> None:
        """A driver for `job` for as long as it wants one: one that dies is started again. Called twice, the second
        call does nothing."""
        if job in self._kept:
            return
        self._kept.add(job)
        try:
            await self._keep(job)
        finally:
            self._kept.discard(job)

    async def _keep(self, job: str) -> None:
        crashes, cursor = 0, -1
        while state := self._wants_driver(job):
            crashes, cursor = (crashes if state.cursor == cursor else 0), state.cursor
            try:
                code, said = await self._run_driver(job)
            except NotFoundError as error:
                self._engine.driver_failed(job, state.layers[0].count, f"{error.message}; {error.hint}", "")
                return
            state = self._wants_driver(job)
            if state is None:
                return
            crashes += not (code == RefusedError.exit_code and job in self._drivers)  # another process drives it
            if crashes >= CRASHES_TO_HALT and state.cursor == cursor:
                why = f"its driver ended {crashes} times without getting on, the last time with {code}"
                self._engine.driver_failed(job, state.layers[0].count, why, said)
                return
            pause = RESTART_SECONDS * 2 ** max(0, crashes - 1)
            log.warning("the driver of %s ended with %s; it starts again in %.2g s: %s", job, code, pause, said[-500:])
            await asyncio.sleep(pause)

    async def _run_driver(self, job: str) -> tuple[int, str]:
        """One life of a driver; its exit code, and the end of what it said."""
        entry = await asyncio.to_thread(entry_of, self._engine.jobs[job].plan.work.kind)
        process = await asyncio.create_subprocess_exec(
            *launch.python(entry, str(self._engine.root.path), job), stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, cwd="/"
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

    def _wants_driver(self, job: str) -> Job | None:
        """The job, while it wants one."""
        state = self._engine.scheduler.state.jobs.get(job)
        wanted = state is not None and not state.ended and state.state != "halted" and not state.layers[0].closed
        return state if wanted else None

    def open(self, question: DriveOpen, connection: object) -> DriveState:
        self._job(question.job)
        holder = self._drivers.setdefault(question.job, connection)
        if holder is not connection:
            raise RefusedError(f"{question.job} has a driver", "let one process drive a job")
        self._forget_rounds(question.job)
        return self._state(question.job, 0)

    def close(self, connection: object) -> None:
        """The driver's socket closed: another may take its place."""
        for job in [job for job, holder in self._drivers.items() if holder is connection]:
            del self._drivers[job]
            self._forget_rounds(job)

    def _forget_rounds(self, job: str) -> None:
        """Rounds end with their driver: the next one knows nothing of what was made for this one."""
        state = self._engine.scheduler.state.jobs.get(job)
        if state is None or not state.has_rounds:
            return
        live, layer = self._engine.jobs[job], state.layers[0]
        live.taken, live.bundles = live.taken + len(live.bundles), []
        live.sheets.clear()
        live.bases.clear()
        self._engine.handle(e.Advanced(job, state.cursor, (), False, RangeSet([(layer.first, layer.count)])))

    async def wait(self, question: DriveWait) -> DriveState:
        deadline = asyncio.get_running_loop().time() + min(question.wait, 30.0)
        while True:
            said = self._state(question.job, question.known)
            left = deadline - asyncio.get_running_loop().time()
            if said.bundles or said.ended or left <= 0:
                return said
            try:
                await asyncio.wait_for(self._engine.something_for_drivers.wait(), left)
            except (TimeoutError, asyncio.TimeoutError):
                continue

    async def damaged(self, question: DriveDamaged, connection: object) -> Done:
        """Drop a bundle's rows, as the merge does with one it cannot read."""
        self._job(question.job)
        if self._drivers.get(question.job) is not connection:
            raise RefusedError(f"another process drives {question.job}", "open it first")
        await self._engine.bundle_damaged(question.job, question.bundle)
        return Done("its shards run again")

    def give_up(self, question: DriveGivenUp, connection: object) -> Done:
        job = self._job(question.job)
        if self._drivers.get(question.job) is not connection:
            raise RefusedError(f"another process drives {question.job}", "open it first")
        self._engine.driver_failed(question.job, job.layers[0].count, question.why, "")
        return Done("the job is halted")

    async def advance(self, question: Advance, connection: object) -> Advanced:
        """Applied at once if and only if `from_seq` is the cursor; the store is the judge where it is durable."""
        job = self._job(question.job)
        q = question
        if self._drivers.get(q.job) is not connection:
            raise RefusedError(f"another process drives {q.job}", "open it first")
        numbers = [number for number, _ in q.create]
        next_number = job.layers[0].count
        if job.cursor != q.from_seq or numbers != list(range(next_number, next_number + len(numbers))):
            return Advanced(job.cursor, False)
        if job.has_rounds:
            return await self._advance_rounds(job, q)
        if not q.durable or q.retire or q.sheet:
            raise RefusedError(f"{q.job} has no rounds: what it makes is stored", "say durable")
        engine = self._engine
        moved = await engine.ask(lambda s: s.advance(q.job, q.from_seq, q.to_seq, list(q.create), q.finish))
        if moved and q.job in engine.jobs:  # it may have been removed meanwhile
            engine.handle(e.Advanced(q.job, q.to_seq, tuple(q.create), q.finish))
        return Advanced(job.cursor, moved)

    async def _advance_rounds(self, job: Job, q: Advance) -> Advanced:
        """What is made lives in memory; the cursor is stored where that is asked for, and before it counts."""
        engine, live = self._engine, self._engine.jobs[q.job]
        try:
            retire = RangeSet.checked(q.retire, job.layers[0].count)
        except ValueError as error:
            raise RefusedError(f"shards that cannot be retired: {error}", "retire those that were made") from None
        if not q.durable and q.to_seq != q.from_seq:
            raise RefusedError("the cursor of rounds moves where it is stored only", "say durable")
        if q.durable:
            news = msgspec.msgpack.encode(q.progress) if q.progress is not None else None
            await engine.ask(lambda store: store.keep_cursor(q.job, q.to_seq, q.finish, news))
        if q.job not in engine.jobs:
            return Advanced(q.from_seq, False)
        live.progress = q.progress or live.progress
        live.forget_sheets(retire)
        if q.sheet:
            live.sheets.update(dict.fromkeys((number for number, _ in q.create), q.sheet))
        if q.sheet and q.base:
            live.patched(q.sheet, q.base)
        engine.handle(e.Advanced(q.job, q.to_seq, tuple(q.create), q.finish, retire, q.aside))
        return Advanced(job.cursor, True)

    def _job(self, job: str) -> Job:
        found = self._engine.scheduler.state.jobs.get(job)
        if found is None or not self._engine.jobs[job].plan.driven:
            raise NotFoundError(f"{job} is not a job with a driver")
        return found

    def _state(self, job_id: str, known: int) -> DriveState:
        job = self._job(job_id)
        layer = job.layers[0]
        live = self._engine.jobs[job_id]
        if layer.rounds:
            live.drop_taken(known)
        start = max(0, known - live.taken)
        page = live.bundles[start : start + PAGE]
        return DriveState(
            kind=job.kind,
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
            rounds=layer.rounds,
        )


async def _keep_end(stream: asyncio.StreamReader, said: bytearray) -> None:
    """Read to the end, so that the writer never stands still; the last of it is kept."""
    while piece := await stream.read(EVIDENCE_CHARS):
        said += piece
        del said[:-EVIDENCE_CHARS]
