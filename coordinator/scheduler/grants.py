"""Who gets what next, and how much. Grants fresh shards first, then those that ran before, then copies in the tail."""

from __future__ import annotations

from collections import Counter
from math import inf

from muster.coordinator.scheduler import layers, round_shares
from muster.coordinator.scheduler.actions import SendGrant, StoreAgent
from muster.coordinator.scheduler.entities import Agent, Holding, Idle, Job, Layer
from muster.coordinator.scheduler.events import Advanced
from muster.coordinator.scheduler.state import State
from muster.jobs.common.ranges import RangeSet
from muster.jobs.common.units import format_duration, shortage

GRANT_LIMIT = 65_536  # shards in one grant
SHARE_OF_LEFT = 0.25  # of the time left: holdings shrink towards the end, so that all end together
WORTH_A_GRANT = 0.25  # of what is wanted: smaller top-ups wait and come together
NEAR_AHEAD = 2  # shards for each slot of the machine that they are nearest to: one that runs, one that waits
OWED_SECONDS = 30.0  # slot-seconds another job must be owed before an agent changes to it
PUSH_HORIZONS = 3.0  # of finished work on an agent, as its link goes: with that its link is busy, and more only waits
CANARIES = 3  # different shards that fail on an agent, with no success anywhere, before it waits for another's try


def feed_all(state: State, now: float) -> None:
    """Look again at the agents that got less than they should have, as long as there is something to grant."""
    supply = sum(layer.grantable for job in state.running.values() for layer in job.supply.values())
    for agent in list(state.short.values()):
        if supply <= 0:
            return
        supply -= feed(state, agent, now)


def feed(state: State, agent: Agent, now: float) -> int:
    """Grant `agent` what it should hold more, from the job that is owed most. Returns how many shards."""
    state.short.pop(agent.name, None)
    if not agent.hungry:
        return 0
    load = agent.load()
    jobs = _in_turn(state, load)
    total, reason = 0, Idle("no-job", "no job has anything to do")
    for job in jobs:
        wanted = _wanted(state, agent, job, load)
        if wanted == 0:
            agent.idle_because = None
            if job.has_rounds:
                state.short[agent.name] = agent  # its share may be larger before it asks again
            return total
        granted = _grant_from(state, agent, job, wanted, now) if wanted > 0 else 0
        total, load[job.id] = total + granted, load[job.id] + granted
        if granted == wanted and (job.succeeded or job.plan.proven):  # a canary leaves slots for other jobs
            agent.idle_because = None
            return total
        reason = _why_nothing(state, agent, job)
    agent.idle_because = None if total else reason
    state.short[agent.name] = agent
    if not any(load.values()):
        _copy_tail(state, agent, jobs, now)
    return total


def _in_turn(state: State, load: Counter[str]) -> list[Job]:
    """Whose turn it is first. What an agent has work of must be ahead by something until it changes to another."""
    at_work = {job.plan.owner for job in state.running.values() if load[job.id]}

    def turn(job: Job) -> tuple[float, float]:
        stays = OWED_SECONDS if job.plan.owner in at_work else 0.0
        return state.turn(job, stays, OWED_SECONDS if load[job.id] else 0.0)

    return sorted(state.running.values(), key=turn)


def _push_seconds(state: State, agent: Agent, job: Job) -> float:
    """How long its link has to do with what it has finished of the job, as far as that is known."""
    if not agent.link_out:
        return 0.0
    held = (one for one in agent.holdings.values() if one.finished and one.job == job.id)
    return sum(len(one.finished) * state.open_layers[one.layer].out_bytes for one in held) / agent.link_out


def _has_much_to_push(state: State, agent: Agent, job: Job) -> bool:
    """Whether it computes faster than its link takes results away: more of the job would only wait there."""
    return _push_seconds(state, agent, job) > PUSH_HORIZONS * state.timing.horizon


