"""Running what is held: which batch goes where, and what its end means. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf

import msgspec

from muster.agent.core import disk_budget, round_sheets
from muster.agent.core.actions import Delete, Freeze, Kill, KillReason, Run, Tell, Thaw
from muster.agent.core.events import BatchEnded, Kept, Needs, SlotGone, SlotsSeen, WorkerDied
from muster.agent.core.layers import HeldLayer
from muster.agent.core.slots import Flight, Slot, Slots, given_for, needs_of
from muster.agent.core.state import State
from muster.coordinator.protocol.control import Printed
from muster.jobs.common.ranges import RangeSet
from muster.jobs.common.units import counted
from muster.jobs.workbench.batch import Mishap, Outcome

WORTH_KILLING_SECONDS = 2.0  # a batch that takes less may as well end by itself
RETIRED_SECONDS = 0.5  # longer than that, what nobody does instead is in the way of other work
ROUND_SECONDS = 60.0  # so long a round's may take: killed for being overtaken, a slow starter would never get going
DRAIN_SECONDS = 600.0  # for what runs at a drain, where its job has no timeout
HEAD_PATIENCE_SECONDS = 30.0  # a slot stays with its layer until another has waited that long


# --- placing ---


def place(state: State, now: float) -> None:
    """Fill the slots."""
    if state.slots.learnt or state.slots.narrow_for:
        state.slots.widen(state.jobs)
    while state.slots.ready and state.slots.open and not state.draining and not state.disk.closed(now):
        if not _next(state, now) or state.disk.full:  # one batch tells whether there is room again
            break


def _next(state: State, now: float) -> bool:
    """Launch the batch whose turn it is. False where there is none."""
    queue = [holding for holding in state.holdings.values() if holding.ready and _has_files(state, holding)]
    if state.disk.full and state.slots.busy:
        return False
    if not queue:
        return _unblock(state, now)
    for holding in in_turn(queue, state.slots, now):
        slot = state.slots.free_for(holding, now)
        if slot is not None and not disk_budget.must_wait(state, holding, slot):
            needs = needs_of(holding.info)
            alike = sum(len(other.waiting) for other in queue if needs_of(other.info) == needs)
            count = _affordable(state, holding, slot, state.slots.batch_size(holding, alike))
            if count:
                _launch(state, slot, holding, count, now)
            return bool(count)
    return False


def _unblock(state: State, now: float) -> bool:
    """Queue anew what waits behind a shard that takes longer than was expected, where another slot is idle. It is not
    called back from where it waits: if that comes to it as well, the second run is for nothing."""
    for slot in state.slots.every:
        for flight in slot.flights[1:] if slot.is_late(now) else ():
            holding = state.holdings.get(flight.layer)
            left = holding.counting(flight.ticket, flight.items) if holding is not None and not flight.inputs else []
            other = state.slots.free_for(holding, now) if holding is not None and left else None
            if holding is not None and other is not None and not other.flights:
                holding.put_back(left, now)
                return True
    return False


def _has_files(state: State, holding: HeldLayer) -> bool:
    if state.in_place:
        return True
    code, model = holding.files
    return (code is None or code in state.codes) and (model is None or model in state.inputs.whole)


def _affordable(state: State, holding: HeldLayer, slot: Slot, count: int) -> int:
    """As many as the disk has room for."""
    needed = disk_budget.needed(state, holding, slot)
    if not needed:
        return count
    if disk_budget.left(state) < needed and not disk_budget.refuses(state, holding) and disk_budget.is_unused(state):
        disk_budget.let_others_wait(state, holding, needed)
    spare = disk_budget.left(state) - needed  # beside the first one
    return min(count, 1 + spare // holding.reserve if holding.reserve else count) if spare >= 0 else 0


def _launch(state: State, slot: Slot, holding: HeldLayer, count: int, now: float) -> None:
    state.tickets += 1
    ticket = state.tickets
    items = holding.take(count, ticket, now)
    inputs = {number: holding.inputs[number] for number, _, _ in items if number in holding.inputs}
    farm, layer = state.farm, holding.info.layer.digest
    part = f"{farm}/{layer}/{state.part_prefix}-{ticket:08d}.part"
    expected = None if holding.seconds is None else holding.seconds * len(items)
    attempts = {number: (boot, attempt) for number, boot, attempt in items}
    flight = Flight(ticket, slot.number, holding.info, attempts, part, expected, inputs)
    models = [name for name in [holding.model] if name is not None and name in state.inputs.whole]
    flight.pull_seconds = state.inputs.use({*inputs.values(), *models})
    state.slots.launch(slot, flight, now)
    payloads = {number: holding.payloads[number] for number in attempts if number in holding.payloads}
    copies = {number: state.inputs.whole[name] for number, name in inputs.items()}
    sheets = {number: holding.sheets[number] for number in attempts if number in holding.sheets}
    gpus = slot.gpus if state.slots.gpus else None
    keeps = round_sheets.budget(state) if holding.follows else 0
    run = Run(ticket, slot.number, farm, holding.info, part, tuple(items), payloads, copies, sheets, gpus, keeps)
    disk_budget.make(state, 0)
    state.emit(run)


def demand(state: State) -> dict[Needs, int]:
    """What workers there is work for, the longest waiting first, within what is lent."""
    found: dict[Needs, int] = {}
    left = 0 if state.disk.full else state.slots.lent
    for holding in sorted(state.holdings.values(), key=lambda holding: holding.waiting_since):
        count = min(holding.count, left // holding.cpus)
        if count:
            given = given_for(holding.info)
            found[given] = found.get(given, 0) + count
            left -= count * holding.cpus
    return found


# --- the end of a batch ---


def ended(state: State, event: BatchEnded, now: float) -> None:
    """A call returned: keep its part, report what failed, queue what was not reached."""
    landed = state.slots.land(event.ticket, now)
    if landed is None:
        return
    slot, flight = landed
    outcome = event.outcome
    if outcome.full:
        state.disk.filled(outcome.full, now)
    elif outcome.numbers:
        state.disk.written()
    barren = not (outcome.numbers or outcome.mishaps or outcome.full or outcome.changed)
    hopeless = barren and slot.fruitless(now)
    if not barren:
        slot.fruitful()
    round_sheets.made(state, flight.layer, outcome.sheets)
    _keep(state, flight, outcome, now)
    if outcome.full:
        disk_budget.clear(state)
    outcome = _without_crowded(state, slot, flight, outcome)
    outcome = _without_spoilt(state, flight, outcome)
    _waste(state, flight, sum(mishap.seconds for mishap in event.outcome.mishaps))
    _after(state, flight, outcome, hopeless, now)


def _keep(state: State, flight: Flight, outcome: Outcome, now: float) -> None:
    """Put the part finished, or have it deleted where nobody wants any of it."""
    if not outcome.numbers:
        return
    holding = state.holdings.get(flight.layer)
    if holding is not None and outcome.seconds > 0:
        holding.measured(len(outcome.numbers), outcome.seconds, outcome.nbytes)
    numbers = [number for number in outcome.numbers if number in flight.items]
    sums = state.finish(flight.layer, numbers, flight.part, outcome.nbytes, now)
    state.account.job(flight.info.job).disk_bytes += outcome.nbytes
    if not sums:
        _waste(state, flight, outcome.seconds)
        state.emit(Delete(flight.part))
        return
    total = sums[0]  # the batch's measurements go to one of its grants; they are added up over all of them anyway
    total.rows += outcome.rows
    total.compute += outcome.seconds
    total.pull += flight.pull_seconds
    total.in_bytes += outcome.in_bytes
    total.out_bytes += outcome.nbytes
    total.peak = max(total.peak, outcome.peak)
    _tell_printed(state, flight, outcome)
    state.reports.next.busy += outcome.seconds * flight.info.work.cpus


def _waste(state: State, flight: Flight, seconds: float) -> None:
    """So long a batch was at what gave nothing that counts."""
    state.account.job(flight.info.job).wasted += max(0.0, seconds) * flight.info.work.cpus


def _tell_printed(state: State, flight: Flight, outcome: Outcome) -> None:
    for number, text in outcome.printed:
        if number in flight.items:
            state.reports.print(Printed(flight.layer, number, *flight.items[number], text))
    state.reports.print(None, outcome.unprinted)


def _without_crowded(state: State, slot: Slot, flight: Flight, outcome: Outcome) -> Outcome:
    """A shard that found no memory beside others runs again, with fewer of them: that costs it no attempt."""
    short = [mishap for mishap in outcome.mishaps if mishap.code == "memory"]
    if not short or not _narrowed(state, slot, flight, short[0].message):
        return outcome
    kept = tuple(mishap for mishap in outcome.mishaps if mishap not in short)
    return msgspec.structs.replace(outcome, mishaps=kept)


def _narrowed(state: State, slot: Slot, flight: Flight, why: str) -> bool:
    """Whether a slot could be taken away for the memory of what ran here; then it is told."""
    if not state.slots.narrow(slot, flight.info):
        return False
    _tell_narrowed(state, why)
    return True


def _tell_narrowed(state: State, why: str) -> None:
    """In the log, and to whoever looks at the machines while it lasts."""
    state.narrowed = f"memory: {why}; going on with {counted(state.slots.allowed, 'cpu')}"
    state.emit(Tell(state.narrowed))


def _without_spoilt(state: State, flight: Flight, outcome: Outcome) -> Outcome:
    """Copies that are not what was pulled go; their shards run again with others. The second time they are lost."""
    again = set()
    for mishap in outcome.mishaps:
        name = _spoilt_name(state, flight, mishap)
        if name is None:
            continue
        if name not in state.spoilt:
            state.spoilt.add(name)
            again.add(mishap.number)
        state.codes.discard(name)
        disk_budget.lose(state, name)
    kept = tuple(mishap for mishap in outcome.mishaps if mishap.number not in again)
    return msgspec.structs.replace(outcome, mishaps=kept)


def _spoilt_name(state: State, flight: Flight, mishap: Mishap) -> str | None:
    """The copy a shard could not be run with: of its job's code, or model, or of its input."""
    if mishap.code == "code":
        code = flight.info.work.code
        return code if code in state.codes else None
    if mishap.code == "model":
        model = flight.info.work.model
        return model.digest if model is not None and model.digest in state.inputs.whole else None
    return flight.inputs.get(mishap.number) if mishap.code == "input" else None


