"""A session's queue against a model: each call comes out once, whatever fails, breaks, comes twice, or is unwanted."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from muster.coordinator.calls.queue import AHEAD, BATCH_BYTES, BATCH_CALLS, Batch, Call, CallQueue


class Sessions(RuleBasedStateMachine):
    """A driver that gets batches, loses them and answers late; and what each call came to."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = CallQueue(slots=2)
        self.wanted: set[int] = set()  # added; nothing has come of them, and nobody withdrew them
        self.done: set[int] = set()
        self.there: dict[int, Batch] = {}  # batches that the driver has
        self.past: list[int] = []  # that it has answered before
        self.alone: set[int] = set()  # calls whose batch failed
        self.count = 0

    @rule(
        function=st.sampled_from("fg"), nbytes=st.sampled_from([10, BATCH_BYTES // 2, BATCH_BYTES]),
        blobs=st.sampled_from([(), ("a",)]), most=st.sampled_from([None, None, 1, 3]), times=st.integers(1, 9),
    )  # fmt: skip
    def add(self, function: str, nbytes: int, blobs: tuple[str, ...], most: int | None, times: int) -> None:
        for _ in range(times):
            self.queue.add(Call(self.count, function, nbytes, blobs, most))
            self.wanted.add(self.count)
            self.count += 1

    @rule(slots=st.integers(0, 3))
    def machines_come_and_go(self, slots: int) -> None:
        self.queue.slots = slots

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.01, 1.0, -1.0, float("inf"), float("nan")]))
    def measured(self, seconds: float) -> None:
        self.queue.took("f", seconds, 1)

    @rule()
    def send(self) -> None:
        while (batch := self.queue.next_batch(lambda number: number in self.wanted)) is not None:
            assert 0 < len(batch.calls) <= BATCH_CALLS
            assert len({(call.function, call.blobs) for call in batch.calls}) == 1
            assert len(batch.calls) == 1 or sum(call.nbytes for call in batch.calls) <= BATCH_BYTES
            assert all(call.most is None or len(batch.calls) <= call.most for call in batch.calls)
            assert len(batch.calls) == 1 or not {call.number for call in batch.calls} & self.alone
            assert batch.number not in self.there, "sent twice to a driver that has it"
            self.there[batch.number] = batch
        assert len(self.queue.out) >= min(AHEAD * max(1, self.queue.slots), len(self.queue.waiting))

    def _picked(self, data: Any) -> Batch:
        batch = self.there.pop(data.draw(st.sampled_from(sorted(self.there))))
        self.past.append(batch.number)
        return batch

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def answer(self, data: Any) -> None:
        batch = self._picked(data)
        landed = self.queue.landed(batch.number)
        for call in landed.calls if landed is not None else ():
            assert call.number not in self.done, "a result delivered twice"
            self.done.add(call.number)
            self.wanted.discard(call.number)
        assert landed is not None or not {call.number for call in batch.calls} & self.wanted

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def answer_again(self, data: Any) -> None:
        number = data.draw(st.sampled_from(self.past))
        if number not in self.there:
            before = len(self.queue.out)
            assert number in self.queue.out or self.queue.landed(number) is None
            assert len(self.queue.out) == before

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def fail(self, data: Any) -> None:
        batch = self._picked(data)
        call = self.queue.failed(batch.number)
        if call is None:
            self.alone |= {one.number for one in batch.calls} & self.wanted
        else:
            assert [call] == list(batch.calls)
            self.done.add(call.number)
            self.wanted.discard(call.number)

    @rule(data=st.data())
    def the_line_breaks(self, data: Any) -> None:
        """The driver may have been killed, and may have what was on its way."""
        known = data.draw(st.sets(st.sampled_from(sorted(self.there)))) if self.there else set()
        self.there = {number: self.there[number] for number in known}
        self.queue.line_broke(known)

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def withdraw(self, data: Any) -> None:
        numbers = data.draw(st.sets(st.sampled_from(sorted(self.wanted)), min_size=1))
        self.wanted -= numbers
        for number in self.queue.withdraw(numbers):
            self.there.pop(number, None)
            self.past.append(number)

    @invariant()
    def no_call_is_lost_or_in_two_places(self) -> None:
        queue = self.queue
        places = [call.number for call in (*queue.waiting, *queue.alone)]
        places += [call.number for batch in queue.out.values() for call in batch.calls]
        assert len(places) == len(set(places))
        assert self.wanted <= set(places)
        assert not self.done & set(places)
        assert {batch.number for batch in queue.again} <= queue.out.keys()

    def teardown(self) -> None:
        """With a driver that answers, all that is wanted comes."""
        self.queue.slots = 2
        while self.there or self.wanted:
            self.send()
            assert self.there or not self.wanted
            for number in list(self.there):
                batch = self.there.pop(number)
                if self.queue.landed(number) is not None:
                    self.wanted -= {call.number for call in batch.calls}


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=60, stateful_step_count=40)


def test_quick_calls_go_together_and_the_last_ones_are_shared_out() -> None:
    queue = CallQueue(slots=2)
    for number in range(100):
        queue.add(Call(number, "f"))
    first = [queue.next_batch() for _ in range(AHEAD * 2)]
    assert all(one is not None and len(one.calls) == 1 for one in first), "nobody knows yet what they take"
    assert queue.next_batch() is None
    queue.landed(0)
    queue.took("f", 0.001, 1)
    second = queue.next_batch()
    assert second is not None and len(second.calls) == 30
    for number in range(1, 8):
        queue.landed(number)
    sizes = [len(one.calls) for _ in range(7) if (one := queue.next_batch()) is not None]
    assert sizes == [30, 16, 8, 4, 2, 1, 1]
