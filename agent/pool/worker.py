"""The worker's side of the pool: what runs in a worker process. Knows nothing of Ray or the agent."""

from __future__ import annotations

import importlib
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import psutil

from muster.agent.pool import worker_socket
from muster.agent.pool.worker_socket import WorkerSocket
from muster.jobs.common.heap import keep_freed
from muster.jobs.common.logs import open_log
from muster.jobs.common.processes import identify, kill
from muster.jobs.workbench.batch import Batch

SEAT_VARIABLE = "MUSTER_SEAT"  # in a worker's environment and so its runners': finds those that outlive it
BENCH = "muster.jobs.workbench.workbench:Workbench"  # what runs batches
SILENT_DEATH = "its process ended without a word: kill -9, the out-of-memory killer, or an exit in its code"

logger = logging.getLogger(__name__)


class Ready(msgspec.Struct, frozen=True, array_like=True):
    """The first word of a worker: which it is, and its process; or why it never will be one."""

    seat: str
    pid: int
    began: float
    broken: str = ""


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
    """One worker process; runs on the process's main thread."""

    def __init__(self, bench: str, seat: str, log: str = "") -> None:
        """`log`: the agent's, which tracebacks go to; "" for none."""
        if log:
            open_log(Path(log), level=logging.WARNING)
        keep_freed()
        os.environ[SEAT_VARIABLE] = seat
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray blocks it, and runners would inherit that
        module, _, name = bench.partition(":")
        self._bench = getattr(importlib.import_module(module), name)()
        self._seat = seat
        self._broken = ""

    def serve_at(self, address: str) -> None:
        """Call the agent, and serve it."""
        self.serve(worker_socket.call(address))

    def serve(self, opened: WorkerSocket) -> None:
        """Run what comes, in order, until the agent hangs up."""
        us = identify()
        opened.send(msgspec.msgpack.encode(Ready(self._seat, us.pid, us.started)))
        while (raw := opened.receive()) is not None:
            order = msgspec.msgpack.decode(raw, type=WorkerOrder)
            opened.send(msgspec.msgpack.encode(WorkerDone(order.ticket, *self.run_batch(partial(decode, order.batch)))))

    def run_batch(self, batch: Callable[[], Batch]) -> tuple[bytes, str]:
        """The outcome, or why there is none; after an unexpected exception nothing more is run in this process."""
        if not self._broken:
            try:
                return msgspec.msgpack.encode(self._bench.run(batch())), ""
            except Exception as error:
                logger.exception("a batch ended with an exception")
                self._broken = _in_a_line(error)
        return b"", self._broken


def decode(raw: bytes) -> Batch:
    return msgspec.msgpack.decode(raw, type=Batch)


def main() -> int:
    """A worker that is a plain process: the number of its socket, what runs batches, its seat, the log."""
    number, bench, seat, log = sys.argv[1:]
    opened = WorkerSocket(socket.socket(fileno=int(number)))
    threading.Thread(target=_end_with, args=(opened.socket,), name="hang-up", daemon=True).start()
    try:
        worker = Worker(bench, seat, log)
    except Exception as error:
        logger.exception("this worker cannot start")
        opened.send(msgspec.msgpack.encode(Ready(seat, 0, 0.0, _in_a_line(error))))
        return 1
    worker.serve(opened)
    return 0


def _end_with(sock: socket.socket) -> None:
    """Whatever runs here, it ends when the agent hangs up: with the last of its ends, a kill -9 included."""
    poll = select.poll()
    poll.register(sock, 0)  # of a hang-up it tells all the same
    poll.poll()
    us = psutil.Process()
    kill([*us.children(recursive=True), us])


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]
