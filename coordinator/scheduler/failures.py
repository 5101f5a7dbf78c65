"""What becomes of shards that failed or were lost, and who is to blame. Commits nothing."""

from __future__ import annotations

from muster.coordinator.protocol.control import Failure, Loss, Returned
from muster.coordinator.scheduler import job_states, layers
from muster.coordinator.scheduler.actions import (
    ForgetFailures,
    StoreFailure,
    StoreQuarantine,
)
from muster.coordinator.scheduler.commits import drop, hand_back_all, let_go
from muster.coordinator.scheduler.entities import Agent, Job, Layer, Obstacle
from muster.coordinator.scheduler.events import (
    Kicked,
    Run,
)
from muster.coordinator.scheduler.state import State
from muster.jobs.common.ranges import RangeSet
from muster.jobs.common.units import counted
from muster.jobs.contract.failure_codes import is_final

LOSSES_TO_QUARANTINE = 5
MACHINES_TO_QUARANTINE = 3
STRIKES_TO_BAR = 3  # different shards failed in a row on one machine, after the job's first success
FAILURES_TO_HALT_ALONE = 3  # different shards failed on a lone machine, with no success
SHOWN_CHARS = 200  # of a failure's message, in why a job is halted


def unquarantine(state: State, layer: Layer, numbers: RangeSet) -> None:
    with state.counting(layer):
        layer.quarantined.remove(numbers)
    if layer.active:
        state.release(layer, numbers)
    elif layer.state == "waiting":
        layer.again.update(numbers)


def fail(state: State, agent: Agent, failure: Failure) -> None:
    """A shard failed. Only the attempt that really has it may say so; from before a restart, an agent may once."""
    layer = state.open_layers.get(failure.layer)
    one = RangeSet([(failure.number, failure.number + 1)])
    run = (agent.name, failure.boot, failure.attempt)
    if layer is None or not _had(state, agent, layer, run, one):
        return
    job = state.jobs[layer.job]
    failures = layer.trouble(failure.number).failures
    if run in failures:
        return
    failures.add(run)
    final = is_final(failure.code)
    spent = final or len(failures) >= job.plan.attempts
    poison = spent and not _elsewhere(state, agent.name, layer, failure.number)
    state.emit(StoreFailure(job.id, layer.digest, agent.name, failure, poison))
    _let_go(state, agent, layer, run, one, one if poison else RangeSet())
    if not (final or job.judged_elsewhere):
        _blame(state, agent, job, layer, failure)
    _after_quarantine(state, job, layer, poison)


def lose(state: State, agent: Agent, loss: Loss) -> None:
    """Shards lost through no fault shown to be theirs; only losses while really running are held against them."""
    layer = state.open_layers.get(loss.layer)
    if layer is None:
        return
    run = (agent.name, loss.boot, loss.attempt)
    numbers = _had(state, agent, layer, run, RangeSet.canonical(loss.numbers) & layer.whole)
    poison = RangeSet.of(n for n in numbers if loss.running and _lost_too_often(state, layer, run, n))
    for number in poison:
        why = f"lost {len(layer.trouble(number).losses)} times while running; last: {loss.reason}"
        state.emit(StoreQuarantine(layer.job, layer.digest, number, why))
    _let_go(state, agent, layer, run, numbers, poison)
    _after_quarantine(state, state.jobs[layer.job], layer, bool(poison))


def _had(state: State, agent: Agent, layer: Layer, run: Run, numbers: RangeSet) -> RangeSet:
    """Those of `numbers` that this run has, or may have had before a restart: then who has them now is not known."""
    holding = agent.holdings.get((layer.digest, *run[1:]))
    had = holding.those(numbers) if holding else RangeSet()
    if run[1] < state.boot:
        had.update((numbers & layer.limbo) - _told_before(state, agent, layer, run))
    return had


def _told_before(state: State, agent: Agent, layer: Layer, run: Run) -> RangeSet:
    """Shards of which it told by another grant from before the restart. Which of those there were, nobody knows."""
    return RangeSet.of(
        sorted(
            number
            for number, trouble in layer.troubles.items()
            if any(r[0] == agent.name and r[1] < state.boot and r != run for r in trouble.failures | trouble.losses)
        )
    )


def _elsewhere(state: State, agent: str, layer: Layer, number: int) -> bool:
    """Whether another agent has it too, and is going to tell. One that is paused may never tell."""
    if number not in layer.copied:
        return False
    others = [h for h in layer.holdings.values() if h.agent != agent]
    return any(number in h.finished or (number in h.open and not state.agents[h.agent].paused) for h in others)


def _let_go(state: State, agent: Agent, layer: Layer, run: Run, numbers: RangeSet, poison: RangeSet) -> None:
    """This agent has them no more. What is poison nobody need go on with."""
    for holding in state.holders(layer, poison, agent.name) if poison else ():
        if holding.agent != agent.name:
            drop(state, layer, holding, holding.open & poison)
            state.prune(holding)
    let_go(state, agent, layer, run, numbers, poison)


