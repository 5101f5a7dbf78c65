"""What becomes of granted shards: finished, failed, lost, returned, committed. The rules of blame live here."""

from __future__ import annotations

from coordinator.protocol.messages import Failure, Finished, Loss, Returned
from coordinator.scheduler import layers, sessions
from coordinator.scheduler.commands import (
    AcceptOffer,
    ForgetFailures,
    RefuseOffer,
    SendCommitted,
    SendDrop,
    StoreFailure,
    StoreQuarantine,
    StoreSuccess,
)
from coordinator.scheduler.events import BundleCommitted, Offered, Uncommitted
from coordinator.scheduler.state import Agent, Holding, Job, Layer, Rate, State
from jobs.ranges import RangeSet

LOSSES_TO_QUARANTINE = 5
MACHINES_TO_QUARANTINE = 3
STRIKES_TO_BAR = 3  # different shards failed in a row on one machine, after the job's first success
FAILURES_TO_HALT_ALONE = 3  # different shards failed on a lone machine, with no success


def claim(state: State, agent: Agent, layer: Layer, boot: int, attempt: int, numbers: RangeSet, now: float) -> Holding:
    """The agent's holding under (boot, attempt). One from before a restart takes what nobody else claimed."""
    key = (layer.digest, boot, attempt)
    holding = agent.holdings.get(key)
    if holding is None:
        holding = Holding(agent.name, layer.job, layer.digest, boot, attempt, now, RangeSet())
        if boot < state.boot:
            holding.open = numbers & layer.limbo
            layer.limbo.remove(holding.open)
        state.add_holding(holding)
    return holding


def take_in(state: State, agent: Agent, holding: Holding, layer: Layer, finished: RangeSet) -> None:
    """These are committed on the agent: nobody else need run them while it lives."""
    others = finished - holding.open
    holding.open.remove(finished)
    holding.finished.update(finished)
    for numbers in (layer.fresh, layer.again, layer.limbo, layer.quarantined):
        numbers.remove(others)
    if others:
        layer.copied.update(others & layer.held())
    for other in state.holders(layer, finished, None) if finished & layer.copied else []:
        if other is not holding:
            _drop(state, layer, other, other.open & finished)
            _merge_twins(holding, other, finished)
            state.prune(other)


def _merge_twins(holding: Holding, other: Holding, finished: RangeSet) -> None:
    """One agent may hold a shard under two attempts; it has one part for it, so one holding names it."""
    if other.agent == holding.agent:
        other.finished.remove(finished)


def _drop(state: State, layer: Layer, holding: Holding, numbers: RangeSet) -> None:
    """Tell whoever has `numbers` unfinished to forget them."""
    if numbers:
        session = state.agents[holding.agent].session
        state.emit(SendDrop(session, layer.digest, holding.boot, holding.attempt, numbers))
        holding.open.remove(numbers)


def finish(state: State, agent: Agent, report: Finished, now: float) -> None:
    """A report of finished shards. Late ones are welcome: a result is a result."""
    layer = state.open_layers.get(report.layer)
    if layer is None:
        sessions.answer_unknown(state, agent, report.layer)
        return
    numbers = RangeSet(report.numbers) & RangeSet([(0, layer.count)])
    settled = numbers & layer.committed
    if settled:
        state.emit(SendCommitted(agent.session, layer.digest, settled))
    numbers.remove(settled)
    holding = claim(state, agent, layer, report.boot, report.attempt, numbers, now)
    fresh = numbers - holding.finished
    if fresh:
        _measure(state, agent, state.jobs[layer.job], layer, report, len(fresh), now)
    take_in(state, agent, holding, layer, fresh)
    state.prune(holding)
    layers.settle_layer(state, layer)


