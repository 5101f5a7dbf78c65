"""What the disk budget is used and promised for, and what has to go when it is short. No I/O, no clock.

Parts, inputs and outputs to come share the budget. Inputs that nobody waits for stay while there is room.
"""

from __future__ import annotations

from muster.agent.core.actions import Discard, Pull
from muster.agent.core.layers import HeldLayer
from muster.agent.core.slots import Flight, Slot
from muster.agent.core.state import SPARE_BYTES, State
from muster.jobs.common.units import format_size


def reserved(state: State) -> int:
    """Bytes of input and output of all that is held, is being run or is on its way."""
    held = sum(len(holding.waiting) * holding.cost for holding in state.holdings.values() if holding.waiting)
    return held + output_to_come(state) + _in_use(state) + _strays(state)


def room(state: State) -> int:
    """Bytes that may be promised to the coordinator; less than 0 where too much is."""
    return state.disk.room(state.finished_parts.nbytes, reserved(state), state.inputs.nbytes)


def output_to_come(state: State) -> int:
    """Of what runs, wanted or not, and its scratch space."""
    return scratch(state) + sum(len(one.items) * _reserve_of(state, one) for one in state.slots.flights)


def _reserve_of(state: State, flight: Flight) -> int:
    holding = state.holdings.get(flight.layer)
    return holding.reserve if holding is not None else flight.info.layer.out_bytes


def left(state: State) -> int:
    """Bytes for the outputs of more runs, were all inputs gone that nobody waits for."""
    kept = state.inputs.bytes_of(_kept(state)) + state.inputs.coming_bytes
    return state.disk.room(state.finished_parts.nbytes, output_to_come(state) + kept, state.inputs.nbytes)


def has_room_to_pull(state: State, holding: HeldLayer, nbytes: int) -> bool:
    """Whether one more input leaves enough for its own output, and for those of all that could run before it. With
    any of those, one more can begin; without, it may wait for the scratch space of what runs."""
    more = holding.info.work.disk - (0 if holding.ready else scratch(state))
    ready = sum(len(other.ready) * other.reserve for other in state.holdings.values() if other.pulls)
    return left(state) - ready - nbytes >= holding.reserve + max(0, more)


def scratch(state: State) -> int:
    """Bytes that the shards that run may fill: one on each slot, whatever else is in flight there."""
    return sum(slot.flights[0].info.work.disk for slot in state.slots.every if slot.flights)


def needed(state: State, holding: HeldLayer, slot: Slot) -> int:
    """Bytes for one shard to run there: its output, and scratch space unless what runs there has it already."""
    return holding.reserve + (0 if slot.flights else holding.info.work.disk)


def must_wait(state: State, holding: HeldLayer, slot: Slot) -> bool:
    """Whether there is no room to begin before others give back their scratch space."""
    return scratch(state) > 0 and left(state) < needed(state, holding, slot)


def refuses(state: State, holding: HeldLayer) -> bool:
    """Whether a shard needs more than all of the budget. Then they are handed back."""
    model = holding.info.work.model
    whole = holding.cost + holding.info.work.disk + (model.nbytes if model is not None and holding.pulls else 0)
    if whole <= state.disk.budget:
        return False
    state.too_large = f"a shard needs {format_size(whole)} of disk, the budget is {format_size(state.disk.budget)}"
    state.give_back(holding, holding.waiting.copy())
    return True


def is_unused(state: State) -> bool:
    """Whether nothing is going to become free by itself."""
    return not (state.finished_parts.nbytes or state.inputs.coming or state.slots.busy)


def least_cost(state: State) -> int:
    """Of a shard of the layers known here: with less room there can be no more of these."""
    return min((holding.cost for holding in state.holdings.values()), default=0)


def is_short(state: State) -> bool:
    """Whether there is no room for one more shard such as those held, and would be were all parts pushed."""
    if not (pushed := state.finished_parts.nbytes):
        return False
    cost = max((holding.cost for holding in state.holdings.values() if holding.count), default=0)
    return (free := room(state)) < cost <= free + pushed


def make(state: State, nbytes: int, keep: str = "") -> None:
    """Delete inputs that nobody waits for until `nbytes` more can be written."""
    if _missing(state, nbytes) > 0:
        for name, digest in state.inputs.spare(_kept(state)):
            if name != keep:
                discard(state, name, digest)
            if _missing(state, nbytes) <= 0:
                break


def clear(state: State) -> None:
    """Delete all of those: the disk is fuller than we thought."""
    for name, digest in state.inputs.spare(_kept(state)):
        discard(state, name, digest)


def discard(state: State, name: str, digest: bytes | None) -> None:
    state.disk.grew(-state.inputs.forget(name))
    state.emit(Discard(name, digest))


def lose(state: State, name: str) -> None:
    """It is not what was pulled, whoever waits for it."""
    copy = state.inputs.whole.get(name)
    for holding in state.holdings.values():
        holding.lacks_input([number for number, own in holding.inputs.items() if own == name])
    if copy:
        discard(state, name, copy.digest)


def let_others_wait(state: State, holding: HeldLayer, needed: int) -> None:
    """Inputs of other shards go before the first of these cannot run at all: they are pulled again, later."""
    first = holding.ready.bottom
    for other in reversed(state.holdings.values()):
        if other.pulls:
            ready = [n for n in other.ready if other is not holding or n != first]
            while ready and left(state) < needed:
                other.lacks_input([ready.pop()])


def _missing(state: State, nbytes: int) -> int:
    """Bytes that have to go before `nbytes` more are written beside what is being run."""
    more = output_to_come(state) + nbytes
    over = state.finished_parts.nbytes + state.inputs.nbytes + more - state.disk.budget
    return over if state.disk.free is None else max(over, more + SPARE_BYTES - state.disk.free)


def _kept(state: State) -> set[str]:
    """Inputs that are read, or will be."""
    names = {name for holding in state.holdings.values() for name in holding.inputs.values()}
    for flight in state.slots.flights:
        names.update(flight.inputs.values())
    return names | _models(state)


def _models(state: State) -> set[str]:
    """Those of all that is held, waiting or running."""
    held = [one.info.work.model for one in state.holdings.values() if one.info.work.model is not None and one.count]
    running = [flight.info.work.model for flight in state.slots.flights]
    return {model.digest for model in (*held, *running) if model is not None}


def _in_use(state: State) -> int:
    if not state.inputs.whole:
        return 0
    running = {name for flight in state.slots.flights for name in flight.inputs.values()}
    return state.inputs.bytes_of(running | _models(state))


def _strays(state: State) -> int:
    """Of models on their way, and of inputs for shards that are no longer held."""
    return sum(pull.nbytes for pull in state.inputs.coming.values() if not _is_counted(state, pull))


def _is_counted(state: State, pull: Pull) -> bool:
    """Whether its bytes are among those of a shard that is held."""
    holding = state.holdings.get(pull.layer)
    return holding is not None and not pull.model and pull.number in holding.waiting
