"""How long to let something be that does not work for now: longer with each try in vain. Keeps no clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RetryDelay:
    """`first` seconds, doubled with each further try in vain, never more than `limit`."""

    first: float = 2.0
    limit: float = 60.0
    failures: int = 0  # in a row; to be set to 0 where a try succeeds while another is still let be
    until: float | None = None  # None: it may be tried at once

    def failed(self, now: float) -> float:
        """It was in vain: the seconds to let it be."""
        pause = min(self.limit, self.first * 2.0 ** min(self.failures, 20))
        self.failures, self.until = self.failures + 1, now + pause
        return pause

    def is_over(self, now: float) -> bool:
        return self.until is None or now >= self.until

    def reset(self) -> None:
        self.failures, self.until = 0, None
