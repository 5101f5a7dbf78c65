"""What becomes of shards that were claimed, finished, offered, committed or retired. Blames nobody."""

from __future__ import annotations

from muster.coordinator.protocol.control import Finished, Held
from muster.coordinator.protocol.transfer import RefusalCode
from muster.coordinator.scheduler import commits, layers
from muster.coordinator.scheduler.actions import (
    AcceptOffer,
    RefuseOffer,
    SendCommitted,
    SendDrop,
    SendGone,
    StoreSuccess,
)
from muster.coordinator.scheduler.entities import Agent, Holding, Job, Layer, Obstacle, Rate
from muster.coordinator.scheduler.events import BundleCommitted, Offered, Run, Uncommitted
from muster.coordinator.scheduler.state import State
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.requirements import apart


def claim(state: State, agent: Agent, layer: Layer, claimed: Held, now: float) -> RangeSet:
    """What an agent says to have of one grant, taken in as far as it can be: it has it by that grant, or had it when
    its last session ended, or nobody knows who had it before a restart. All else that is finished counts once it is
    pushed. Returns what of the unfinished is its own."""
    running, finished = (RangeSet.canonical(pairs) & layer.whole for pairs in (claimed.running, claimed.finished))
    key = (layer.digest, claimed.boot, claimed.attempt)
    before = claimed.boot < state.boot
    holding, own = agent.holdings.get(key), RangeSet()
    if holding is not None:
        theirs = holding.everything()
    else:
        theirs = layer.limbo.copy() if before else agent.left.get(key, RangeSet())
        job = state.jobs[layer.job]
        if before and job.state in {"running", "paused"} and job.suits(agent.kernels_for(job)):
            own = running & layer.limbo
        if not own and not (finished & theirs) - layer.committed:
            return RangeSet()  # a grant of which it has nothing is none that it had
        holding = Holding(agent.name, layer.job, layer.digest, claimed.boot, claimed.attempt, now, own)
        state.add_holding(holding)
        layer.limbo.remove(own)
        if own:
            job.work_goes_to(agent.kernels_for(job))
    take_in(state, agent, holding, (finished & theirs) - layer.committed)
    mine = holding.open.copy()
    state.prune(holding)
    return mine


def take_in(state: State, agent: Agent, holding: Holding, finished: RangeSet) -> None:
    """These are committed on the agent: nobody else need run them while it lives."""
    layer = state.open_layers[holding.layer]
    new = finished - holding.finished
    others = new - holding.open
    holding.open.remove(finished)
    holding.finished.update(finished)
    if others:
        layer.copied.update(others - _claimed(state, layer, others))  # somebody else has those too
    if finished & layer.copied:
        _supersede(state, layer, holding, finished)
    if new:
        job = state.jobs[layer.job]
        job.work_goes_to(agent.kernels_for(job))
        _succeeded(state, agent, job)


def _claimed(state: State, layer: Layer, numbers: RangeSet) -> RangeSet:
    """Take those of `numbers` that nobody held from where they waited."""
    found = RangeSet()
    with state.counting(layer):
        for waiting in (layer.fresh, layer.again, layer.limbo, layer.quarantined):
            free = numbers & waiting
            waiting.remove(free)
            found.update(free)
    return found


def _supersede(state: State, layer: Layer, holding: Holding, finished: RangeSet) -> None:
    """Whoever else has these unfinished need not go on. An agent has one part for a shard: one holding names it."""
    for other in state.holders(layer, finished, None):
        if other is not holding:
            drop(state, layer, other, other.open & finished)
            if other.agent == holding.agent:
                other.finished.remove(finished)
            state.prune(other)


def drop(state: State, layer: Layer, holding: Holding, numbers: RangeSet, retired: bool = False) -> None:
    """Tell whoever has `numbers` unfinished to forget them. `retired`: nobody else does them."""
    if numbers:
        session = state.agents[holding.agent].session
        state.emit(SendDrop(session, layer.digest, holding.boot, holding.attempt, numbers, retired))
        holding.open.remove(numbers)


def _succeeded(state: State, agent: Agent, job: Job) -> None:
    agent.strikes.pop(job.id, None)
    if not job.succeeded:
        job.succeeded = True
        job.first_failures.clear()
        state.work_added = True
        state.emit(StoreSuccess(job.id))


def _measure(agent: Agent, job: Job, count: int, now: float) -> None:
    """So many shards are known to be done for the first time."""
    rate = agent.rates.setdefault(job.id, Rate(now))
    before = rate.per_second
    rate.finished(count, now)
    job.speed += rate.per_second - before
    job.measured += before == 0.0 < rate.per_second


