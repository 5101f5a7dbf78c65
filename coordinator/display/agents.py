"""Machines as text for people. Decides and fetches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from muster.coordinator.api.status import AgentStatus, JobStatus
from muster.coordinator.display import colours
from muster.coordinator.submission.eta import Speed, Trace
from muster.coordinator.submission.makespan import Payoff, payoffs_now
from muster.jobs.common.units import counted, format_duration, format_size
from muster.jobs.contract.requirements import limits_said

if TYPE_CHECKING:  # planning alone needs what this imports
    from muster.coordinator.submission.forecast import Forecast
from muster.coordinator.display.tables import ago, count, rate, short, table, whole

PAYOFFS_SHOWN = 8
AGENTS_HEADER = (
    "AGENT", "STATE", "CPUS", "BUSY", "USED", "MEMORY", "DISK", "IN/S", "OUT/S", "RUNNING", "DONE", "SEEN", "VERSION",
)  # fmt: skip
NOT_MEASURED = "what each machine adds is not measured yet"


def machines_table(job: JobStatus) -> str:
    """What is read is told where shards are what counts: a driver's may read next to nothing."""
    reads = job.progress is None
    rows = [
        (
            short(agent.name),
            count(agent.slots),
            count(agent.running),
            count(agent.shards),
            *([format_size(agent.bytes_in)] if reads else []),
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
    return rate(speed if job.progress is None else replace(speed, bytes_in=0.0))


# --- machines and failures --------------------------------------------------------------------------------


def no_machines(root: Path) -> str:
    return f"no machines; `agent join {root}` adds this one"


def agents_table(agents: Sequence[AgentStatus], now: float) -> str:
    """Shares and rates are of the last minute; "-" is what a machine does not tell."""
    rows = [
        (
            short(agent.name, 16),
            _state(agent),
            count(agent.cpus),
            "-" if agent.busy is None else f"{agent.busy:.0%}",
            "-" if agent.processor is None else f"{agent.processor:.1f}",
            compact(agent.memory_now),
            compact(agent.disk_now),
            "in place" if agent.in_place else compact(agent.in_rate),
            compact(agent.out_rate),
            count(agent.running),
            count(agent.done),
            ago(agent.last_seen, now),
            short(agent.version, 9),
        )
        for agent in agents
    ]
    lines = [table(AGENTS_HEADER, rows, "  rrrrrrrrrr")]
    for agent in agents:
        lines += [f"{agent.name}: is on {agent.host}"] if agent.host not in ("", agent.name) else []
        lines += [f"{agent.name}: node {one}: {counted(agent.places[one], 'slot')}" for one in sorted(agent.places)]
        lines += [f"{agent.name}: {agent.note}"] if agent.note else []
        lines += [f"{agent.name}: {limits}"] if (limits := limits_said(agent.kinds, no_code=agent.no_code)) else []
        lines += [f"{agent.name}: {moved}"] if (moved := _link_said(agent)) else []
        lines += [f"{agent.name}: takes nothing of {job}: {why}" for job, why in agent.ineligible.items()]
    return colours.joined("\n", [*lines, *overlent_lines(agents)])


def _state(agent: AgentStatus) -> str:
    if agent.silent:
        return colours.state(f"silent for {whole(agent.silent)}", "silent")
    return colours.state(agent.state)


def overlent_lines(agents: Sequence[AgentStatus]) -> list[str]:
    """Machines whose agents, be they of different users, together lend more processors than it has."""
    there: dict[str, list[AgentStatus]] = {}
    for agent in agents:
        if agent.state == "live" and agent.machine:
            there.setdefault(agent.machine, []).append(agent)
    lines = []
    for same in there.values():
        lent, cores = sum(agent.cpus for agent in same), max(agent.cores for agent in same)
        if len(same) > 1 and lent > cores > 0:
            names = ", ".join(f"{agent.name} ({agent.cpus})" for agent in same)
            what_next = "`agent set --name NAME cpus=N` there lends fewer"
            lines.append(f"{same[0].host}: {names} together lend {lent} of its {counted(cores, 'core')}; {what_next}")
    return lines


def compact(nbytes: float | None) -> str:
    """ "5.9G", in as few columns as possible."""
    if nbytes is None:
        return "-"
    number, _, unit = format_size(round(nbytes)).partition(" ")
    return f"{number}{unit[0] if unit != 'B' else ''}"


def _link_said(agent: AgentStatus) -> str:
    """How fast inputs reach a machine that does not read them in place, and what a copy there saves its link."""
    came = f"inputs come at {rate(Speed(bytes_in=agent.link_in))}" if agent.link_in else ""
    spared, every = agent.bytes_spared, agent.bytes_spared + agent.bytes_pulled
    copy = f"{agent.have or 'what it made itself'} spared its link {format_size(spared)} of {format_size(every)}"
    return ", ".join(filter(None, [came, copy if agent.have or spared else ""]))


# --- what a machine adds ----------------------------------------------------------------------------------


def payoff_lines(payoffs: Sequence[Payoff]) -> list[str]:
    """What each machine that does not read the source in place adds to the others: those of which a copy, or they
    themselves, change most come first."""
    far = sorted((one for one in payoffs if not one.local), key=lambda one: one.with_copy or one.seconds or 0.0)
    lines = [_payoff_said(one) for one in far[:PAYOFFS_SHOWN]]
    hidden = len(far) - len(lines)
    return [*lines, f"… and {counted(hidden, 'machine')} more; --json has all"] if hidden else lines


def _payoff_said(one: Payoff) -> str:
    if one.seconds is None:
        return f"{one.name}: how fast inputs reach it is not measured yet"
    beside = "alone" if one.others == 1 else f"without {one.name}"
    parts = [] if one.without is None else [f"{beside} {_roughly(one.without)}"]
    parts.append(f"with {one.name} {_roughly(one.seconds)}{', its link is the limit' if one.limit == 'link' else ''}")
    if one.with_copy is not None:
        parts.append(f"a copy of the source there would make it {_roughly(one.with_copy)}")
    return "; ".join(parts)


def _roughly(seconds: float) -> str:
    return format_duration(round(seconds)) if seconds >= 1 else "1 s"


def payoffs_of_jobs(jobs: Sequence[JobStatus], agents: Sequence[AgentStatus]) -> list[str]:
    """The same for each running job that a machine of a link takes part in."""
    far = {agent.name for agent in agents if not agent.in_place and agent.state == "live"}
    lines = []
    for job in jobs:
        if job.state == "running" and job.progress is None and any(one.live and one.name in far for one in job.agents):
            payoffs = payoffs_now(job, agents)
            said = [NOT_MEASURED] if payoffs is None else payoff_lines(payoffs)
            lines += [f"{job.id}: {line}" for line in said]
    return lines


def farm_line(seen: Forecast) -> str:
    return f"  farm     {counted(seen.machines, 'machine')}, {counted(seen.slots, 'shard')} at once"
