"""How long to put up with a server that is away, and how often to knock. Does not know what is tried."""

from __future__ import annotations

import time

from muster.jobs.common.errors import LinkError, MusterError, NoDaemonError
from muster.jobs.common.retry_delay import RetryDelay

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
AWAY_SECONDS = 120.0  # without any progress


class Patience:
    """One endeavour's."""

    def __init__(self) -> None:
        self.progress()

    def progress(self) -> None:
        """It got somewhere: the clock starts anew."""
        self._since: float | None = None
        self._delay = RetryDelay(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)

    def endure(self, error: MusterError) -> None:
        """Sleep before the next try; `error` itself where one would be in vain."""
        passing = isinstance(error, (LinkError, NoDaemonError)) and error.retryable
        now = time.monotonic()
        self._since = self._since or now
        if not passing or now - self._since > AWAY_SECONDS:
            raise error
        time.sleep(self._delay.failed(now))
