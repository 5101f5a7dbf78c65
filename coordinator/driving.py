"""Drivers: started by exec, one per running job of a kind that has one, and their questions. Does no numerics."""

from __future__ import annotations

import asyncio
import logging

from coordinator import root as roots
from coordinator.admin import Advance, Advanced, DriveOpen, DriveState, DriveWait
from coordinator.engine import Engine
from coordinator.scheduler import events as e
from coordinator.scheduler.state import Job
from jobs.errors import NotFoundError, RefusedError
from jobs.ranges import RangeSet

log = logging.getLogger("muster.daemon")

RESTART_SECONDS = 1.0
RESTART_LIMIT_SECONDS = 60.0
PAGE = 4_096  # bundles named in one answer


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
        pause = RESTART_SECONDS
        while self._wants_driver(job):
            began = asyncio.get_running_loop().time()
            code = await self._run_driver(job)
            if not self._wants_driver(job):
                return
            if asyncio.get_running_loop().time() - began > RESTART_LIMIT_SECONDS:
                pause = RESTART_SECONDS
            log.warning("the driver of %s ended with %s; it starts again in %.0f s", job, code, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, RESTART_LIMIT_SECONDS)

    async def _run_driver(self, job: str) -> int:
        """One life of a driver; its exit code."""
        entry = self._engine.jobs[job].plan.driver
        assert entry is not None
        process = await asyncio.create_subprocess_exec(
            *roots.python(entry, str(self._engine.root.path), job), stdin=asyncio.subprocess.DEVNULL, cwd="/"
        )
        try:
            return await process.wait()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise

    def _wants_driver(self, job: str) -> bool:
        state = self._engine.scheduler.state.jobs.get(job)
        return state is not None and not state.ended and not state.layers[0].closed

    def open(self, question: DriveOpen, connection: object) -> DriveState:
        self._job(question.job)
        holder = self._drivers.setdefault(question.job, connection)
        if holder is not connection:
            raise RefusedError(f"{question.job} has a driver", "let one process drive a job")
        return self._state(question.job, 0)

    def close(self, connection: object) -> None:
        """The driver's socket closed: another may take its place."""
        for job in [job for job, holder in self._drivers.items() if holder is connection]:
            del self._drivers[job]

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
        if not q.durable:
            raise RefusedError("advances that are not durable are not built yet", "say durable")
        engine = self._engine
        moved = await engine.ask(lambda s: s.advance(q.job, q.from_seq, q.to_seq, list(q.create), q.finish))
        if moved:
            engine.handle(e.Advanced(q.job, q.to_seq, tuple(q.create), q.finish))
        return Advanced(job.cursor, moved)

    def _job(self, job: str) -> Job:
        found = self._engine.scheduler.state.jobs.get(job)
        if found is None or self._engine.jobs[job].plan.driver is None:
            raise NotFoundError(f"{job} is not a job with a driver")
        return found

    def _state(self, job_id: str, known: int) -> DriveState:
        job = self._job(job_id)
        layer = job.layers[0]
        live = self._engine.jobs[job_id]
        bundles = live.bundles[known : known + PAGE]
        return DriveState(
            kind=job.kind,
            params=live.work.params,
            layer=layer.name,
            cursor=job.cursor,
            created=RangeSet([(0, layer.count)]).pairs(),
            committed=layer.committed.pairs(),
            quarantined=layer.quarantined.pairs(),
            finished=layer.closed,
            ended=job.ended,
            bundles=bundles,
            seen=known + len(bundles),
            more=len(live.bundles) > known + len(bundles),
        )
