"""How many workers a pool on demand keeps: what there is work for, and for a while what there was. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.agent.core.events import Needs

IDLE_SECONDS = 60.0  # without work, after which a worker ends: a cluster shrinks by what nobody holds


@dataclass
class Demand:
    """Grows with the work at once, and shrinks once it has been less for a while."""

    idle_seconds: float = IDLE_SECONDS
    kept: dict[Needs, int] = field(default_factory=dict)
    _enough: dict[Needs, float] = field(default_factory=dict)  # since when there is work for fewer

    def now(self, wanted: Mapping[Needs, int], now: float) -> Mapping[Needs, int]:
        """What to ask for. Of a sort that nothing wants any more none is kept where there is work for another: it may
        want its room."""
        for needs in {*self.kept, *wanted}:
            most, count = self.kept.get(needs, 0), wanted.get(needs, 0)
            since = self._enough.setdefault(needs, now)
            if count >= most or now - since >= self.idle_seconds or (wanted and not count):
                self.kept[needs] = count
                del self._enough[needs]
        self.kept = {needs: count for needs, count in self.kept.items() if count}
        return self.kept
