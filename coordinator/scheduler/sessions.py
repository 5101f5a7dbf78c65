"""Sessions: hellos, leases, fencing, drains. Says what an agent still holds; grants nothing."""

from __future__ import annotations

from collections import Counter

import msgspec

from muster.coordinator.protocol.control import Held, Hello, RejectionCode
from muster.coordinator.scheduler import answers, commits, failures
from muster.coordinator.scheduler.actions import (
    NoteMissing,
    Reject,
    SendCommitted,
    SendDrain,
    SendDrop,
    StoreAgent,
)
from muster.coordinator.scheduler.commits import answer_unknown
from muster.coordinator.scheduler.entities import Agent, Holding, Job, Layer
from muster.coordinator.scheduler.events import Joined
from muster.coordinator.scheduler.state import State
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.states import AgentState

FENCED_KEPT = 10_000
DOUBT_HEARTBEATS = 3  # so long may an agent have less than we think; then it has to say hello again


def join(state: State, event: Joined, now: float) -> None:
    """A hello."""
    hello = event.hello
    old = state.agents.get(hello.name)
    if hello.process in state.fenced:
        _reject(state, event.session, "fenced", "another process took this agent's name and spool")
        return
    if old and old.present and old.hello.spool != hello.spool:
        _reject(state, event.session, "name-taken", f"an agent called {hello.name} is at work from another spool")
        return
    agent = _enter(state, event.session, hello, old, now)
    agent.names = event.names
    for fingerprint in (*event.fingerprints, hello.fingerprint):
        agent.computes_on(fingerprint)
    for failure in hello.failures:
        failures.fail(state, agent, failure)
    for loss in hello.losses:
        failures.lose(state, agent, loss)
    _reconcile(state, agent, hello.held, now)
    answers.compare(state, agent)
    state.expected.discard(hello.name)
    release_limbo_if_due(state, now)


def _reject(state: State, session: int, code: RejectionCode, message: str) -> None:
    hints: dict[RejectionCode, str] = {
        "fenced": "let one process own a name and a spool; give this one another --name",
        "name-taken": "give this agent another --name, or stop the other one first",
        "no-session": "say hello again",
    }
    state.emit(Reject(session, code, message, hints[code]))


def reject_unknown(state: State, session: int) -> None:
    _reject(state, session, "no-session", "this session has ended")


def _enter(state: State, session: int, hello: Hello, old: Agent | None, now: float) -> Agent:
    """The agent under its new session; what it held before stays until it is reconciled."""
    if old and old.present:
        del state.by_session[old.session]
    if old and old.hello.spool != hello.spool:
        old = None  # another machine under a name that is free again
    if old and old.hello.process != hello.process:
        _fence(state, old)
        old.distrusted = None
    draining = old is not None and old.state == "draining" and old.hello.process == hello.process
    machine = msgspec.structs.replace(hello, held=[], failures=[], losses=[])
    agent = old or Agent(hello.name, machine, session, hello.cpus, hello.disk, now)
    if agent.present:
        agent.hear(now)
    agent.hello, agent.session, agent.env_obstacles, agent.prints, agent.differs = machine, session, {}, {}, {}
    agent.cpus, agent.room, agent.heard, agent.hungry = hello.cpus, hello.disk, now, False
    agent.state, agent.away, agent.paused = "draining" if draining else "live", False, False
    state.agents[hello.name] = agent
    state.by_session[session] = agent
    agent.told = state.last_attempt
    agent.missing.clear()
    state.short.pop(hello.name, None)
    state.emit(StoreAgent(hello.name, True))
    if draining:
        state.emit(SendDrain(session))
    return agent


def _fence(state: State, old: Agent) -> None:
    state.fenced[old.hello.process] = None
    if len(state.fenced) > FENCED_KEPT:
        state.fenced.pop(next(iter(state.fenced)))
    if old.session:
        _reject(state, old.session, "fenced", "another process took this agent's name and spool")


def _reconcile(state: State, agent: Agent, held: list[Held], now: float) -> None:
    """Make what we think it holds what it says it holds."""
    before = dict(agent.holdings)
    named = {(claim.layer, claim.boot, claim.attempt): claim for claim in held}
    for claim in named.values():
        layer = state.open_layers.get(claim.layer)
        if layer is None:
            if claim.running and state.is_kept(claim.layer):
                running = RangeSet(claim.running)
                state.emit(SendDrop(agent.session, claim.layer, claim.boot, claim.attempt, running))
            answer_unknown(state, agent, claim.layer)
            continue
        _adopt(state, agent, layer, claim, now)
    agent.left.clear()
    for key, holding in before.items():
        claim_now = named.get(key)
        told = (claim_now.running, claim_now.finished) if claim_now else ()
        lost = holding.everything()
        for pairs in told:
            lost.remove(RangeSet.canonical(pairs))
        if lost:
            holding.discard(lost)
            state.prune(holding)
            state.release(state.open_layers[holding.layer], lost)


