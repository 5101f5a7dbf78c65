"""How long work takes on given machines, and what each of them adds to the others. Pure: rates in, seconds out.

A machine gets through its input as fast as it computes, or as fast as its link brings the input and takes away what
comes of it, whichever is slowest. Work is taken to be divisible, so that all machines end together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from muster.coordinator.api.status import AgentRate, AgentStatus, JobStatus
from muster.coordinator.submission.eta import out_bytes_of

Limit = Literal["compute", "link"]


@dataclass(frozen=True)
class InputLeft:
    """What is to be computed, and how long it takes."""

    bytes_in: float
    bytes_out: float
    slot_seconds: float  # that one slot of average speed computes on a byte of input


@dataclass(frozen=True)
class FarmMachine:
    """What a machine has for a job. Rates are bytes a second; None where nothing was measured."""

    name: str
    slots: int
    speed: float = 1.0  # times the average
    local: bool = False  # reads the source where it is
    has_copy: bool = False  # of the source, which spares its link
    link_in: float | None = None  # inputs that reach it, by its link or from its copy
    link_out: float | None = None  # results that it hands in

    @property
    def is_known(self) -> bool:
        return self.local or self.link_in is not None


@dataclass(frozen=True)
class Payoff:
    """Seconds that the work takes without a machine and with it; None where that cannot be known."""

    name: str
    local: bool
    others: int  # machines beside it
    without: float | None
    seconds: float | None = None
    limit: Limit | None = None  # what holds this machine back
    with_copy: float | None = None  # seconds if it had a copy of the source, where its link is the limit


def pace(machine: FarmMachine, left: InputLeft) -> tuple[float, Limit]:
    """The bytes of input a second that a machine gets through, and what keeps it from more."""
    computes = machine.slots * machine.speed / left.slot_seconds if left.slot_seconds > 0 else inf
    brought = inf if machine.local or machine.link_in is None else machine.link_in
    share = left.bytes_out / left.bytes_in if left.bytes_in else 0.0
    taken = inf if machine.local or machine.link_out is None or not share else machine.link_out / share
    moved = min(brought, taken)
    return (moved, "link") if moved < computes else (computes, "compute")


def makespan(machines: Sequence[FarmMachine], left: InputLeft) -> float:
    """The seconds that all machines together need; infinite without one that gets through anything."""
    together = sum(pace(machine, left)[0] for machine in machines)
    return left.bytes_in / together if together else inf


def payoffs(machines: Sequence[FarmMachine], left: InputLeft) -> tuple[Payoff, ...]:
    """What each machine adds to those others of which enough is known."""
    return tuple(_payoff(machine, [one for one in machines if one is not machine], left) for machine in machines)


def _payoff(machine: FarmMachine, others: Sequence[FarmMachine], left: InputLeft) -> Payoff:
    known = [one for one in others if one.is_known and one.slots]
    without = makespan(known, left) if known else None
    if not machine.is_known:
        return Payoff(machine.name, machine.local, len(known), without)
    limit = pace(machine, left)[1]
    with_copy = None
    if limit == "link" and not machine.has_copy:
        with_copy = makespan([*known, replace(machine, link_in=inf)], left)
    seconds = makespan([*known, machine], left)
    return Payoff(machine.name, machine.local, len(known), without, seconds, limit, with_copy)


# --- from what was measured ------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasuredCompute:
    """What computing took, over all machines, and how each compares to that."""

    slot_seconds: float  # on a byte of input
    speeds: Mapping[str, float]  # machine → times the average; of those it was measured on


def computed(jobs: Sequence[JobStatus]) -> MeasuredCompute | None:
    """The compute alone of these jobs, without transfers and waits. None where nothing was measured."""
    measured: dict[str, tuple[float, int]] = {}
    for rate in (agent for job in jobs for agent in job.agents if _is_measured(agent)):
        busy, nbytes = measured.get(rate.name, (0.0, 0))
        measured[rate.name] = busy + rate.busy, nbytes + rate.bytes_in
    if not measured:
        return None
    each = sum(busy for busy, _ in measured.values()) / sum(nbytes for _, nbytes in measured.values())
    return MeasuredCompute(each, {name: each * nbytes / busy for name, (busy, nbytes) in measured.items()})


def _is_measured(agent: AgentRate) -> bool:
    return agent.busy > 0 and agent.bytes_in > 0


def machines_of(
    agents: Sequence[AgentStatus], slots: Mapping[str, int], compute: MeasuredCompute
) -> tuple[FarmMachine, ...]:
    """The machines that have slots. One that computed nothing yet is taken to be of average speed."""
    return tuple(
        FarmMachine(
            name=agent.name,
            slots=slots[agent.name],
            speed=compute.speeds.get(agent.name, 1.0),
            local=agent.in_place,
            has_copy=bool(agent.have),
            link_in=agent.link_in or None,
            link_out=agent.link_out or None,
        )
        for agent in agents
        if slots.get(agent.name)
    )


def left_of(job: JobStatus, compute: MeasuredCompute) -> InputLeft:
    """What a running job still has to compute; a shard under way counts half."""
    totals = job.totals
    share = (totals.pending + totals.running / 2) / totals.shards if totals.shards else 0.0
    return InputLeft(totals.bytes_in * share, out_bytes_of(totals) * share, compute.slot_seconds)


def payoffs_now(job: JobStatus, agents: Sequence[AgentStatus]) -> tuple[Payoff, ...] | None:
    """What each machine adds to the rest of a running job; None where nothing was measured of it yet."""
    compute = computed([job])
    if compute is None:
        return None
    slots = {rate.name: rate.slots for rate in job.agents if rate.live}
    return payoffs(machines_of(agents, slots, compute), left_of(job, compute))
