"""Which input is pulled next, and what its arrival or failure means. No I/O, no clock.

For an agent that does not read sources in place.
"""

from __future__ import annotations

from collections.abc import Iterator

from muster.agent.core import disk_budget
from muster.agent.core.actions import Pull, PullCode
from muster.agent.core.dispatch import in_turn
from muster.agent.core.events import NotPulled, Pulled, PullUp
from muster.agent.core.inputs import name_of
from muster.agent.core.layers import HeldLayer
from muster.agent.core.state import State
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import ItemsWindow, Window

AHEAD = 8  # small inputs asked for at once, so that the link never waits for us
AHEAD_BYTES = 16 << 20
LOOKED_AT = 64  # shards without an input that are looked at while nothing can be pulled


def idle(state: State) -> bool:
    """Whether nothing is on its way."""
    return not state.inputs.coming and not state.pull.codes_coming


def welcomed(state: State) -> None:
    """A new session: everything may be asked for again."""
    state.pull.retry.reset()


# --- asking ---


def ask(state: State, now: float) -> None:
    """Ask for what comes next, and delete what makes room for it."""
    pull, session = state.pull, state.talk.session
    can_ask = pull.up and session != pull.dead_session and pull.retry.is_over(now) and not state.disk.closed(now)
    asked_in = session if can_ask else None
    if asked_in:
        _ask_for_codes(state, asked_in)
        _ask_for_models(state, asked_in)
    queue = [holding for holding in state.holdings.values() if holding.pulls and holding.waiting]
    for holding in in_turn(queue, state.slots, now) if queue else ():
        if not _serve(state, holding, asked_in):
            break


def _ask_for_codes(state: State, session: int) -> None:
    for holding in state.holdings.values():
        code = holding.info.work.code
        if code and holding.waiting and code not in state.codes and code not in state.pull.codes_coming:
            state.pull.codes_coming[code] = session
            state.emit(PullCode(session, code))


def _ask_for_models(state: State, session: int) -> None:
    """They come before the inputs, as nothing runs without them."""
    for holding in state.holdings.values():
        model, inputs = holding.info.work.model, state.inputs
        if model is None or not holding.waiting or model.digest in inputs.coming or disk_budget.refuses(state, holding):
            continue
        if not _is_here(state, model.digest, model.nbytes) and disk_budget.left(state) >= model.nbytes:
            _ask(state, Pull(session, model.digest, holding.info.layer.digest, 0, model.nbytes, True))


def _serve(state: State, holding: HeldLayer, session: int | None) -> bool:
    """Find or ask for the inputs of this layer, in order. False where no more can be asked for."""
    looked_at = 0
    for number, window in _lacking(holding):
        name = name_of(state.farm, window)
        if _is_here(state, name, window.nbytes):
            holding.has_input(number, name)
        elif name in state.inputs.coming:
            continue
        elif session:
            if disk_budget.refuses(state, holding):
                return True
            if not _may_ask(state, holding, window.nbytes):
                return False
            _ask(state, Pull(session, name, holding.info.layer.digest, number, window.nbytes, window=window))
        elif (looked_at := looked_at + 1) >= LOOKED_AT:
            return False
    return True


def _is_here(state: State, name: str, nbytes: int) -> bool:
    copy = state.inputs.whole.get(name)
    if copy is not None and copy.nbytes != nbytes:  # cut short while nobody looked
        disk_budget.discard(state, name, copy.digest)
        return False
    return copy is not None


def _may_ask(state: State, holding: HeldLayer, nbytes: int) -> bool:
    coming = state.inputs.coming
    if coming and (len(coming) >= AHEAD or state.inputs.coming_bytes + nbytes > AHEAD_BYTES):
        return False
    return disk_budget.has_room_to_pull(state, holding, nbytes)


def _ask(state: State, pull: Pull) -> None:
    known = state.inputs.halves.get(pull.name, 0)
    disk_budget.make(state, pull.nbytes - known, keep=pull.name)
    state.disk.grew(state.inputs.start(pull))
    state.emit(pull)


# --- what came of it ---


def note(state: State, event: PullUp | Pulled | NotPulled, now: float) -> None:
    """What happened to the pull channel."""
    match event:
        case PullUp():
            state.pull.up = True
        case Pulled():
            _came(state, event)
        case NotPulled():
            _failed(state, event, now)


def _came(state: State, event: Pulled) -> None:
    state.pull.worked()
    if event.name in state.pull.codes_coming:
        _account_code(state, event)
        del state.pull.codes_coming[event.name]
        state.codes.add(event.name)
    elif event.name in state.inputs.coming:
        pull = state.inputs.coming[event.name]
        state.inputs.came(event.name, event.digest, event.seconds)
        state.disk.written()
        state.reports.next.pulled += event.nbytes - event.spared
        state.reports.next.spared += event.spared
        state.reports.next.pull_seconds += event.seconds
        holding = state.holdings.get(pull.layer)
        if holding is not None:
            _account(state, holding, event)
        if holding is not None and not pull.model and pull.number in holding.waiting:
            holding.has_input(pull.number, pull.name)


def _account(state: State, holding: HeldLayer, event: Pulled) -> None:
    """The job's shards took this from the link, or from a copy here."""
    taken = state.account.job(holding.info.job)
    taken.in_bytes += event.nbytes - event.spared
    taken.spared += event.spared
    taken.in_seconds += event.seconds
    taken.disk_bytes += event.nbytes


def _account_code(state: State, event: Pulled) -> None:
    """A pack may be several jobs': it counts for the first of them."""
    for holding in state.holdings.values():
        if holding.info.work.code == event.name:
            _account(state, holding, event)
            return


def _failed(state: State, event: NotPulled, now: float) -> None:
    pull = state.inputs.coming.get(event.name)
    session = pull.session if pull else state.pull.codes_coming.pop(event.name, None)
    if event.code == "cut":
        state.pull.up, state.pull.stuck = False, event.message
        if pull:
            state.inputs.cut(event.name)
        return
    if pull:
        state.disk.grew(-state.inputs.forget(event.name))
    match event.code:
        case "full":
            state.disk.filled(event.message, now)
            disk_budget.clear(state)
        case "changed" | "gone":
            _give_back(state, event, pull)
        case "no-session":
            state.pull.dead_session = session
        case "refused":
            state.pull.failed(event.message, now)


def _give_back(state: State, event: NotPulled, pull: Pull | None) -> None:
    """It cannot be had: its shard goes back; of a changed source all do, of unknown files those that want them."""
    if pull is None or pull.model:
        for holding in state.holdings.values():
            if event.name in holding.files:
                state.give_back(holding, holding.waiting.copy())
        return
    if event.code == "changed":
        state.reports.change(pull.layer, event.message)
    wanted = state.holdings.get(pull.layer)
    if wanted is not None:
        wrong = wanted.waiting if event.code == "changed" else RangeSet.of([pull.number]) & wanted.waiting
        state.give_back(wanted, wrong.copy())


def _lacking(holding: HeldLayer) -> Iterator[tuple[int, Window | ItemsWindow]]:
    """Shards that wait for their input, in the order they are to run."""
    for number in holding.waiting - holding.ready:
        yield number, holding.info.layer.window(number)