def doubt(state: State, agent: Agent, counts: dict[str, int], told: int, now: float) -> bool:
    """Whether it has to say hello again, as of some layer it has had fewer shards than we think for too long: nobody
    would run the rest. `told`: the last attempt it knew of when it counted. That it has more is no matter: what it
    runs or finished, it will say."""
    believed: Counter[str] = Counter()
    for holding in agent.holdings.values():
        if (holding.boot, holding.attempt) <= (state.boot, told):
            believed[holding.layer] += len(holding.open) + len(holding.finished)
    short = [layer for layer, count in believed.items() if count > counts.get(layer, 0)]
    agent.missing = {layer: agent.missing.get(layer, now) for layer in short}
    latest = now - DOUBT_HEARTBEATS * state.timing.heartbeat
    lasting = [layer for layer, since in agent.missing.items() if since <= latest]
    for layer in lasting:
        state.emit(NoteMissing(agent.name, layer, believed[layer], counts.get(layer, 0)))
    if lasting:
        agent.missing.clear()
        agent.hungry = False
        state.short.pop(agent.name, None)
        _reject(state, agent.session, "no-session", "it has fewer shards than this session knows of")
    return bool(lasting)


def _adopt(state: State, agent: Agent, layer: Layer, claim: Held, now: float) -> None:
    """A grant still to be made is of another store, which is lost: what came of it counts once it is pushed."""
    running = RangeSet.canonical(claim.running) & layer.whole
    settled = RangeSet.canonical(claim.finished) & layer.committed
    if settled:
        state.emit(SendCommitted(agent.session, layer.digest, settled))
    if layer.opened_after < (claim.boot, claim.attempt) <= (state.boot, state.last_attempt):
        running = running - commits.claim(state, agent, layer, claim, now)
    if running:
        state.emit(SendDrop(agent.session, layer.digest, claim.boot, claim.attempt, running))


def expire(state: State, now: float) -> None:
    """Agents not heard of for a lease are gone: what they held waits again, their finished shards too."""
    for agent in list(state.present_agents()):
        if now - agent.heard > state.timing.lease:
            part(state, agent, "gone")


def part(state: State, agent: Agent, as_state: AgentState) -> None:
    """End a session, for good or until its next hello."""
    state.by_session.pop(agent.session, None)
    agent.state, agent.session, agent.hungry = as_state, 0, False
    state.short.pop(agent.name, None)
    agent.hello = msgspec.structs.replace(agent.hello, envs={})  # they may be long, and its next hello has them
    agent.env_obstacles = {}
    held: list[Holding] = list(agent.holdings.values())
    agent.left = {holding.key: holding.everything() for holding in held}
    agent.holdings.clear()
    for holding in held:
        layer = state.open_layers[holding.layer]
        layer.holdings.pop((holding.agent, holding.boot, holding.attempt))
    for holding in held:
        state.release(state.open_layers[holding.layer], holding.everything())
    state.emit(StoreAgent(agent.name, False))


def give_up(state: State, name: str, now: float) -> None:
    """Nothing that this machine has is waited for, nor its hello after a restart. It may come back, as it may after its
    lease ran out."""
    agent = state.agents.get(name)
    if agent is not None and agent.present:
        reject_unknown(state, agent.session)
        part(state, agent, "gone")
    elif name in state.expected:
        state.expected.discard(name)
        state.emit(StoreAgent(name, False))
        release_limbo_if_due(state, now)


def drain(state: State, agent: Agent) -> None:
    if agent.state == "live":
        agent.state, agent.hungry = "draining", False
        state.short.pop(agent.name, None)
        state.emit(SendDrain(agent.session))


def free_kernels(state: State) -> None:
    """A job whose first machine went before anything of it was committed is anyone's again."""
    for job in state.running.values():
        if job.fingerprint and not (job.kernels_fixed or _has_machine(state, job)):
            job.fingerprint = ""
            state.work_added = True


def _has_machine(state: State, job: Job) -> bool:
    return any(a.kernels_for(job) == job.fingerprint and not state.obstacle(a, job) for a in state.by_session.values())


def pardon(state: State, delay: float, now: float) -> None:
    """The daemon itself stood still: nobody is to blame for having been silent."""
    for agent in state.present_agents():
        agent.heard = min(now, agent.heard + delay)
    if state.limbo_until is not None:
        state.limbo_until = min(now + state.timing.lease, state.limbo_until + delay)


def release_limbo_if_due(state: State, now: float) -> None:
    """After a restart: what perhaps runs somewhere waits for its agent, until all are back or a lease is over."""
    if state.limbo_until is None or (state.expected and now < state.limbo_until):
        return
    state.limbo_until = None
    for layer in state.open_layers.values():
        limbo, layer.limbo = layer.limbo, RangeSet()
        state.release(layer, limbo)
