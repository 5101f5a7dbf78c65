"""How far a job is, and when it will end: compute, push, merge and the tail. Pure: counts and rates in, values out."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Literal

from coordinator.admin import AgentRate, JobStatus, Tally, Window

MERGE_RATE = 200 << 20  # bytes a second, assumed until a merge has been measured
PUSH_LAG_SECONDS = 12.0  # finished shards younger than this are not a backlog: a bundle waits up to 10 s
SPREAD_FLOOR, SPREAD_CEILING = 0.05, 0.6  # of a single estimate, as a share of it

Bottleneck = Literal["measuring", "no agents", "compute", "push", "merge"]


@dataclass(frozen=True)
class Eta:
    """Seconds until everything is merged. `measuring` and `no agents` have none."""

    bottleneck: Bottleneck
    likely: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Load:
    """What is still to do, and how fast each step of it goes; all rates above 0 or None for unknown."""

    shards: float  # to compute; one under way counts half
    waiting: int  # finished, to be pushed
    merge_bytes: float  # of layers that are not merged
    last_bytes: float  # of them, what is merged after the last commit
    compute_rate: float | None  # shards a second
    push_rate: float | None  # shards a second, None too where push keeps up
    merge_rate: float  # bytes a second
    tail: float  # seconds one more shard takes on the slowest machine
    samples: int  # shards measured


def share(tally: Tally) -> float:
    """Of the shards, how many are committed; 0 to 1."""
    return tally.committed / tally.shards if tally.shards else 0.0


def eta(job: JobStatus) -> Eta:
    """When `job` ends if things go on as they do now."""
    load = load_of(job)
    if job.state != "running" or (load.shards and not any(agent.live and agent.slots for agent in job.agents)):
        return Eta("no agents")
    if load.shards and load.compute_rate is None:
        return Eta("measuring")
    return _eta_of(load)


def load_of(job: JobStatus) -> Load:
    """The work left of `job`, with the rates measured so far."""
    totals = job.totals
    out = _out_bytes(totals)
    left = _unmerged(job, out)
    return Load(
        shards=totals.pending + totals.running / 2,
        waiting=totals.finished,
        merge_bytes=left,
        last_bytes=min(left, _last_layer(job, out)),
        compute_rate=_compute_rate(job),
        push_rate=_push_rate(job),
        merge_rate=job.merged_bytes / job.merge_seconds if job.merged_bytes and job.merge_seconds else MERGE_RATE,
        tail=max((agent.seconds for agent in job.agents if agent.live), default=0.0) if totals.running else 0.0,
        samples=sum(agent.shards for agent in job.agents),
    )


def _eta_of(load: Load) -> Eta:
    compute = load.shards / load.compute_rate if load.compute_rate and load.shards else 0.0
    push = (load.shards + load.waiting) / load.push_rate if load.push_rate else 0.0
    last = load.last_bytes / load.merge_rate
    early_merges = load.merge_bytes / load.merge_rate - last  # beside the computing; may be what takes longest
    steps: dict[Bottleneck, float] = {"compute": compute + load.tail / 2, "push": push, "merge": early_merges}
    slowest = max(steps, key=lambda step: steps[step])
    likely = steps[slowest] + last
    spread = min(SPREAD_CEILING, max(SPREAD_FLOOR, 1 / sqrt(load.samples) if load.samples else 1.0))
    named: Bottleneck = "merge" if last > steps[slowest] else slowest
    return Eta(named, likely, max(0.0, likely * (1 - spread) - load.tail / 2), likely * (1 + spread) + load.tail / 2)


def _compute_rate(job: JobStatus) -> float | None:
    """Shards a second of all live machines: what their shards take, or what is observed where that is less.

    What is observed has transfers and overhead in it, but still counts a machine that left within the window.
    """
    live = [agent for agent in job.agents if agent.live and agent.slots]
    slots = sum(agent.slots for agent in live)
    known = [agent for agent in live if agent.seconds > 0]
    if not known:
        return _observed(job.whole)
    measured = sum(agent.slots / agent.seconds for agent in known)
    promised = measured * slots / sum(agent.slots for agent in known)  # the unmeasured are as fast as the others
    seen = _observed(job.recent) if job.recent.finished >= 4 * slots else None
    return min(promised, seen) if seen else promised


def _observed(window: Window) -> float | None:
    return window.finished / window.seconds if window.finished and window.seconds else None


def _push_rate(job: JobStatus) -> float | None:
    """Shards a second that get committed, where that is what holds the job up: finished ones pile up."""
    recent = job.recent
    if not recent.committed or recent.seconds <= 0:
        return None
    rate = recent.committed / recent.seconds
    return rate if job.totals.finished > rate * PUSH_LAG_SECONDS else None


def _out_bytes(totals: Tally) -> float:
    """Bytes of the whole result, from the declaration or else from what is committed."""
    if totals.out_bytes or not totals.committed:
        return totals.out_bytes
    return totals.out_committed / totals.committed * totals.shards


def _unmerged(job: JobStatus, out: float) -> float:
    if job.layers:
        return sum(_layers_left(job))
    return out * (1 - job.layers_merged / job.layers_total) if job.layers_total else 0.0


def _last_layer(job: JobStatus, out: float) -> float:
    """Bytes of what is merged last: the largest layer still to come, or one of average size."""
    if job.layers:
        return max(_layers_left(job), default=0.0)
    return out / job.layers_total if job.layers_total else 0.0


def _layers_left(job: JobStatus) -> list[float]:
    """Bytes of each layer to be merged; where a layer says nothing of them, as many a shard as all shards have."""
    shard = _out_bytes(job.totals) / job.totals.shards if job.totals.shards else 0.0
    tallies = [layer.tally for layer in job.layers if layer.state not in {"merged", "changed"}]
    return [float(tally.out_bytes) or shard * tally.shards for tally in tallies]


@dataclass(frozen=True)
class Speed:
    """What one machine, or all of them, do now."""

    shards: float  # a second
    in_bytes: float  # a second


def speed(window: Window) -> Speed:
    """Over a window; zeros where nothing was measured."""
    if window.seconds <= 0:
        return Speed(0.0, 0.0)
    return Speed(window.finished / window.seconds, window.in_bytes / window.seconds)


def agent_speed(agent: AgentRate) -> Speed:
    """Of a machine while it computes, from what its shards take."""
    if agent.seconds <= 0 or not agent.shards:
        return Speed(0.0, 0.0)
    shards = agent.slots / agent.seconds
    return Speed(shards, shards * agent.in_bytes / agent.shards)
