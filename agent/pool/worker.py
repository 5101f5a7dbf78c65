"""The worker's side of the pool: what runs in a worker process. Knows nothing of Ray or the agent."""

from __future__ import annotations

import importlib
import logging
import os
import signal
from pathlib import Path

import msgspec

from muster.agent.pool import worker_socket
from muster.jobs.common.logs import open_log
from muster.jobs.common.processes import identify
from muster.jobs.workbench.batch import Batch

SEAT_VARIABLE = "MUSTER_SEAT"  # in a worker's environment and so its runners': finds those that outlive it

logger = logging.getLogger(__name__)


class Ready(msgspec.Struct, frozen=True, array_like=True):
    """The first word of a worker: which it is, and its process."""

    seat: str
    pid: int
    began: float


class WorkerOrder(msgspec.Struct, frozen=True, array_like=True):
    """A batch to run, encoded."""

    ticket: int
    batch: bytes


class WorkerDone(msgspec.Struct, frozen=True, array_like=True):
    """What came of it, encoded; or why nothing did, and nothing more will."""

    ticket: int
    outcome: bytes
    broken: str = ""


class Worker:
    """One worker process; runs in an actor, on the process's main thread."""

    def __init__(self, worker: str, seat: str, log: str = "") -> None:
        """`log`: the agent's, which tracebacks go to; "" for none. What Ray keeps of this process goes with it."""
        if log:
            open_log(Path(log), level=logging.WARNING)
        os.environ[SEAT_VARIABLE] = seat
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray blocks it, and runners would inherit that
        module, _, name = worker.partition(":")
        self._bench = getattr(importlib.import_module(module), name)()
        self._seat = seat
        self._broken = ""

    def serve(self, address: str) -> None:
        """Run what comes, in order, until the agent hangs up."""
        opened = worker_socket.call(address)
        us = identify()
        opened.send(msgspec.msgpack.encode(Ready(self._seat, us.pid, us.started)))
        while (raw := opened.receive()) is not None:
            order = msgspec.msgpack.decode(raw, type=WorkerOrder)
            opened.send(msgspec.msgpack.encode(WorkerDone(order.ticket, *self._run(order.batch))))

    def _run(self, raw: bytes) -> tuple[bytes, str]:
        """The outcome, or why there is none; after an unexpected exception nothing more is run in this process."""
        if not self._broken:
            try:
                return msgspec.msgpack.encode(self._bench.run(msgspec.msgpack.decode(raw, type=Batch))), ""
            except Exception as error:
                logger.exception("a batch ended with an exception")
                self._broken = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        return b"", self._broken
