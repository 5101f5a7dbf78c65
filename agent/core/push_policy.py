"""Which bundle goes next, and what its answer means. One bundle is under way at a time. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable

from muster.agent.core.actions import Delete, Push, Recheck, Tell
from muster.agent.core.events import PushAnswered, PushDown, PushUp
from muster.agent.core.state import State
from muster.coordinator.protocol.control import Failure, Loss, Rejected
from muster.coordinator.protocol.transfer import Refused, Settled
from muster.jobs.common.ranges import RangeSet
from muster.jobs.common.retry_delay import RetryDelay
from muster.jobs.contract.plan import Delivery
from muster.jobs.contract.text_limits import EVIDENCE_CHARS


def welcomed(state: State) -> None:
    """A new session: everything may be offered again."""
    state.push.retry.reset()
    state.push.put_off.clear()


def offers_in(state: State, now: float) -> int | None:
    """The session in which something might be offered now; None while nothing is finished, or something in the way."""
    push, session = state.push, state.talk.session
    idle = push.up and not push.under_way and push.retry.is_over(now)
    return session if state.finished_parts.parts and idle and session != push.dead_session else None


def next_bundle(state: State, session: int, flush: bool, now: float) -> None:
    """Offer the bundle whose turn it is, if there is one; `flush`: do not wait for more."""
    push = state.push
    parts, farm, eager = state.finished_parts, state.farm, _eager_layers(state)
    ready = (
        set(parts.layers(farm)) if flush else _quiet_layers(state) | push.hurry | eager | _awaited_layers(state, now)
    )
    later = {layer for layer, retry in push.put_off.items() if not retry.is_over(now)}
    growing = set() if flush else _growing_layers(state)
    chosen = parts.bundle(farm, ready, now, growing | later, eager)
    if chosen is None:
        return
    layer, bundle = chosen
    push.hurry.discard(layer)
    push.farm, push.offered, push.anew = farm, layer, RangeSet()
    push.under_way = Push(session, layer, tuple((part.name, part.live) for part in bundle), _has_rounds(state, layer))
    state.emit(push.under_way)


def _quiet_layers(state: State) -> set[str]:
    """Layers finished of which nothing more is to come."""
    busy = {layer for layer, holding in state.holdings.items() if holding.count}
    return set(state.finished_parts.layers(state.farm)) - busy


def _awaited_layers(state: State, now: float) -> set[str]:
    """Layers whose job lets no result wait as long as the others do."""
    asked = {layer: one.info.work.flush for layer, one in state.holdings.items() if one.info.work.flush is not None}
    oldest = {layer: next(state.finished_parts.of(state.farm, layer), None) for layer in asked}
    return {layer for layer, part in oldest.items() if part is not None and now - part.since >= asked[layer]}


def _growing_layers(state: State) -> set[str]:
    """Layers of rounds that go up as a whole, and of which more is to come."""
    whole = Delivery.ROUND_WHOLE
    return {layer for layer, one in state.holdings.items() if one.count and one.info.layer.delivery is whole}


def _eager_layers(state: State) -> set[str]:
    """Layers of which each part goes up by itself."""
    return {layer for layer, one in state.holdings.items() if one.info.layer.delivery is Delivery.ROUND_EACH}


def _has_rounds(state: State, layer: str) -> bool:
    holding = state.holdings.get(layer)
    return holding is not None and holding.info.layer.delivery.in_rounds


def delete(state: State, names: Iterable[str]) -> None:
    """Delete parts nobody needs from the disk; those in the bundle under way once it is no more."""
    push = state.push
    busy = {name for name, _ in push.under_way.pieces} if push.under_way else set()
    for name in names:
        if name in busy:
            push.emptied.append(name)
        else:
            state.finished_parts.deleted(name)
            state.emit(Delete(name))


def note(state: State, event: PushUp | PushDown | PushAnswered, now: float) -> None:
    """What happened to the push channel."""
    push = state.push
    if isinstance(event, PushUp):
        push.up = True
        return
    bundle, push.under_way = push.under_way, None
    if isinstance(event, PushDown):
        push.up = False
    elif bundle is not None and push.farm == state.farm:
        _answered(state, bundle, event, now)
    emptied, push.emptied = push.emptied, []
    delete(state, emptied)


def _answered(state: State, bundle: Push, event: PushAnswered, now: float) -> None:
    match event.answer:
        case Settled(numbers):
            state.push.put_off.pop(bundle.layer, None)
            state.push.worked()
            state.reports.next.pushed += event.nbytes
            state.reports.next.push_seconds += event.seconds
            if job := state.job_of(bundle.layer):
                taken = state.account.job(job)
                taken.out_bytes += event.nbytes
                taken.out_seconds += event.seconds
            state.push.emptied += state.settle(bundle.layer, RangeSet(numbers) - state.push.anew)
        case Refused(code, numbers, message):
            _refused(state, bundle, event.sent, code, RangeSet(numbers), message, now)
        case Rejected(code, message):
            _refused(state, bundle, event.sent, code, RangeSet(), message, now)


def _refused(
    state: State, bundle: Push, sent: RangeSet, code: str, numbers: RangeSet, message: str, now: float
) -> None:
    push, layer = state.push, bundle.layer
    match code:
        case "committed" if numbers & sent:
            push.hurry.add(layer)
            push.emptied += state.settle(layer, numbers - push.anew)
        case "gone" if push.anew:
            push.emptied += state.settle(layer, sent - push.anew)
        case "gone":
            push.emptied += state.gone(layer)
        case "outputs":
            push.emptied += _fail(state, layer, (numbers or sent) - push.anew, message)
        case "kernels":
            push.emptied += _lose(state, layer, (numbers or sent) - push.anew, message)
        case "later":
            _put_layer_off(state, layer, message, now)
        case "no-session":
            push.dead_session = bundle.session
            push.failed("the coordinator does not know this session", now)
        case "corrupt":
            push.failed(f"a bundle arrived damaged: {message}", now)
            state.emit(Recheck(tuple(name for name, _ in bundle.pieces)))
        case _:
            push.failed(message or f"the coordinator takes no results: {code}", now)
            if push.retry.failures == 1:
                state.emit(Tell(push.stuck))


def _put_layer_off(state: State, layer: str, message: str, now: float) -> None:
    """What is finished of it is kept and offered now and then; that of others goes on."""
    first = layer not in state.push.put_off
    state.push.put_off.setdefault(layer, RetryDelay()).failed(now)
    if first and message:
        state.emit(Tell(f"{message}; what is finished of it is kept here"))


def granted(state: State, layers: set[str]) -> None:
    """More of these is wanted, and so is what there is of them."""
    for layer in layers & state.push.put_off.keys():
        del state.push.put_off[layer]


def _fail(state: State, layer: str, numbers: RangeSet, message: str) -> list[str]:
    """Their outputs are not what the layer's first ones were: the shards failed."""
    job, line = state.job_of(layer), message[:EVIDENCE_CHARS]
    for (boot, attempt), held in state.finished_parts.held(state.farm, layer).items():
        for number in held & numbers:
            state.reports.fail(Failure(job, layer, number, boot, attempt, "output", line, "", 0.0, 0))
    return state.finished_parts.settle(state.farm, layer, numbers)


def _lose(state: State, layer: str, numbers: RangeSet, message: str) -> list[str]:
    """The job runs on machines with other kernels: nobody's failure."""
    job, why = state.job_of(layer), message or "the job's results are of other kernels"
    for (boot, attempt), held in state.finished_parts.held(state.farm, layer).items():
        if told := (held & numbers).pairs():
            state.reports.lose(Loss(job, layer, boot, attempt, told, False, why))
    return state.finished_parts.settle(state.farm, layer, numbers)
