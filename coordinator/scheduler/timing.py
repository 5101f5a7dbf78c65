"""Every duration that a decision of the scheduler hangs on. Values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Every duration a decision hangs on; tests use short ones."""

    lease: float = 60.0
    heartbeat: float = 5.0
    tick: float = 1.0
    horizon: float = 10.0  # at most so much of its own work does an agent hold

    @property
    def silence(self) -> float:
        """So long after a machine's last word its finished shards are waited for, before an idle one computes them too.
        An agent whose link was cut knocks again after about 1, 2, 4 and 8 s, and one that was started again is back as
        soon: within a quarter of the lease both have mostly said hello. What is saved is the rest of it."""
        return self.lease / 4
