"""What is held of one layer and not finished: by which attempt, and which shards wait. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from muster.agent.core.events import Attempt
from muster.coordinator.protocol.control import LayerInfo
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import ItemsSource

SMOOTHING = 0.5  # weight of the newest measurement


class HeldLayer:
    """What is held is either waiting or placed, never both, and under exactly one attempt.

    `pulls`: its inputs have to be in the spool before it runs; `follows`: what a round laid out has to be."""

    def __init__(self, info: LayerInfo, pulls: bool = False, follows: bool = False) -> None:
        self.info = info
        self.pulls = pulls
        self.follows = follows
        self.here: set[str] = set()  # sheets that have come
        self.attempts: dict[Attempt, RangeSet] = {}  # all that is held; no empty sets
        self.waiting = RangeSet()
        self.inputs: dict[int, str] = {}  # number held → name of its input, where that is in the spool
        self._ready = RangeSet()  # those waiting of which it is
        self.waiting_since = 0.0  # when it was last served, or began to wait; without meaning while nothing does
        self.placed: dict[int, int] = {}  # number → ticket of the one batch whose run of it counts
        self.payloads: dict[int, bytes] = {}  # of made shards that are held
        self.sheets: dict[int, str] = {}  # of shards of rounds that are held, what theirs laid out
        self.suspects = RangeSet()  # held ones of which one may have ended its worker: each runs in a batch of its own
        self.seconds: float | None = None  # of compute per shard, as measured here
        self.largest = 0  # bytes of output per shard, the most seen

    @property
    def count(self) -> int:
        return len(self.waiting) + len(self.placed)

    @property
    def reserve(self) -> int:
        """Bytes of the disk to keep for one shard's output; 0 where nobody knows yet."""
        return max(self.info.layer.out_bytes, self.largest)

    @property
    def in_bytes(self) -> int:
        """Bytes of the disk that one shard's input takes."""
        if not self.pulls:
            return 0
        layer = self.info.layer  # files are written beside their copy while they are in use
        return layer.in_bytes * (2 if isinstance(layer.source, ItemsSource) else 1)

    @property
    def cost(self) -> int:
        """Bytes of the disk that one shard takes, input and output."""
        return self.in_bytes + self.reserve

    @property
    def model(self) -> str | None:
        """The name of its job's model in the spool."""
        model = self.info.work.model
        return model.digest if model is not None else None

    @property
    def files(self) -> tuple[str | None, ...]:
        """What all its shards need beside their inputs."""
        return (self.info.work.code, self.model)

    @property
    def ready(self) -> RangeSet:
        """Those waiting that could run now."""
        return self._ready if self.pulls or self.follows else self.waiting

    @property
    def cpus(self) -> int:
        return self.info.work.cpus

    def attempt_of(self, number: int) -> Attempt | None:
        for attempt, numbers in self.attempts.items():
            if number in numbers:
                return attempt
        return None

    def grant(
        self, attempt: Attempt, numbers: RangeSet, payloads: dict[int, bytes], now: float,
        sheets: dict[int, str] | None = None,
    ) -> RangeSet:  # fmt: skip
        """Hold `numbers`, but for those held by the same or a later attempt. Returns the new ones, which now wait."""
        new = numbers.copy()
        for other, held in list(self.attempts.items()):
            shared = held & new
            if other >= attempt:
                new.remove(shared)
            else:
                self._untie(other, shared)
        if new:
            self.attempts.setdefault(attempt, RangeSet()).update(new)
            self.payloads.update({number: raw for number, raw in payloads.items() if number in new})
            self.sheets.update({number: sheet for number, sheet in (sheets or {}).items() if number in new})
            self._wait(new, now)
        return new

    def take(self, count: int, ticket: int, now: float) -> list[tuple[int, int, int]]:
        """Place the lowest `count` that are ready, or fewer: (number, boot, attempt), by number."""
        if suspects := self.ready & self.suspects:
            count = min(count, max(1, len(self.ready & RangeSet([(0, suspects.bottom)]))))
        taken = self.ready.take(count)
        self.waiting.remove(taken)
        self.waiting_since = now
        self.placed.update(dict.fromkeys(taken, ticket))
        return sorted((n, *attempt) for attempt, held in self.attempts.items() for n in held & taken)

    def put_back(self, numbers: Iterable[int], now: float) -> None:
        """Placed ones wait again."""
        again = RangeSet.of(numbers)
        for number in again:
            del self.placed[number]
        self._wait(again, now)

    def forget(self, numbers: RangeSet, attempt: Attempt | None = None) -> dict[Attempt, RangeSet]:
        """Hold them no more, by whatever attempt or by that one alone. Returns those that were held."""
        found = {}
        for other in list(self.attempts) if attempt is None else [attempt]:
            shared = self.attempts.get(other, RangeSet()) & numbers
            if shared:
                found[other] = shared
                self._untie(other, shared)
        return found

    def counting(self, ticket: int, numbers: Iterable[int]) -> list[int]:
        """Those of `numbers` whose run in that batch counts."""
        return [number for number in numbers if self.placed.get(number) == ticket]

    def has_input(self, number: int, name: str) -> None:
        """The input of a waiting one is in the spool."""
        self.inputs[number] = name
        self._ready.add(number, number + 1)

    def has_sheet(self, sheet: str) -> None:
        """What a round laid out is here: its shards may run."""
        self.here.add(sheet)
        for number in self.waiting:
            if self.sheets.get(number) == sheet:
                self._ready.add(number, number + 1)

    def lacks_sheet(self, sheet: str) -> None:
        """It is here no more."""
        self.here.discard(sheet)
        for number in [number for number in self._ready if self.sheets.get(number) == sheet]:
            self._ready.discard(number, number + 1)

    def lacks_input(self, numbers: Iterable[int]) -> None:
        """It is there no more."""
        for number in numbers:
            self.inputs.pop(number, None)
            self._ready.discard(number, number + 1)

    def measured(self, shards: int, seconds: float, nbytes: int) -> None:
        """A batch of `shards` results took this long and this much."""
        each = seconds / shards
        self.seconds = each if self.seconds is None else SMOOTHING * each + (1 - SMOOTHING) * self.seconds
        self.largest = max(self.largest, -(-nbytes // shards))

    def _wait(self, numbers: RangeSet, now: float) -> None:
        if not self.waiting:
            self.waiting_since = now
        self.waiting.update(numbers)
        for number in self.inputs:
            if number in numbers:
                self._ready.add(number, number + 1)
        if self.follows:
            for number in numbers:
                if self.sheets.get(number, "") in {"", *self.here}:
                    self._ready.add(number, number + 1)

    def _untie(self, attempt: Attempt, numbers: RangeSet) -> None:
        """Take them out of everything."""
        held = self.attempts[attempt]
        held.remove(numbers)
        if not held:
            del self.attempts[attempt]
        self.waiting.remove(numbers)
        self._ready.remove(numbers)
        self.suspects.remove(numbers)
        for kept in (self.placed, self.payloads, self.inputs, self.sheets):
            _forget(kept, numbers)


def _forget(kept: dict[int, Any], numbers: RangeSet) -> None:
    """Whichever of the two is smaller is looked through: a grant may be of millions, and nothing of it kept here."""
    few = [number for number in kept if number in numbers] if len(kept) < len(numbers) else list(numbers)
    for number in few:
        kept.pop(number, None)
