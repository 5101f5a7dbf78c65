"""Machines as text for people. Decides and fetches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from muster.coordinator.api.status import AgentStatus, JobStatus
from muster.coordinator.submission.eta import Speed, Trace
from muster.jobs.common.units import counted, format_duration, format_size
from muster.jobs.contract.requirements import limits_said

if TYPE_CHECKING:  # planning alone needs what this imports
    from muster.coordinator.submission.forecast import Forecast
from muster.coordinator.display.tables import ago, count, rate, short, table


def machines_table(job: JobStatus) -> str:
    """What is read is told where shards are what counts: a driver's may read next to nothing."""
    reads = job.progress is None
    rows = [
        (
            short(agent.name),
            count(agent.slots),
            count(agent.running),
            count(agent.shards),
            *([format_size(agent.in_bytes)] if reads else []),
            format_duration(agent.seconds) if agent.seconds else "-",
        )
        for agent in job.agents
    ]
    header = ("MACHINE", "SLOTS", "RUNNING", "FINISHED", *(["READ"] if reads else []), "COMPUTE/SHARD")
    return table(header, rows, " rrrrr") if rows else ""


def machine_lines(job: JobStatus, trace: Trace) -> list[str]:
    """Each live machine's rate on a job, and what it is stuck at."""
    slow = {one.agent: f", {one.layer}/{one.number} runs for {format_duration(round(one.seconds))}" for one in job.slow}
    return [
        f"  {agent.name}: {_machine_rate(job, trace.speed(agent.name))}, {agent.shards:,} finished"
        f"{slow.get(agent.name, '')}"
        for agent in job.agents
        if agent.live
    ]


def _machine_rate(job: JobStatus, speed: Speed) -> str:
    """In bytes only where shards are what counts."""
    return rate(speed if job.progress is None else replace(speed, in_bytes=0.0))


# --- machines and failures --------------------------------------------------------------------------------


def no_machines(root: Path) -> str:
    return f"no machines; `agent join {root}` adds this one"


def agents_table(agents: Sequence[AgentStatus], now: float) -> str:
    rows = [
        (
            short(agent.name, 20),
            short(agent.host, 20),
            agent.state,
            count(agent.cpus),
            count(agent.running),
            count(agent.done),
            ago(agent.last_seen, now),
        )
        for agent in agents
    ]
    lines = [table(("AGENT", "HOST", "STATE", "CPUS", "RUNNING", "DONE", "LAST SEEN"), rows, "   rrr")]
    for agent in agents:
        lines += [f"{agent.name}: {agent.note}"] if agent.note else []
        lines += [f"{agent.name}: {limits}"] if (limits := limits_said(agent.kinds, no_code=agent.no_code)) else []
        lines += [f"{agent.name}: takes nothing of {job}: {why}" for job, why in agent.ineligible.items()]
    return "\n".join(lines)


def farm_line(seen: Forecast) -> str:
    return f"  farm     {counted(seen.machines, 'machine')}, {counted(seen.slots, 'shard')} at once"
