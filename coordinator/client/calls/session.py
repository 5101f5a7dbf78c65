"""A session as its client keeps it: calls in, what became of each out, whatever is cut or killed in between. Two
threads: one says, one hears. What goes together is the queue's affair, how things are written down shipping's."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from muster.coordinator.api.calls import (
    Answered,
    BatchFailed,
    Blob,
    CallBatch,
    CallsOpened,
    CallsOver,
    CallsTook,
    EndCalls,
    ForgetBlobs,
    FromDriver,
    OpenCalls,
    SlotsNow,
    Withdraw,
)
from muster.coordinator.api.requests import Problem
from muster.coordinator.calls.queue import Batch, Call, CallQueue
from muster.coordinator.client.backends.base import Backend
from muster.coordinator.client.backends.retry import AWAY_SECONDS
from muster.coordinator.client.calls.errors import CallFailed
from muster.coordinator.client.calls.shipping import Packed, Shipper, outcome, replies
from muster.coordinator.farm_root.ask_daemon import error_of
from muster.coordinator.farm_root.calls_line import CallsLine
from muster.coordinator.figures import histogram
from muster.coordinator.protocol.values import Decoder
from muster.jobs.common.errors import LinkError, MusterError, ProtocolError, RefusedError
from muster.jobs.common.retry_delay import RetryDelay
from muster.jobs.contract.states import STANDING
from muster.jobs.user_code.runner import calls as far

FIRST_PAUSE_SECONDS = 0.02  # a driver starts within half a second
LONGEST_PAUSE_SECONDS = 2.0
STEADY_SECONDS = 10.0  # a line that held so long was a good one: what breaks it is another trouble than the last
TOLD_SECONDS = 1.0  # between two words of how long calls took
BLOBS_KEPT = 32  # that no call reads now, at the driver: the next call often reads the same

_decode = Decoder(FromDriver | Problem)


@dataclass(eq=False)
class Pending:
    """A call that nothing has come of."""

    future: Future[Any]
    function: Packed
    packed: Packed
    since: float  # when it was submitted, by this process's clock


class Blobs:
    """What goes up apart: held as it was when it was submitted, for as long as a call reads it."""

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}
        self._readers: Counter[str] = Counter()
        self._idle: OrderedDict[str, None] = OrderedDict()  # there, and read by no call
        self.there: set[str] = set()  # at the driver, as far as is known

    def hold(self, packed: Packed) -> Packed:
        """For one call more. The same with what is held in place of what may change."""
        if not packed.blobs:
            return packed
        for digest, piece in packed.blobs.items():
            self._idle.pop(digest, None)
            self._readers[digest] += 1
            if digest not in self._held:
                self._held[digest] = bytes(piece)
        pieces = zip(packed.digests, packed.pieces, strict=True)
        return Packed(tuple(memoryview(self._held[one]) if one else piece for one, piece in pieces), packed.digests)

    def release(self, packed: Packed) -> None:
        for digest in packed.blobs:
            self._readers[digest] -= 1
            if not self._readers[digest]:
                del self._readers[digest], self._held[digest]
                self._idle[digest] = None

    def layout(self, digests: Iterable[str]) -> dict[str, int]:
        """Where each begins in the sheet that is all of them."""
        found, end = dict[str, int](), 0
        for digest in digests:
            found[digest] = end
            end += len(self._held[digest])
        return found

    def missing(self, digests: Iterable[str]) -> list[tuple[str, bytes]]:
        """Those to be sent before what reads them; they are there from now on."""
        found = [(digest, self._held[digest]) for digest in digests if digest not in self.there]
        self.there.update(digest for digest, _ in found)
        return found

    def superfluous(self) -> list[str]:
        """Those that the driver may forget."""
        found = []
        while len(self._idle) > BLOBS_KEPT:
            digest, _ = self._idle.popitem(last=False)
            if digest in self.there:
                self.there.discard(digest)
                found.append(digest)
        return found


class Session:
    """One job of kind `calls` after the other, where one ended while its client was away."""

    def __init__(self, place: Backend, begin: Callable[[], str], shipper: Shipper) -> None:
        """`begin`: submit the job; its id."""
        self._place, self._begin, self._shipper = place, begin, shipper
        self._changed = threading.Condition()  # holds for all that follows
        self._queue = CallQueue()
        self._calls: dict[int, Pending] = {}
        self._count = 0
        self._blobs = Blobs()
        self._unwanted: list[int] = []  # batches, to be told of
        self._took: dict[int, int] = {}  # calls that are done, by how long they took; to be told of
        self._told = time.monotonic()
        self._line: CallsLine | None = None
        self._broken: BaseException | None = None
        self._closing = self._end_said = self._ended = False
        self._name = uuid4().hex
        self._delay = RetryDelay(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._since = self._connected = time.monotonic()  # when the trouble began; when the last line did
        self.job = begin()
        self._connect_patiently()
        self._threads = [threading.Thread(target=work, name="calls", daemon=True) for work in (self._say, self._hear)]
        for thread in self._threads:
            thread.start()

    @property
    def slots(self) -> int:
        return self._queue.slots

    @property
    def is_open(self) -> bool:
        return not self._closing and self._broken is None

    # --- for callers ---

    def add(self, function: Packed, packed: Packed, most: int | None = None) -> Future[Any]:
        future: Future[Any] = Future()
        with self._changed:
            if self._broken is not None:
                raise BrokenExecutor(str(self._broken)) from self._broken
            if self._closing:
                raise RuntimeError("cannot schedule new futures after shutdown")
            number = self._count
            self._count += 1
            function, packed = self._blobs.hold(function), self._blobs.hold(packed)
            self._calls[number] = Pending(future, function, packed, time.monotonic())
            blobs = tuple(dict.fromkeys([*function.blobs, *packed.blobs]))
            self._queue.add(Call(number, function.key, packed.nbytes, blobs, most))
            self._changed.notify_all()
        return future

    def withdraw(self, futures: Iterable[Future[Any]]) -> None:
        """Nobody waits for these: what was not sent is cancelled, and what runs is stopped where all of its batch is
        unwanted."""
        gone = set(map(id, futures))
        with self._changed:
            unwanted = {number: one.future for number, one in self._calls.items() if id(one.future) in gone}
            self._unwanted += self._queue.withdraw(unwanted)
            out = {call.number for batch in self._queue.out.values() for call in batch.calls}
            for number in unwanted.keys() - out:
                self._dropped(number)
            self._changed.notify_all()
        for future in unwanted.values():
            _end(future, CancelledError())

    def wait_for_slots(self, seconds: float) -> bool:
        """Whether a machine that suits is there, or came in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.slots > 0 or self._broken is not None, seconds)

    def close(self, cancel: bool = False) -> None:
        """No call comes after this. `cancel`: those that were not sent are not made."""
        with self._changed:
            futures = [one.future for one in self._calls.values()] if cancel else []
            self._closing = True
            self._changed.notify_all()
        for future in futures:
            future.cancel()

    def join(self) -> None:
        """Until the job has ended, or there is no going on. It must have been closed."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    # --- saying ---

    def _say(self) -> None:
        try:
            while self._say_next():
                pass
        except Exception as error:  # a bug of ours: nobody is to wait for ever
            self._break(error)
            raise

    def _say_next(self) -> bool:
        """Wait for it, and keep nothing of it while the next is awaited. False when all is over."""
        work = self._work()
        if work is None:
            return False
        line, send = work
        try:
            send(line)
        except LinkError:
            line.close()  # who hears is told, and finds another
            with self._changed:
                self._line = None if self._line is line else self._line
        return True

    def _work(self) -> tuple[CallsLine, Callable[[CallsLine], None]] | None:
        """What to say next, once there is something; None when all is over."""
        with self._changed:
            while not (self._ended or self._broken is not None):
                if self._line is not None and (send := self._next()) is not None:
                    return self._line, send
                self._changed.wait(self._told + TOLD_SECONDS - time.monotonic() if self._took else None)
        return None

    def _next(self) -> Callable[[CallsLine], None] | None:
        if self._unwanted:
            unwanted, self._unwanted = self._unwanted, []
            return lambda line: line.say(Withdraw(unwanted))
        if forgotten := self._blobs.superfluous():
            return lambda line: line.say(ForgetBlobs(forgotten))
        if (batch := self._queue.next_batch(self._starts)) is not None:
            return self._sending(batch)
        if self._took and (self._is_finished or time.monotonic() >= self._told + TOLD_SECONDS):
            took, self._took, self._told = self._took, {}, time.monotonic()
            return lambda line: line.say(CallsTook(took))
        if self._is_finished and not self._end_said:
            self._end_said = True
            return lambda line: line.say(EndCalls())
        return None

    def _starts(self, number: int) -> bool:
        """Whether a call is still wanted: from now on it cannot be cancelled."""
        one = self._calls.get(number)
        if one is None:
            return False
        if one.future.running():  # it was sent before
            return True
        withdrawn = one.future.done() and not one.future.cancelled()
        if withdrawn or not one.future.set_running_or_notify_cancel():
            self._dropped(number)
            return False
        return True

    def _sending(self, batch: Batch) -> Callable[[CallsLine], None]:
        """A batch as it goes out, behind what it reads that is not there."""
        calls, blobs = [self._calls[call.number] for call in batch.calls], batch.calls[0].blobs
        first, missing, offsets = calls[0].function, self._blobs.missing(blobs), self._blobs.layout(blobs)

        def send(line: CallsLine) -> None:
            for digest, raw in missing:
                line.say(Blob(digest, len(raw)), raw)
            head = {
                "key": first.key,
                "function": first.places(offsets),
                "calls": [one.packed.places(offsets) for one in calls],
                "pickles": self._shipper.answers_are_pickles,
            }
            inline = [*first.inline, *(piece for one in calls for piece in one.packed.inline)]
            payload = far.written(head, inline)
            line.say(CallBatch(batch.number, len(payload), len(calls), list(blobs)), payload)

        return send

    def _dropped(self, number: int) -> Future[Any] | None:
        """A call is no more; its future, if it was there."""
        one = self._calls.pop(number, None)
        if one is None:
            return None
        self._blobs.release(one.function)
        self._blobs.release(one.packed)
        return one.future

    # --- hearing ---

    def _hear(self) -> None:
        """To the end of the session."""
        try:
            self._heard_out()
            while not self._is_done():
                self._connect_patiently()
                self._heard_out()
        except Exception as error:
            self._break(error)
            if not isinstance(error, MusterError):
                raise

    def _is_done(self) -> bool:
        """The line ended: whether all has."""
        now = time.monotonic()
        if now - self._connected > STEADY_SECONDS or self._delay.failures == 0:
            self._since = now
            self._delay.reset()
        with self._changed:
            self._line = None
            self._ended = self._is_finished
            self._changed.notify_all()
            return self._ended or self._broken is not None

    @property
    def _is_finished(self) -> bool:
        """Whether nobody wants anything more. A job that was not told so ends by itself."""
        return self._closing and not self._calls

    def _heard_out(self) -> None:
        """Until the line ends, or its job does."""
        line = self._line
        try:
            while line is not None and (said := line.hear(_decode)) is not None:
                if isinstance(said, Problem):
                    raise error_of(said)
                if isinstance(said, CallsOver):
                    return
                self._take(said, bytearray(line.take(said.nbytes)) if isinstance(said, Answered) else bytearray())
        except LinkError:
            pass
        except MusterError as error:
            if not error.retryable:
                raise
        finally:
            if line is not None:
                line.close()

    def _take(self, said: object, behind: bytearray) -> None:
        if isinstance(said, Answered):
            self._answered(said, behind)
        elif isinstance(said, BatchFailed):
            self._failed(said)
        elif isinstance(said, SlotsNow):
            with self._changed:
                self._queue.slots = said.slots
                self._changed.notify_all()

    def _answered(self, said: Answered, raw: bytearray) -> None:
        self._delay.reset()
        with self._changed:
            batch = self._queue.landed(said.batch)
            self._changed.notify_all()
        if batch is None:
            return
        try:
            found = replies(raw, len(batch.calls))
        except Exception as error:  # bytes of a machine may be anything
            why = CallFailed("output", f"no valid answer came: {error}", said.machine)
            for call in batch.calls:
                self._settle(call, None, why)
            return
        with self._changed:
            self._queue.took(batch.calls[0].function, sum(one.reply.seconds for one in found), len(found))
        for call, one in zip(batch.calls, found, strict=True):
            self._settle(call, *outcome(self._shipper, one, said.machine))

    def _failed(self, said: BatchFailed) -> None:
        with self._changed:
            call = self._queue.failed(said.batch)
            self._changed.notify_all()
        if call is not None:
            self._settle(call, None, CallFailed(said.code, said.why, said.machine, said.evidence))

    def _settle(self, call: Call, value: Any, error: BaseException | None) -> None:
        with self._changed:
            since = self._calls[call.number].since if call.number in self._calls else None
            future = self._dropped(call.number)
            if since is not None:
                histogram.add(self._took, {histogram.bucket_of_seconds(time.monotonic() - since): 1})
            if self._closing:
                self._changed.notify_all()
        if future is not None:
            _end(future, error, value)

    # --- a line ---

    def _connect_patiently(self) -> None:
        """Another line, if one is wanted, or the error that there is none to be had in time."""
        while not self._is_finished:
            try:
                self._connect()
                return
            except MusterError as error:
                if not error.retryable or time.monotonic() - self._since > AWAY_SECONDS:
                    raise
            time.sleep(self._delay.failed(time.monotonic()))
            if self._delay.failures > 1:
                self._begin_if_over()

    def _connect(self) -> None:
        line = self._place.session(self.job)
        try:
            with self._changed:
                awaited = list(self._queue.out)
            line.say(OpenCalls(self._name, awaited))
            said = line.hear(_decode)
            if isinstance(said, Problem):
                raise error_of(said)
            if said is None:
                raise LinkError(f"{self.job} hung up")
            if not isinstance(said, CallsOpened):
                raise ProtocolError(f"{self.job} began with {type(said).__name__}")
        except BaseException:
            line.close()
            raise
        with self._changed:
            self._queue.line_broke(set(said.known))
            self._queue.slots = said.slots
            self._blobs.there = set(said.blobs)
            self._line, self._end_said, self._connected = line, False, time.monotonic()
            self._changed.notify_all()

    def _begin_if_over(self) -> None:
        """Where the job ended while nobody came, there is another; where a person ended it, there is none."""
        try:
            status = self._place.status(self.job).jobs[0]
        except LinkError:
            return
        except MusterError as error:
            if error.retryable:
                return
            raise
        if status.state not in STANDING:
            return
        if status.state != "complete":
            raise RefusedError(f"{self.job} is {status.state}: {status.why}", "open another session")
        self.job = self._begin()

    def _break(self, error: Exception) -> None:
        """There is no going on: whoever waits is told."""
        with self._changed:
            self._broken = error
            futures = [one.future for one in self._calls.values()]
            self._calls.clear()
            if self._line is not None:
                self._line.close()
            self._changed.notify_all()
        for future in futures:
            broken = BrokenExecutor(str(error))
            broken.__cause__ = error
            _end(future, broken)


def _end(future: Future[Any], error: BaseException | None, value: Any = None) -> None:
    """Unless it has ended: whoever cancelled it was sooner, and is told that it will not run."""
    with suppress(InvalidStateError):
        if future.cancelled():
            future.set_running_or_notify_cancel()
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)