def _measure(state: State, agent: Agent, job: Job, layer: Layer, report: Finished, count: int, now: float) -> None:
    rate = agent.rates.setdefault(job.id, Rate(now))
    job.speed -= rate.per_second
    rate.finished(count, now)
    job.speed += rate.per_second
    agent.strikes.pop(job.id, None)
    job.used += report.compute * job.cpus / job.priority
    layer.out_bytes = max(layer.out_bytes, report.out_bytes // count)
    if not job.succeeded:
        job.succeeded = True
        job.first_failures.clear()
        state.work_added = True
        state.emit(StoreSuccess(job.id))


def fail(state: State, agent: Agent, failure: Failure) -> None:
    """A shard failed. Only the attempt that really had it may say so."""
    layer = state.open_layers.get(failure.layer)
    if layer is None:
        return
    holding = _holding_of(state, agent, layer, failure.boot, failure.attempt, failure.number)
    if holding is None:
        return
    one = RangeSet([(failure.number, failure.number + 1)])
    holding.open.remove(one)
    state.prune(holding)
    job = state.jobs[layer.job]
    trouble = layer.trouble(failure.number)
    trouble.failures += 1
    trouble.failed_on.add(agent.name)
    elsewhere = failure.number in layer.copied and failure.number in layer.held()
    poison = trouble.failures >= job.attempts and not elsewhere
    state.emit(StoreFailure(job.id, layer.digest, agent.name, failure, poison))
    if poison:
        layer.quarantined.update(one)
    else:
        state.release(layer, one)
    _blame(state, agent, job, layer, failure.number)
    _after_quarantine(state, job, layer, poison)


def _holding_of(state: State, agent: Agent, layer: Layer, boot: int, attempt: int, number: int) -> Holding | None:
    holding = agent.holdings.get((layer.digest, boot, attempt))
    if holding is None and boot < state.boot and number in layer.limbo:
        holding = claim(state, agent, layer, boot, attempt, RangeSet([(number, number + 1)]), agent.heard)
    return holding if holding is not None and number in holding.open else None


def _after_quarantine(state: State, job: Job, layer: Layer, happened: bool) -> None:
    if happened and job.quarantined >= job.max_failures:
        layers.halt(state, job, f"{job.quarantined} shards failed for good (max_failures)")
    if happened:
        layers.settle_layer(state, layer)


def _blame(state: State, agent: Agent, job: Job, layer: Layer, number: int) -> None:
    """A bug is not a poison shard, nor a bad machine a bad job."""
    shard = (layer.digest, number)
    if not job.succeeded:
        job.first_failures.setdefault(agent.name, set()).add(shard)
        _halt_if_hopeless(state, job)
        return
    strikes = agent.strikes.setdefault(job.id, [])
    if shard in strikes:
        strikes.remove(shard)
    strikes.append(shard)
    if len(strikes) >= STRIKES_TO_BAR and _others(state, agent, job):
        _bar(state, agent, job, strikes)


def _halt_if_hopeless(state: State, job: Job) -> None:
    if job.state != "running":
        return
    shards = set().union(*job.first_failures.values())
    machines = len(job.first_failures)
    alone = sum(state.eligible(agent, job) for agent in state.agents.values()) <= 1
    if machines >= 2 and len(shards) >= 2:
        layers.halt(state, job, f"{len(shards)} different shards failed on {machines} machines, and none succeeded")
    elif alone and len(shards) >= FAILURES_TO_HALT_ALONE:
        layers.halt(state, job, f"{len(shards)} different shards failed, and none succeeded")


def _others(state: State, agent: Agent, job: Job) -> bool:
    """Whether another machine could do what this one fails at."""
    return any(other is not agent and state.eligible(other, job) for other in state.agents.values())


def _bar(state: State, agent: Agent, job: Job, strikes: list[tuple[str, int]]) -> None:
    """The machine is to blame: it gets no more of this job, and these failures are not the shards'."""
    agent.ineligible[job.id] = f"{len(strikes)} different shards in a row failed here and not elsewhere"
    state.emit(ForgetFailures(job.id, agent.name, tuple(strikes)))
    for digest, number in strikes:
        layer = state.open_layers.get(digest)
        if layer is None or number in layer.committed:
            continue
        trouble = layer.trouble(number)
        trouble.failures = max(0, trouble.failures - 1)
        trouble.failed_on.discard(agent.name)
        one = RangeSet([(number, number + 1)])
        if number in layer.quarantined:
            layer.quarantined.remove(one)
            state.release(layer, one)
    agent.strikes.pop(job.id, None)
    hand_back_all(state, agent, job.id)


def hand_back_all(state: State, agent: Agent, job: str) -> None:
    """Revoke whatever of the job this agent has not finished."""
    for holding in [h for h in agent.holdings.values() if h.job == job]:
        layer = state.open_layers[holding.layer]
        numbers = holding.open.copy()
        _drop(state, layer, holding, numbers)
        state.prune(holding)
        state.release(layer, numbers)


def lose(state: State, agent: Agent, loss: Loss) -> None:
    """Shards lost through no fault shown to be theirs; only losses while really running are held against them."""
    layer = state.open_layers.get(loss.layer)
    if layer is None:
        return
    numbers = RangeSet(loss.numbers) & RangeSet([(0, layer.count)])
    holding = claim(state, agent, layer, loss.boot, loss.attempt, numbers, agent.heard)
    numbers = numbers & holding.open
    holding.open.remove(numbers)
    state.prune(holding)
    poison = RangeSet.of(n for n in numbers if loss.running and _lost_too_often(state, agent, layer, n))
    for number in poison:
        why = f"lost {layer.trouble(number).losses} times while running; last: {loss.reason}"
        state.emit(StoreQuarantine(layer.job, layer.digest, number, why))
    layer.quarantined.update(poison)
    state.release(layer, numbers - poison)
    _after_quarantine(state, state.jobs[layer.job], layer, bool(poison))


def _lost_too_often(state: State, agent: Agent, layer: Layer, number: int) -> bool:
    trouble = layer.trouble(number)
    trouble.losses += 1
    trouble.lost_on.add(agent.name)
    machines = min(MACHINES_TO_QUARANTINE, len(state.agents))
    if number in layer.copied and number in layer.held():
        return False
    return trouble.losses >= LOSSES_TO_QUARANTINE and len(trouble.lost_on) >= machines


def give_back(state: State, agent: Agent, returned: Returned) -> None:
    """Shards handed back unstarted."""
    layer = state.open_layers.get(returned.layer)
    holding = agent.holdings.get((returned.layer, returned.boot, returned.attempt))
    if layer is None or holding is None:
        return
    numbers = RangeSet(returned.numbers) & holding.open
    holding.open.remove(numbers)
    state.prune(holding)
    state.release(layer, numbers)


def judge(state: State, event: Offered) -> None:
    """May this bundle come? A committed shard in it refuses it by name."""
    agent = state.by_session.get(event.session)
    layer = state.open_layers.get(event.layer)
    if agent is None:
        state.emit(RefuseOffer(event.session, "no-session", RangeSet()))
    elif layer is None:
        _refuse_unknown(state, event)
    elif event.numbers.top > layer.count or not event.numbers:
        state.emit(RefuseOffer(event.session, "corrupt", RangeSet()))
    elif event.numbers & layer.committed:
        state.emit(RefuseOffer(event.session, "committed", event.numbers & layer.committed))
    else:
        state.emit(AcceptOffer(event.session, layer.job, layer.digest, layer.generation))


def _refuse_unknown(state: State, event: Offered) -> None:
    merged = any(
        layer.digest == event.layer and layer.state == "merged" for job in state.jobs.values() for layer in job.layers
    )
    code = "committed" if merged else "gone"
    state.emit(RefuseOffer(event.session, code, event.numbers if merged else RangeSet()))


def commit(state: State, event: BundleCommitted) -> None:
    """The store took a bundle: its shards are settled for everyone."""
    layer = state.open_layers.get(event.layer)
    if layer is None or layer.generation != event.generation:
        return
    numbers = event.numbers
    agent = event.agent if event.agent in state.agents else None
    for holding in state.holders(layer, numbers, agent):
        _settle_holding(state, layer, holding, numbers, event.agent)
    for pending in (layer.fresh, layer.again, layer.limbo, layer.quarantined, layer.copied):
        pending.remove(numbers)
    layer.committed.update(numbers)
    if layer.troubles or layer.payloads:
        for number in numbers:
            layer.troubles.pop(number, None)
            layer.payloads.pop(number, None)
    layers.settle_layer(state, layer)


def _settle_holding(state: State, layer: Layer, holding: Holding, numbers: RangeSet, by: str) -> None:
    _drop(state, layer, holding, holding.open & numbers) if holding.agent != by else None
    theirs = holding.finished & numbers
    if theirs and holding.agent != by:
        state.emit(SendCommitted(state.agents[holding.agent].session, layer.digest, theirs))
    holding.discard(numbers)
    state.prune(holding)


def uncommit(state: State, event: Uncommitted) -> None:
    """Committed bytes turned out damaged: those shards run again."""
    layer = state.open_layers.get(event.layer)
    if layer is None or layer.generation != event.generation:
        return
    numbers = event.numbers & layer.committed
    layer.committed.remove(numbers)
    layer.state = "open"
    state.release(layer, numbers)