def _after(state: State, flight: Flight, outcome: Outcome, hopeless: bool, now: float) -> None:
    """What gave no result: it failed, was lost, goes back, or runs again."""
    holding = state.holdings.get(flight.layer)
    if holding is None:
        return
    for mishap in outcome.mishaps:
        if holding.counting(flight.ticket, [mishap.number]):
            unfit = mishap.code == "unfit"
            if unfit:
                state.unfit.setdefault(flight.info.work.kind, mishap.message)
            state.fail(holding, mishap, running=not unfit)
    if outcome.changed:
        state.reports.change(flight.layer, outcome.change)
        left = RangeSet.of(sorted(holding.counting(flight.ticket, flight.items)))
        state.give_back(holding, left | holding.waiting)
    if hopeless:
        left = RangeSet.of(sorted(holding.counting(flight.ticket, flight.items)))
        state.lose(holding, left, False, "the pool's worker could not run it")
    _again(state, holding, flight, now)


def _again(state: State, holding: HeldLayer, flight: Flight, now: float) -> None:
    """What counts in this flight still is not done: queue it, or hand it back at a drain."""
    left = sorted(holding.counting(flight.ticket, flight.items))
    if state.draining or not state.slots.lent:
        state.give_back(holding, RangeSet.of(left))
    elif left:
        holding.put_back(left, now)


