"""Running what is held: which batch goes where, and what its end means. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from muster.agent.core.actions import Action, Delete, Freeze, Kill, KillReason, Run, Tell, Thaw
from muster.agent.core.disk_budget import DiskBudget
from muster.agent.core.events import BatchEnded, Kept, SlotsSeen, WorkerDied
from muster.agent.core.layers import HeldLayer
from muster.agent.core.slots import Flight, Slot, Slots, needs_of
from muster.coordinator.protocol.control import Printed
from muster.jobs.common.ranges import RangeSet
from muster.jobs.workbench.batch import Mishap, Outcome

WORTH_KILLING_SECONDS = 2.0  # a batch that takes less may as well end by itself
ROUND_SECONDS = 60.0  # so long a round's may take: killed for being overtaken, a slow starter would never get going
DRAIN_SECONDS = 600.0  # for what runs at a drain, where its job has no timeout
HEAD_PATIENCE_SECONDS = 30.0  # a slot stays with its layer until another has waited that long


class Dispatch:
    """The stock's held shards on the slots of one pool. `part_prefix` makes names of parts unique to this process."""

    def __init__(self, space: DiskBudget, codes: set[str] | None, part_prefix: str) -> None:
        self.space = space
        self.state = space.state
        self.codes = codes  # packs of users' files that are here; None: all are
        self.ready = False  # whether the pool is up
        self.draining_since: float | None = None
        self._prefix = part_prefix
        self._tickets = 0
        self._spoilt: set[str] = set()  # copies that were not what was pulled, once

    # --- placing ---

    def place(self, now: float) -> list[Action]:
        """Fill the slots."""
        placed: list[Action] = []
        self.state.slots.widen(self.state.jobs)
        while self.ready and self.state.slots.open and self.draining_since is None and not self.state.disk.closed(now):
            commands = self._next(now)
            if not commands:
                break
            placed += commands
            if self.state.disk.full:  # one batch tells whether there is room again
                break
        return placed

    def _next(self, now: float) -> list[Action]:
        queue = [holding for holding in self.state.holdings.values() if holding.ready and self._has_files(holding)]
        if not queue or (self.state.disk.full and self.state.slots.busy):
            return []
        for holding in in_turn(queue, self.state.slots, now):
            slot = self.state.slots.free_for(holding, now)
            if slot is not None and not self.space.must_wait(holding, slot):
                needs = needs_of(holding.info)
                alike = sum(len(other.waiting) for other in queue if needs_of(other.info) == needs)
                count = self._affordable(holding, slot, self.state.slots.batch_size(holding, alike))
                return self._launch(slot, holding, count, now) if count else []
        return []

    def _has_files(self, holding: HeldLayer) -> bool:
        if self.codes is None:
            return True
        code, model = holding.files
        return (code is None or code in self.codes) and (model is None or model in self.state.inputs.whole)

    def _affordable(self, holding: HeldLayer, slot: Slot, count: int) -> int:
        """As many as the disk has room for."""
        needed = self.space.needed(holding, slot)
        if not needed:
            return count
        if self.space.left < needed and not self.space.refuses(holding) and self.space.is_unused:
            self.space.let_others_wait(holding, needed)
        spare = self.space.left - needed  # beside the first one
        return min(count, 1 + spare // holding.reserve if holding.reserve else count) if spare >= 0 else 0

    def _launch(self, slot: Slot, holding: HeldLayer, count: int, now: float) -> list[Action]:
        self._tickets += 1
        ticket = self._tickets
        items = holding.take(count, ticket, now)
        inputs = {number: holding.inputs[number] for number, _, _ in items if number in holding.inputs}
        farm, layer = self.state.farm, holding.info.layer.digest
        part = f"{farm}/{layer}/{self._prefix}-{ticket:08d}.part"
        expected = None if holding.seconds is None else holding.seconds * len(items)
        attempts = {number: (boot, attempt) for number, boot, attempt in items}
        flight = Flight(ticket, slot.number, holding.info, attempts, part, expected, inputs)
        models = [name for name in [holding.model] if name is not None and name in self.state.inputs.whole]
        flight.pull_seconds = self.state.inputs.use({*inputs.values(), *models})
        self.state.slots.launch(slot, flight, now)
        payloads = {number: holding.payloads[number] for number in attempts if number in holding.payloads}
        copies = {number: self.state.inputs.whole[name] for number, name in inputs.items()}
        sheets = {number: holding.sheets[number] for number in attempts if number in holding.sheets}
        gpus = slot.gpus if self.state.slots.gpus else None
        run = Run(ticket, slot.number, farm, holding.info, part, tuple(items), payloads, copies, sheets, gpus)
        return [*self.space.make(0), run]

    # --- the end of a batch ---

    def ended(self, event: BatchEnded, now: float) -> list[Action]:
        """A call returned: keep its part, report what failed, queue what was not reached."""
        landed = self.state.slots.land(event.ticket)
        if landed is None:
            return []
        slot, flight = landed
        outcome = event.outcome
        if outcome.full:
            self.state.disk.filled(outcome.full, now)
        elif outcome.numbers:
            self.state.disk.written()
        barren = not (outcome.numbers or outcome.mishaps or outcome.full or outcome.changed)
        hopeless = barren and slot.fruitless(now)
        if not barren:
            slot.fruitful()
        orders = self._keep(flight, outcome, now)
        if outcome.full:
            orders += self.space.clear()
        outcome = self._without_crowded(slot, flight, outcome)
        outcome, spoilt = self._without_spoilt(flight, outcome)
        orders += spoilt
        self._after(flight, outcome, hopeless, now)
        return orders

    def _keep(self, flight: Flight, outcome: Outcome, now: float) -> list[Action]:
        """Put the part finished, or have it deleted where nobody wants any of it."""
        if not outcome.numbers:
            return []
        holding = self.state.holdings.get(flight.layer)
        if holding is not None and outcome.seconds > 0:
            holding.measured(len(outcome.numbers), outcome.seconds, outcome.nbytes)
        numbers = [number for number in outcome.numbers if number in flight.items]
        sums = self.state.finish(flight.layer, numbers, flight.part, outcome.nbytes, now)
        if not sums:
            return [Delete(flight.part)]
        total = sums[0]  # the batch's measurements go to one of its grants; they are added up over all of them anyway
        total.rows += outcome.rows
        total.compute += outcome.seconds
        total.pull += flight.pull_seconds
        total.in_bytes += outcome.in_bytes
        total.out_bytes += outcome.nbytes
        total.peak = max(total.peak, outcome.peak)
        self._tell_printed(flight, outcome)
        self.state.reports.next.busy += outcome.seconds * flight.info.work.cpus
        return []

    def _tell_printed(self, flight: Flight, outcome: Outcome) -> None:
        for number, text in outcome.printed:
            if number in flight.items:
                self.state.reports.print(Printed(flight.layer, number, *flight.items[number], text))
        self.state.reports.print(None, outcome.unprinted)

    def _without_crowded(self, slot: Slot, flight: Flight, outcome: Outcome) -> Outcome:
        """A shard that found no memory beside others runs again, with fewer of them: that costs it no attempt."""
        short = [mishap for mishap in outcome.mishaps if mishap.code == "memory"]
        if not short or not self.state.slots.narrow(slot, flight.info):
            return outcome
        kept = tuple(mishap for mishap in outcome.mishaps if mishap not in short)
        return msgspec.structs.replace(outcome, mishaps=kept)

    def _without_spoilt(self, flight: Flight, outcome: Outcome) -> tuple[Outcome, list[Action]]:
        """Copies that are not what was pulled go; their shards run again with others. The second time they are lost."""
        orders: list[Action] = []
        again = set()
        for mishap in outcome.mishaps:
            name = self._spoilt_name(flight, mishap)
            if name is None:
                continue
            if name not in self._spoilt:
                self._spoilt.add(name)
                again.add(mishap.number)
            if self.codes is not None:
                self.codes.discard(name)
            orders += self.space.lose(name)
        kept = tuple(mishap for mishap in outcome.mishaps if mishap.number not in again)
        return msgspec.structs.replace(outcome, mishaps=kept), orders

    def _spoilt_name(self, flight: Flight, mishap: Mishap) -> str | None:
        """The copy a shard could not be run with: of its job's code, or model, or of its input."""
        if mishap.code == "code":
            code = flight.info.work.code
            return code if code is not None and self.codes is not None and code in self.codes else None
        if mishap.code == "model":
            model = flight.info.work.model
            return model.digest if model is not None and model.digest in self.state.inputs.whole else None
        return flight.inputs.get(mishap.number) if mishap.code == "input" else None

    def _after(self, flight: Flight, outcome: Outcome, hopeless: bool, now: float) -> None:
        """What gave no result: it failed, was lost, goes back, or runs again."""
        holding = self.state.holdings.get(flight.layer)
        if holding is None:
            return
        for mishap in outcome.mishaps:
            if holding.counting(flight.ticket, [mishap.number]):
                self.state.fail(holding, mishap)
        if outcome.changed:
            self.state.reports.change(flight.layer, outcome.change)
            left = RangeSet.of(sorted(holding.counting(flight.ticket, flight.items)))
            self.state.give_back(holding, left | holding.waiting)
        if hopeless:
            left = RangeSet.of(sorted(holding.counting(flight.ticket, flight.items)))
            self.state.lose(holding, left, False, "the pool's worker could not run it")
        self._again(holding, flight, now)

    def _again(self, holding: HeldLayer, flight: Flight, now: float) -> None:
        """What counts in this flight still is not done: queue it, or hand it back at a drain."""
        left = sorted(holding.counting(flight.ticket, flight.items))
        if self.draining_since is not None or not self.state.slots.lent:
            self.state.give_back(holding, RangeSet.of(left))
        elif left:
            holding.put_back(left, now)

    # --- the death of a worker ---

    def died(self, event: WorkerDied, now: float) -> list[Action]:
        """A worker is gone: blame the shard in hand, where that is just; the others run again with no report."""
        slot = self.state.slots.every[event.slot]
        why, victim = slot.killing, slot.victim
        flights = self.state.slots.clear(slot, event.tickets)
        orders = [order for flight in flights for order in self._rescue(flight, event.kept, now)]
        blamed = flights and self._blame(flights[0], event, why, victim)
        hopeless = not event.ours and not blamed and slot.fruitless(now)
        for flight in flights:
            holding = self.state.holdings.get(flight.layer)
            if holding is not None:
                self._after(flight, NOTHING, hopeless, now)
        return orders

    def _rescue(self, flight: Flight, kept: dict[int, Kept], now: float) -> list[Action]:
        """Results the worker had committed before it died count like any others."""
        if flight.ticket not in kept:
            return []
        part = kept[flight.ticket]
        seconds = flight.expected or 0.0
        return self._keep(flight, Outcome(part.numbers, part.rows, part.nbytes, 0, seconds, 0, ()), now)

    def _blame(
        self, flight: Flight, event: WorkerDied, why: KillReason | None, victim: tuple[int, int, int] | None
    ) -> bool:
        """Report the shard the worker was running. False where there is none, or it is not to blame."""
        holding = self.state.holdings.get(flight.layer)
        if event.running is None or holding is None:
            return False
        number, *attempt = event.running
        if flight.items.get(number) != tuple(attempt) or not holding.counting(flight.ticket, [number]):
            return False
        if event.ours and event.running != victim:
            return False
        mishap, running = _verdict(number, event, why, flight)
        self.state.fail(holding, mishap, running)
        return True

    # --- stopping and going on ---

    def balance(self, now: float) -> list[Action]:
        """Stop what runs beyond the processors that are lent; let it go on once there are enough."""
        orders: list[Action] = []
        while (slot := self.state.slots.to_freeze()) is not None:
            slot.frozen_since = now
            orders.append(Freeze(slot.number))
        while (slot := self.state.slots.to_thaw()) is not None:
            slot.thaw(now)
            orders.append(Thaw(slot.number))
        return orders

    # --- killing ---

    def seen(self, event: SlotsSeen, now: float) -> list[Action]:
        """A look at the busy slots: what hangs is killed, and what takes too much memory."""
        for view in event.views:
            self.state.slots.every[view.slot].see(view.running, now)
            self.state.slots.learn(view.slot, view.tree_bytes, now)
        orders = self.kill_unwanted(now)
        for slot in self.state.slots.every:
            if slot.flights and slot.overdue(now):
                orders += self._kill(slot, "timeout", slot.running)
        trees = {view.slot: view.tree_bytes for view in event.views if self.state.slots.every[view.slot].flights}
        if sum(trees.values()) > self.state.slots.memory:
            orders += self._shrink(self.state.slots.every[max(trees, key=lambda n: trees[n])], trees)
        return orders

    def _shrink(self, slot: Slot, trees: dict[int, int]) -> list[Action]:
        if any(other.killing for other in self.state.slots.every) or slot.running is None:
            return []  # memory comes free already, or there is nothing to blame
        line = f"{sum(trees.values()) >> 20} MiB in use, the budget is {self.state.slots.memory >> 20} MiB"
        if not self.state.slots.narrow(slot, slot.flights[0].info):
            return self._kill(slot, "memory", slot.running)
        tell = Tell(f"memory: {line}; going on with {self.state.slots.allowed} cpus")
        return [tell, *self._kill(slot, "crowded", slot.running)]

    def _kill(self, slot: Slot, why: KillReason, victim: tuple[int, int, int] | None) -> list[Action]:
        if slot.killing:
            return []
        slot.killing, slot.victim = why, victim
        return [Kill(slot.number, why)]

    def kill_unwanted(self, now: float) -> list[Action]:
        """Kill what counts no more, and runs long: as is expected of it, or as it turns out."""
        orders: list[Action] = []
        for slot in self.state.slots.every:
            for flight in slot.flights[:1]:
                if self._is_wanted(slot, flight):
                    flight.unwanted_since = None
                    continue
                flight.unwanted_since = now if flight.unwanted_since is None else flight.unwanted_since
                patience = ROUND_SECONDS if flight.info.layer.rounds else WORTH_KILLING_SECONDS
                unknown = flight.expected is None and not flight.info.layer.rounds
                long = flight.expected is not None and flight.expected > patience
                if unknown or long or now - flight.unwanted_since > patience:
                    orders += self._kill(slot, "dropped", None)
        return orders

    def _is_wanted(self, slot: Slot, flight: Flight) -> bool:
        """Whether the shard in hand counts; where it is not known, any of the batch."""
        holding = self.state.holdings.get(flight.layer)
        if holding is None:
            return False
        number, *attempt = slot.running or (-1, 0, 0)
        in_hand = [number] if flight.items.get(number) == tuple(attempt) else list(flight.items)
        return bool(holding.counting(flight.ticket, in_hand))

    def kill_late(self, now: float) -> list[Action]:
        """At a drain, what outstayed its time."""
        if self.draining_since is None:
            return []
        orders: list[Action] = []
        for slot in self.state.slots.every:
            for flight in slot.flights[:1]:
                if now - self.draining_since > (flight.info.work.timeout or DRAIN_SECONDS):
                    orders += self._kill(slot, "drain", slot.running)
        return orders


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
    if not event.ours or why is None:
        return Mishap(number, "lost", event.reason, "", 0.0, 0), not event.ours
    if why == "timeout":
        line = f"it ran longer than its timeout of {flight.info.work.timeout:g} s"
        return Mishap(number, "timeout", line, "", flight.info.work.timeout or 0.0, 0), True
    if why == "memory":
        line = "alone on this machine it takes more than the memory budget"
        return Mishap(number, "memory", line, "", 0.0, 0), True
    return Mishap(number, "lost", why, "", 0.0, 0), False
