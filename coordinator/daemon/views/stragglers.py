"""Which shards run far longer than their job's others. Only says so, from what reports carried: nothing is killed.

An agent runs the shards of a grant in order, and a report names what it finished: so a shard below a finished one of
its grant has been started by then, and where nothing at all gets finished, the lowest is at work. A look per agent.
"""

from __future__ import annotations

from muster.coordinator.api.status import SlowShard
from muster.coordinator.scheduler.entities import Agent, Holding, Job
from muster.coordinator.scheduler.state import State

FACTOR = 10  # times the median of the job's finished shards
BEATS = 2.0  # heartbeats that it takes at least: reports are as old, and short shards come in batches


def slow_shards(state: State, job: Job, median: float, now: float) -> list[SlowShard]:
    """The longest at work of each machine, where that is too long. `median`: seconds; 0 while unknown."""
    if job.state != "running" or median <= 0:
        return []
    limit = max(FACTOR * median, BEATS * state.timing.heartbeat)
    found = []
    for agent in state.present_agents():
        oldest = _oldest(agent, job, now)
        silent = now - agent.heard > state.timing.lease / 2  # then its link is what ails it
        if oldest and oldest[0] > limit and not silent:
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
