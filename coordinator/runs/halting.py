"""When a run is to end before all of its items have: the rule of `--halt`. Ends nothing itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from muster.jobs.common.errors import UsageError

_RULE = re.compile(r"(now|soon),(fail|success|done)=([1-9][0-9]{0,6})(%?)", re.ASCII)


@dataclass(frozen=True)
class HaltRule:
    """`now`: what runs is ended too. `share`: `count` is a percentage of all items."""

    when: Literal["now", "soon"]
    what: Literal["fail", "success", "done"]
    count: int
    share: bool = False

    def is_met(self, failed: int, succeeded: int, items: int) -> bool:
        """By so many items that ended so far."""
        ended = {"fail": failed, "success": succeeded, "done": failed + succeeded}[self.what]
        return ended * 100 >= self.count * items if self.share else ended >= self.count


def parse(text: str) -> HaltRule | None:
    """None for `never`."""
    if text == "never":
        return None
    match = _RULE.fullmatch(text)
    if match is None or (match[4] and int(match[3]) > 100):
        raise UsageError(f"--halt {text}: no such rule", "never, or such as soon,fail=1 or now,fail=10%")
    return HaltRule(match[1], match[2], int(match[3]), bool(match[4]))  # type: ignore[arg-type]
