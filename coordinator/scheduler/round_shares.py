"""Each machine's share of a round, by how fast it computes and what a round costs it beside that, and who is left out.
Measures and grants nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heapreplace
from math import ceil
from typing import NamedTuple

from muster.coordinator.scheduler.entities import Agent, Job, RoundCost
from muster.coordinator.scheduler.state import State
from muster.jobs.common.units import format_duration

# For so many times what a round costs a machine it is left out: few at first, as until then it may have fetched data
# and started workers; at most so many that trying it again takes a fiftieth of the time.
PATIENCE_FIRST, PATIENCE_MOST = 2.0, 50.0
PATIENCE_FORGOTTEN = 0.1  # in a round that it has a part in


class Runner(NamedTuple):
    """What a machine is, to a round."""

    cost: float  # seconds beside computing, whatever its share
    pace: float  # seconds of a shard in one slot
    slots: int

    def done(self, shards: int) -> float:
        """Seconds until it has handed in so many."""
        return self.cost + self.pace * ceil(shards / self.slots)


def level(shards: int, runners: Iterable[Runner]) -> float:
    """Seconds of a round, could shards be cut at will: those whose own cost is less have a part in it."""
    speed = spent = 0.0
    for one in sorted(runners):
        if speed and (shards + spent) / speed <= one.cost:
            break
        speed += one.slots / one.pace
        spent += one.cost * one.slots / one.pace
    return (shards + spent) / speed


def portions(shards: int, runners: Mapping[str, Runner]) -> dict[str, int]:
    """Name → how many of the shards, so that the last machine is done as soon as can be."""
    end = level(shards, runners.values())
    shares = {name: int(max(0.0, (end - one.cost) * one.slots / one.pace)) for name, one in runners.items()}
    queue = [(one.done(shares[name] + 1), name) for name, one in sorted(runners.items())]
    heapify(queue)
    for _ in range(shards - sum(shares.values())):
        name = queue[0][1]
        shares[name] += 1
        heapreplace(queue, (runners[name].done(shares[name] + 1), name))
    return shares


def share(state: State, agent: Agent, job: Job, held: int) -> int:
    """All of a round at once, to each machine as much as it is fast: how many more this one should have. -1: there is
    nothing it could be given."""
    if not (job.left and takes_part(state, agent, job)):
        return 0 if held else -1
    workers = [other for other in state.by_session.values() if takes_part(state, other, job)]
    wanted = portions(job.left, _runners(workers, job))[agent.name] - held
    return wanted if wanted > 0 else (0 if held else -1)


def takes_part(state: State, agent: Agent, job: Job) -> bool:
    """Whether it has some of the round, or would be given some. One that was late is not counted upon before it is
    heard of."""
    layer = job.layers[0]
    if agent.away or agent.late > agent.heard or agent.is_left_out(job.id):
        return False
    return agent.hungry and (agent.room >= agent.cost(layer) or bool(agent.holdings)) and state.eligible(agent, job)


def _runners(workers: Iterable[Agent], job: Job) -> dict[str, Runner]:
    """Who was not measured is taken to be as fast as the others, and to have as good a link as the best."""
    paces = {agent.name: agent.paces.get(job.id) or 0.0 for agent in workers}
    measured = [pace for pace in paces.values() if pace]
    usual = sum(measured) / len(measured) if measured else 1.0
    costs: dict[str, float] = {}
    for agent in workers:
        known = agent.round_costs.get(job.id, RoundCost()).seconds(paces[agent.name] or usual)
        if known is not None:
            costs[agent.name] = known
    least = min(costs.values(), default=0.0)
    return {
        agent.name: Runner(costs.get(agent.name, least), paces[agent.name] or usual, slots)
        for agent in workers
        if (slots := agent.slots(job))
    }


# --- who is left out --------------------------------------------------------------------------------------


def leave_out(state: State, job: Job, shards: int, now: float) -> None:
    """Before a round: whose link alone would take longer than the others take for all of it has no part in it. Such a
    machine is tried again sooner or later: its link may have got better, or may have been busy."""
    able = [
        one for one in state.by_session.values() if not (one.away or state.is_silent(one)) and state.eligible(one, job)
    ]
    runners = _runners(able, job)
    if not runners:
        return
    end = level(shards, runners.values())
    for agent in able:
        cost = agent.round_costs.get(job.id)
        if cost is None:
            continue
        if runners[agent.name].cost < end:
            cost.left_out_until = None
            cost.patience *= 1.0 - PATIENCE_FORGOTTEN
        elif cost.left_out_until is None:
            cost.patience = min(PATIENCE_MOST, max(PATIENCE_FIRST, 2 * cost.patience))
            cost.left_out_until = now + cost.patience * runners[agent.name].cost
            cost.instead = end
        elif cost.left_out_until <= now:
            cost.left_out_until = None
            cost.samples = cost.samples[:1]


def leaves_it_to_others(state: State, agent: Agent, job: Job) -> bool:
    """Whether it is left out, and there is another that is not."""
    others = (one for one in state.by_session.values() if not (one.away or one.is_left_out(job.id)))
    return agent.is_left_out(job.id) and any(state.able(one, job) and not state.is_silent(one) for one in others)


def left_out_line(agent: Agent, job: Job) -> str:
    """For people, behind the machine's name or the job's."""
    cost = agent.round_costs[job.id]
    took = format_duration(cost.seconds(agent.paces.get(job.id) or 0.0) or 0.0)
    others = format_duration(cost.instead)
    return f"left out of the rounds: one takes it {took} beside computing, and the others {others} in all"
