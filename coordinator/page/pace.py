"""How often the page asks the daemon and speaks to browsers, so that neither can be made to cost much. Pure: no clock.

The daemon's part: whatever an answer took, nothing is asked for two hundred times as long. However many look, and
however large the farm is, looking takes at most a hundredth of the daemon's time, with what goes beside an answer, and
with what may be asked at once for who has just come.
"""

from __future__ import annotations

from collections import deque
from math import inf
from statistics import median

SHARE = 0.005  # of the daemon's time, for answers
SAMPLES = 5  # of one kind of question; their median is what it costs: one of them may have waited for anything
CREDIT_SECONDS = 6.0  # of asking nothing, which the next questions may use up: who opens a page sees it at once
HASTY_SECONDS = CREDIT_SECONDS  # the longest wait before there are as many samples: the second question is put at once
BYTES_PER_SECOND = 16_000  # to one browser, on average
FIRST_BYTES = 32_000  # that the first view counts at most


class AskPace:
    """When the next question may be put."""

    def __init__(self) -> None:
        self._took: dict[str, deque[float]] = {}
        self.not_before = -inf

    def answered(self, kind: str, took: float, now: float) -> None:
        """A question of this kind was answered after `took` seconds."""
        samples = self._took.setdefault(kind, deque(maxlen=SAMPLES))
        samples.append(took)
        wait = median(samples) / SHARE
        wait = wait if len(samples) == SAMPLES else min(wait, HASTY_SECONDS)
        self.not_before = max(self.not_before, now - CREDIT_SECONDS) + wait


class SendPace:
    """When more may be sent to one browser."""

    def __init__(self) -> None:
        self.not_before = 0.0
        self._began = False

    def sent(self, nbytes: int, now: float) -> None:
        counted = nbytes if self._began else min(nbytes, FIRST_BYTES)
        self._began = True
        self.not_before = max(self.not_before, now) + counted / BYTES_PER_SECOND
