"""Which fixed-point scale a round has: from the largest values of the rounds before. Knows no vector."""

from __future__ import annotations

from jobs.train import quantise

FIRST = 1.0
REMEMBERED = 8  # rounds


class Scale:
    """One segment's scale. The first round is a guess, done again where it turns out coarse or saturated."""

    def __init__(self, bits: int, limit: int) -> None:
        self.peaks: list[float] = []
        self.value = FIRST
        self._bits = bits
        self._limit = limit

    def is_coarse(self, peak: float) -> bool:
        """Whether a guess wasted too much of the range."""
        return not self.peaks and 0 < peak * self.value < self._limit / quantise.COARSE

    def adapt(self, peak: float) -> None:
        """For a round to be done again."""
        self.value = quantise.scale_for(peak, self._bits, self._limit)

    def learn(self, peak: float) -> None:
        """For the next round."""
        self.peaks = [*self.peaks, peak][-REMEMBERED:]
        if max(self.peaks) > 0:
            self.value = quantise.scale_for(max(self.peaks), self._bits, self._limit)
