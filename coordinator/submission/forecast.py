"""What a planned job would take: shards, bytes, room in the root, time. Pure: a plan and the farm's history in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from muster.coordinator.api.status import AgentStatus, JobStatus
from muster.coordinator.submission import makespan
from muster.coordinator.submission.eta import MERGE_RATE
from muster.coordinator.submission.makespan import FarmMachine, InputLeft, Payoff
from muster.jobs.contract.kind import KindForecast
from muster.jobs.contract.plan import ArraySource, ItemsSource, Layer, Plan, Work
from muster.jobs.kinds import registry

OPEN_LAYERS = 2  # at once, per job; an open one has its bundles and its merge in the making
SPREAD_SAME_NAME = 0.15  # of a forecast from earlier runs of the same job
SPREAD_SAME_KIND = 0.5  # of one from other jobs of its kind, with other parameters

Bottleneck = Literal["unknown", "compute", "links", "merge"]


@dataclass(frozen=True)
class LayerForecast:
    """One layer. `bytes_out` is None where only running it can tell."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shards: int
    bytes_in: int
    bytes_out: int | None


@dataclass(frozen=True)
class Forecast:
    """A job before it runs. None where nobody can know yet."""

    job: str
    kind: str
    shards: int
    rows: int
    bytes_in: int
    bytes_out: int | None
    bytes_of_root: int | None  # that the root must have free at the worst moment
    root_free: int | None
    machines: int
    slots: int  # shards that run at once
    seconds: float | None
    low: float | None
    high: float | None
    bottleneck: Bottleneck
    basis: str  # what the time is taken from, or why there is none
    layers: tuple[LayerForecast, ...]
    of_kind: KindForecast | None = None  # what the kind says itself, where it does
    cut: str = ""  # how the plan cut it and why; "": as the job file says
    notes: tuple[str, ...] = ()  # what its user should know of its source
    payoffs: tuple[Payoff, ...] = ()  # what each machine adds; () where nobody can know yet


@dataclass(frozen=True)
class MeasuredPace:
    """How fast shards of a kind have gone here."""

    bytes_in: float  # a second, in one slot
    merge: float  # bytes a second
    spread: float
    basis: str


