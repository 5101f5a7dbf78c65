"""Counts and rates for people: how many shards were finished and pushed, and how fast lately. No I/O, no clock."""

from __future__ import annotations

from collections import deque

from muster.agent.core.events import BatchEnded, Event, Pulled, PushAnswered
from muster.coordinator.protocol.transfer import Settled

SPAN_SECONDS = 15.0


class Meter:
    """Totals since the start; the rate is over the last SPAN_SECONDS."""

    def __init__(self) -> None:
        self.done = 0
        self.pushed = 0
        self.pushed_bytes = 0
        self.pulled_bytes = 0
        self._lately: deque[tuple[float, int]] = deque()

    def note(self, event: Event, now: float) -> None:
        if isinstance(event, BatchEnded) and event.outcome.numbers:
            self.done += len(event.outcome.numbers)
            self._lately.append((now, len(event.outcome.numbers)))
        elif isinstance(event, Pulled):
            self.pulled_bytes += event.nbytes
        elif isinstance(event, PushAnswered) and isinstance(event.answer, Settled):
            self.pushed += len(event.sent)
            self.pushed_bytes += event.nbytes

    def rate(self, now: float) -> float:
        """Shards finished per second."""
        while self._lately and self._lately[0][0] < now - SPAN_SECONDS:
            self._lately.popleft()
        if not self._lately:
            return 0.0
        return sum(count for _, count in self._lately) / max(1.0, now - self._lately[0][0])
