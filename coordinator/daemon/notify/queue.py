"""Telling users of what became of their jobs, at least once, by a helper process each. The daemon's loop waits for none
of them."""

from __future__ import annotations

import asyncio
import logging
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from muster.coordinator.daemon.engine import Engine
from muster.coordinator.daemon.notify.conditions import NEWS, Condition, Conditions
from muster.coordinator.daemon.notify.sender import NotifyOrder
from muster.coordinator.daemon.store.statements import StoredJob
from muster.coordinator.scheduler.entities import Job
from muster.jobs.common import launch
from muster.jobs.contract.states import JobState

log = logging.getLogger("muster.daemon")

LOOK_SECONDS = 10.0
AT_ONCE = 4  # helpers
KILLED_PAUSES = (0.0, 1.0, 10.0)  # before each start of one


class NotifyQueue:
    """One per daemon."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._alarms = Conditions()
        self._free = asyncio.Semaphore(AT_ONCE)
        engine.job_listeners.append(self.job_is)

    def job_is(self, job: str, state: JobState, why: str) -> None:
        """It is stored with the state that somebody is to be told of it, and until somebody was."""
        if state in NEWS and self._wanted(job):
            at = None if state == "damaged" else self._engine.jobs[job].untold  # of damage nothing is stored
            order = self._order(Condition(job, NEWS[state], why), at)
            self._engine.background(self._tell(order, at))

    def go_on(self, stored: Iterable[StoredJob]) -> None:
        """With what an earlier life of the daemon was to tell of these, and did not, or not to its end."""
        for one in stored:
            live = self._engine.jobs.get(one.id)
            if one.untold is not None and live is not None and live.untold == one.untold:
                self.job_is(one.id, one.state, one.why)

    async def look_forever(self) -> None:
        engine = self._engine
        while True:
            figures = {job: engine.jobs[job].figures for job in engine.state.running if self._wanted(job)}
            progress = {job: f.whole.finished + f.whole.committed + f.bytes_merged for job, f in figures.items()}
            for alarm in self._alarms.look(engine.state, progress, time.monotonic()):
                engine.background(self._tell(self._order(alarm)))
            await asyncio.sleep(LOOK_SECONDS)

    def _wanted(self, job: str) -> bool:
        return bool(self._engine.jobs[job].plan.notify)

    def _order(self, alarm: Condition, at: float | None = None) -> NotifyOrder:
        """Made at once: the job may be gone before a helper is free."""
        plan = self._engine.jobs[alarm.job].plan
        place = self._engine.root.job(alarm.job)
        state: Job = self._engine.state.jobs[alarm.job]
        event = {
            "event": alarm.event,
            "job": alarm.job,
            "why": alarm.why,
            "agent": alarm.agent,
            "at": at or time.time(),
            "shards": sum(layer.planned for layer in state.layers),
            "left": state.left,
            "quarantined": state.quarantined,
            "root": str(self._engine.root.path),
            "result": str(place.result),
        }
        return NotifyOrder(plan.notify, plan.base or str(place.path), str(place.path / "notify.log"), event)

    async def _tell(self, order: NotifyOrder, at: float | None = None) -> None:
        """`at`: of a stored state. It is durable before anybody is told, and a start tells it again unless this comes
        to its end."""
        if at is not None:
            await self._engine.stored()
        if await self._is_over(order) and at is not None:
            job = str(order.event["job"])
            self._engine.write(lambda store: store.set_told(job, at))
            if job in self._engine.jobs:
                self._engine.jobs[job].told(at)

    async def _is_over(self, order: NotifyOrder) -> bool:
        """Whether a helper came to its end, be it that nobody could be told. One that is killed is started again."""
        for pause in KILLED_PAUSES:
            await asyncio.sleep(pause)
            async with self._free:
                if (code := await _help(order)) >= 0:
                    break
        else:
            log.warning("who tells that %s: %s was killed again and again", order.event["job"], order.event["event"])
            return False
        if code:
            log.warning("nobody could be told that %s: %s: see %s", order.event["job"], order.event["event"], order.log)
        return True


async def _help(order: NotifyOrder) -> int:
    """Started by exec, in a session of its own: it goes on should the daemon stop. Returns how it ended."""
    log.info("telling that %s: %s", order.event["job"], order.event["event"])
    process = await asyncio.create_subprocess_exec(
        *launch.python("muster.coordinator.daemon.notify.sender"),
        stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, cwd="/",
        start_new_session=True,
    )  # fmt: skip
    with suppress(ConnectionError):
        await process.communicate(msgspec.json.encode(order))
    return await process.wait()
