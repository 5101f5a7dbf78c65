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
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import psutil

from muster.agent.core.events import Needs
from muster.agent.pool import cleanup, worker_environment
from muster.agent.pool.interface import Closed, Opened, Word, WorkerGone, WorkerSaid, WorkerUp
from muster.agent.pool.worker import BENCH, SEAT_VARIABLE, SILENT_DEATH, Ready, WorkerDone, WorkerOrder
from muster.agent.pool.worker_socket import WorkerSocket, WorkerSockets
from muster.jobs.common import launch, processes
from muster.jobs.common.processes import ProcessId, identify


@dataclass(eq=False)
class Lane:
    """A worker as far as its socket and its process go."""

    seat: str
    socket: WorkerSocket | None  # until all that came through it is told
    process: ProcessId | None = None  # from its first word on
    broken: str = ""  # why it cannot start, as it said itself
    why: str = ""  # it is gone, set once; "" while it is not


class Processes:
    """One process for each seat. Their words come on one thread, and a death is told after the last of them."""

    on_demand = False
    room: Needs | None = None
    heeds_needs = False  # the agent's core counts processors, memory and GPUs itself

    def __init__(self, log: Path | None = None, bench: str = BENCH) -> None:
        self._log = log
        self._bench = bench
        self._temp = Path()
        self._children: dict[str, subprocess.Popen[bytes]] = {}  # by seat, until they are waited for
        self._lock = threading.Lock()  # of the children
        self._lanes: dict[str, Lane] = {}  # by seat; written on the sockets' thread alone
        self._sockets: WorkerSockets | None = None
        self._thread: threading.Thread | None = None
        self._tell: Callable[[Word], None] = lambda word: None

    def open(self, temp: Path, tell: Callable[[Word], None]) -> None:
        self._temp, self._tell = temp, tell
        self._sockets = WorkerSockets()
        self._thread = threading.Thread(
            target=self._sockets.run, args=(self._heard, self._silent), name="pool", daemon=True
        )
        self._thread.start()
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
            self._tell(Closed(f"a worker cannot be started: {error}"))
            return
        with self._lock:
            self._children[seat] = child
        self._put(partial(self._add, seat, WorkerSocket(ours)))
        threading.Thread(target=self._wait, args=(seat, child), name=f"pool wait {child.pid}", daemon=True).start()

    def send(self, seat: str, ticket: int, batch: bytes, name: str, in_rounds: bool) -> None:
        """Have a worker run a batch after those it has."""
        lane = self._lanes.get(seat)
        worker_socket = lane.socket if lane is not None else None
        if worker_socket is not None:
            with suppress(OSError):  # its death is news of its own
                worker_socket.send(msgspec.msgpack.encode(WorkerOrder(ticket, batch)))

    def kill(self, seat: str) -> None:
        with self._lock:
            child = self._children.get(seat)
        if child is not None:
            _kill(child)

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._put(None)
            thread.join()  # no word comes after this
        self._lanes = {}
        with self._lock:
            children, self._children = self._children, {}
        for child in children.values():
            _kill(child)
        for child in children.values():
            child.wait()

    def _put(self, call: Callable[[], None] | None) -> None:
        """Have it called on the sockets' thread; after the end nothing is."""
        if self._sockets is not None:
            self._sockets.put(call)

    def _wait(self, seat: str, child: subprocess.Popen[bytes]) -> None:
        """On a thread of its own."""
        status = child.wait()
        with self._lock:
            self._children.pop(seat, None)
        self._put(partial(self._ended, seat, status))

    # --- on the sockets' thread ---

    def _add(self, seat: str, worker_socket: WorkerSocket) -> None:
        worker_socket.name = seat
        self._lanes[seat] = Lane(seat, worker_socket)
        if self._sockets is not None:
            self._sockets.add(worker_socket)

    def _heard(self, worker_socket: WorkerSocket, raw: bytes) -> None:
        lane = self._lanes[worker_socket.name]
        if lane.process is not None:
            done = msgspec.msgpack.decode(raw, type=WorkerDone)
            self._tell(WorkerSaid(lane.seat, done.ticket, done.outcome, done.broken))
        elif not lane.why:  # else it died meanwhile
            self._first_word(lane, msgspec.msgpack.decode(raw, type=Ready))

    def _first_word(self, lane: Lane, ready: Ready) -> None:
        lane.broken = ready.broken
        if not ready.broken:
            lane.process = ProcessId(ready.pid, ready.began)
            self._tell(WorkerUp(lane.seat, process=lane.process))

    def _silent(self, worker_socket: WorkerSocket) -> None:
        """All that a worker said is told. It goes or is gone, and how it ended its parent alone is told."""
        lane = self._lanes[worker_socket.name]
        lane.socket = None
        self.kill(lane.seat)
        self._farewell(lane)

    def _ended(self, seat: str, status: int) -> None:
        """Kill what is left of it, and tell its end once it is heard out."""
        lane = self._lanes.get(seat)
        if lane is None:  # of a pool that was closed, and is open again
            return
        lane.why = lane.broken or self._reason(lane, status)
        if lane.process is not None:
            processes.kill_tree(lane.process)
        processes.kill(cleanup.naming(seat))  # runners it left behind when it ended by itself
        self._farewell(lane)

    def _reason(self, lane: Lane, status: int) -> str:
        """What one printed that ended before its first word is the reason: its Python may be broken."""
        why = _why(status)
        if lane.process is None and status > 0 and self._log is not None:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            why += f": {lines[-1]}" if lines else ""
        return why

    def _farewell(self, lane: Lane) -> None:
        if lane.why and lane.socket is None:
            del self._lanes[lane.seat]
            self._tell(WorkerGone(lane.seat, lane.why))


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