def finish(state: State, agent: Agent, report: Finished, now: float) -> None:
    """A report of finished shards. It counts for those that the agent has by that very grant, its seconds also where
    the bundle was faster. Of any other the part may be deleted long ago: the shard was committed, and is wanted anew,
    be it by another job with the same layer. Where there is a part all the same, it counts once it is pushed."""
    layer = state.open_layers.get(report.layer)
    if layer is None:
        commits.answer_unknown(state, agent, report.layer)
        return
    told = RangeSet.canonical(report.numbers) & layer.whole
    if settled := told & layer.committed:
        state.emit(SendCommitted(agent.session, layer.digest, settled))
    if (report.boot, report.attempt) <= layer.opened_after:
        return
    key = (layer.digest, report.boot, report.attempt)
    holding = agent.holdings.get(key)
    granted = holding.granted if holding is not None else agent.ended.get(key)
    if granted is None:
        return
    job = state.jobs[layer.job]
    seconds = _bill(agent, job, report.compute, min(len(told), agent.slots(job)) * (now - granted))
    job.used += seconds * job.work.cpus / job.priority
    state.used_by[job.plan.owner] = state.used_by.get(job.plan.owner, 0.0) + seconds * job.work.cpus
    layer.took(agent, told, seconds)
    if holding is not None:
        if new := told & holding.open:
            _measure(agent, job, len(new), now)
        take_in(state, agent, holding, holding.those(told))
    _note_overtaken(agent, report, told.top, now)


def _bill(agent: Agent, job: Job, seconds: float, most: float) -> float:
    """What is believed of the seconds that a machine says it worked: `most`, and in all no more than it can have."""
    seconds = max(0.0, min(seconds, most, agent.unbilled / job.work.cpus))
    agent.unbilled -= seconds * job.work.cpus
    return seconds


def _note_overtaken(agent: Agent, report: Finished, top: int, now: float) -> None:
    """Shards of a grant run in order: the lowest left of this one, or of an earlier one, is at work if below `top`."""
    for holding in agent.holdings.values():
        if holding.layer != report.layer or (holding.boot, holding.attempt) > (report.boot, report.attempt):
            continue
        if holding.open and holding.open.bottom < top and holding.overtaken[0] != holding.open.bottom:
            holding.overtaken = (holding.open.bottom, now)


def let_go(state: State, agent: Agent, layer: Layer, run: Run, numbers: RangeSet, poison: RangeSet) -> None:
    """The run has `numbers` no more. What waits for its agent after a restart goes on waiting, unless it is poison."""
    layer.limbo.remove(poison)
    holding = agent.holdings.get((layer.digest, *run[1:]))
    if holding is not None:
        theirs = holding.those(numbers)
        holding.discard(theirs)
        state.prune(holding)
        state.release(layer, theirs - poison)
    with state.counting(layer):
        layer.quarantined.update(poison)


def hand_back_all(state: State, agent: Agent, job: str) -> None:
    """Revoke whatever of the job this agent has not finished."""
    for holding in [h for h in agent.holdings.values() if h.job == job]:
        layer = state.open_layers[holding.layer]
        numbers = holding.open.copy()
        drop(state, layer, holding, numbers)
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
    elif why := _not_its_own(agent, event):
        _distrust(state, agent, why)
        state.emit(RefuseOffer(event.session, "sender", event.numbers, why))
    elif event.numbers & layer.committed:
        state.emit(RefuseOffer(event.session, "committed", event.numbers & layer.committed))
    elif state.jobs[layer.job].kernels_fixed and not state.jobs[layer.job].suits(event.fingerprint):
        state.emit(RefuseOffer(event.session, "kernels", event.numbers))
    else:
        state.emit(AcceptOffer(event.session, layer.job, layer.digest, layer.generation))


def _not_its_own(agent: Agent, event: Offered) -> str:
    """What a bundle's header says that its sender cannot have computed. What lies in `done/` may be of an earlier
    process that had another name or other packages: what that spool's hellos told of then is its own too."""
    odd = set(event.agents) - {agent.name} - agent.names
    if odd:
        return f"sent results under the name {min(odd)}: leave there, and join it again"
    if event.fingerprint not in agent.fingerprints:
        told = apart(event.fingerprint, agent.hello.fingerprint)
        return f"sent results of kernels that it never told of: {told} at its hello; leave there, and join it again"
    return ""


