"""Finished parts that nobody has acknowledged, and which bundle of them goes next. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from muster.agent.core.events import Attempt
from muster.jobs.common.ranges import RangeSet

BUNDLE_BYTES = 256 << 20
BUNDLE_SHARDS = 8192
FLUSH_BYTES = 8 << 20
FLUSH_SECONDS = 10.0


@dataclass
class Part:
    """One part on the disk. A number is live in at most one part of its layer."""

    name: str
    farm: str
    layer: str
    nbytes: int
    attempts: dict[Attempt, RangeSet]  # the live numbers by attempt; no empty sets
    since: float

    @property
    def live(self) -> RangeSet:
        return RangeSet.union(self.attempts.values())

    def regrant(self, attempt: Attempt, numbers: RangeSet) -> None:
        """Of `numbers`, those live under an earlier attempt are under this one from now on."""
        earlier = [held & numbers for other, held in self.attempts.items() if other < attempt]
        for moved in filter(None, earlier):
            self.strike(moved)
            self.attempts.setdefault(attempt, RangeSet()).update(moved)

    def strike(self, numbers: RangeSet) -> None:
        for attempt in list(self.attempts):
            self.attempts[attempt].remove(numbers)
            if not self.attempts[attempt]:
                del self.attempts[attempt]


@dataclass
class FinishedParts:
    """Parts by name, oldest first."""

    parts: dict[str, Part] = field(default_factory=dict)
    emptied: dict[str, int] = field(default_factory=dict)  # parts nobody needs that still lie on the disk → bytes
    by_layer: dict[tuple[str, str], dict[str, Part]] = field(default_factory=dict)  # (farm, layer) → them; none empty
    nbytes: int = 0  # what they take of the disk; one that nobody needs too, while it is being sent

    def add(self, part: Part) -> bool:
        """Put a part up. A number live in an earlier part stays there; False where that leaves nothing of this one."""
        for other in self.of(part.farm, part.layer):
            part.strike(other.live)
        if part.attempts:
            self.parts[part.name] = part
            self.nbytes += part.nbytes
            self.by_layer.setdefault((part.farm, part.layer), {})[part.name] = part
        return bool(part.attempts)

    def of(self, farm: str, layer: str) -> Iterator[Part]:
        yield from self.by_layer.get((farm, layer), {}).values()

    def layers(self, farm: str) -> list[str]:
        return [layer for other, layer in self.by_layer if other == farm]

    def live(self, farm: str, layer: str) -> RangeSet:
        return RangeSet.union(numbers for part in self.of(farm, layer) for numbers in part.attempts.values())

    def regrant(self, farm: str, layer: str, attempt: Attempt, numbers: RangeSet) -> RangeSet:
        """These are granted by that attempt. Returns those of them that are live."""
        live = RangeSet()
        for part in self.of(farm, layer):
            if shared := part.live & numbers:
                part.regrant(attempt, shared)
                live.update(shared)
        return live

    def count(self, farm: str) -> int:
        return sum(
            len(numbers) for layer in self.layers(farm) for p in self.of(farm, layer) for numbers in p.attempts.values()
        )

    def held(self, farm: str, layer: str) -> dict[Attempt, RangeSet]:
        """Live numbers by attempt."""
        held: dict[Attempt, RangeSet] = {}
        for part in self.of(farm, layer):
            for attempt, numbers in part.attempts.items():
                held.setdefault(attempt, RangeSet()).update(numbers)
        return held

    def settle(self, farm: str, layer: str, numbers: RangeSet | None) -> list[str]:
        """These need no keeping (None: nothing of the layer does). Returns the names of the parts left without any."""
        done = []
        for part in list(self.of(farm, layer)):
            if numbers is None:
                part.attempts.clear()
            else:
                part.strike(numbers)
            if not part.attempts:
                self.remove(part.name)
                self.emptied[part.name] = part.nbytes
                self.nbytes += part.nbytes
                done.append(part.name)
        return done

    def deleted(self, name: str) -> None:
        """One that nobody needs is on the disk no more."""
        self.nbytes -= self.emptied.pop(name, 0)

    def remove(self, name: str) -> Part | None:
        part = self.parts.pop(name, None)
        if part is not None:
            self.nbytes -= part.nbytes
            layer = self.by_layer[part.farm, part.layer]
            del layer[name]
            if not layer:
                del self.by_layer[part.farm, part.layer]
        return part

    def bundle(
        self, farm: str, ready: set[str], now: float, growing: set[str] | None = None, apart: set[str] | None = None
    ) -> tuple[str, list[Part]] | None:
        """The layer whose turn it is and the parts to send: `ready` layers wait for nothing more, `growing` ones for
        all that is to come; of those `apart`, each part goes by itself."""
        layers = [layer for layer in self.layers(farm) if not growing or layer not in growing]
        due = [layer for layer in layers if layer in ready or self._ripe(farm, layer, now)]
        if not due:
            return None
        layer = min(due, key=lambda layer: next(self.of(farm, layer)).since)
        return layer, [next(self.of(farm, layer))] if apart and layer in apart else self._fill(farm, layer)

    def _ripe(self, farm: str, layer: str, now: float) -> bool:
        parts = list(self.of(farm, layer))
        return now - parts[0].since >= FLUSH_SECONDS or sum(part.nbytes for part in parts) >= FLUSH_BYTES

    def _fill(self, farm: str, layer: str) -> list[Part]:
        """As many of the oldest as fit, and at least one."""
        chosen: list[Part] = []
        nbytes = shards = 0
        for part in self.of(farm, layer):
            nbytes, shards = nbytes + part.nbytes, shards + len(part.live)
            if chosen and (nbytes > BUNDLE_BYTES or shards > BUNDLE_SHARDS):
                break
            chosen.append(part)
        return chosen
