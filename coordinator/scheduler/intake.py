"""Which bundles are coming in, and whether one more may: by the disk's room, and by who sends these shards already."""

from __future__ import annotations

from dataclasses import dataclass

from muster.coordinator.scheduler.entities import Layer
from muster.coordinator.scheduler.layers import SPACE_MARGIN_BYTES
from muster.coordinator.scheduler.state import State
from muster.jobs.common.ranges import RangeSet
from muster.jobs.common.units import shortage

NOTHING = RangeSet()


@dataclass(frozen=True)
class Coming:
    """A bundle between its acceptance and its commit, or its end."""

    agent: str
    layer: str
    numbers: RangeSet
    nbytes: int
    since: float


class Intake:
    """One per daemon. What was accepted counts against the room until `ended`, wherever its bytes are by then."""

    def __init__(self) -> None:
        self._coming: dict[int, Coming] = {}
        self._numbers: dict[str, RangeSet] = {}  # by layer, the union of what is coming: nearly always asked alone
        self._copied: set[str] = set()  # layers of which some shards are coming twice
        self.nbytes = 0

    def accept(self, token: int, bundle: Coming) -> None:
        numbers = self._numbers.get(bundle.layer)
        if numbers is None:
            self._numbers[bundle.layer] = bundle.numbers.copy()
        else:
            if numbers & bundle.numbers:
                self._copied.add(bundle.layer)
            numbers.update(bundle.numbers)
        self._coming[token] = bundle
        self.nbytes += bundle.nbytes

    def ended(self, token: int) -> None:
        if (bundle := self._coming.pop(token, None)) is None:
            return
        self.nbytes -= bundle.nbytes
        numbers = self._numbers[bundle.layer]
        numbers.remove(bundle.numbers)
        if bundle.layer in self._copied:
            for other in self._of(bundle.layer):
                numbers.update(other.numbers)
        if not numbers:
            del self._numbers[bundle.layer]
            self._copied.discard(bundle.layer)

    def sender(self, state: State, bundle: Coming) -> str:
        """Who sends any of these shards already; "" for nobody. Somebody else's copy need not wait longer than a lease
        for a slow one, nor for a machine that is silent or gone: whichever is whole first is committed."""
        if not self._numbers.get(bundle.layer, NOTHING) & bundle.numbers:
            return ""
        for one in self._of(bundle.layer):
            other = state.agents.get(one.agent)
            heard = other is not None and other.present and not state.is_silent(other)
            patient = one.agent == bundle.agent or (heard and bundle.since - one.since < state.timing.lease)
            if patient and one.numbers & bundle.numbers:
                return one.agent
        return ""

    def _of(self, layer: str) -> list[Coming]:
        return [one for one in self._coming.values() if one.layer == layer]

    def lack(self, state: State, layer: Layer, bundle: Coming, free: int) -> str:
        """Why the root has no room for it; "" where it has. One larger than its shards were reckoned to give has to fit
        beside what is promised to other layers, too."""
        room = free - SPACE_MARGIN_BYTES - self.nbytes
        what = f"a bundle of layer {layer.name}"
        if bundle.nbytes > max(layer.out_bytes, state.jobs[layer.job].out_bytes) * len(bundle.numbers):
            room -= sum(other.reserved for other in state.open_layers.values() if other is not layer)
            what += ", larger than was reckoned,"
        return "" if bundle.nbytes <= room else shortage(what, bundle.nbytes, room, "in the root", SPACE_MARGIN_BYTES)
