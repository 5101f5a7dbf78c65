"""`Executor`: a farm as `concurrent.futures` has it. Its futures are the standard library's own; keeps no state but its
session."""

from __future__ import annotations

import atexit
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import Future
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeVar

from muster.coordinator.client.calls.session import Session
from muster.coordinator.client.calls.shipping import Packed, Shipper

NOTHING: Mapping[str, Any] = MappingProxyType({})
_T = TypeVar("_T")
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()  # those that may have calls when the interpreter ends


class Executor(futures.Executor):
    """Functions called on a farm: `with farm.executor() as executor: executor.map(f, range(1000))`."""

    def __init__(self, session: Session, shipper: Shipper) -> None:
        self._session, self._shipper = session, shipper
        _sessions.add(session)
        weakref.finalize(self, session.close).atexit = False  # whoever forgets it waits for nothing

    def __repr__(self) -> str:
        return f"<Executor {self.job}, {self.slots} slots>"

    @property
    def job(self) -> str:
        """The id of its job."""
        return self._session.job

    @property
    def slots(self) -> int:
        """How many batches of calls run at once, on the machines that are here."""
        return self._session.slots

    @property
    def is_open(self) -> bool:
        """Whether it takes calls: it was not shut down, and its job was not ended."""
        return self._session.is_open

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """Have `fn(*args, **kwargs)` called. A TypeError names an argument that cannot travel."""
        return self._add(self._shipper.function(fn), args, kwargs)

    def submit_alone(self, fn: Callable[..., _T], /, *args: Any) -> Future[_T]:
        """The same for a caller that makes batches itself: no other call goes along, to wait for this one's end."""
        return self._add(self._shipper.function(fn), args, {}, 1)

    def map(
        self,
        fn: Callable[..., _T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int | None = None,
    ) -> Iterator[_T]:
        """As the built-in `map`, in order. `chunksize`: calls that go together, by default as many as take 30 ms;
        `buffersize`: calls ahead of the one whose result is taken, by default all."""
        return self._in_order(self._calls(fn, zip(*iterables, strict=False), chunksize), timeout, _checked(buffersize))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the session once nothing waits for a result. `wait`: until then; `cancel_futures`: calls that have not
        begun are not made."""
        self._session.close(cancel_futures)
        if wait:
            self._session.join()

    def withdraw(self, of: Iterable[Future[Any]]) -> None:
        """Nobody waits for these any more: what has not begun is cancelled, and what runs may be stopped."""
        self._session.withdraw(of)

    def each(self, fn: Callable[..., _T], objects: Iterable[Any], kwargs: dict[str, Any], ahead: int) -> Iterator[_T]:
        """`fn(one, **kwargs)` for each of them, in order, at most so many of them ahead of what is taken."""
        return self._in_order(self._calls(fn, ((one,) for one in objects), None, kwargs), None, ahead)

    # --- maps ---

    def _add(self, function: Packed, args: Any, kwargs: dict[str, Any], most: int | None = None) -> Future[Any]:
        return self._session.add(function, self._shipper.call(tuple(args), kwargs), most)

    def _calls(
        self, fn: Callable[..., _T], rows: Iterable[Any], chunksize: int | None, kwargs: Mapping[str, Any] = NOTHING
    ) -> Iterator[Future[_T]]:
        """A future for each row, when it is asked for."""
        if chunksize is not None and chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        function = self._shipper.function(fn)
        return (self._add(function, row, dict(kwargs), chunksize) for row in rows)

    def _in_order(self, calls: Iterator[Future[_T]], timeout: float | None, ahead: int | None) -> Iterator[_T]:
        until = None if timeout is None else time.monotonic() + timeout
        begun = deque(islice(calls, ahead))

        def results() -> Iterator[_T]:
            try:
                while begun:
                    begun.extend(islice(calls, 1))
                    yield _result(begun, until)
            finally:
                for future in begun:
                    future.cancel()

        return results()


def _checked(buffersize: int | None) -> int | None:
    if buffersize is not None and buffersize < 1:
        raise ValueError("buffersize must be None or > 0")
    return buffersize


def _result(begun: deque[Future[_T]], until: float | None) -> _T:
    """Of the first; nothing here keeps it alive while somebody looks at what it gave."""
    try:
        return begun[0].result(None if until is None else until - time.monotonic())
    finally:
        begun.popleft().cancel()


def _finish_all() -> None:
    """As the standard library's executors do: an interpreter that ends waits for what was submitted."""
    for session in list(_sessions):
        session.close()
        session.join()


atexit.register(_finish_all)
