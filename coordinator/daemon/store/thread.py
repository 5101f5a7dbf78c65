"""The store's thread: what waits is one transaction, each request a savepoint. Decides nothing."""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from muster.coordinator.daemon.store.statements import Store

RETRY_SECONDS = 1.0  # between tries while the disk is full
_T = TypeVar("_T")
_Job = tuple[Callable[[Store], Any], "Future[Any]"]


class StoreThread:
    """Runs statements in the order they were asked for; each batch is one transaction, each request a savepoint.

    A future is done only when its transaction is durable. While the disk is full the batch is tried again: nothing is
    acknowledged meanwhile, so nothing is lost.
    """

    def __init__(self, store: Store, on_trouble: Callable[[str], None]) -> None:
        self._store = store
        self._on_trouble = on_trouble
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="store", daemon=True)
        self._thread.start()

    def run(self, statement: Callable[[Store], _T]) -> Future[_T]:
        future: Future[_T] = Future()
        future.set_running_or_notify_cancel()  # whoever asked may go away: it is done all the same
        self._queue.put((statement, future))
        return future

    def stop(self) -> None:
        """After all that was asked for, unless the disk takes no more."""
        self._stopping.set()
        self._queue.put(None)
        self._thread.join()
        self._store.close()

    def _loop(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, last = [first], False
            with contextlib.suppress(queue.Empty):
                while not last:
                    job = self._queue.get_nowait()
                    last = job is None
                    if job is not None:
                        batch.append(job)
            self._transact(batch)
            if last:
                return

    def _transact(self, batch: list[_Job]) -> None:
        while True:
            try:
                results = self._try(batch)
            except sqlite3.Error as error:
                self._on_trouble(str(error))
                if self._stopping.wait(RETRY_SECONDS):
                    for _, future in batch:
                        future.set_exception(error)
                    return
                continue
            self._on_trouble("")
            for (_, future), (value, error_of_one) in zip(batch, results, strict=True):
                if error_of_one is not None:
                    future.set_exception(error_of_one)
                else:
                    future.set_result(value)
            return

    def _try(self, batch: list[_Job]) -> list[tuple[Any, Exception | None]]:
        db = self._store.db
        results: list[tuple[Any, Exception | None]] = []
        db.execute("BEGIN IMMEDIATE")
        try:
            for statement, _ in batch:
                db.execute("SAVEPOINT one")
                try:
                    results.append((statement(self._store), None))
                except sqlite3.OperationalError:
                    raise
                except Exception as error:
                    db.execute("ROLLBACK TO one")
                    results.append((None, error))
                db.execute("RELEASE one")
            db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise
        return results
