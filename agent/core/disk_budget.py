"""What the disk budget is used and promised for, and what has to go when it is short. No I/O, no clock."""

from __future__ import annotations

from muster.agent.core.actions import Action, Discard, Pull
from muster.agent.core.layers import HeldLayer
from muster.agent.core.slots import Flight, Slot
from muster.agent.core.state import SPARE_BYTES, State
from muster.jobs.common.units import format_size


class DiskBudget:
    """Parts, inputs and outputs to come share the budget. Inputs that nobody waits for stay while there is room."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.too_large: str | None = None  # why a shard can never run here

    @property
    def reserved(self) -> int:
        """Bytes of input and output of all that is held, is being run or is on its way."""
        held = sum(len(holding.waiting) * holding.cost for holding in self.state.holdings.values())
        return held + self.output_to_come + self._in_use + self._strays

    @property
    def room(self) -> int:
        """Bytes that may be promised to the coordinator; less than 0 where too much is."""
        return self.state.disk.room(self.state.finished_parts.nbytes, self.reserved, self.state.inputs.nbytes)

    @property
    def output_to_come(self) -> int:
        """Of what runs, wanted or not, and its scratch space."""
        return self.scratch + sum(len(one.items) * self._reserve_of(one) for one in self.state.slots.flights)

    def _reserve_of(self, flight: Flight) -> int:
        holding = self.state.holdings.get(flight.layer)
        return holding.reserve if holding is not None else flight.info.layer.out_bytes

    @property
    def left(self) -> int:
        """Bytes for the outputs of more runs, were all inputs gone that nobody waits for."""
        kept = self.state.inputs.bytes_of(self._kept()) + self.state.inputs.coming_bytes
        return self.state.disk.room(
            self.state.finished_parts.nbytes, self.output_to_come + kept, self.state.inputs.nbytes
        )

    def has_room_to_pull(self, holding: HeldLayer, nbytes: int) -> bool:
        """Whether one more input leaves enough for its own output, and for those of all that could run before it. With
        any of those, one more can begin; without, it may wait for the scratch space of what runs."""
        scratch = holding.info.work.disk - (0 if holding.ready else self.scratch)
        ready = sum(len(other.ready) * other.reserve for other in self.state.holdings.values() if other.pulls)
        return self.left - ready - nbytes >= holding.reserve + max(0, scratch)

    @property
    def scratch(self) -> int:
        """Bytes that the shards that run may fill: one on each slot, whatever else is in flight there."""
        return sum(slot.flights[0].info.work.disk for slot in self.state.slots.every if slot.flights)

    def needed(self, holding: HeldLayer, slot: Slot) -> int:
        """Bytes for one shard to run there: its output, and scratch space unless what runs there has it already."""
        return holding.reserve + (0 if slot.flights else holding.info.work.disk)

    def must_wait(self, holding: HeldLayer, slot: Slot) -> bool:
        """Whether there is no room to begin before others give back their scratch space."""
        return self.scratch > 0 and self.left < self.needed(holding, slot)

    def refuses(self, holding: HeldLayer) -> bool:
        """Whether a shard needs more than all of the budget. Then they are handed back."""
        model = holding.info.work.model
        needed = holding.cost + holding.info.work.disk + (model.nbytes if model is not None and holding.pulls else 0)
        if needed <= self.state.disk.budget:
            return False
        self.too_large = (
            f"a shard needs {format_size(needed)} of disk, the budget is {format_size(self.state.disk.budget)}"
        )
        self.state.give_back(holding, holding.waiting.copy())
        return True

    @property
    def is_unused(self) -> bool:
        """Whether nothing is going to become free by itself."""
        return not (self.state.finished_parts.nbytes or self.state.inputs.coming or self.state.slots.busy)

    @property
    def least_cost(self) -> int:
        """Of a shard of the layers known here: with less room there can be no more of these."""
        return min((holding.cost for holding in self.state.holdings.values()), default=0)

    @property
    def is_short(self) -> bool:
        """Whether there is no room for one more shard such as those held, and would be were all parts pushed."""
        cost = max((holding.cost for holding in self.state.holdings.values() if holding.count), default=0)
        return self.room < cost <= self.room + self.state.finished_parts.nbytes

    def make(self, nbytes: int, keep: str = "") -> list[Action]:
        """Delete inputs that nobody waits for until `nbytes` more can be written."""
        orders: list[Action] = []
        if self._missing(nbytes) > 0:
            for name, digest in self.state.inputs.spare(self._kept()):
                if name != keep:
                    orders.append(self.discard(name, digest))
                if self._missing(nbytes) <= 0:
                    break
        return orders

    def clear(self) -> list[Action]:
        """Delete all of those: the disk is fuller than we thought."""
        return [self.discard(name, digest) for name, digest in self.state.inputs.spare(self._kept())]

    def discard(self, name: str, digest: bytes | None) -> Action:
        self.state.disk.grew(-self.state.inputs.forget(name))
        return Discard(name, digest)

    def lose(self, name: str) -> list[Action]:
        """It is not what was pulled, whoever waits for it."""
        copy = self.state.inputs.whole.get(name)
        for holding in self.state.holdings.values():
            holding.lacks_input([number for number, own in holding.inputs.items() if own == name])
        return [self.discard(name, copy.digest)] if copy else []

    def let_others_wait(self, holding: HeldLayer, needed: int) -> None:
        """Inputs of other shards go before the first of these cannot run at all: they are pulled again, later."""
        first = holding.ready.bottom
        for other in reversed(self.state.holdings.values()):
            if other.pulls:
                ready = [n for n in other.ready if other is not holding or n != first]
                while ready and self.left < needed:
                    other.lacks_input([ready.pop()])

    def _missing(self, nbytes: int) -> int:
        """Bytes that have to go before `nbytes` more are written beside what is being run."""
        more = self.output_to_come + nbytes
        over = self.state.finished_parts.nbytes + self.state.inputs.nbytes + more - self.state.disk.budget
        return over if self.state.disk.free is None else max(over, more + SPARE_BYTES - self.state.disk.free)

    def _kept(self) -> set[str]:
        """Inputs that are read, or will be."""
        names = {name for holding in self.state.holdings.values() for name in holding.inputs.values()}
        for flight in self.state.slots.flights:
            names.update(flight.inputs.values())
        return names | self._models()

    def _models(self) -> set[str]:
        """Those of all that is held, waiting or running."""
        works = [holding.info.work for holding in self.state.holdings.values() if holding.count]
        works += [flight.info.work for flight in self.state.slots.flights]
        return {work.model.digest for work in works if work.model is not None}

    @property
    def _in_use(self) -> int:
        running = {name for flight in self.state.slots.flights for name in flight.inputs.values()}
        return self.state.inputs.bytes_of(running | self._models())

    @property
    def _strays(self) -> int:
        """Of models on their way, and of inputs for shards that are no longer held."""
        return sum(pull.nbytes for pull in self.state.inputs.coming.values() if not self._is_counted(pull))

    def _is_counted(self, pull: Pull) -> bool:
        """Whether its bytes are among those of a shard that is held."""
        holding = self.state.holdings.get(pull.layer)
        return holding is not None and not pull.model and pull.number in holding.waiting
