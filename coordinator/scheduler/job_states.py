"""The state of a job, and what settles, ends or halts it. Knows no layer's life."""

from __future__ import annotations

from muster.coordinator.scheduler.actions import (
    SendDrop,
    StoreJob,
)
from muster.coordinator.scheduler.entities import Job, Layer
from muster.coordinator.scheduler.state import State
from muster.jobs.common.ranges import RangeSet
from muster.jobs.common.units import counted
from muster.jobs.contract.states import JobState


def settle_job(state: State, job: Job) -> None:
    """A job ends when each layer is merged, or can get no further. One that waits for others ends after them."""
    if job.state in {"cancelled", "waiting"} or any(not layer.stuck for layer in (*job.queue, *job.opened)):
        return
    changed = [layer.name for layer in job.layers if layer.state == "changed"]
    if job.opened or job.queue or changed:
        why = f"{counted(job.quarantined, 'shard')} given up" if job.quarantined else ""
        more = f"source changed: {', '.join(changed[:3])}" if changed else ""
        _end(state, job, "incomplete", "; ".join(part for part in (why, more) if part))
    else:
        _end(state, job, "complete", "")


def _end(state: State, job: Job, as_state: JobState, why: str) -> None:
    if job.state == "halted" and as_state == "incomplete":
        return  # a halt says more
    if (job.state, job.why) != (as_state, why):
        set_state(state, job, as_state, why)


def set_state(state: State, job: Job, as_state: JobState, why: str = "") -> None:
    job.state, job.why = as_state, why
    state.waiting.pop(job.id, None)
    state.running.pop(job.id, None)
    if as_state == "running":
        state.start_even(job)
        state.running[job.id] = job
    elif as_state == "waiting":
        state.waiting[job.id] = job
    state.emit(StoreJob(job.id, as_state, why))
    state.work_added = state.jobs_turned = True


def halt(state: State, job: Job, why: str) -> None:
    """No more is granted, and what is unfinished is taken back: it must not go on failing. A retry goes on."""
    if job.state in {"running", "paused", "waiting"}:
        set_state(state, job, "halted", why)
        for layer in job.opened:
            revoke(state, layer)


def revoke(state: State, layer: Layer) -> None:
    """Take back what is unfinished of it."""
    for holding in list(layer.holdings.values()):
        numbers = holding.open.copy()
        if numbers:
            session = state.agents[holding.agent].session
            state.emit(SendDrop(session, layer.digest, holding.boot, holding.attempt, numbers))
            holding.open = RangeSet()
            state.prune(holding)
            state.release(layer, numbers)