def _distrust(state: State, agent: Agent, why: str) -> None:
    """This process gets no more of any job, and others run what it has. Its parts stay where they are: an honest one,
    whose packages changed under it, tells of them when it joins anew, and they count."""
    agent.distrusted = Obstacle("distrusted", why)
    for holding in list(agent.holdings.values()):
        layer = state.open_layers[holding.layer]
        numbers = holding.everything()
        drop(state, layer, holding, holding.open.copy())
        holding.discard(numbers)
        state.prune(holding)
        state.release(layer, numbers)


def _refuse_unknown(state: State, event: Offered) -> None:
    merged = any(layer.state == "merged" for layer in state.by_digest.get(event.layer, ()))
    code: RefusalCode = "committed" if merged else "gone"
    if state.is_kept(event.layer):
        merged, code = False, "later"
    state.emit(RefuseOffer(event.session, code, event.numbers if merged else RangeSet()))


def commit(state: State, event: BundleCommitted, now: float) -> None:
    """The store took a bundle: its shards are settled for everyone."""
    _fix_kernels(state, event)
    layer = state.open_layers.get(event.layer)
    if layer is None or layer.job != event.job:
        layers.commit_closed(state, event)
    elif layer.generation == event.generation:
        _measure_result(state.jobs[layer.job], layer, event)
        agent = event.agent if event.agent in state.agents else None
        holders = state.holders(layer, event.numbers, agent)
        _measure_way(state, layer, event, holders, now)
        for holding in holders:
            _settle_holding(state, layer, holding, event, now)
        with state.counting(layer):
            layer.settle(event.numbers)
        layers.settle_layer(state, layer)


def _measure_way(state: State, layer: Layer, event: BundleCommitted, holders: list[Holding], now: float) -> None:
    """How long what an agent sent was with it."""
    own = [one for one in holders if one.agent == event.agent and one.has_any(event.numbers)]
    if own:
        granted = min(one.granted for one in own)
        layer.came(state.agents[event.agent], state.jobs[layer.job], granted, event.numbers, now)


def _measure_result(job: Job, layer: Layer, event: BundleCommitted) -> None:
    """How large a result is. By what came, not by what an agent says of it: a wrong number would keep layers shut."""
    layer.out_bytes = max(layer.out_bytes, -(-event.nbytes // max(len(event.numbers), 1)))
    job.out_bytes = max(job.out_bytes, layer.out_bytes)


def _fix_kernels(state: State, event: BundleCommitted) -> None:
    """The first commit decides for good on whose machines the job runs. What others have of it is taken back."""
    job = state.jobs.get(event.job)
    if job is None or not job.plan.same_kernels or job.kernels_fixed or not event.fingerprint:
        return
    job.fingerprint, job.kernels_fixed = event.fingerprint, True
    for agent in state.present_agents():
        if not job.suits(agent.kernels_for(job)):
            hand_back_all(state, agent, job.id)


def _settle_holding(state: State, layer: Layer, holding: Holding, event: BundleCommitted, now: float) -> None:
    """Its agent is told; the one that sent the bundle hears of what it finished on the push channel."""
    agent = state.agents[holding.agent]
    unfinished, finished = holding.open & event.numbers, holding.finished & event.numbers
    if holding.agent != event.agent:
        if finished:
            state.emit(SendCommitted(agent.session, layer.digest, finished))
        if unfinished:
            layer.outrun(agent, state.jobs[layer.job], holding, unfinished, now)
    elif unfinished:  # the bundle was faster than the report, or than a cancel and a retry that granted them anew
        _measure(agent, state.jobs[layer.job], len(unfinished), now)
        _succeeded(state, agent, state.jobs[layer.job])
    drop(state, layer, holding, unfinished)
    holding.discard(event.numbers)
    state.prune(holding)


def uncommit(state: State, event: Uncommitted) -> None:
    """Committed bytes turned out damaged: those shards run again."""
    layer = state.open_layers.get(event.layer)
    if layer is None or layer.generation != event.generation:
        return
    numbers = event.numbers & layer.committed
    with state.counting(layer):
        layer.committed.remove(numbers)
    layer.payloads.update(event.payloads)
    layer.state = "open"
    state.release(layer, numbers)


def answer_unknown(state: State, agent: Agent, digest: str) -> None:
    """Of a layer that is not open: all its shards are committed, or nobody wants them, or it waits for its turn."""
    if state.is_kept(digest):
        return
    merged = next((layer for layer in state.by_digest.get(digest, ()) if layer.state == "merged"), None)
    if merged:
        state.emit(SendCommitted(agent.session, digest, merged.whole))
    else:
        state.emit(SendGone(agent.session, digest))
