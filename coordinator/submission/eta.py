"""How far a job is, and when it will end: compute, push, merge and the tail. Pure: counts and rates in, values out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import sqrt
from typing import Literal

from muster.coordinator.api.status import AgentRate, JobStatus, Tally, Window

MERGE_RATE = 200 << 20  # bytes a second, assumed until a merge has been measured
PUSH_LAG_SECONDS = 12.0  # finished shards younger than this are not a backlog: a bundle waits up to 10 s
SHORT_SECONDS = 1.0  # of compute per shard: below it overhead may be most of what a shard takes
SETTLED_SECONDS, SETTLED_SHARDS = 3.0, 5  # that a rate must have been observed for
TRACE_SECONDS = 10.0
SPREAD_FLOOR, SPREAD_CEILING = 0.05, 0.6  # of a single estimate, as a share of it

Bottleneck = Literal["measuring", "no agents", "compute", "push", "merge"]


@dataclass(frozen=True)
class Eta:
    """Seconds until everything is merged. None while measuring, without agents, and while pushes stand still."""

    bottleneck: Bottleneck
    likely: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Load:
    """What is still to do, and how fast each step of it goes; rates that nobody knows are None."""

    shards: float  # to compute; one under way counts half
    waiting: int  # finished, to be pushed
    merge_bytes: float  # of layers that are not merged
    last_bytes: float  # of them, what is merged after the last commit
    compute_rate: float | None  # shards a second
    push_rate: float | None  # shards a second, None where push keeps up, 0 where it stands still
    merge_rate: float  # bytes a second
    tail: float  # seconds one more shard takes on the slowest machine
    samples: int  # shards measured


def share(tally: Tally) -> float:
    """Of the shards, how many are committed; 0 to 1."""
    return tally.committed / tally.shards if tally.shards else 0.0


def eta(job: JobStatus, now: float) -> Eta:
    """When `job` ends if things go on as they do. `now`: the daemon's clock when it said so."""
    load = load_of(job, now)
    if job.state != "running" or (load.shards and not any(agent.live and agent.slots for agent in job.agents)):
        return Eta("no agents")
    if load.shards and load.compute_rate is None:
        return Eta("measuring")
    return Eta("push") if load.push_rate == 0 else _eta_of(load)


def load_of(job: JobStatus, now: float) -> Load:
    """The work left of `job`, with the rates measured so far."""
    totals = job.totals
    out = out_bytes_of(totals)
    left = _unmerged(job, out)
    return Load(
        shards=totals.pending + totals.running / 2,
        waiting=totals.finished,
        merge_bytes=left,
        last_bytes=min(left, _last_layer(job, out)),
        compute_rate=_compute_rate(job, now),
        push_rate=_push_rate(job, now),
        merge_rate=job.bytes_merged / job.merge_seconds if job.bytes_merged and job.merge_seconds else MERGE_RATE,
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


def _compute_rate(job: JobStatus, now: float) -> float | None:
    """Shards a second of all live machines: what their shards take, or what is observed where that is less.

    What is observed has transfers and overhead in it, but still counts a machine that left within the window.
    Short shards may be mostly overhead: until that is observed, nothing is known of them.
    """
    live = [agent for agent in job.agents if agent.live and agent.slots]
    known = [agent for agent in live if agent.seconds > 0]
    each = max((agent.seconds for agent in known), default=0.0)
    seen = _observed(job, now, each)
    if not known:
        return seen
    measured = sum(agent.slots / agent.seconds for agent in known)
    slots = [sum(agent.slots for agent in some) for some in (live, known)]
    promised = measured * slots[0] / slots[1]  # the unmeasured are as fast as the others
    if seen is None:
        return promised if each >= SHORT_SECONDS else None
    return min(promised, seen)


def _observed(job: JobStatus, now: float, each: float) -> float | None:
    """Shards a second over a window that is long for shards that take `each` seconds."""
    for window in (job.recent, job.whole):
        seconds = span(job, window, now)
        if window.finished >= SETTLED_SHARDS and seconds >= max(SETTLED_SECONDS, SETTLED_SHARDS * each):
            return window.finished / seconds
    return None


def span(job: JobStatus, window: Window, now: float) -> float:
    """The seconds of a window in which the job had work out: none before its first grant."""
    return min(window.seconds, max(0.0, now - job.started)) if job.started else 0.0


def _push_rate(job: JobStatus, now: float) -> float | None:
    """Shards a second that get committed, where that is what holds the job up: finished ones pile up."""
    seconds = span(job, job.recent, now)
    if seconds < PUSH_LAG_SECONDS:
        return None
    rate = job.recent.committed / seconds
    return rate if job.totals.finished > rate * PUSH_LAG_SECONDS else None


def out_bytes_of(totals: Tally) -> float:
    """Bytes of the whole result, from the declaration or else from what is committed."""
    if totals.bytes_out or not totals.committed:
        return totals.bytes_out
    return totals.bytes_committed / totals.committed * totals.shards


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
    shard = out_bytes_of(job.totals) / job.totals.shards if job.totals.shards else 0.0
    tallies = [layer.tally for layer in job.layers if layer.state not in {"merged", "changed"}]
    return [float(tally.bytes_out) or shard * tally.shards for tally in tallies]


@dataclass(frozen=True)
class Speed:
    """What one machine, or all of them, do."""

    shards: float = 0.0  # a second
    bytes_in: float = 0.0  # a second
    rows: float = 0.0  # a second


def speed(job: JobStatus, now: float) -> Speed:
    """Of all machines, over the last minute; zeros where nothing was measured."""
    seconds = span(job, job.recent, now)
    if seconds <= 0:
        return Speed()
    return Speed(job.recent.finished / seconds, job.recent.bytes_in / seconds, job.recent.rows / seconds)


class Trace:
    """Each machine's speed on a job over the last seconds, from statuses as they come."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[str, AgentRate]]] = deque()

    def add(self, job: JobStatus, now: float) -> None:
        self._seen.append((now, {agent.name: agent for agent in job.agents}))
        while now - self._seen[0][0] > TRACE_SECONDS and len(self._seen) > 2:
            self._seen.popleft()

    def speed(self, name: str) -> Speed:
        """Zeros for a machine that was not there at both ends."""
        (since, then), (until, now) = self._seen[0], self._seen[-1]
        if until <= since or name not in then or name not in now:
            return Speed()
        seconds, old, new = until - since, then[name], now[name]
        return Speed(
            max(0, new.shards - old.shards) / seconds,
            max(0, new.bytes_in - old.bytes_in) / seconds,
            max(0, new.rows - old.rows) / seconds,
        )
