"""How evenly a job's machines were put to use: Jain's index over what each did of what it offered. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

OFFERED_LEAST = 1.0  # core-seconds: of less nothing can be said


def share(busy: float, offered: float) -> float | None:
    """Of the core-seconds that a machine offered, how many it was busy; None where it offered next to nothing."""
    return min(1.0, busy / offered) if offered >= OFFERED_LEAST else None


def jain(shares: Sequence[float]) -> float | None:
    """(Σ x)² ÷ (n · Σ x²): 1 where all are equal, 1/n where one has everything; None where none has anything."""
    squares = sum(one * one for one in shares)
    if squares <= 0:
        return None
    return min(1.0, sum(shares) ** 2 / (len(shares) * squares))


def occupancy(machines: Iterable[tuple[float, float]]) -> float | None:
    """Busy over offered core-seconds of all together, which says of an idle farm that it is idle."""
    busy = offered = 0.0
    for one_busy, one_offered in machines:
        busy, offered = busy + min(one_busy, one_offered), offered + one_offered
    return busy / offered if offered >= OFFERED_LEAST else None
