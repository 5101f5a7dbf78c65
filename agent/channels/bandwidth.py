"""How fast bytes may be moved, over all channels together. Waits; moves nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LEAST = 16 << 10  # bytes per second; with less a link looks dead
CREDIT_SECONDS = 0.25  # time not used that may be made up for: waits and answers take some
PIECE_SECONDS = 0.125


class Bandwidth:
    """`rate` bytes per second, None for as fast as it goes. For any thread."""

    def __init__(self, rate: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._paid_until = clock()  # what was moved so far has its time up to here

    @property
    def piece(self) -> int | None:
        """Bytes to move at once; None for all."""
        return None if self.rate is None else int(self.rate * PIECE_SECONDS)

    def delay(self, nbytes: int) -> float:
        """Count `nbytes` as moved; seconds to wait before they are."""
        if self.rate is None:
            return 0.0
        with self._lock:
            now = self._clock()
            begin = max(self._paid_until, now - CREDIT_SECONDS)
            self._paid_until = begin + nbytes / self.rate
            return max(0.0, begin - now)

    def take(self, nbytes: int, stopping: threading.Event) -> None:
        """Wait until `nbytes` may be moved, or somebody stops us."""
        if seconds := self.delay(nbytes):
            stopping.wait(seconds)
