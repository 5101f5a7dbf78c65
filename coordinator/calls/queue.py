"""Which calls of a session wait, which go together, and which are out: a batch in, what came of it, a line that broke.
No I/O, no clock, no arguments: a call is a number here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

BATCH_SECONDS = 0.03  # that the calls of a batch take, where more wait than there are slots
BATCH_CALLS = 1_000
BATCH_BYTES = 1 << 20
AHEAD = 4  # batches out for each slot
MEAN_WEIGHT = 0.25  # of the newest batch, in what a call takes
LEAST_SECONDS, MOST_SECONDS = 1e-6, 1e6  # that a call takes, whatever a machine says


@dataclass(frozen=True)
class Call:
    """One call."""

    number: int
    function: str
    nbytes: int = 0  # that it adds to a batch
    blobs: tuple[str, ...] = ()  # what it reads beside them; all calls of a batch read the same
    most: int | None = None  # calls that go together, where its caller said so

    def goes_with(self, other: Call) -> bool:
        return (self.function, self.blobs, self.most) == (other.function, other.blobs, other.most)


@dataclass(frozen=True)
class Batch:
    """Calls that go out, and come back, together."""

    number: int
    calls: tuple[Call, ...]


@dataclass
class CallQueue:
    """Each call that was added is waiting, or out in one batch, until its batch has landed or it is withdrawn."""

    slots: int = 0
    waiting: deque[Call] = field(default_factory=deque)
    out: dict[int, Batch] = field(default_factory=dict)  # by number
    again: deque[Batch] = field(default_factory=deque)  # out, and to be sent once more: the line broke
    alone: deque[Call] = field(default_factory=deque)  # their batch failed: each goes by itself
    _numbers: int = 0  # batches so far
    _means: dict[str, float] = field(default_factory=dict)  # function → seconds of a call

    def add(self, call: Call) -> None:
        self.waiting.append(call)

    # --- out ---

    def next_batch(self, starts: Callable[[int], bool] = lambda number: True) -> Batch | None:
        """What is to be sent now. `starts`: a call is about to; False: nobody wants it any more."""
        if self.again:
            return self.again.popleft()
        while (self.alone or self.waiting) and len(self.out) < AHEAD * max(1, self.slots):
            found = [self.alone.popleft()] if self.alone else self._together()
            if calls := [call for call in found if starts(call.number)]:
                return self._sent(calls)
        return None

    def _sent(self, calls: list[Call]) -> Batch:
        batch = Batch(self._numbers, tuple(calls))
        self._numbers += 1
        self.out[batch.number] = batch
        return batch

    def _together(self) -> list[Call]:
        """The first that wait, as many as go well together."""
        count, nbytes, found = self._count(self.waiting[0]), 0, list[Call]()
        while self.waiting and len(found) < count:
            call = self.waiting[0]
            if found and (not call.goes_with(found[0]) or nbytes + call.nbytes > BATCH_BYTES):
                break
            nbytes += call.nbytes
            found.append(self.waiting.popleft())
        return found

    def _count(self, first: Call) -> int:
        if first.most is not None:
            return first.most
        mean, slots = self._means.get(first.function), max(1, self.slots)
        if mean is None or len(self.waiting) <= slots:
            return 1
        return max(1, min(BATCH_CALLS, int(BATCH_SECONDS / mean), len(self.waiting) // slots))

    # --- in ---

    def landed(self, number: int) -> Batch | None:
        """Something came of a batch; None for one that is not out: it came twice, or nobody wants it."""
        batch = self.out.pop(number, None)
        if batch is not None and batch in self.again:
            self.again.remove(batch)
        return batch

    def took(self, function: str, seconds: float, calls: int) -> None:
        """So long so many calls of a function took."""
        mean = max(LEAST_SECONDS, min(seconds / max(1, calls), MOST_SECONDS))
        before = self._means.get(function)
        self._means[function] = mean if before is None else before + MEAN_WEIGHT * (mean - before)

    def failed(self, number: int) -> Call | None:
        """No machine is tried with a batch any more: the call that it was, or None, and each of its calls goes by
        itself."""
        batch = self.landed(number)
        if batch is None:
            return None
        if len(batch.calls) == 1:
            return batch.calls[0]
        self.alone.extend(batch.calls)
        return None

    def line_broke(self, known: Collection[int]) -> None:
        """There is another line, and at its other end these are known; the others are sent once more."""
        self.again = deque(batch for batch in self.out.values() if batch.number not in known)

    def withdraw(self, numbers: Iterable[int]) -> list[int]:
        """Nobody waits for these calls: the batches of which nothing is wanted any more."""
        gone = set(numbers)
        self.waiting = deque(call for call in self.waiting if call.number not in gone)
        self.alone = deque(call for call in self.alone if call.number not in gone)
        empty = []
        for batch in [one for one in self.out.values() if all(call.number in gone for call in one.calls)]:
            self.landed(batch.number)
            empty.append(batch.number)
        return empty
