"""How long to wait before the next try to connect. Keeps no clock and waits for nothing itself."""

from __future__ import annotations

import random
from collections.abc import Callable

GONE_SECONDS = 1.0  # the coordinator alone is gone: it is cheap to look again
GONE_TRIES = 60  # after that many it may be gone for long
GONE_LATER_SECONDS = 5.0
FIRST_SECONDS = 1.0
SOON_SECONDS = 15.0
SOON_SPAN_SECONDS = 120.0
LATER_SECONDS = 60.0


class Backoff:
    """Full jitter: many agents whose link broke at once must not come back at once."""

    def __init__(self, draw: Callable[[float, float], float] = random.uniform) -> None:
        self._draw = draw
        self._dead = 0
        self._gone = 0
        self._since: float | None = None

    def good(self) -> None:
        """It answered."""
        self._dead, self._gone, self._since = 0, 0, None

    def dead(self, now: float) -> float:
        """Seconds to wait: there is no way to the other end."""
        if self._since is None:
            self._since = now
        limit = SOON_SECONDS if now - self._since < SOON_SPAN_SECONDS else LATER_SECONDS
        self._dead += 1
        return self._draw(0.1, min(limit, FIRST_SECONDS * 2 ** min(self._dead, 10)))

    def gone(self) -> float:
        """Seconds to wait: the other end is there, the coordinator is not."""
        self._gone += 1
        return GONE_SECONDS if self._gone <= GONE_TRIES else GONE_LATER_SECONDS
