"""How often the page asks the daemon and speaks to browsers, so that neither can be made to cost much. Pure: no clock.

With each answer the daemon says what it took of its processor time, how much of that looking may take, and what is
owed. Nothing is asked again before that is paid, but for what is owed at most some seconds: so that who has just come
sees the farm at once, and what takes little, such as counts, is asked often however much the rest takes.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from math import inf

AHEAD_SECONDS = 30.0  # of what looking may take, which may be owed
BYTES_PER_SECOND = 16_000  # to one browser, on average
FIRST_BYTES = 32_000  # that the first view counts at most


class AskPace:
    """When which question may be put."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, float] = {}
        self._took: dict[Hashable, float] = {}
        self._rate = inf  # seconds of processor time that looking may take each second
        self._paid = -inf  # when all that is owed will be
        self._closed_until = -inf
        self._wanted = 1

    def may_ask(self, question: Hashable, every: float) -> tuple[float, float]:
        """From when on it may be put, which was due so long after it was put last; of several that may, first that
        which waits longest."""
        asked = self._asked.get(question, -inf)
        takes = self._took.get(question, 0.0) / self._rate if question in self._asked else 0.0
        ahead = max(asked + takes * self._wanted, self._paid - AHEAD_SECONDS)  # once its equal part has paid for it
        return max(asked + every, min(self._paid, ahead), self._closed_until), asked

    def asked(self, question: Hashable, now: float) -> float | None:
        """It is put now; how long after the last time."""
        before = self._asked.get(question)
        self._asked[question] = now
        return None if before is None else now - before

    def answered(self, question: Hashable, took: float, rate: float, owed: float, now: float) -> None:
        """Of the daemon's processor time: what this took, what looking may take each second, what all of it owes."""
        self._took[question], self._rate, self._paid = took, rate, now + max(0.0, owed) / rate

    def unanswered(self, until: float) -> None:
        """The daemon is gone, and nothing is to be tried before that."""
        self._closed_until = until

    def forget(self, question: Hashable) -> None:
        """How long ago it was put is no pace for who asks next."""
        self._asked.pop(question, None)

    def keep(self, questions: Collection[Hashable]) -> None:
        """These are wanted; of all others nothing need be known any more."""
        self._wanted = len(questions)
        for known in (self._asked, self._took):
            for one in [one for one in known if one not in questions]:
                del known[one]


class SendPace:
    """When more may be sent to one browser."""

    def __init__(self) -> None:
        self.not_before = 0.0
        self._began = False

    def sent(self, nbytes: int, now: float) -> None:
        counted = nbytes if self._began else min(nbytes, FIRST_BYTES)
        self._began = True
        self.not_before = max(self.not_before, now) + counted / BYTES_PER_SECOND
