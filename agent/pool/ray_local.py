"""Workers by a Ray of this machine alone, which a driver in a process of its own starts: an actor each, a call a batch.

Batches of rounds go over a socket to the worker instead, which one of its calls serves: a call would take a tenth of a
round. Decides nothing about slots.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from muster.agent.core.events import Needs
from muster.agent.pool import cleanup, ray_environment
from muster.agent.pool import ray_words as words
from muster.agent.pool.interface import Closed, Opened, Word, WorkerGone, WorkerSaid, WorkerUp
from muster.agent.pool.ray_driver import RayDriver
from muster.agent.pool.worker import BENCH, Ready, WorkerDone, WorkerOrder
from muster.agent.pool.worker_socket import WorkerSocket, WorkerSockets
from muster.jobs.common import processes
from muster.jobs.common.errors import MusterError
from muster.jobs.common.processes import ProcessId

START_SECONDS = 60.0  # for Ray and the first worker; it sometimes hangs
logger = logging.getLogger(__name__)


@dataclass
class _Lane:
    """The socket that a worker takes batches of rounds from."""

    end: WorkerSocket | None = None  # ours, from its call until all is heard that it says there
    waiting: list[bytes] = field(default_factory=list)  # until it calls

    def send(self, raw: bytes) -> None:
        if self.end is None:
            self.waiting.append(raw)
            return
        with suppress(OSError):  # its death is news of its own
            self.end.send(raw)


@dataclass
class _Seat:
    """What is known of a worker."""

    cpus: int
    ends: bool = False  # it was told to
    process: ProcessId | None = None  # once it is up
    lane: _Lane | None = None  # while its batches are of rounds
    gone: str = ""  # why; to be told when all that it said is heard


class LocalRay:
    """`Workers`, on this machine. Its words come from the threads of the driver and of the sockets."""

    on_demand = False
    heeds_needs = True

    def __init__(
        self,
        slots: int,
        log: Path | None = None,
        bench: str = BENCH,
        start_seconds: float = START_SECONDS,
        gpus: tuple[str, ...] = (),
        memory: int | None = None,
    ) -> None:
        """`slots`: how many there will be, about; workers beyond that count as needing no processor. `gpus`: labels of
        those that Ray gives to workers. `memory`: bytes that these may need together."""
        self.room: Needs | None = Needs(slots, len(gpus), memory)
        self._slots = slots
        self._gpus = gpus
        self._memory = memory
        self._log = log
        self._bench = bench
        self._start_seconds = start_seconds
        self._temp = Path()
        self._tell: Callable[[Word], None] = lambda word: None
        self._driver: RayDriver | None = None
        self._sockets: WorkerSockets | None = None
        self._thread: threading.Thread | None = None
        self._works = threading.Event()  # a worker was up, or it is closed
        self._lock = threading.Lock()
        self._seats: dict[str, _Seat] = {}
        self._closed = False  # it was told, or is not to be

    def open(self, temp: Path, tell: Callable[[Word], None]) -> None:
        ray_environment.furnish(temp)
        self._tell, self._temp, self._seats, self._closed = tell, temp, {}, False
        self._works.clear()
        self._sockets = WorkerSockets(self._address)
        handlers = (self._heard, self._silent)
        self._thread = threading.Thread(target=self._sockets.run, args=handlers, name="pool lanes", daemon=True)
        self._thread.start()
        log, token = str(self._log or ""), ray_environment.TOKEN
        order = words.StartRay(str(temp), self._slots, self._gpus, self._memory or 0, self._bench, log, token)
        self._driver = RayDriver(order, temp, ray_environment.of_this_machine(temp), self._told)
        threading.Thread(target=self._watch_start, name="pool start", daemon=True).start()

    def start(self, seat: str, needs: Needs) -> None:
        with self._lock:  # the agent's core counts processors: one that Ray has none left for is not to wait
            left = self._slots - sum(one.cpus for one in self._seats.values() if not one.ends)
            cpus = max(0, min(needs.cpus, left))
            self._seats[seat] = _Seat(cpus)
        self._order(words.StartSeat(seat, cpus, needs.gpus, needs.memory or 0))

    def send(self, seat: str, ticket: int, batch: bytes, name: str, in_rounds: bool) -> None:
        with self._lock:
            worker = self._seats.get(seat)
            if worker is None:
                return
            before, worker.lane = worker.lane, (worker.lane or _Lane()) if in_rounds else None
            if worker.lane is not None:
                worker.lane.send(msgspec.msgpack.encode(WorkerOrder(ticket, batch)))
            elif before is not None and before.end is not None:
                before.end.finish()  # it takes calls again, behind what it was sent
        if not in_rounds:
            self._order(words.CallSeat(seat, ticket, batch, name))
        elif before is None:
            self._order(words.AttendSeat(seat, str(self._address)))

    def kill(self, seat: str) -> None:
        with self._lock:
            worker = self._seats.get(seat)
            if worker is None:
                return
            worker.ends = True
        if worker.process is not None:
            processes.kill_tree(worker.process)
        self._order(words.KillSeat(seat))

    def close(self) -> None:
        self._closed = True
        self._works.set()
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()
        if self._sockets is not None and self._thread is not None:
            self._sockets.put(None)
            self._thread.join()
            self._sockets = self._thread = None

    @property
    def _address(self) -> Path:
        return self._temp / "lane"

    def _order(self, order: words.SeatOrder) -> None:
        if (driver := self._driver) is not None:
            driver.order(order)

    def _watch_start(self) -> None:
        if not self._works.wait(self._start_seconds):
            self._lose(f"Ray was not ready within {self._start_seconds:.0f} s")

    def _lose(self, why: str, hopeless: MusterError | None = None) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._works.set()
        for line in ray_environment.complaints(self._temp):
            logger.info("Ray said: %s", line)
        self._tell(Closed(why, hopeless))

    # --- what the driver says ---

    def _told(self, word: words.HostWord) -> None:
        match word:
            case words.RayUp():
                self._tell(Opened())
            case words.SeatUp(seat, raw):
                self._came_up(seat, msgspec.msgpack.decode(raw, type=Ready))
            case words.SeatSaid(seat, raw):
                self._say(seat, raw)
            case words.SeatGone(seat, why):
                self._gone(seat, why)
            case words.RayDown(why, hint):
                self._lose(why, MusterError(why, hint) if hint else None)

    def _came_up(self, seat: str, ready: Ready) -> None:
        self._works.set()
        process = ProcessId(ready.pid, ready.began)
        with self._lock:
            self._seats[seat].process = process
        if hasattr(os, "pidfd_open"):  # the death of one with no call shows in none; without pidfds its next call tells
            threading.Thread(target=self._await_end, args=(seat, process.pid), name="pool watch", daemon=True).start()
        self._tell(WorkerUp(seat, "", process))

    def _await_end(self, seat: str, pid: int) -> None:
        with suppress(ProcessLookupError):
            fd = os.pidfd_open(pid)
            try:
                poll = select.poll()
                poll.register(fd, select.POLLIN)
                poll.poll()
            finally:
                os.close(fd)
        self._order(words.EndSeat(seat))

    def _say(self, seat: str, raw: bytes) -> None:
        done = msgspec.msgpack.decode(raw, type=WorkerDone)
        self._tell(WorkerSaid(seat, done.ticket, done.outcome, done.broken))

    def _gone(self, seat: str, why: str) -> None:
        """Nothing that it started is left when it is told; what it said by its socket is told before."""
        with self._lock:
            worker = self._seats[seat]
            worker.gone = why
            if worker.lane is not None and worker.lane.end is not None:
                return
            del self._seats[seat]
        if worker.process is not None:
            processes.kill_tree(worker.process)
            why = ray_environment.last_words(self._temp, worker.process.pid) or why
        processes.kill(cleanup.naming(seat))  # runners, which lead sessions of their own
        self._tell(WorkerGone(seat, why))

    # --- what workers say by their sockets ---

    def _heard(self, end: WorkerSocket, raw: bytes) -> None:
        if end.name:
            return self._say(end.name, raw)
        end.name = msgspec.msgpack.decode(raw, type=Ready).seat
        with self._lock:
            worker = self._seats.get(end.name)
            if worker is not None and worker.lane is not None:
                worker.lane.end = end
                waiting, worker.lane.waiting = worker.lane.waiting, []
                for order in waiting:
                    worker.lane.send(order)
        return None

    def _silent(self, end: WorkerSocket) -> None:
        with self._lock:
            worker = self._seats.get(end.name)
            if worker is None or worker.lane is None or worker.lane.end is not end:
                return
            worker.lane.end = None
            gone = worker.gone
        if gone:
            self._gone(end.name, gone)
