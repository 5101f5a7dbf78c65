"""When an agent leaves by itself: with nothing to do for too long, or when its time is over. It has no clock."""

from __future__ import annotations

from dataclasses import dataclass

from muster.jobs.common.units import format_duration


@dataclass
class Departure:
    """`idle` and `limit` are seconds, None for never; `begun` is when the agent joined."""

    idle: float | None
    limit: float | None
    begun: float
    _idle_since: float | None = None
    _due: bool = False

    def look(self, now: float, *, may_work: bool, at_work: bool) -> str:
        """Why it is to leave, once; "" while it stays. `may_work`: its workers are up, and its user lends it something:
        time without either is no time without work. `at_work`: it runs something, or has something to run or to hand
        in."""
        if self._due:
            return ""
        if at_work or not may_work:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        why = ""
        if self.limit is not None and now - self.begun >= self.limit:
            why = f"its time of {format_duration(self.limit)} is over"
        elif self.idle is not None and self._idle_since is not None and now - self._idle_since >= self.idle:
            why = f"nothing to do for {format_duration(self.idle)}"
        self._due = bool(why)
        return why
