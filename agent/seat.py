"""The worker's side of the pool: what runs in a worker process. Knows nothing of Ray or the agent."""

from __future__ import annotations

import importlib
import logging
import os
import signal

import msgspec
import psutil

from jobs.work import Batch

SEAT_VARIABLE = "MUSTER_SEAT"  # in a worker's environment and so its runners': finds those that outlive it

logger = logging.getLogger(__name__)


class Seat:
    """One worker process; runs in an actor, on the process's main thread."""

    def __init__(self, worker: str, seat: str) -> None:
        os.environ[SEAT_VARIABLE] = seat
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray blocks it, and runners would inherit that
        module, _, name = worker.partition(":")
        self._bench = getattr(importlib.import_module(module), name)()
        self._broken = ""

    def mark(self) -> tuple[int, float]:
        """This process: pid and start time."""
        return os.getpid(), psutil.Process().create_time()

    def run(self, raw: bytes) -> tuple[bytes, str]:
        """The outcome, or why there is none; after an unexpected exception nothing more is run in this process."""
        if not self._broken:
            try:
                return msgspec.msgpack.encode(self._bench.run(msgspec.msgpack.decode(raw, type=Batch))), ""
            except Exception as error:
                logger.exception("a batch ended with an exception")
                self._broken = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        return b"", self._broken