def forecast(
    plan: Plan,
    agents: Sequence[AgentStatus],
    history: Sequence[JobStatus],
    free: int | None,
    tried: MeasuredPace | None = None,
) -> Forecast:
    """What `plan` would be on these machines, judged by shards of it that were tried, else by earlier jobs."""
    layers = tuple(layer_forecast(layer) for layer in plan.layers)
    bytes_in = sum(layer.bytes_in for layer in layers)
    bytes_out = _sum_known([layer.bytes_out for layer in layers])
    live = [agent for agent in agents if agent.state == "live"]
    each = {agent.name: agent.cpus // plan.work.cpus for agent in live}
    slots = sum(each[agent.name] for agent in live)
    alike = jobs_like(history, plan.work.kind, plan.name, plan.work.of_submitter)
    pace = tried or pace_of(alike, plan.work.kind, plan.name)
    timed = _timed(pace, bytes_in, bytes_out or 0, slots)
    payoffs: tuple[Payoff, ...] = ()
    if bytes_in and (compute := makespan.computed(alike)):
        machines, left = (
            makespan.machines_of(live, each, compute),
            InputLeft(bytes_in, bytes_out or 0, compute.slot_seconds),
        )
        payoffs = makespan.payoffs(machines, left)
        timed = _by_links(timed, machines, left)
    likely = timed[0] if timed else None
    spread = pace.spread if pace else 0.0
    return Forecast(
        job=plan.name,
        kind=plan.work.kind,
        shards=sum(layer.shards for layer in layers),
        rows=sum(layer.rows for layer in plan.layers),
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        bytes_of_root=root_bytes([layer.bytes_out for layer in layers]),
        root_free=free,
        machines=len(live),
        slots=slots,
        seconds=likely,
        low=likely * (1 - spread) if likely is not None else None,
        high=likely * (1 + spread) if likely is not None else None,
        bottleneck=timed[1] if timed else "unknown",
        basis=_basis(pace, slots, bytes_in),
        layers=layers,
        of_kind=_of_kind(plan.work) if plan.counted else None,
        cut=plan.cut,
        notes=plan.notes,
        payoffs=payoffs,
    )


def _of_kind(work: Work) -> KindForecast | None:
    kind = registry.load(work.kind)
    return kind.forecast(msgspec.convert(work.params, kind.Params), work.entry)


def layer_forecast(layer: Layer) -> LayerForecast:
    source = layer.source
    dtype, shape = (source.dtype, source.shape) if isinstance(source, ArraySource) else ("", ())
    if isinstance(source, ItemsSource):
        dtype, shape = ("lines" if source.columns else "files", (layer.rows,))
    full = layer.shard_rows or 1
    bytes_out = layer.rows * layer.out_bytes // full if layer.out_bytes else None
    return LayerForecast(layer.name, dtype, shape, layer.count, layer.total_in_bytes, bytes_out)


def root_bytes(outputs: Sequence[int | None]) -> int | None:
    """The whole result, and a second copy of the largest layers that may be open at once."""
    known = [size for size in outputs if size is not None]
    if len(known) < len(outputs):
        return None
    return sum(known) + sum(sorted(known)[-OPEN_LAYERS:])


def jobs_like(history: Sequence[JobStatus], kind: str, name: str, of_submitter: str) -> Sequence[JobStatus]:
    """Earlier jobs that tell how fast this one would go: the last of the same name, else all of the kind; where code of
    the submitter runs, only those that ran the same."""
    of_kind = [
        job
        for job in history
        if (job.kind, job.of_submitter) == (kind, of_submitter)
        and any(agent.busy and agent.bytes_in for agent in job.agents)
    ]
    return [job for job in of_kind if _is_called(job, name)][-1:] or of_kind


def _is_called(job: JobStatus, name: str) -> bool:
    return job.id.rpartition(".")[0] == name


def pace_of(jobs: Sequence[JobStatus], kind: str, name: str) -> MeasuredPace | None:
    """How fast earlier jobs that are like this one went."""
    if not jobs:
        return None
    same = _is_called(jobs[0], name)
    agents = [agent for job in jobs for agent in job.agents]
    merged, seconds = sum(job.bytes_merged for job in jobs), sum(job.merge_seconds for job in jobs)
    of_what = "jobs of this code" if jobs[0].of_submitter else f"{kind} jobs"
    return MeasuredPace(
        bytes_in=sum(agent.bytes_in for agent in agents) / sum(_slot_seconds(job) for job in jobs),
        merge=merged / seconds if merged and seconds else MERGE_RATE,
        spread=SPREAD_SAME_NAME if same else SPREAD_SAME_KIND,
        basis=f"as {jobs[0].id} went" if same else f"as other {of_what} went here; parameters change it",
    )


def _slot_seconds(job: JobStatus) -> float:
    """What a job took of its slots: computing, or also what lay between, where its machines are still there to tell."""
    took = (job.ended or job.started or 0.0) - (job.started or 0.0)
    slots = sum(agent.slots for agent in job.agents if agent.shards)
    return max(sum(agent.busy for agent in job.agents), slots * min(took, job.whole.seconds))


def _timed(pace: MeasuredPace | None, bytes_in: int, bytes_out: int, slots: int) -> tuple[float, Bottleneck] | None:
    if pace is None or not slots or not bytes_in:
        return None
    compute = bytes_in / (pace.bytes_in * slots)
    merge = bytes_out / pace.merge
    return (merge, "merge") if merge > compute else (compute, "compute")


def _by_links(
    timed: tuple[float, Bottleneck] | None, machines: Sequence[FarmMachine], left: InputLeft
) -> tuple[float, Bottleneck] | None:
    """The time where links take longer than the slots alone would let one think."""
    known = timed is not None and all(machine.is_known for machine in machines)
    if timed is None or not known or all(makespan.pace(machine, left)[1] == "compute" for machine in machines):
        return timed
    seconds = makespan.makespan(machines, left)
    return (seconds, "links") if seconds > timed[0] else timed


def _basis(pace: MeasuredPace | None, slots: int, bytes_in: int) -> str:
    if not bytes_in:
        return "its shards are made while it runs"
    if pace is None:
        return "until the first shards ran"
    return pace.basis if slots else "no machine is there to run it"


def _sum_known(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
