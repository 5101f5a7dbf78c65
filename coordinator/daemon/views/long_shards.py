"""Shards that are at work for too long, beside others of their job or for what a shard is meant to take. Only reads."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import NamedTuple

from muster.coordinator.api.status import SlowShard
from muster.coordinator.daemon.engine import Engine
from muster.coordinator.scheduler.entities import Agent, Holding, Job
from muster.coordinator.scheduler.state import State
from muster.jobs.common.units import format_duration
from muster.jobs.contract.plan import ItemsSource, Layer, Plan
from muster.jobs.contract.shard_size import SHARD_SECONDS, fitting

log = logging.getLogger("muster.daemon")

FACTOR = 10  # times the median of the job's finished shards
BEATS = 2.0  # heartbeats that it takes at least: reports are as old, and short shards come in batches
MISJUDGED_SECONDS = 6 * SHARD_SECONDS  # at work for so long, a shard is not what the cut was meant to give
SLOW_LINK = 1 << 20  # bytes a second at which a machine may have to pull its input before it is at work
LOOK_SECONDS = 10.0


def slow_shards(state: State, job: Job, median: float, now: float) -> list[SlowShard]:
    """The longest at work of each machine, where that is too long. Of a silent one it is the link that ails it.
    `median`: seconds; 0 while unknown."""
    if job.state != "running" or median <= 0:
        return []
    limit = max(FACTOR * median, BEATS * state.timing.heartbeat)
    found = []
    for agent in state.present_agents():
        oldest = _oldest(agent, job, now)
        if oldest and oldest[0] > limit and not state.is_silent(agent):
            seconds, holding = oldest
            layer = state.open_layers[holding.layer].name
            found.append(SlowShard(layer, holding.open.bottom, agent.name, seconds, median))
    return sorted(found, key=lambda one: -one.seconds)


def _oldest(agent: Agent, job: Job, now: float) -> tuple[float, Holding] | None:
    """Seconds that a shard has certainly been at work, the most of this agent's, and the holding whose lowest it is."""
    unfinished = [holding for holding in agent.holdings.values() if holding.open]
    known = [(h.overtaken[1], h) for h in unfinished if h.job == job.id and h.overtaken[0] == h.open.bottom]
    if unfinished and all(holding.job == job.id for holding in unfinished):
        first = min(unfinished, key=lambda holding: (holding.boot, holding.attempt))
        known.append((max(first.granted, agent.progressed), first))
    if not known:
        return None
    since, holding = min(known, key=lambda one: one[0])
    return now - since, holding


def misjudged(state: State, job: Job, plan: Plan, per_row: float, now: float) -> str:
    """A line for people on the shard that is longest at work, where the plan chose the cut and that proves far too
    long, with what would fit; "" where there is none. `per_row`: seconds of a row as finished shards took, or 0."""
    if job.state != "running" or not plan.cut or job.has_rounds:
        return ""
    working = [one for agent in state.present_agents() if (one := _at_work(state, agent, job, now))]
    long = [one for one in working if one.seconds - one.pull > MISJUDGED_SECONDS and one.rows > 1]
    return _line(max(long, key=lambda one: one.seconds), per_row) if long else ""


class _AtWork(NamedTuple):
    """The shard that is longest at work on a machine."""

    seconds: float
    pull: float  # that its input may have taken of them
    rows: int
    number: int
    layer: Layer
    agent: str


def _at_work(state: State, agent: Agent, job: Job, now: float) -> _AtWork | None:
    oldest = None if agent.paused or state.is_silent(agent) else _oldest(agent, job, now)
    if oldest is None:
        return None
    seconds, holding = oldest
    layer, number = state.open_layers[holding.layer].plan, holding.open.bottom
    pull = 0.0 if agent.hello.in_place else layer.in_bytes / SLOW_LINK
    return _AtWork(seconds, pull, layer.rows_of(number), number, layer, agent.name)


def _line(one: _AtWork, per_row: float) -> str:
    unit = "files" if isinstance(one.layer.source, ItemsSource) and not one.layer.source.columns else "rows"
    rows = fitting(one.rows, one.seconds - one.pull, per_row)
    fits = f"`shard: {{{unit}: {rows}}}`{' or less' if rows > 1 else ''} would fit"
    took = format_duration(round(one.seconds))
    return (
        f"{one.layer.name}/{one.number} has been at work on {one.agent} for {took}; a shard is meant to take about"
        f" {SHARD_SECONDS:g} s: {fits}"
    )


async def log_forever(engine: Engine) -> None:
    """Say it once of each job."""
    said: set[str] = set()
    while True:
        said &= engine.jobs.keys()
        for job in [job for job in engine.state.running.values() if job.id not in said]:
            live = engine.jobs[job.id]
            if line := misjudged(engine.state, job, live.plan, live.figures.per_row(), time.monotonic()):
                said.add(job.id)
                log.warning("%s: %s", job.id, line)
        await asyncio.sleep(LOOK_SECONDS)
