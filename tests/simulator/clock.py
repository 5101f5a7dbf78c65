"""Simulated time: what is to happen, in order, and the one source of chance. Knows nothing of farms."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random


class Clock:
    """The same seed gives the same order, to the last event."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 1_000.0
        self.random = Random(seed)
        self.events = 0  # that happened
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._made = 0

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Never earlier than what is due already at the same time."""
        self._made += 1
        heapq.heappush(self._queue, (self.now + seconds, self._made, do))

    def run_until(self, end: float, done: Callable[[], bool]) -> bool:
        """Let things happen until `end`, or until `done`; whether it was that."""
        while self._queue and self._queue[0][0] <= end:
            self.now, _, do = heapq.heappop(self._queue)
            self.events += 1
            do()
            if done():
                return True
        self.now = end
        return done()

    def between(self, low: float, high: float) -> float:
        return self.random.uniform(low, high)

    def chance(self, share: float) -> bool:
        return self.random.random() < share
