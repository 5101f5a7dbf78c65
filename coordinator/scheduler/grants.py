"""Who gets what next, and how much. Grants fresh shards first, then those that ran before, then copies in the tail."""

from __future__ import annotations

from coordinator.scheduler import layers
from coordinator.scheduler.commands import SendGrant
from coordinator.scheduler.state import Agent, Holding, Job, Layer, State
from jobs.ranges import RangeSet

GRANT_LIMIT = 65_536  # shards in one grant
SHARE_OF_LEFT = 0.25  # of the time left: holdings shrink towards the end, so that all end together
WORTH_A_GRANT = 0.25  # of what is wanted: smaller top-ups wait and come together


def feed_all(state: State, now: float) -> None:
    """Look again at every agent that went hungry."""
    for agent in list(state.by_session.values()):
        if agent.hungry:
            feed(state, agent, now)


def feed(state: State, agent: Agent, now: float) -> None:
    """Grant `agent` what it should hold more, from the job that is owed most."""
    if agent.state != "live":
        return
    jobs = sorted((job for job in state.jobs.values() if job.state == "running"), key=lambda job: job.used)
    reason = "no job has anything to do"
    for job in jobs:
        obstacle = state.obstacle(agent, job)
        if obstacle:
            reason = f"{job.id}: {obstacle}"
            continue
        wanted = _wanted(state, agent, job, jobs)
        granted = _grant_from(state, agent, job, wanted, now) if wanted > 0 else 0
        if wanted <= 0 and not job.succeeded:
            reason = f"{job.id}: its first shard here has not succeeded yet"
            continue
        if wanted <= 0 or granted == wanted:
            agent.idle_because = ""
            return
        if granted:
            reason = ""
        elif reason:
            reason = _why_nothing(state, agent, job)
    agent.idle_because = reason
    if agent.open_of() == 0:
        _copy_tail(state, agent, jobs, now)


def _why_nothing(state: State, agent: Agent, job: Job) -> str:
    for layer in job.opened:
        if layer.pending and agent.cost(layer) > agent.room:
            return f"{job.id}: a shard needs {agent.cost(layer)} bytes of disk, {max(agent.room, 0)} are left"
    return job.why or f"{job.id}: every shard is granted"


def _wanted(state: State, agent: Agent, job: Job, jobs: list[Job]) -> int:
    """How many more shards of `job` the agent should hold; 0 when it has enough, of whatever job."""
    if not job.succeeded:
        return 1 - agent.open_of(job.id)  # the canary
    slots = agent.slots(job)
    held = agent.open_of(job.id)
    backlog = agent.open_of()
    floor = slots + 1
    rate = agent.rates[job.id].per_second if job.id in agent.rates else 0.0
    target = max(floor, min(GRANT_LIMIT, int(rate * _horizon(state, job))))
    if backlog >= floor and _backlog_seconds(agent, jobs) >= _horizon(state, job):
        return 0
    missing = target - held
    if held >= floor and missing < target * WORTH_A_GRANT:
        return 0
    return missing


def _horizon(state: State, job: Job) -> float:
    """Seconds of work an agent may hold: less and less of it when the end is near."""
    return min(state.timing.horizon, SHARE_OF_LEFT * job.left / job.speed) if job.speed > 0 else 0.0


def refresh_speeds(state: State) -> None:
    """Add the rates of the agents that are present up afresh."""
    for job in state.jobs.values():
        rates = (agent.rates.get(job.id) for agent in state.by_session.values())
        job.speed = sum(rate.per_second for rate in rates if rate)


def _backlog_seconds(agent: Agent, jobs: list[Job]) -> float:
    """How long what it holds will take it; what cannot be told yet counts as nothing."""
    seconds = 0.0
    for job in jobs:
        rate = agent.rates[job.id].per_second if job.id in agent.rates else 0.0
        seconds += agent.open_of(job.id) / rate if rate else 0.0
    return seconds


def _grant_from(state: State, agent: Agent, job: Job, wanted: int, now: float) -> int:
    granted = 0
    for layer in list(job.opened):
        if granted < wanted and layer.state == "open":
            granted += _grant_layer(state, agent, job, layer, wanted - granted, now)
    if granted < wanted:
        for layer in list(job.opened):
            if granted < wanted and layer.state == "open":
                granted += _grant_again(state, agent, job, layer, wanted - granted, now)
    return granted