# --- the death of a worker ---


def died(state: State, event: WorkerDied, now: float) -> None:
    """A worker is gone: blame the shard in hand, where that is just; the others run again with no report."""
    slot = state.slots.every[event.slot]
    slot.worker = "none" if slot.worker == "none" else "coming"  # the news may be older than that of the pool's loss
    why, victim = slot.killing, slot.victim
    at_work = now - slot.running_since if slot.running is not None else 0.0
    flights = state.slots.clear(slot, event.tickets, now)
    if flights:
        _waste(state, flights[0], at_work)
    for flight in flights:
        _rescue(state, flight, event.kept, now)
    if flights and slot.place and event.running is None and (why == "timeout" or not event.ours):
        event = _narrow_down(state, flights[0], event)
    blamed = flights and _blame(state, slot, flights[0], event, why, victim)
    hopeless = not event.ours and not blamed and slot.fruitless(now)
    for flight in flights:
        holding = state.holdings.get(flight.layer)
        if holding is not None:
            _after(state, flight, NOTHING, hopeless, now)


def gone(state: State, event: SlotGone, now: float) -> None:
    """A slot has no worker: what it was given is queued anew, and nobody is to blame."""
    slot = state.slots.every[event.slot]
    slot.worker = "none"
    for flight in state.slots.clear(slot, event.tickets, now):
        _after(state, flight, NOTHING, False, now)


