"""Layers of rounds, whose shards live in memory alone: what they do otherwise than `Layer`, and what is measured of
each machine in them. Shares are cut in round_shares; grants nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar

from muster.coordinator.scheduler import round_shares
from muster.coordinator.scheduler.actions import SendCommitted
from muster.coordinator.scheduler.commits import drop
from muster.coordinator.scheduler.entities import Agent, Holding, Job, Layer, RoundCost
from muster.coordinator.scheduler.events import Advanced
from muster.coordinator.scheduler.state import State
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import Delivery

PACE_WEIGHT = 0.3  # of the newest report
PACE_LEAST_SECONDS = 1e-6
PACE_FORGOTTEN = 0.02  # of what sets a machine apart from the others, in a round
LATE_FACTOR = 8


@dataclass(eq=False)
class RoundLayer(Layer):
    """A layer that begins anew with each life of the daemon: what had the numbers below `first` counts as committed,
    and so does what is retired."""

    stored: ClassVar[bool] = False

    aside: RangeSet = field(default_factory=RangeSet)  # those beside its rounds not committed, and perhaps others

    def __post_init__(self) -> None:
        self.count = self.high_water = self.first
        self.committed, self.quarantined = RangeSet([(0, self.first)]), RangeSet()

    @property
    def reserved(self) -> int:
        return self.out_bytes * self.left

    def extend(self, top: int, aside: bool) -> None:
        if aside:
            self.aside = self.aside - self.committed | RangeSet([(self.count, top)])
        super().extend(top, aside)
        self.high_water = self.raising = top  # no other life grants them, and none is asked for them

    def reset_pending(self) -> None:
        """Rounds end with their driver, and that with its job: nothing is left to do."""
        self.settle(self.whole - self.committed)

    def took(self, agent: Agent, numbers: RangeSet, seconds: float) -> None:
        """Rates of rounds tell nothing: all wait for the slowest, and then for the driver."""
        if not numbers & self.aside:
            _pace(agent, self.job, seconds / max(1, len(numbers)))

    def came(self, agent: Agent, job: Job, granted: float, numbers: RangeSet, now: float) -> None:
        """What waited behind other shards of the job began when the last of those came."""
        cost = agent.round_costs.setdefault(job.id, RoundCost())
        if self._is_alike(numbers):
            cost.took(now - max(granted, cost.handed_in), _batches(agent, job, numbers))
        cost.handed_in = now

    def outrun(self, agent: Agent, job: Job, holding: Holding, numbers: RangeSet, now: float) -> None:
        """Slow its pace, by what it took for nothing. That is bounded: it may have been the link, and what is far too
        slow gets nothing to be measured by."""
        agent.late = now
        if self._is_alike(numbers):
            agent.round_costs.setdefault(job.id, RoundCost()).took(now - holding.granted, _batches(agent, job, numbers))
        if known := agent.paces.get(job.id):
            seconds = (now - holding.granted) * agent.slots(job) / len(numbers)
            _pace(agent, job.id, min(seconds, LATE_FACTOR * known))

    def _is_alike(self, numbers: RangeSet) -> bool:
        """Whether these take as long to compute as any others of the layer, so that what is beyond that is the link's.
        Those that come one by one may be of trials that have nothing in common."""
        return self.plan.delivery is Delivery.ROUND_WHOLE and not numbers & self.aside


def _batches(agent: Agent, job: Job, numbers: RangeSet) -> int:
    """How often all its slots compute, for so many."""
    return ceil(len(numbers) / max(1, agent.slots(job)))


def _pace(agent: Agent, job: str, seconds: float) -> None:
    """What a shard takes there."""
    before = agent.paces.get(job)
    if before is None:  # a worker's first has more to do than any other
        agent.paces[job] = 0.0
        return
    pace = before + PACE_WEIGHT * (seconds - before) if before else seconds
    agent.paces[job] = max(PACE_LEAST_SECONDS, pace)


def turn(state: State, job: Job, event: Advanced, now: float) -> None:
    """The driver goes on to a next round: everyone's share of it may be larger than before it asks again."""
    _retire(state, job.layers[0], event.retire - job.layers[0].committed)
    _even_out(state, job)
    if event.create and not event.aside:
        round_shares.leave_out(state, job, job.left + len(event.create), now)
    state.short.update({agent.name: agent for agent in state.by_session.values() if agent.hungry})


def _retire(state: State, layer: Layer, numbers: RangeSet) -> None:
    """Nobody wants these shards any more: whoever has one forgets it, as if it were committed."""
    for holding in state.holders(layer, numbers, None):
        if finished := holding.finished & numbers:
            state.emit(SendCommitted(state.agents[holding.agent].session, layer.digest, finished))
        drop(state, layer, holding, holding.open & numbers, retired=True)
        holding.discard(numbers)
        state.prune(holding)
    with state.counting(layer):
        layer.settle(numbers)


def _even_out(state: State, job: Job) -> None:
    """Who was slow at one time, and got nothing since, is tried again sooner or later."""
    paced = [agent for agent in state.by_session.values() if agent.paces.get(job.id)]
    usual = sum(agent.paces[job.id] for agent in paced) / max(1, len(paced))
    for agent in paced:
        agent.paces[job.id] += PACE_FORGOTTEN * (usual - agent.paces[job.id])
