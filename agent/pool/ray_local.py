"""The agent's Ray pool: one worker process per slot, batches in, outcomes and deaths out.

Ray, in a process of its own (`ray_host`), starts the workers and tells of their deaths; what they run goes over a
socket to each (`worker_socket`).

It decides nothing about shards: which ones run, and what becomes of those of a dead worker, is the agent's to say.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import psutil

from muster.agent.pool import cleanup, ray_environment
from muster.agent.pool.interface import BatchDone, PoolEvent, PoolLost, PoolNotStarted, WorkerDied
from muster.agent.pool.ray_host import SILENT_DEATH, HostOrder, HostWord, SeatOrder
from muster.agent.pool.worker import Ready, WorkerDone, WorkerOrder
from muster.agent.pool.worker_socket import WorkerSocket, WorkerSockets
from muster.jobs.common import launch, processes
from muster.jobs.common.errors import MusterError
from muster.jobs.common.processes import ProcessId
from muster.jobs.workbench.batch import Batch, Outcome

START_SECONDS = 120.0  # for Ray and all workers; it sometimes hangs
HOST_END_SECONDS = 5.0  # for Ray's driver, once it hung up
LOOK_SECONDS = 0.05  # between two looks at Ray's servers while it starts
DEATHS_BEFORE_READY = 5  # in a row in one slot: workers cannot start here
SERVERS = ("gcs_server", "raylet")
HELPERS = ("/monitor.py", "/log_monitor.py", "/dashboard.py")
LOG_TAIL_BYTES = 16384
AHEAD_BYTES = 64 << 10  # of batches a worker has not run yet: what its socket holds, so that nobody waits for it
logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Worker:
    """The driver's side of one worker process; a slot has one at a time. Guarded by the pool's lock."""

    slot: int
    seat: str  # unique per worker process
    deaths: int = 0  # of its forerunners in this slot, in a row, before they were ready
    forerunner: _Worker | None = None  # whose death is told before anything runs here
    mark: ProcessId | None = None  # of its process, once it is ready
    batches: dict[int, bytes] = field(default_factory=dict)  # by ticket, in order; until its outcome is told
    sent: dict[int, int] = field(default_factory=dict)  # the first of those, passed to it → their bytes
    is_open: bool = False  # ready, and its forerunner's death told: batches go straight to it
    worker_socket: WorkerSocket | None = None  # from its first word on, until all it said is heard
    killed: bool = False  # by `Pool.kill`
    reason: str = ""  # why it is gone; set once, when it leaves its slot
    told: bool = False  # its WorkerDied was delivered, or needs none


class Pool:
    """Worker processes by slot. `submit`, `kill` and `worker_pid` may be called from any thread.

    `on_event` is called on one thread of the pool, an event at a time; it may call `submit` and `kill`, not `stop`.
    """

    def __init__(
        self,
        folder: Path,
        slots: int,
        on_event: Callable[[PoolEvent], None],
        log: Path | None = None,
        worker: str = "muster.jobs.workbench.workbench:Workbench",
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._folder = folder.absolute()
        self._slots = slots
        self._on_event = on_event
        self._log = log
        self._worker = worker
        self._start_seconds = start_seconds
        self._temp = Path()
        self._host: subprocess.Popen[bytes] | None = None  # Ray's driver
        self._to_host: WorkerSocket | None = None
        self._servers: dict[str, psutil.Process] = {}  # Ray's, by name, once they were seen
        self._up = threading.Event()  # Ray is, or this pool is lost
        self._hopeless: MusterError | None = None  # why no other start would be any better
        self._lock = threading.RLock()
        self._workers: list[_Worker] = []
        self._leaving: set[_Worker] = set()  # out of their slot, with calls unsettled
        self._ticket = 0
        self._news: WorkerSockets | None = None
        self._thread: threading.Thread | None = None
        self._all_ready = threading.Event()
        self._lost = ""

    # --- life ---

    def start(self) -> None:
        """Start Ray and wait for every worker. A PoolNotStarted if that failed as another try may not; of any other
        MusterError it would fail again."""
        cleanup.sweep(self._folder)
        try:
            self._start_once()
        except OSError as error:  # no more processes, no room for its folder
            self.stop()
            raise PoolNotStarted(f"Ray cannot be started: {error}") from None
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End Ray and everything it started. Batches still running are killed without an event; drain first."""
        atexit.unregister(self.stop)
        with self._lock:
            workers, self._workers = self._workers, []
            self._lost = self._lost or "stopped"
        if self._thread is not None and self._news is not None:
            self._news.put(None)
            self._thread.join()
            self._thread = None
        for worker in workers:
            self._kill_process(worker)
        if self._to_host is not None:
            with suppress(OSError):
                self._to_host.socket.shutdown(socket.SHUT_RDWR)
        cleanup.sweep(self._folder)
        if self._host is not None:
            self._host.kill()
            self._host.wait()
            self._host = None

    def _start_once(self) -> None:
        self._lost, self._leaving, self._servers, self._hopeless = "", set(), {}, None
        self._all_ready.clear()
        self._up.clear()
        self._temp = ray_environment.temp_path()
        self._write_down()
        ray_environment.furnish(self._temp)
        deadline = time.monotonic() + self._start_seconds
        atexit.register(self.stop)
        self._news = WorkerSockets(self._address)
        handlers = (self._heard, self._silent)
        self._thread = threading.Thread(target=self._news.run, args=handlers, name="pool", daemon=True)
        self._thread.start()
        self._start_host(self._news)
        self._await(self._up, deadline)
        with self._lock:
            self._workers = [self._seat(slot) for slot in range(self._slots)]
        self._await(self._all_ready, deadline)
        self._dismiss_helpers()
        if dead := self._dead_server():
            raise PoolNotStarted(f"Ray's {dead} died while Ray started")
        for name, process in self._servers.items():  # they are not replaced: the first to die is the end of this pool
            self._when_gone(process.pid, partial(self._lose, f"Ray's {name} died"))
        self._write_down()

    def _start_host(self, news: WorkerSockets) -> None:
        ours, theirs = socket.socketpair()
        log = self._log or Path(os.devnull)
        with theirs, ray_environment.environment(self._temp), log.open("ab") as out:
            self._host = subprocess.Popen(
                launch.python("muster.agent.pool.ray_host", str(theirs.fileno()), self._temp.name),
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=[theirs.fileno()], start_new_session=True,
                cwd=ray_environment.empty(self._temp),
            )  # fmt: skip
        self._to_host = host = WorkerSocket(ours)
        words = (str(self._temp), self._slots, self._worker, str(self._address), str(self._log or ""))
        with suppress(OSError):  # one that ended at once is heard of as any other end is, with what it said
            host.send(msgspec.msgpack.encode(HostOrder(*words, ray_environment.TOKEN)))
        threading.Thread(target=self._hear_host, args=(host, news), name="pool host", daemon=True).start()

    def _hear_host(self, host: WorkerSocket, news: WorkerSockets) -> None:
        """Its words, handled on the pool's thread; its end is the pool's."""
        while (raw := host.receive()) is not None:
            word = msgspec.msgpack.decode(raw, type=HostWord)
            news.put(partial(self._told, word))
        news.put(self._host_ended)
        host.close()

    def _host_ended(self) -> None:
        """What it printed is the reason, where it ended by itself before Ray was up: its Python may be broken."""
        why, host = "Ray's driver ended", self._host
        with suppress(subprocess.TimeoutExpired, OSError):
            if host is not None and not self._up.is_set() and host.wait(HOST_END_SECONDS) > 0:
                lines = self._log.read_text(errors="replace").strip().splitlines() if self._log else []
                why = f"{why} with exit status {host.returncode}{f': {lines[-1]}' if lines else ''}"
                hint = f"`{sys.executable} -c 'import ray'` has to work; else install muster again in this environment"
                self._hopeless = self._hopeless or MusterError(why, hint)
        self._lose(why)

    def _told(self, word: HostWord) -> None:
        if word.seat:
            with self._lock:
                worker = next((one for one in [*self._leaving, *self._workers] if one.seat == word.seat), None)
            if worker is not None:
                self._retire(worker, word.why)
        elif word.why:
            self._hopeless = MusterError(word.why, word.hint) if word.hint else None
            self._lose(word.why)
        else:
            self._up.set()

    def _await(self, event: threading.Event, deadline: float) -> None:
        """Until it is set; a PoolNotStarted once it cannot be any more: without its servers Ray would hang a minute."""
        while not event.wait(LOOK_SECONDS):
            if dead := self._dead_server():
                raise PoolNotStarted(f"Ray's {dead} died while Ray started")
            if time.monotonic() > deadline:
                raise PoolNotStarted(f"Ray was not ready within {self._start_seconds:.0f} s")
        if self._lost:
            raise self._hopeless or PoolNotStarted(self._lost)

    def _dead_server(self) -> str:
        """Which of Ray's servers was there and is no more; "" for none."""
        assert self._host is not None
        with suppress(psutil.Error):
            for process in psutil.Process(self._host.pid).children():
                with suppress(psutil.Error):
                    if process.name() in SERVERS:
                        self._servers.setdefault(process.name(), process)
        return next((name for name, process in self._servers.items() if not processes.is_alive(process)), "")

    @property
    def _address(self) -> Path:
        return self._temp / "lane"

    def _dismiss_helpers(self) -> None:
        """End those of Ray's helpers that one machine has no use for: 130 MB, and half of what Ray does when idle."""
        assert self._host is not None
        for process in psutil.Process(self._host.pid).children():
            with suppress(psutil.Error):
                if any(word.endswith(HELPERS) and "/ray/" in word for word in process.cmdline()):
                    process.kill()

    # --- commands ---

    def submit(self, slot: int, batch: Batch) -> int:
        """Queue a batch on a slot's worker, which runs them in order; the ticket its event will carry."""
        raw = msgspec.msgpack.encode(batch)
        with self._lock:
            self._ticket += 1
            if self._lost:
                raise MusterError(f"the pool is gone: {self._lost}", "start the agent again")
            worker = self._workers[slot]
            worker.batches[self._ticket] = raw
            self._pass_on(worker)
            return self._ticket

    def kill(self, slot: int) -> None:
        """SIGKILL a slot's worker and its runners. A WorkerDied with `killed_by_us` follows."""
        with self._lock:
            if self._lost or self._news is None:
                return
            worker = self._workers[slot]
            worker.killed = True
            self._news.put(lambda: self._retire(worker, ""))
        self._kill_process(worker)

    def grow(self, slots: int) -> None:
        """So many slots at least. The workers of new ones take a moment to start."""
        with self._lock:
            fresh = range(len(self._workers), slots) if self._workers and not self._lost else range(0)
            self._workers += [self._seat(slot) for slot in fresh]
            self._slots = max(self._slots, slots)

    def worker_pid(self, slot: int) -> int | None:
        """None while the worker is starting."""
        with self._lock:
            mark = self._workers[slot].mark if self._workers else None
            return mark.pid if mark else None

    # --- workers: what follows runs on the pool's thread, or with the lock held ---

    def _seat(self, slot: int) -> _Worker:
        """Create a worker, which takes a quarter of a second."""
        seat = f"{self._temp.name}.{secrets.token_hex(4)}"
        self._order(SeatOrder(seat))
        return _Worker(slot, seat)

    def _order(self, order: SeatOrder) -> None:
        with self._lock, suppress(OSError):  # its end is news of its own
            if self._to_host is not None:
                self._to_host.send(msgspec.msgpack.encode(order))

    def _pass_on(self, worker: _Worker) -> None:
        """Batches to run, some ahead of time."""
        if not worker.is_open or worker.worker_socket is None or worker.reason:
            return
        for ticket, raw in worker.batches.items():
            if ticket in worker.sent:
                continue
            if worker.sent and sum(worker.sent.values()) + len(raw) > AHEAD_BYTES:
                return
            worker.sent[ticket] = len(raw)
            with suppress(OSError):  # its death is news of its own
                worker.worker_socket.send(msgspec.msgpack.encode(WorkerOrder(ticket, raw)))

    def _when_gone(self, pid: int, handle: Callable[[], None]) -> None:
        """Handle the end of a process that need not be our child. Without pidfds the next call to it tells."""
        news = self._news
        if news is not None and hasattr(os, "pidfd_open"):
            arguments = (pid, lambda: news.put(handle))
            threading.Thread(target=_wait_gone, args=arguments, name=f"pool watch {pid}", daemon=True).start()

    def _heard(self, worker_socket: WorkerSocket, raw: bytes) -> None:
        """A worker's word: its first, or a batch's outcome."""
        if not worker_socket.name:
            self._ready(worker_socket, msgspec.msgpack.decode(raw, type=Ready))
        elif (worker := self._at(worker_socket)) is not None:
            self._done(worker, msgspec.msgpack.decode(raw, type=WorkerDone))

    def _at(self, worker_socket: WorkerSocket) -> _Worker | None:
        with self._lock:
            return next((one for one in [*self._leaving, *self._workers] if one.worker_socket is worker_socket), None)

    def _ready(self, worker_socket: WorkerSocket, ready: Ready) -> None:
        worker_socket.name = ready.seat
        with self._lock:
            worker = next((one for one in self._workers if one.seat == ready.seat), None)
            if worker is None or self._lost:  # it died meanwhile
                return
            worker.mark, worker.worker_socket = ProcessId(ready.pid, ready.began), worker_socket
            self._open(worker)
            everyone = all(each.mark for each in self._workers)
        self._when_gone(ready.pid, lambda: self._retire(worker, ""))
        if self._all_ready.is_set():
            self._write_down()
        elif everyone:
            self._all_ready.set()

    def _open(self, worker: _Worker) -> None:
        told = worker.forerunner is None or worker.forerunner.told
        if worker.is_open or worker.mark is None or not told or self._lost:
            return
        worker.is_open, worker.forerunner = True, None
        self._pass_on(worker)

    def _done(self, worker: _Worker, done: WorkerDone) -> None:
        if done.broken:
            self._retire(worker, done.broken)
        elif not worker.told:
            with self._lock:
                del worker.batches[done.ticket], worker.sent[done.ticket]
                self._pass_on(worker)
            self._tell(BatchDone(worker.slot, done.ticket, msgspec.msgpack.decode(done.outcome, type=Outcome)))

    def _silent(self, worker_socket: WorkerSocket) -> None:
        """All that a worker said is heard."""
        if (worker := self._at(worker_socket)) is not None:
            worker.worker_socket = None
            self._retire(worker, "")
            self._farewell(worker)

    def _retire(self, worker: _Worker, reason: str) -> None:
        """Take a worker out of its slot, make sure it is dead, and put another there."""
        if worker.reason or self._lost:
            return
        worker.reason = "killed by the agent" if worker.killed else self._last_words(worker) or reason or SILENT_DEATH
        self._kill_process(worker)
        processes.kill(cleanup.naming(worker.seat))  # runners it left behind when it ended by itself
        stillborn = not worker.mark and not worker.killed
        if stillborn and worker.deaths + 1 >= DEATHS_BEFORE_READY:
            why = f"workers do not start: {worker.reason}"
            if not self._dead_server():
                hint = "`agent doctor` tries each part; run the same version everywhere"
                self._hopeless = MusterError(why, hint)
            self._lose(why)
            return
        with self._lock:
            if not self._lost:
                self._replace(worker, stillborn)
        self._farewell(worker)

    def _replace(self, worker: _Worker, stillborn: bool) -> None:
        fresh = self._workers[worker.slot] = self._seat(worker.slot)
        fresh.forerunner = worker
        self._leaving.add(worker)
        if stillborn:  # nothing of it has run
            fresh.deaths, fresh.forerunner, fresh.batches = worker.deaths + 1, worker.forerunner, worker.batches
            worker.told = True

    def _farewell(self, worker: _Worker) -> None:
        """Say that a worker died, once all it said is heard: a result may arrive after the news of its end."""
        if not worker.reason or worker.worker_socket is not None:
            return
        self._leaving.discard(worker)
        if not worker.told:
            self._tell(WorkerDied(worker.slot, tuple(worker.batches), worker.reason, worker.killed))
            worker.told = True
            with self._lock:
                if not self._lost:
                    self._open(self._workers[worker.slot])

    def _lose(self, reason: str) -> None:
        """The end of this pool: what was running is lost, and nothing is replaced any more."""
        with self._lock:
            if self._lost:
                return
            self._lost = reason
        for line in ray_environment.complaints(self._temp):
            logger.info("Ray said: %s", line)
        for worker in [*self._leaving, *self._workers]:
            worker.reason, worker.worker_socket = worker.reason or reason, None
            if worker.batches:
                self._farewell(worker)
        if self._all_ready.is_set():
            self._tell(PoolLost(reason))
        self._up.set()  # for a `start` that waits
        self._all_ready.set()

    def _tell(self, event: PoolEvent) -> None:
        try:
            self._on_event(event)
        except Exception:
            logger.exception("an event of the pool was not taken: %s", event)

    def _write_down(self) -> None:
        with self._lock:  # there is one record
            cleanup.record(self._folder, self._temp)

    def _kill_process(self, worker: _Worker) -> None:
        """The worker and its descendants."""
        if worker.mark is not None:
            processes.kill_tree(worker.mark)
        else:
            self._order(SeatOrder(worker.seat, kill=True))

    def _last_words(self, worker: _Worker) -> str:
        """The signal a worker's own handler wrote down before it died, if it could."""
        pid = worker.mark.pid if worker.mark else None
        for path in ray_environment.rays(self._temp).glob(f"session_latest/logs/worker-*-{pid}.err"):
            for line in reversed(path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").splitlines()):
                if line.startswith("*** SIG"):
                    return "died of " + line.split()[1]
        return ""


def _wait_gone(pid: int, call: Callable[[], None]) -> None:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return call()
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll()
    finally:
        os.close(fd)
    return call()
