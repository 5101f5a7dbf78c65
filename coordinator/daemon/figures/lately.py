"""What a machine did during the last minute, from the totals that it told. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from operator import attrgetter

from muster.coordinator.protocol.control import IDLE_STATES, MachineAccount

WINDOW_SECONDS = 60.0
APART_SECONDS = 5.0  # between two totals that are kept
_lent = attrgetter("busy", *IDLE_STATES)  # the states of cores that are lent


@dataclass(frozen=True)
class Rates:
    """On average; None where nothing tells."""

    busy: float | None  # of the cores that were lent
    processor: float | None  # cores that its shards really used
    input: float  # bytes a second over its link
    output: float


@dataclass
class Lately:
    """Some totals of one agent process, the newest last."""

    process: str
    told: deque[tuple[float, MachineAccount]] = field(default_factory=deque)

    def add(self, account: MachineAccount, at: float) -> None:
        """The newest replaces the one before until that is old enough to stay."""
        if len(self.told) > 1 and at - self.told[-2][0] < APART_SECONDS:
            self.told.pop()
        self.told.append((at, account))
        while len(self.told) > 2 and at - self.told[1][0] >= WINDOW_SECONDS:
            self.told.popleft()

    def rates(self) -> Rates | None:
        """None before there are two words of it."""
        if len(self.told) < 2:
            return None
        (begun, first), (ended, last) = self.told[0], self.told[-1]
        seconds = ended - begun
        lent = sum(_lent(last)) - sum(_lent(first))
        if seconds <= 0:
            return None
        return Rates(
            busy=max(0.0, min(1.0, (last.busy - first.busy) / lent)) if lent > 0 else None,
            processor=max(0.0, last.processor - first.processor) / seconds,
            input=max(0, last.in_bytes - first.in_bytes) / seconds,
            output=max(0, last.out_bytes - first.out_bytes) / seconds,
        )

    @property
    def last(self) -> MachineAccount | None:
        return self.told[-1][1] if self.told else None