def _grant_layer(state: State, agent: Agent, job: Job, layer: Layer, wanted: int, now: float) -> int:
    low = next(iter(layer.fresh.pairs()), (0, 0))[0]
    count = min(wanted, _room_for(agent, layer), layer.high_water - low)
    layers.raise_mark(state, layer, max(layers.MARK_AHEAD, 4 * wanted))
    if count <= 0 or not layer.fresh:
        return 0
    numbers = layer.fresh.take(count)
    state.layers_wanted = state.layers_wanted or (layer.pending < layers.SHARDS_AHEAD and bool(job.queue))
    _grant(state, agent, layer, numbers, now)
    return len(numbers)


def _grant_again(state: State, agent: Agent, job: Job, layer: Layer, wanted: int, now: float) -> int:
    """Shards that ran before, each on another machine than it failed on where there is one."""
    wanted = min(wanted, _room_for(agent, layer))
    if not layer.again or wanted <= 0:
        return 0
    if layer.troubles:
        suited = (n for n in layer.again if not _better_elsewhere(state, agent, job, layer, n))
        numbers = RangeSet.of(n for n, _ in zip(suited, range(wanted), strict=False))
        layer.again.remove(numbers)
    else:
        numbers = layer.again.take(wanted)
    if numbers:
        _grant(state, agent, layer, numbers, now)
    return len(numbers)


def _better_elsewhere(state: State, agent: Agent, job: Job, layer: Layer, number: int) -> bool:
    trouble = layer.troubles.get(number)
    if trouble is None or agent.name not in trouble.failed_on | trouble.lost_on:
        return False
    untried = (other for other in state.by_session.values() if other.name not in trouble.failed_on | trouble.lost_on)
    return any(state.eligible(other, job) for other in untried)


def _room_for(agent: Agent, layer: Layer) -> int:
    cost = agent.cost(layer)
    return max(0, agent.room // cost) if cost else GRANT_LIMIT


def _grant(state: State, agent: Agent, layer: Layer, numbers: RangeSet, now: float) -> None:
    state.last_attempt += 1
    holding = Holding(agent.name, layer.job, layer.digest, state.boot, state.last_attempt, now, numbers.copy())
    state.add_holding(holding)
    rate = agent.rates.get(layer.job)
    if rate and not rate.count and agent.open_of(layer.job) == len(numbers):
        rate.since = now  # it was idle until now: that time says nothing of its speed
    agent.room -= agent.cost(layer) * len(numbers)
    state.emit(SendGrant(agent.session, layer.job, layer.digest, state.last_attempt, numbers))


def _copy_tail(state: State, agent: Agent, jobs: list[Job], now: float) -> None:
    """Give an idle machine a copy of what another has, where it would be done with it sooner."""
    for job in jobs:
        rate = agent.rates.get(job.id)
        if state.obstacle(agent, job) or rate is None or not rate.per_second:
            continue
        mine = agent.slots(job) / rate.per_second
        for layer in job.opened:
            victim = _slowest(state, agent, job, layer, mine, now)
            if victim is not None:
                spare = victim.open - layer.copied
                top = list(spare)[-min(agent.slots(job), _room_for(agent, layer)) :]
                _copy(state, agent, layer, RangeSet.of(top), now)
                return


def _copy(state: State, agent: Agent, layer: Layer, numbers: RangeSet, now: float) -> None:
    if numbers:
        layer.copied.update(numbers)
        _grant(state, agent, layer, numbers, now)


def _slowest(state: State, agent: Agent, job: Job, layer: Layer, mine: float, now: float) -> Holding | None:
    """The holding that will be done last, if that is later than `mine` seconds from now."""
    others = [h for h in layer.holdings.values() if h.agent != agent.name and h.open - layer.copied]
    worst = max(others, key=lambda h: _seconds_left(state, h, now), default=None)
    return worst if worst and _seconds_left(state, worst, now) > mine else None


def _seconds_left(state: State, holding: Holding, now: float) -> float:
    """How long its agent will need for all it has of this job; one that is overdue may need as long again."""
    agent = state.agents[holding.agent]
    rate = agent.rates.get(holding.job)
    since = now - max(holding.granted, rate.since if rate else 0.0)
    if rate is None or not rate.per_second:
        return since
    expected = agent.open_of(holding.job) / rate.per_second
    return abs(expected - since)