def _why_nothing(state: State, agent: Agent, job: Job) -> Idle:
    obstacle = state.obstacle(agent, job)
    if obstacle:
        return Idle("obstacle", obstacle.text, job.id)
    for layer in job.supply.values():
        if layer.pending and agent.cost(layer) > agent.room:
            return Idle("room", shortage("a shard", agent.cost(layer), agent.room, "of disk"), job.id)
    if not _room_of(job):
        return Idle("at-once", f"{job.plan.at_once} of its shards are out, as many as it may have", job.id)
    if _has_much_to_push(state, agent, job):
        took = format_duration(_push_seconds(state, agent, job))
        return Idle("push", f"its link takes {took} for what it has finished; it gets more after that", job.id)
    if not (job.succeeded or job.plan.proven):
        return Idle("unproven", "none of its shards has succeeded yet", job.id)
    if agent.is_left_out(job.id):
        return Idle("left-out", round_shares.left_out_line(agent, job), job.id)
    if job.has_rounds and not job.why:
        return Idle("round", f"it waits for the next round of {job.id}")
    return Idle("job", job.why) if job.why else Idle("granted", "every shard is granted", job.id)


def _wanted(state: State, agent: Agent, job: Job, load: Counter[str]) -> int:
    """How many more shards of `job` the agent should hold; 0: it has enough, of whatever job; -1: none of this one."""
    if state.obstacle(agent, job) or _has_much_to_push(state, agent, job):
        return -1
    held, floor = load[job.id], agent.slots(job) + 1
    if not (room := _room_of(job)):
        return -1
    if not (job.succeeded or job.plan.proven):
        return -1 if held or _is_benched(state, agent, job) else 1
    if job.has_rounds:
        return round_shares.share(state, agent, job, held)
    horizon, backlog = _horizon(state, job), _backlog_seconds(agent, load)
    if load.total() >= floor and backlog >= horizon:
        return 0
    rate = agent.rate(job.id)
    elsewhere = backlog - (held / rate if rate else 0.0)
    target = max(floor, min(GRANT_LIMIT, int(rate * (horizon - elsewhere))))
    if held >= floor and target - held < target * WORTH_A_GRANT:
        return 0
    return min(target - held, room)


def _room_of(job: Job) -> int:
    """How many more of its shards may be open, with whatever agents: a copy of one is open too."""
    if not job.plan.at_once:
        return GRANT_LIMIT
    return max(0, job.plan.at_once - sum(len(one.open) for layer in job.opened for one in layer.holdings.values()))


def give_near(state: State, event: Advanced, now: float) -> None:
    """What the machine named by the driver has to read already goes there before all others are asked, as long as it
    would come to it soon. Nobody waits for that machine."""
    job, agent = state.running.get(event.job), state.agents.get(event.near)
    if job is None or agent is None or not (job.has_rounds and round_shares.takes_part(state, agent, job)):
        return
    layer = job.layers[0]
    room = min(NEAR_AHEAD * agent.slots(job) - agent.load()[job.id], _room_for(agent, layer))
    numbers = RangeSet.of(number for number, _ in event.create if number in layer.fresh).take(room)
    layer.fresh.remove(numbers)
    _grant(state, agent, layer, numbers, now)


def help_rounds(state: State, now: float) -> None:
    """Once a tick: whoever has nothing to do takes over what a round waits for, be it with others or with nobody."""
    for job in [job for job in state.running.values() if job.has_rounds and job.left]:
        for agent in [agent for agent in state.by_session.values() if agent.hungry and not agent.holdings]:
            if round_shares.leaves_it_to_others(state, agent, job):
                continue
            if job.layers[0].pending and job.succeeded and not state.obstacle(agent, job):
                _grant_from(state, agent, job, job.layers[0].pending, now)
            if not agent.holdings:
                feed(state, agent, now)


def go_on_without(state: State, session: int, now: float) -> None:
    """It hung up: rounds wait no longer for what it has. If it comes back with that, so much the better."""
    agent = state.by_session.get(session)
    if agent is None:
        return
    agent.away = True
    for job in state.running.values():
        if job.has_rounds:
            job.ranked_at = float("-inf")
    help_rounds(state, now)


def _is_benched(state: State, agent: Agent, job: Job) -> bool:
    """It failed often enough to know that the next shard would fail too; another machine's try will tell why."""
    return len(job.first_failures.get(agent.name, ())) >= CANARIES and any(
        state.able(other, job) for other in state.by_session.values() if other is not agent
    )


