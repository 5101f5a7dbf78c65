"""Which jobs start after others: what lets one begin, and what halts it before it did. Knows no shard."""

from __future__ import annotations

from muster.coordinator.scheduler.entities import Job
from muster.coordinator.scheduler.job_states import halt, set_state, settle_job
from muster.coordinator.scheduler.state import State
from muster.jobs.contract.states import STANDING


def begin(state: State, job: Job) -> None:
    """Let a job run. One of which nothing ever ran waits first for those that it is to start after."""
    set_state(state, job, "waiting" if job.plan.after and not job.has_begun else "running")


def look(state: State) -> None:
    """Start the waiting jobs that wait for nothing any more, and halt those that would wait for ever."""
    for job in list(state.waiting.values()):
        if why := hopeless(state, job):
            halt(state, job, why)
        elif not waits_for(state, job):
            set_state(state, job, "running")
            settle_job(state, job)


def waits_for(state: State, job: Job) -> list[str]:
    """Those of the jobs before this one that are not complete, in the order in which it names them."""
    return [name for name in job.plan.after if not (before := state.jobs.get(name)) or before.state != "complete"]


def hopeless(state: State, job: Job) -> str:
    """Why a job before this one will not be complete by itself; "" while each of them may."""
    for name in job.plan.after:
        if what := _stands(state, name):
            return f"it was to start after {name}, which {what}"
    return ""


def _stands(state: State, name: str) -> str:
    """Before the first tick not all jobs of the store are there yet: one that is missing may still come."""
    if name in state.damaged:
        return "is damaged"
    if job := state.jobs.get(name):
        return f"is {job.state}" if job.state in STANDING and job.state != "complete" else ""
    return "is deleted" if state.last_tick is not None else ""
