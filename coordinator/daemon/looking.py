"""What looking may take of the coordinator's processor time, and what it has taken. Pure: no clock, no I/O.

Whoever looks for as long as a page is open asks by `Look`, and is told with each answer what it took, how much looking
may take a second, and what is owed by all who look together: they then ask no sooner than that is paid.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.005  # of what the process takes for all else; as much again is left for what goes beside an answer
LEAST = 0.0005  # of a core: of a process that has next to nothing to do, a hundredth would be nothing
KEPT_SECONDS = 30.0  # of looking less than one may, which are kept: who comes then need not wait
RATE_SECONDS = 10.0  # over which the rate is a moving mean


@dataclass(frozen=True)
class Allowance:
    """As of an answer, in seconds of processor time."""

    rate: float  # that looking may take each second
    owed: float  # that was taken beyond it; less than 0 where as much may be taken at once


class LookBudget:
    """One per daemon. `used`: seconds of processor time of all its process so far."""

    def __init__(self, now: float, used: float) -> None:
        self._at, self._used = now, used
        self._rate = LEAST
        self._owed = 0.0

    def answered(self, took: float, now: float, used: float) -> Allowance:
        """An answer took so much, which is in `used`."""
        seconds, others = max(1e-6, now - self._at), max(0.0, used - self._used - took)
        self._at, self._used = now, used
        earned = max(LEAST * seconds, SHARE * others)
        self._rate += min(1.0, seconds / RATE_SECONDS) * (earned / seconds - self._rate)
        self._owed = max(self._owed - earned, -KEPT_SECONDS * self._rate) + took
        return Allowance(self._rate, self._owed)
