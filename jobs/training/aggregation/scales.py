"""Which fixed-point scale a round has: from the largest values of the rounds before. Knows no vector."""

from __future__ import annotations

from muster.jobs.training.aggregation import fixed_point

REMEMBERED = 8  # rounds, or pushes


class Scale:
    """One segment's scale. The first is a guess, and the work done again where it turns out coarse or saturated."""

    def __init__(self, bits: int, limit: int, samples: int) -> None:
        """`samples`: rows behind one virtual worker's sum."""
        self.peaks: list[float] = []
        self.value = fixed_point.finest_scale(limit / (samples * fixed_point.GUESS[bits]), bits)
        self._bits = bits
        self._limit = limit

    def is_coarse(self, peak: float, guess: float) -> bool:
        """Whether a guess wasted too much of the range."""
        return 0 < peak * guess < self._limit / fixed_point.COARSE[self._bits]

    def learn(self, peak: float) -> None:
        """For what comes next."""
        self.peaks = [*self.peaks, peak][-REMEMBERED:]
        if max(self.peaks) > 0:
            self.value = fixed_point.scale_for(max(self.peaks), self._bits, self._limit)