def _rescue(state: State, flight: Flight, kept: Mapping[int, Kept], now: float) -> None:
    """Results the worker had committed before it died count like any others."""
    if part := kept.get(flight.ticket):
        seconds = flight.expected or 0.0
        _keep(state, flight, Outcome(part.numbers, part.rows, part.nbytes, 0, seconds, 0, ()), now)


def _narrow_down(state: State, flight: Flight, event: WorkerDied) -> WorkerDied:
    """On another machine no mark says which shard the worker was at: it was the only one, or each runs alone next."""
    if flight.alone is not None:
        return replace(event, running=flight.alone)
    if holding := state.holdings.get(flight.layer):
        holding.suspects.update(RangeSet.of(sorted(holding.counting(flight.ticket, flight.items))))
    return event


def _blame(
    state: State,
    slot: Slot,
    flight: Flight,
    event: WorkerDied,
    why: KillReason | None,
    victim: tuple[int, int, int] | None,
) -> bool:
    """Report the shard the worker was running. False where there is none, or it is not to blame."""
    holding = state.holdings.get(flight.layer)
    if event.running is None or holding is None:
        return False
    number, *attempt = event.running
    if flight.items.get(number) != tuple(attempt) or not holding.counting(flight.ticket, [number]):
        return False
    if event.ours and event.running != victim:
        return False
    if event.short and _narrowed(state, slot, flight, event.reason):
        mishap, running = Mishap(number, "lost", event.reason, "", 0.0, 0), False
    else:
        mishap, running = _verdict(number, event, why, flight)
    state.fail(holding, mishap, running)
    return True


# --- stopping and going on ---


def balance(state: State, now: float) -> None:
    """Stop what runs beyond the processors that are lent; let it go on once there are enough."""
    while (slot := state.slots.to_freeze()) is not None:
        slot.frozen_since = now
        state.emit(Freeze(slot.number))
    while (slot := state.slots.to_thaw()) is not None:
        slot.thaw(now)
        state.emit(Thaw(slot.number))


# --- killing ---


def seen(state: State, event: SlotsSeen, now: float) -> None:
    """A look at the busy slots: what hangs is killed, and what takes too much memory."""
    for view in event.views:
        state.slots.every[view.slot].see(view.running, now)
        state.slots.learn(view.slot, view.tree_bytes, now)
    _account_for(state, event)
    kill_unwanted(state, now)
    for slot in state.slots.every:
        if slot.flights and slot.overdue(now):
            _kill(state, slot, "timeout", slot.in_hand)
    trees = {view.slot: view.tree_bytes for view in event.views if state.slots.every[view.slot].flights}
    if sum(trees.values()) > state.slots.memory:
        _shrink(state, state.slots.every[max(trees, key=lambda n: trees[n])], trees)


def _account_for(state: State, event: SlotsSeen) -> None:
    """What each job's shards take of memory, and used of the processors."""
    by_job: dict[str, int] = {}
    for view in event.views:
        slot = state.slots.every[view.slot]
        job = slot.job if slot.flights else ""
        state.account.used_processor(view.slot, job, view.processor_seconds)
        if job:
            by_job[job] = by_job.get(job, 0) + view.tree_bytes
    state.account.weighed(by_job)


