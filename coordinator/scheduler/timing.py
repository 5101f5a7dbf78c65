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
