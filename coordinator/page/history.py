"""What machines said of themselves since somebody looks, in a fixed number of samples each. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from muster.coordinator.api.status import AgentStatus

SAMPLE_SECONDS = 15.0
SAMPLES = 20
MEASURES = ("processor", "memory_now", "disk_now", "in_rate", "out_rate")
Sample = tuple[float | None, ...]  # of each measure


@dataclass(frozen=True, eq=False)
class History:
    """The last samples of each machine that is there; never changed, as one thread adds what others draw."""

    newest: int = -1  # which SAMPLE_SECONDS since the epoch
    samples: Mapping[str, tuple[tuple[int, Sample], ...]] = field(default_factory=dict)

    def added(self, agents: Sequence[AgentStatus], now: float) -> History:
        """With what is said now; the first word in each SAMPLE_SECONDS counts."""
        slot = int(now // SAMPLE_SECONDS)
        if slot <= self.newest:
            return self
        said = {agent.name: (slot, tuple(getattr(agent, name) for name in MEASURES)) for agent in agents}
        return History(slot, {name: (*self.samples.get(name, ()), one)[-SAMPLES:] for name, one in said.items()})

    def line(self, machine: str, measure: str) -> list[float | None]:
        """SAMPLES values, the newest last; None where nobody looked, or nothing was told."""
        which, first = MEASURES.index(measure), self.newest - SAMPLES + 1
        found: list[float | None] = [None] * SAMPLES
        for slot, sample in self.samples.get(machine, ()):
            if slot >= first:
                found[slot - first] = sample[which]
        return found
