"""When a pool that was lost, or did not start, is started again, and when no more. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from muster.jobs.common.retry_delay import RetryDelay

EQUAL_LOSSES = 6  # in a row, alike, with nothing done between them: the next one would be no other


@dataclass
class PoolRestarts:
    """The losses in a row, since a batch was last done."""

    limit: int | None = EQUAL_LOSSES  # of those alike; None: what was lost is somebody else's, and comes back some day
    retry: RetryDelay = field(default_factory=lambda: RetryDelay(1.0, 60.0))
    why: str = ""  # the last one
    equal: int = 0  # so many of the last ones had that reason

    def lost(self, why: str, now: float) -> float | None:
        """The seconds until the next start; None where there is none."""
        self.equal = self.equal + 1 if why == self.why else 1
        self.why = why
        pause = self.retry.failed(now)
        return pause if self.limit is None or self.equal < self.limit else None

    def worked(self) -> None:
        """A batch came to its end."""
        self.retry.reset()
        self.why, self.equal = "", 0
