"""Workers that are plain processes of the agent, with a socket each. The lower port's simplest implementation.

None outlives the agent: each ends itself, with all that it runs, when the agent's end of its socket is closed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from muster.agent.core.events import Needs
from muster.agent.pool import cleanup, worker_environment
from muster.agent.pool.interface import Closed, Opened, Word
from muster.agent.pool.socket_workers import SILENT_DEATH, Lane, SocketWorkers
from muster.agent.pool.worker import BENCH, SEAT_VARIABLE
from muster.agent.pool.worker_socket import WorkerSocket
from muster.jobs.common import launch, processes
from muster.jobs.common.processes import identify


class Processes(SocketWorkers):
    """One process for each seat."""

    heeds_needs = False  # the agent's core counts processors, memory and GPUs itself

    def __init__(self, log: Path | None = None, bench: str = BENCH) -> None:
        super().__init__()
        self._log = log
        self._bench = bench
        self._temp = Path()
        self._children: dict[str, subprocess.Popen[bytes]] = {}  # by seat, until they are waited for
        self._lock = threading.Lock()  # of the children

    def open(self, temp: Path, tell: Callable[[Word], None]) -> None:
        self._temp = temp
        self.open_lanes(tell)
        tell(Opened())

    def start(self, seat: str, needs: Needs) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs, (self._log or Path(os.devnull)).open("ab") as out:
                command = (str(theirs.fileno()), self._bench, seat, str(self._log or ""))
                child = subprocess.Popen(
                    launch.python("muster.agent.pool.worker", *command),
                    stdin=subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=[theirs.fileno()],
                    env={**os.environ, **worker_environment.settings(), SEAT_VARIABLE: seat},
                    cwd=cleanup.empty(self._temp), start_new_session=True,
                )  # fmt: skip
        except OSError as error:  # no more processes, no memory
            ours.close()
            self.tell(Closed(f"a worker cannot be started: {error}"))
            return
        with self._lock:
            self._children[seat] = child
        lane = Lane(seat, socket=WorkerSocket(ours))
        self.put(partial(self.add, lane))
        threading.Thread(target=self._wait, args=(seat, child), name=f"pool wait {child.pid}", daemon=True).start()

    def kill(self, seat: str) -> None:
        with self._lock:
            child = self._children.get(seat)
        if child is not None:
            _kill(child)

    def close(self) -> None:
        self.close_lanes()
        with self._lock:
            children, self._children = self._children, {}
        for child in children.values():
            _kill(child)
        for child in children.values():
            child.wait()

    def fell_silent(self, lane: Lane) -> None:
        """How it ended its parent alone is told."""
        self.kill(lane.seat)

    def _wait(self, seat: str, child: subprocess.Popen[bytes]) -> None:
        """On a thread of its own."""
        status = child.wait()
        with self._lock:
            self._children.pop(seat, None)
        self.put(partial(self._ended_with, seat, status))

    def _ended_with(self, seat: str, status: int) -> None:
        """What one printed that ended before its first word is the reason: its Python may be broken."""
        lane, why = self.lane(seat), _why(status)
        if lane is not None and lane.process is None and status > 0 and self._log is not None:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            why += f": {lines[-1]}" if lines else ""
        self.ended(seat, why)


def _kill(child: subprocess.Popen[bytes]) -> None:
    """It and its descendants."""
    if child.returncode is not None:
        return
    with suppress(psutil.Error):  # it was
        processes.kill_tree(identify(child.pid))


def _why(status: int) -> str:
    if status >= 0:
        return f"its process ended with exit status {status}"
    if -status == signal.SIGKILL:
        return SILENT_DEATH
    return f"died of {signal.Signals(-status).name}"