def _lost_too_often(state: State, layer: Layer, run: Run, number: int) -> bool:
    losses = layer.trouble(number).losses
    losses.add(run)
    if len(losses) < LOSSES_TO_QUARANTINE:
        return False
    lost_on = {agent for agent, _, _ in losses}
    job = state.jobs[layer.job]
    known = lost_on | {other.name for other in state.by_session.values() if state.able(other, job)}
    enough = len(lost_on) >= min(MACHINES_TO_QUARANTINE, len(known))
    return enough and not _elsewhere(state, run[0], layer, number)


def _after_quarantine(state: State, job: Job, layer: Layer, happened: bool) -> None:
    if happened and not layer.stored:
        if not job.goes_on:
            job_states.halt(state, job, "a shard of a round failed for good, and no round is whole without it")
    elif happened and job.quarantined >= job.plan.max_failures:
        job_states.halt(state, job, f"{counted(job.quarantined, 'shard')} given up (max_failures)")
    if happened:
        layers.settle_layer(state, layer)


def _blame(state: State, agent: Agent, job: Job, layer: Layer, failure: Failure) -> None:
    """A bug is not a poison shard, nor a bad machine a bad job."""
    shard = (layer.digest, failure.number)
    if not job.succeeded:
        job.first_failures.setdefault(agent.name, set()).add(shard)
        _halt_if_hopeless(state, job, failure.message[:SHOWN_CHARS])
        return
    strikes = agent.strikes.setdefault(job.id, [])
    if shard in strikes:
        strikes.remove(shard)
    strikes.append(shard)
    if len(strikes) >= STRIKES_TO_BAR and _others(state, agent, job):
        _bar(state, agent, job, strikes)


def _halt_if_hopeless(state: State, job: Job, last: str) -> None:
    """`last`: what was said of the last failure, as one of them is mostly all of them."""
    if job.state != "running":
        return
    shards = set().union(*job.first_failures.values())
    machines = len(job.first_failures)
    alone = sum(state.eligible(agent, job) for agent in state.by_session.values()) <= 1
    if machines >= 2 and len(shards) >= 2:
        failed = f"{len(shards)} different shards failed on {machines} machines, and none succeeded"
        job_states.halt(state, job, f"{failed}; the last: {last}")
    elif alone and len(shards) >= FAILURES_TO_HALT_ALONE:
        job_states.halt(state, job, f"{len(shards)} different shards failed, and none succeeded; the last: {last}")


def _others(state: State, agent: Agent, job: Job) -> bool:
    """Whether another machine could do what this one fails at."""
    return any(other is not agent and state.eligible(other, job) for other in state.by_session.values())


def _bar(state: State, agent: Agent, job: Job, strikes: list[tuple[str, int]]) -> None:
    """The machine is to blame: it gets no more of this job, and these failures are not the shards'."""
    why = f"{len(strikes)} different shards in a row failed here and not elsewhere"
    agent.ineligible[job.id] = Obstacle("barred", why)
    state.emit(ForgetFailures(job.id, agent.name, tuple(strikes)))
    for digest, number in strikes:
        _absolve(state, job, digest, number, agent.name)
    agent.strikes.pop(job.id, None)
    hand_back_all(state, agent, job.id)


def _absolve(state: State, job: Job, digest: str, number: int, agent: str) -> None:
    """This shard's failures on that agent count no longer."""
    layer = next(layer for layer in state.by_digest[digest] if layer.job == job.id)
    trouble = layer.troubles.get(number)
    if trouble is None:
        return
    trouble.failures = {run for run in trouble.failures if run[0] != agent}
    if number in layer.quarantined:
        unquarantine(state, layer, RangeSet([(number, number + 1)]))


def kick(state: State, event: Kicked) -> None:
    """Whoever has it unfinished forgets it, and it goes behind all untouched ones, to another machine where there is
    one. Nothing counts against it. Nor is it waited for where it is finished and not pushed; if it comes, it counts."""
    layer = state.open_layers.get(event.layer)
    one = RangeSet([(event.number, event.number + 1)])
    holders = [h for h in layer.holdings.values() if h.has_any(one)] if layer else []
    if layer is None or not holders:
        return
    for holding in holders:
        layer.trouble(event.number).kicked.add(holding.agent)
        drop(state, layer, holding, holding.open & one)
        holding.finished.remove(one)
        state.prune(holding)
    state.release(layer, one)


def give_back(state: State, agent: Agent, returned: Returned) -> None:
    """Shards handed back unstarted."""
    layer = state.open_layers.get(returned.layer)
    holding = agent.holdings.get((returned.layer, returned.boot, returned.attempt))
    if layer is None or holding is None:
        return
    numbers = RangeSet.canonical(returned.numbers) & holding.open
    holding.open.remove(numbers)
    state.prune(holding)
    state.release(layer, numbers)
