"""Workers on this machine that have a socket each: their words on one thread, and a death told after the last of them.
Starts none of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from muster.agent.core.events import Needs
from muster.agent.pool import cleanup
from muster.agent.pool.interface import Word, WorkerGone, WorkerSaid, WorkerUp
from muster.agent.pool.worker import Ready, WorkerDone, WorkerOrder
from muster.agent.pool.worker_socket import WorkerSocket, WorkerSockets
from muster.jobs.common import processes
from muster.jobs.common.processes import ProcessId

SILENT_DEATH = "its process ended without a word: kill -9, the out-of-memory killer, or an exit in its code"


@dataclass(eq=False)
class Lane:
    """A worker as far as its socket and its process go."""

    seat: str
    process: ProcessId | None = None
    socket: WorkerSocket | None = None  # until all that came through it is told
    broken: str = ""  # why it cannot start, as it said itself
    why: str = ""  # it is gone, set once; "" while it is not


class SocketWorkers:
    """Half of a `Workers`. But for `send`, `put` and `close_lanes` its methods are for the thread of the sockets."""

    on_demand = False
    room: Needs | None = None

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}  # by seat; written on the sockets' thread alone
        self._sockets: WorkerSockets | None = None
        self._thread: threading.Thread | None = None
        self.tell: Callable[[Word], None] = lambda word: None

    def open_lanes(self, tell: Callable[[Word], None], address: Path | None = None) -> None:
        """With an `address`, workers call there; else each gets its socket when it is started."""
        self.tell, self._lanes = tell, {}
        self._sockets = WorkerSockets(address)
        self._thread = threading.Thread(
            target=self._sockets.run, args=(self._heard, self._silent), name="pool", daemon=True
        )
        self._thread.start()

    def close_lanes(self) -> list[Lane]:
        """No word comes after this. The workers that were not gone."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self.put(None)
            thread.join()
        lanes, self._lanes = list(self._lanes.values()), {}
        return lanes

    def put(self, call: Callable[[], None] | None) -> None:
        """Have it called on the sockets' thread; after the end nothing is."""
        if self._sockets is not None:
            self._sockets.put(call)

    def send(self, seat: str, ticket: int, batch: bytes, name: str, in_rounds: bool) -> None:
        """Have a worker run a batch after those it has."""
        lane = self._lanes.get(seat)
        worker_socket = lane.socket if lane is not None else None
        if worker_socket is not None:
            with suppress(OSError):  # its death is news of its own
                worker_socket.send(msgspec.msgpack.encode(WorkerOrder(ticket, batch)))

    def lane(self, seat: str) -> Lane | None:
        return self._lanes.get(seat)

    def add(self, lane: Lane) -> None:
        """Know of a worker that is started; hear it if it has its socket."""
        self._lanes[lane.seat] = lane
        if lane.socket is not None and self._sockets is not None:
            lane.socket.name = lane.seat
            self._sockets.add(lane.socket)

    def ended(self, seat: str, why: str) -> None:
        """A worker's process is gone or shall be: kill what is left of it, and tell its end once it is heard out."""
        lane = self._lanes.get(seat)
        if lane is None or lane.why:
            return
        lane.why = lane.broken or why
        if lane.process is not None:
            processes.kill_tree(lane.process)
        processes.kill(cleanup.naming(seat))  # runners it left behind when it ended by itself
        self._farewell(lane)

    # --- what comes ---

    def _heard(self, worker_socket: WorkerSocket, raw: bytes) -> None:
        lane = self._lanes.get(worker_socket.name)
        if lane is not None and lane.process is not None:
            done = msgspec.msgpack.decode(raw, type=WorkerDone)
            self.tell(WorkerSaid(lane.seat, done.ticket, done.outcome, done.broken))
        else:
            self._first_word(worker_socket, msgspec.msgpack.decode(raw, type=Ready))

    def _first_word(self, worker_socket: WorkerSocket, ready: Ready) -> None:
        lane = self._lanes.get(ready.seat)
        worker_socket.name = ready.seat
        if lane is None or lane.why:  # it died meanwhile
            return
        lane.socket, lane.broken = worker_socket, ready.broken
        if not ready.broken:
            lane.process = ProcessId(ready.pid, ready.began)
            self.came_up(lane)
            self.tell(WorkerUp(lane.seat, process=lane.process))

    def came_up(self, lane: Lane) -> None:
        """For those who derive from this."""

    def _silent(self, worker_socket: WorkerSocket) -> None:
        """All that a worker said is told."""
        lane = self._lanes.get(worker_socket.name)
        if lane is not None and lane.socket is worker_socket:
            lane.socket = None
            self.fell_silent(lane)
            self._farewell(lane)

    def fell_silent(self, lane: Lane) -> None:
        """It hung up, and its process goes or is gone."""
        self.ended(lane.seat, SILENT_DEATH)

    def _farewell(self, lane: Lane) -> None:
        if lane.why and lane.socket is None and self._lanes.pop(lane.seat, None) is not None:
            self.tell(WorkerGone(lane.seat, lane.why))
