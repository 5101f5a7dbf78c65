"""All that the scheduler knows, as one value with its invariants and a check. Reacts to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from muster.coordinator.scheduler.actions import Action
from muster.coordinator.scheduler.entities import Agent, Holding, Job, Layer, Obstacle, Problem, Said
from muster.coordinator.scheduler.timing import Timing
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.requirements import apart, pip_line
from muster.jobs.contract.states import SETTLED

ENDED_KEPT = 256  # grants of an agent that are over, whose reports may still come


class State:
    """All of it, the commands being gathered, and the few questions every reaction asks."""

    def __init__(
        self,
        boot: int,
        timing: Timing,
        expected: frozenset[str] = frozenset(),
        answers: dict[Problem, Said] | None = None,
    ) -> None:
        self.boot = boot
        self.timing = timing
        self.jobs: dict[str, Job] = {}
        self.running: dict[str, Job] = {}  # those of them that are running
        self.used_by: dict[str, float] = {}  # of each person's jobs: slot-seconds; who has least is served first
        self.waiting: dict[str, Job] = {}  # those of them that start after others, and have not begun
        self.damaged: dict[str, frozenset[str]] = {}  # jobs that are not among them → digests of their layers
        self.agents: dict[str, Agent] = {}
        self.by_session: dict[int, Agent] = {}
        self.by_digest: dict[str, list[Layer]] = {}  # every job's; two jobs may have the same layer
        self.open_layers: dict[str, Layer] = {}  # digest → the one open or merging layer with it
        self.fenced: dict[str, None] = {}  # processes that another one replaced, oldest first
        self.expected = set(expected)  # agents that were live before a restart and have not said hello
        self.answers = answers or {}  # what machines said of each problem, those asked longest ago first
        self.limbo_until: float | None = None
        self.last_attempt = 0
        self.last_tick: float | None = None
        self.free: int | None = None  # bytes on the root's disk
        self.layers_wanted = False  # whether more layers should be opened
        self.jobs_turned = False  # whether those that wait for others should be looked at again
        self.work_added = False  # whether the agents in `short` should be looked at again
        self.short: dict[str, Agent] = {}  # hungry ones that got less than they should have, the longest waiting first
        self.commands: list[Action] = []

    def turn(self, job: Job, owed_by_person: float = 0.0, owed_by_job: float = 0.0) -> tuple[float, float]:
        """Of two jobs the one with less comes first: people share alike, and the jobs of each by their priorities."""
        return self.used_by.get(job.plan.owner, 0.0) - owed_by_person, job.used - owed_by_job

    def start_even(self, job: Job) -> None:
        """No credit for the time in which it did not run, neither to the job nor to whose it is."""
        mine = [other.used for other in self.running.values() if other.plan.owner == job.plan.owner]
        job.used = max(job.used, min(mine, default=0.0))
        everybodys = [self.used_by.get(other.plan.owner, 0.0) for other in self.running.values()]
        self.used_by[job.plan.owner] = max(self.used_by.get(job.plan.owner, 0.0), min(everybodys, default=0.0))

    def emit(self, command: Action) -> None:
        self.commands.append(command)

    def is_kept(self, digest: str) -> bool:
        """Whether what agents finished of a layer that is not open is to be kept: a job waits for it, and the layer for
        its turn, or the job is damaged and may be mended. Rounds end with their driver."""
        waiting = (one for one in self.by_digest.get(digest, ()) if one.state == "waiting" and one.stored)
        damaged = any(digest in layers for layers in self.damaged.values())
        return damaged or any(not self.jobs[layer.job].ended for layer in waiting)

    def present_agents(self) -> Iterator[Agent]:
        return (agent for agent in self.agents.values() if agent.present)

    def is_silent(self, agent: Agent) -> bool:
        """Whether it was not heard of for so long that others may compute what it has finished. The last tick says so,
        which knows of times in which the daemon itself stood still."""
        return self.last_tick is not None and self.last_tick - agent.heard > self.timing.silence

    def eligible(self, agent: Agent, job: Job) -> bool:
        return agent.takes_work and self.obstacle(agent, job) is None

    def able(self, agent: Agent, job: Job) -> bool:
        """Whether it can be expected to take a shard of this job sooner or later: it is at work, or free to be."""
        if not self.eligible(agent, job) or agent.is_left_out(job.id):
            return False
        return bool(agent.holdings) or (agent.hungry and any(agent.cost(one) <= agent.room for one in job.opened))

    def obstacle(self, agent: Agent, job: Job) -> Obstacle | None:
        """Why this agent may run nothing of this job, if it may not."""
        if agent.distrusted:
            return agent.distrusted
        if job.id in agent.ineligible:
            return agent.ineligible[job.id]
        has, work = agent.hello, job.work
        if job.plan.machine not in {"", agent.name}:
            return Obstacle("machine", f"is not {job.plan.machine}, which alone is to run it")
        if has.kinds and work.kind not in has.kinds:
            kinds = ", ".join(sorted(has.kinds))
            return Obstacle("not-taken", f"takes the kinds {kinds} alone: leave, and join it with other `--kinds`")
        if has.no_code and work.runs_code:
            return Obstacle("not-taken", "runs no code of others: leave, and join it without `--no-code`")
        if work.variables and not has.sets_variables:
            return Obstacle("environment", "is of a version that leaves out `variables`: upgrade muster there")
        if has.no_rounds and job.has_rounds:
            return Obstacle(
                "rounds", "is a Ray cluster, where calls would take a tenth of each round: join its machines"
            )
        if work.kind in has.unfit:
            return Obstacle("unfit", f"computes {work.kind} jobs wrong: {has.unfit[work.kind]}")
        if work.kind not in has.kernels:
            return Obstacle("kind", f"has no kind {work.kind}")
        if has.kernels[work.kind] != work.kernel:
            return Obstacle(
                "kernels", f"has version {has.kernels[work.kind]} of kind {work.kind}, the job wants {work.kernel}"
            )
        if job.fingerprint and not job.suits(kernels := agent.kernels_for(job)):
            return Obstacle(
                "kernels", f"has other kernels than the job's first machine: {apart(kernels, job.fingerprint)}"
            )
        if work.kind in agent.differs and not job.plan.machine:  # such a job is to find out which machine is wrong
            return agent.differs[work.kind]
        for package in work.needs:
            if package not in has.packages:
                return Obstacle("package", f"has no {package}: `{pip_line(package)}` there, then join again")
        return agent.env_obstacle(job) or agent.too_small_for(job)

    def add_holding(self, holding: Holding) -> None:
        self.agents[holding.agent].holdings[holding.key] = holding
        layer = self.open_layers[holding.layer]
        layer.holdings[holding.agent, holding.boot, holding.attempt] = holding

    def prune(self, holding: Holding) -> None:
        """Forget a holding that has nothing left."""
        if holding.open or holding.finished:
            return
        agent = self.agents[holding.agent]
        agent.holdings.pop(holding.key, None)
        agent.ended[holding.key] = holding.granted
        if len(agent.ended) > ENDED_KEPT:
            del agent.ended[next(iter(agent.ended))]
        layer = self.open_layers.get(holding.layer)
        if layer:
            layer.holdings.pop((holding.agent, holding.boot, holding.attempt), None)

    def holders(self, layer: Layer, numbers: RangeSet, agent: str | None) -> list[Holding]:
        """Who holds any of `numbers`. `agent`'s own holdings first; the rest only where copies may be."""
        own = [h for h in self.agents[agent].holdings.values() if h.layer == layer.digest] if agent else []
        rest = numbers.copy()
        for holding in own:
            rest.remove(holding.open)
            rest.remove(holding.finished)
        wanted = rest | numbers & layer.copied
        if not wanted:
            return own
        others = [h for h in layer.holdings.values() if h.agent != agent and h.has_any(wanted)]
        return own + others

    def release(self, layer: Layer, numbers: RangeSet) -> None:
        """Whatever of `numbers` nobody holds any more waits behind all fresh ones."""
        free = numbers - self._still_held(layer, numbers & layer.copied)
        if free:
            layer.again.update(free)
            self.supplied(layer)

    @contextmanager
    def counting(self, layer: Layer) -> Iterator[None]:
        """Keep the job's sums right while the layer's shards are settled, or are no more."""
        job, left, quarantined = self.jobs[layer.job], layer.left, len(layer.quarantined)
        yield
        job.left += layer.left - left
        job.quarantined += len(layer.quarantined) - quarantined

    def supplied(self, layer: Layer) -> None:
        """There is something to grant."""
        self.jobs[layer.job].supply[layer.digest] = layer
        self.work_added = True

    def _still_held(self, layer: Layer, copied: RangeSet) -> RangeSet:
        """Those of `copied` that somebody has. Those that only one has are copies no longer."""
        once, twice = RangeSet(), RangeSet()
        for holding in [h for h in layer.holdings.values() if h.has_any(copied)] if copied else ():
            for part in (holding.open & copied, holding.finished & copied):
                twice.update(part & once)
                once.update(part)
        layer.copied.remove(copied - twice)
        return once

    def check(self) -> None:
        """Assert every invariant; for tests."""
        for job in self.jobs.values():
            self._check_job(job)
        for agent in self.agents.values():
            self._check_agent(agent)
        assert self.running.keys() | self.waiting.keys() <= self.jobs.keys(), "a job runs or waits, and is not"
        assert not self.damaged.keys() & self.jobs.keys(), "a job is damaged, and is not"
        opened = sum(len(job.opened) for job in self.jobs.values())
        assert opened == len(self.open_layers), "a layer is open twice, or open and of no job"

    def _check_job(self, job: Job) -> None:
        assert (job.id in self.running) == (job.state == "running"), f"{job.id} is {job.state}"
        assert (job.id in self.waiting) == (job.state == "waiting"), f"{job.id} is {job.state}"
        for layer in job.opened:
            assert layer.active and self.open_layers[layer.digest] is layer, job.id
            assert layer.digest in job.supply or not layer.pending, f"{job.id} has more to supply"
        for layer in job.queue:
            assert layer.state == "waiting", job.id
        unsettled = left = quarantined = 0
        for layer in job.layers:
            quarantined += len(layer.quarantined)
            if layer.state in SETTLED:
                assert not layer.holdings, layer.name
            else:
                self._check_unsettled(layer)
                unsettled, left = unsettled + 1, left + layer.left
        assert len(job.opened) + len(job.queue) == unsettled, job.id
        assert job.state != "waiting" or not job.opened, f"{job.id} waits, and has begun"
        assert job.left == left, f"{job.id} miscounts what is left"
        assert job.quarantined == quarantined, f"{job.id} miscounts"

    def _check_agent(self, agent: Agent) -> None:
        assert agent.present == (self.by_session.get(agent.session) is agent), agent
        assert agent.present or not agent.holdings, f"{agent.name} is {agent.state} and holds shards"
        assert agent.state == "live" or not agent.hungry, f"{agent.name} is {agent.state} and hungry"
        assert agent.hungry or agent.name not in self.short, f"{agent.name} is short and not hungry"
        for key, holding in agent.holdings.items():
            assert key == holding.key and holding.agent == agent.name
            layer = self.open_layers[holding.layer]
            assert layer.holdings[agent.name, holding.boot, holding.attempt] is holding
            assert holding.open or holding.finished, "an empty holding"

    def _check_unsettled(self, layer: Layer) -> None:
        assert not layer.holdings or layer.active, layer.name
        assert layer.high_water <= layer.raising <= layer.count
        assert not layer.limbo or self.limbo_until is not None, "nobody will release the limbo"
        assert layer.plan.only is None or not layer.skipped - layer.committed, "what is skipped may run"
        for holding in layer.holdings.values():
            assert self.agents[holding.agent].holdings[holding.key] is holding
        places = [layer.fresh, layer.again, layer.limbo, layer.committed, layer.quarantined]
        held = [numbers for one in layer.holdings.values() for numbers in (one.open, one.finished)]
        if not RangeSet.alike([*places, *held], [layer.whole]):
            self._check_copies(layer, [*places, layer.held()])

    def _check_copies(self, layer: Layer, places: list[RangeSet]) -> None:
        """Not each number is in one place. That can only be as one is with two agents, one of which has a copy."""
        seen = RangeSet()
        for part in places:
            assert not seen & part, f"{layer.name}: {seen & part} is in two places"
            seen.update(part)
        assert seen == layer.whole, f"{layer.name}: {layer.whole - seen} is nowhere"
        once = RangeSet()
        for holding in layer.holdings.values():
            assert not holding.open & holding.finished
            assert not holding.everything() & once - layer.copied, "held twice and not known to be"
            once.update(holding.everything())