def _shrink(state: State, slot: Slot, trees: dict[int, int]) -> None:
    if any(other.killing for other in state.slots.every) or slot.running is None:
        return  # memory comes free already, or there is nothing to blame
    line = f"{sum(trees.values()) >> 20} MiB in use, the budget is {state.slots.memory >> 20} MiB"
    if state.slots.narrow(slot, slot.flights[0].info):
        _tell_narrowed(state, line)
        _kill(state, slot, "crowded", slot.running)
    else:
        _kill(state, slot, "memory", slot.running)


def _kill(state: State, slot: Slot, why: KillReason, victim: tuple[int, int, int] | None) -> None:
    if not slot.killing:
        slot.killing, slot.victim = why, victim
        state.emit(Kill(slot.number, why))


def kill_unwanted(state: State, now: float) -> None:
    """Kill what counts no more, and runs long: as is expected of it, or as it turns out."""
    for slot in state.slots.every:
        for flight in slot.flights[:1]:
            if _is_wanted(state, slot, flight):
                flight.unwanted_since = None
                continue
            flight.unwanted_since = now if flight.unwanted_since is None else flight.unwanted_since
            if _outstays(flight, now - flight.unwanted_since):
                _kill(state, slot, "dropped", None)


def _outstays(flight: Flight, unwanted_seconds: float) -> bool:
    """Whether a batch of which nothing counts any more is worth a kill and its worker's new start."""
    in_rounds = flight.info.layer.delivery.in_rounds
    worth = patience = ROUND_SECONDS if in_rounds else WORTH_KILLING_SECONDS
    if flight.retired:
        worth, patience = WORTH_KILLING_SECONDS, RETIRED_SECONDS
    unknown = 0.0 if in_rounds else inf
    expected = unknown if flight.expected is None else flight.expected
    return expected > worth or unwanted_seconds > patience


def _is_wanted(state: State, slot: Slot, flight: Flight) -> bool:
    """Whether the shard in hand counts; where it is not known, any of the batch."""
    holding = state.holdings.get(flight.layer)
    if holding is None:
        return False
    number, *attempt = slot.running or (-1, 0, 0)
    in_hand = [number] if flight.items.get(number) == tuple(attempt) else list(flight.items)
    return bool(holding.counting(flight.ticket, in_hand))


def kill_late(state: State, now: float) -> None:
    """At a drain, what outstayed its time."""
    if not state.draining:
        return
    for slot in state.slots.every:
        for flight in slot.flights[:1]:
            if now - state.draining_since > (flight.info.work.timeout or DRAIN_SECONDS):
                _kill(state, slot, "drain", slot.running)


NOTHING = Outcome((), 0, 0, 0, 0.0, 0, ())


def in_turn(queue: list[HeldLayer], slots: Slots, now: float) -> Iterable[HeldLayer]:
    """Layers that slots are at first, then the longest waiting. One that waited too long blocks all others."""
    head = min(queue, key=lambda holding: holding.waiting_since)
    if now - head.waiting_since > HEAD_PATIENCE_SECONDS:
        return [head]
    at = {slot.last_layer for slot in slots.every}
    return sorted(queue, key=lambda h: (h.info.layer.digest not in at, h.waiting_since))


def _verdict(number: int, event: WorkerDied, why: KillReason | None, flight: Flight) -> tuple[Mishap, bool]:
    """What to report of the shard in hand, and whether its running counts against it."""
    if event.short:
        return Mishap(number, "memory", event.reason, "", 0.0, 0), True
    if not event.ours or why is None:
        return Mishap(number, "lost", event.reason, "", 0.0, 0), not event.ours
    if why == "timeout":
        line = f"it ran longer than its timeout of {flight.info.work.timeout:g} s"
        return Mishap(number, "timeout", line, "", flight.info.work.timeout or 0.0, 0), True
    if why == "memory":
        line = "alone on this machine it takes more than the memory budget"
        return Mishap(number, "memory", line, "", 0.0, 0), True
    return Mishap(number, "lost", why, "", 0.0, 0), False