def _horizon(state: State, job: Job) -> float:
    """Seconds of work an agent may hold: less and less of it when the end is near."""
    if job.speed <= 0 or not job.measured:
        return 0.0
    speed = job.speed * max(1.0, len(state.by_session) / job.measured)  # the others may be as fast
    return min(state.timing.horizon, SHARE_OF_LEFT * job.left / speed)


def _backlog_seconds(agent: Agent, load: Counter[str]) -> float:
    """How long what it holds will take it; what cannot be told yet counts as nothing."""
    return sum(count / agent.rate(job) for job, count in load.items() if agent.rate(job))


def refresh(state: State) -> None:
    """Once a tick: add up the rates of the agents that are present; who has nothing to grant saves up no credit."""
    for job in state.running.values():
        rates = [rate for agent in state.by_session.values() if (rate := agent.rate(job.id))]
        job.speed, job.measured = sum(rates), len(rates)
    busy = [job for job in state.running.values() if job.queue or any(layer.pending for layer in job.supply.values())]
    least: dict[str, float] = {}  # of each person's jobs
    for job in busy:
        least[job.plan.owner] = min(job.used, least.get(job.plan.owner, inf))
    for job in state.running.values():
        if job not in busy:
            job.used = max(job.used, least.get(job.plan.owner, 0.0))
    behind = min((state.used_by.get(person, 0.0) for person in least), default=0.0)
    for person in state.used_by.keys() - least.keys():
        state.used_by[person] = max(state.used_by[person], behind)


def _grant_from(state: State, agent: Agent, job: Job, wanted: int, now: float) -> int:
    granted = 0
    for grant in (_grant_fresh, _grant_again):
        for layer in list(job.supply.values()):
            if granted >= wanted:
                break
            granted += grant(state, agent, job, layer, wanted - granted, now)
            if not layer.pending and not layer.limbo:
                del job.supply[layer.digest]
    return granted


def _grant_fresh(state: State, agent: Agent, job: Job, layer: Layer, wanted: int, now: float) -> int:
    if not layer.fresh:
        return 0
    layers.raise_mark(state, layer, max(layers.MARK_AHEAD, 4 * wanted))
    numbers = layer.fresh.take(min(wanted, _room_for(agent, layer)), below=layer.high_water)
    state.layers_wanted = state.layers_wanted or (layer.pending < layers.SHARDS_AHEAD and bool(job.queue))
    _grant(state, agent, layer, numbers, now)
    return len(numbers)


def _grant_again(state: State, agent: Agent, job: Job, layer: Layer, wanted: int, now: float) -> int:
    """Shards that ran before, each on another machine than it was tried on where there is one."""
    wanted = min(wanted, _room_for(agent, layer))
    if not layer.again or wanted <= 0:
        return 0
    if not layer.troubles:
        numbers = layer.again.take(wanted)
    else:
        suited = (n for n in layer.again if not _better_elsewhere(state, agent, job, layer, n))
        numbers = RangeSet.of(n for n, _ in zip(suited, range(wanted), strict=False))
        layer.again.remove(numbers)
    _grant(state, agent, layer, numbers, now)
    return len(numbers)


def _better_elsewhere(state: State, agent: Agent, job: Job, layer: Layer, number: int) -> bool:
    trouble = layer.troubles.get(number)
    tried = trouble.machines() if trouble else set()
    if agent.name not in tried:
        return False
    return any(state.able(other, job) for other in state.by_session.values() if other.name not in tried)


