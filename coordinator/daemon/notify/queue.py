"""Telling users of what became of their jobs, by a helper process each. The daemon's loop waits for none of them."""

from __future__ import annotations

import asyncio
import logging
import time
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import suppress

import msgspec

from muster.coordinator.daemon.engine import Engine
from muster.coordinator.daemon.notify.conditions import ENDS, Condition, Conditions
from muster.coordinator.daemon.notify.sender import NotifyOrder
from muster.coordinator.scheduler.entities import Job
from muster.jobs.common import launch
from muster.jobs.contract.states import JobState

log = logging.getLogger("muster.daemon")

LOOK_SECONDS = 10.0
AT_ONCE = 4  # helpers


class NotifyQueue:
    """One per daemon."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._alarms = Conditions()
        self._free = asyncio.Semaphore(AT_ONCE)
        engine.job_listeners.append(self.job_is)

    def job_is(self, job: str, state: JobState, why: str) -> None:
        if state in ENDS and self._wanted(job):
            self._engine.background(self._tell(self._order(Condition(job, ENDS[state], why))))

    async def look_forever(self) -> None:
        engine = self._engine
        while True:
            figures = {job: engine.jobs[job].figures for job in engine.state.running if self._wanted(job)}
            progress = {job: f.whole.finished + f.whole.committed + f.merged_bytes for job, f in figures.items()}
            for alarm in self._alarms.look(engine.state, progress, time.monotonic()):
                engine.background(self._tell(self._order(alarm)))
            await asyncio.sleep(LOOK_SECONDS)

    def _wanted(self, job: str) -> bool:
        return bool(self._engine.jobs[job].plan.notify)

    def _order(self, alarm: Condition) -> NotifyOrder:
        """Made at once: the job may be gone before a helper is free."""
        plan = self._engine.jobs[alarm.job].plan
        place = self._engine.root.job(alarm.job)
        state: Job = self._engine.state.jobs[alarm.job]
        event = {
            "event": alarm.event,
            "job": alarm.job,
            "why": alarm.why,
            "agent": alarm.agent,
            "at": time.time(),
            "shards": sum(layer.planned for layer in state.layers),
            "left": state.left,
            "quarantined": state.quarantined,
            "root": str(self._engine.root.path),
            "result": str(place.result),
        }
        return NotifyOrder(plan.notify, plan.base or str(place.path), str(place.path / "notify.log"), event)

    async def _tell(self, order: NotifyOrder) -> None:
        """Started by exec, in a session of its own: it goes on should the daemon stop."""
        async with self._free:
            log.info("telling that %s: %s", order.event["job"], order.event["event"])
            process = await asyncio.create_subprocess_exec(
                *launch.python("muster.coordinator.daemon.notify.sender"),
                stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, cwd="/",
                start_new_session=True,
            )  # fmt: skip
            with suppress(ConnectionError):
                await process.communicate(msgspec.json.encode(order))
            if process.returncode:
                log.warning(
                    "nobody could be told that %s: %s: see %s", order.event["job"], order.event["event"], order.log
                )
