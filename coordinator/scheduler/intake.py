"""Which bundles are coming in, and whether one more may: by the disk's room, and by who sends these shards already."""

from __future__ import annotations

from dataclasses import dataclass

from muster.coordinator.scheduler.entities import Layer
from muster.coordinator.scheduler.layers import SPACE_MARGIN_BYTES
from muster.coordinator.scheduler.state import State
from muster.jobs.common.ranges import RangeSet
from muster.jobs.common.units import shortage


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

    def accept(self, token: int, bundle: Coming) -> None:
        self._coming[token] = bundle

    def ended(self, token: int) -> None:
        self._coming.pop(token, None)

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self._coming.values())

    def sender(self, bundle: Coming, lease: float) -> str:
        """Who sends any of these shards already; "" for nobody. Somebody else's copy need not wait longer than a lease
        for a slow one: whichever is whole first is committed."""
        for one in self._coming.values():
            patient = one.agent == bundle.agent or bundle.since - one.since < lease
            if patient and one.layer == bundle.layer and one.numbers & bundle.numbers:
                return one.agent
        return ""

    def lack(self, state: State, layer: Layer, bundle: Coming, free: int) -> str:
        """Why the root has no room for it; "" where it has. One larger than its shards were reckoned to give has to fit
        beside what is promised to other layers, too."""
        room = free - SPACE_MARGIN_BYTES - self.nbytes
        what = f"a bundle of layer {layer.name}"
        if bundle.nbytes > max(layer.out_bytes, state.jobs[layer.job].out_bytes) * len(bundle.numbers):
            room -= sum(other.reserved for other in state.open_layers.values() if other is not layer)
            what += ", larger than was reckoned,"
        return "" if bundle.nbytes <= room else shortage(what, bundle.nbytes, room, "in the root", SPACE_MARGIN_BYTES)