def _room_for(agent: Agent, layer: Layer) -> int:
    cost = agent.cost(layer)
    return max(0, agent.room // cost) if cost else GRANT_LIMIT


def _grant(state: State, agent: Agent, layer: Layer, numbers: RangeSet, now: float) -> None:
    if not numbers:
        return
    state.last_attempt += 1
    job = state.jobs[layer.job]
    job.work_goes_to(kernels := agent.kernels_for(job))
    if agent.computes_on(kernels):
        state.emit(StoreAgent(agent.name, True))  # after a restart its parts are to be known for its own
    holding = Holding(agent.name, layer.job, layer.digest, state.boot, state.last_attempt, now, numbers.copy())
    state.add_holding(holding)
    rate = agent.rates.get(layer.job)
    if rate and not rate.count and agent.open_of(layer.job) == len(numbers):
        rate.since = now  # it was idle until now: that time says nothing of its speed
    agent.room -= agent.cost(layer) * len(numbers)
    state.emit(SendGrant(agent.session, layer.job, layer.digest, state.last_attempt, numbers))


# --- the tail -------------------------------------------------------------------------------------------


def _copy_tail(state: State, agent: Agent, jobs: list[Job], now: float) -> None:
    """Give an idle machine a copy of what another has, where it would be done with it sooner; of a silent one also what
    that has finished and may never hand in. What failed before, or killed what ran it, is tried at one place at a time:
    its attempts are the job's, and while one of two copies runs nobody can say that it is poison."""
    for job in jobs:
        wanted = not (state.obstacle(agent, job) or _has_much_to_push(state, agent, job))
        if wanted and _copy_from(state, agent, job, now):
            return


def _copy_from(state: State, agent: Agent, job: Job, now: float) -> bool:
    rate = agent.rate(job.id)
    mine = agent.slots(job) / rate if rate else 0.0 if job.has_rounds else inf
    if all(layer.fresh for layer in job.opened):
        return False
    slowest, place = _slowest(state, job, now), 0
    while place < len(slowest):
        holding = slowest[place]
        layer = state.open_layers.get(holding.layer)
        if layer is None or not layer.has(holding):
            del slowest[place]  # it ended since they were gathered: a thousand idle agents pass it once, not each
            continue
        place += 1
        if layer.fresh or holding.agent == agent.name:
            continue
        holder = state.agents[holding.agent]
        silent = state.is_silent(holder)
        paused = holder.paused and not silent
        if not (paused or silent) and _seconds_left(state, holding, now) <= mine + state.timing.tick:
            return False  # nothing worth its while
        odd = RangeSet() if paused else layer.troubled()
        worth = _copyable(state, layer, holding)
        if silent:  # all it has of the layer is work like any other: it may be gone for good
            for other in holder.holdings.values():
                worth.update(_copyable(state, layer, other) if other.layer == layer.digest else RangeSet())
        count = agent.slots(job) if layer.stored else len(worth)
        count = max(count, int(rate * _horizon(state, job))) if silent else count
        count = min(count, _room_of(job))
        numbers = highest(worth - odd, min(count, _room_for(agent, layer)))
        if numbers:
            layer.copied.update(numbers)
            _grant(state, agent, layer, numbers, now)
            return True
    return False


def _copyable(state: State, layer: Layer, holding: Holding) -> RangeSet:
    """The shards of a holding that nobody else has, and that the job may have to wait for."""
    awaited = holding.everything() if state.is_silent(state.agents[holding.agent]) else holding.open
    return awaited - layer.copied


def highest(numbers: RangeSet, count: int) -> RangeSet:
    """The highest `count` of them: what their holder will come to last."""
    found = RangeSet()
    for lo, hi in reversed(numbers.pairs()):
        lo = max(lo, hi - count)
        found.add(lo, hi)
        count -= max(0, hi - lo)
    return found


def _slowest(state: State, job: Job, now: float) -> list[Holding]:
    """Holdings with shards that nobody has a copy of, the last to be done first; gathered once a tick."""
    if now - job.ranked_at >= state.timing.tick:
        job.ranked_at = now
        holdings = [h for layer in job.opened for h in layer.holdings.values() if _copyable(state, layer, h)]
        job.slowest = sorted(holdings, key=lambda h: _seconds_left(state, h, now), reverse=True)
    return job.slowest


def _seconds_left(state: State, holding: Holding, now: float) -> float:
    """How long its agent will need for all it has of this job; one that is overdue may need as long again."""
    agent = state.agents[holding.agent]
    if agent.away or agent.paused or state.is_silent(agent):
        return inf
    rate = agent.rates.get(holding.job)
    since = now - max(holding.granted, rate.since if rate else 0.0)
    if rate is None or not rate.per_second:
        return since
    expected = agent.open_of(holding.job) / rate.per_second
    return abs(expected - since)
