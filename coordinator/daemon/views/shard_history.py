"""What lately happened to shards, in this life of the daemon, for `explain`. Bounded; nothing is decided by it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Literal

from muster.coordinator.protocol.values import Range
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.states import AgentState

LIMIT = 50_000  # entries; a grant, a report or a commit is one, of however many shards
RANGES_LIMIT = 200_000  # of all of them

What = Literal["granted", "finished", "lost", "returned", "dropped", "kicked", "committed", "uncommitted"]


@dataclass(frozen=True)
class HistoryEntry:
    """`boot` and `attempt` are 0 where it is not about a run."""

    when: float  # wall clock
    what: What
    layer: str  # digest
    agent: str
    boot: int
    attempt: int
    pairs: list[Range]
    why: str

    def has(self, number: int) -> bool:
        return any(low <= number < high for low, high in self.pairs)


@dataclass(frozen=True)
class Parting:
    """An agent's session ended: what it held went back."""

    when: float
    agent: str
    state: AgentState  # gone or left


class ShardHistory:
    """One per daemon."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._entries: deque[HistoryEntry] = deque(maxlen=limit)
        self._partings: deque[Parting] = deque(maxlen=limit // 10)
        self._ranges = 0
        self.since = time.time()

    def note(
        self,
        what: What,
        layer: str,
        agent: str,
        numbers: RangeSet | list[Range],
        boot: int = 0,
        attempt: int = 0,
        why: str = "",
    ) -> None:
        pairs = numbers.pairs() if isinstance(numbers, RangeSet) else numbers
        self._ranges += len(pairs)
        while len(self._entries) == self._entries.maxlen or (self._entries and self._ranges > RANGES_LIMIT):
            oldest = self._entries.popleft()
            self.since, self._ranges = oldest.when, self._ranges - len(oldest.pairs)
        self._entries.append(HistoryEntry(time.time(), what, layer, agent, boot, attempt, pairs, why))

    def note_parting(self, agent: str, state: AgentState) -> None:
        self._partings.append(Parting(time.time(), agent, state))

    def of(self, layer: str, number: int) -> list[HistoryEntry]:
        """What is known of one shard, oldest first."""
        return [entry for entry in self._entries if entry.layer == layer and entry.has(number)]

    def partings(self, agent: str, since: float) -> list[Parting]:
        return [one for one in self._partings if one.agent == agent and one.when >= since]
