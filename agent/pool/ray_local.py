"""The agent's Ray pool: one worker process per slot, batches in, outcomes and deaths out. The only importer of ray.

Ray starts the workers and tells of their deaths; what they run goes over a socket to each (`worker_socket`).

It decides nothing about shards: which ones run, and what becomes of those of a dead worker, is the agent's to say.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import select
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import psutil

from muster.agent.pool import authentication, cleanup, ray_environment
from muster.agent.pool.interface import BatchDone, PoolEvent, PoolLost, WorkerDied
from muster.agent.pool.worker import Ready, Worker, WorkerDone, WorkerOrder
from muster.agent.pool.worker_socket import WorkerSocket, WorkerSockets
from muster.jobs.common import processes
from muster.jobs.common.errors import MusterError
from muster.jobs.common.processes import ProcessId
from muster.jobs.contract.resources import pip_line
from muster.jobs.workbench.batch import Batch, Outcome

START_SECONDS = 120.0  # for Ray and all workers; it sometimes hangs
STARTS = 2
DEATHS_BEFORE_READY = 5  # in a row in one slot: workers cannot start here
STORE_BYTES = 80 << 20  # Ray's least is 75 MB; only touched pages count, and batches and outcomes hardly touch it
SERVERS = ("gcs_server", "raylet")
HELPERS = ("/monitor.py", "/log_monitor.py", "/dashboard.py")
LOG_TAIL_BYTES = 16384
AHEAD_BYTES = 64 << 10  # of batches a worker has not run yet: what its socket holds, so that nobody waits for it
SILENT_DEATH = "its process ended without a word: kill -9, the out-of-memory killer, or an exit in its code"
logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Worker:
    """The driver's side of one worker process; a slot has one at a time. Guarded by the pool's lock."""

    slot: int
    seat: str  # unique per worker process
    actor: Any
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
        self._ray: ModuleType | None = None
        self._remote_seat: Any = None
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
        """Start Ray and wait for every worker. On the main thread: its processes die with the thread that started them.

        Signal handlers are kept. Best called before other threads run, as Ray forks in Python.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a pool is started on the main thread")
        cleanup.sweep(self._folder)
        problem = ""
        for _ in range(STARTS):
            try:
                with ray_environment.handlers_kept():
                    return self._start_once()
            except MusterError:
                self.stop()
                raise
            except Exception as error:  # whatever Ray raises
                problem = (str(error).strip() or type(error).__name__).splitlines()[0]
                logger.warning("Ray did not start: %s", problem)
                self.stop()
        raise MusterError(f"Ray did not start: {problem}", "check free memory, /dev/shm, `ulimit -u` and /tmp")

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
        if self._ray is not None:
            self._ray.shutdown()
        cleanup.sweep(self._folder)

    def _start_once(self) -> None:
        self._lost, self._leaving = "", set()
        self._all_ready.clear()
        self._temp = ray_environment.temp_path()
        self._write_down()
        ray_environment.furnish(self._temp)
        deadline = time.monotonic() + self._start_seconds
        watchdog = threading.Timer(self._start_seconds, self._kill_tree)
        watchdog.daemon = True
        watchdog.start()
        try:
            with ray_environment.environment(self._temp):
                self._ray = _import_ray(self._log)
                atexit.register(self.stop)  # after Ray's own at its import, so it comes before it
                with ray_environment.nowhere(self._temp):
                    _init_ray(self._ray, self._temp, self._slots)
            _check_closed(self._ray)
            self._seat_all()
            if not self._all_ready.wait(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"not ready within {self._start_seconds:.0f} s")
            if self._lost:
                raise MusterError(self._lost, "`agent doctor` tries each part; run the same version everywhere")
        finally:
            watchdog.cancel()
        self._dismiss_helpers()
        self._watch_ray()
        self._write_down()

    def _kill_tree(self) -> None:
        """Ray hangs: without its processes its calls return, with an error."""
        self._write_down()
        left = cleanup.read(self._folder)
        if left is not None:
            cleanup.kill_until_gone(left)

    def _seat_all(self) -> None:
        self._news = WorkerSockets(self._address)
        handlers = (self._heard, self._silent)
        self._thread = threading.Thread(target=self._news.run, args=handlers, name="pool", daemon=True)
        self._thread.start()
        assert self._ray is not None
        self._remote_seat = self._ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(Worker)
        with self._lock:
            self._workers = [self._seat(slot) for slot in range(self._slots)]

    @property
    def _address(self) -> Path:
        return self._temp / "lane"

    def _dismiss_helpers(self) -> None:
        """End those of Ray's helpers that one machine has no use for: 130 MB, and half of what Ray does when idle."""
        for process in psutil.Process().children():
            with suppress(psutil.Error):
                if any(word.endswith(HELPERS) and "/ray/" in word for word in process.cmdline()):
                    process.kill()

    def _watch_ray(self) -> None:
        """Ray's servers are not replaced: the first to die is the end of this pool."""
        for process in psutil.Process().children():
            with suppress(psutil.Error):
                name = process.name()
                if name in SERVERS:
                    self._when_gone(process.pid, partial(self._lose, f"Ray's {name} died"))

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
        worker = _Worker(slot, seat, self._remote_seat.remote(self._worker, seat))
        self._then(worker.actor.serve.remote(str(self._address)), lambda future: self._retire(worker, _why(future)))
        return worker

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

    def _then(self, ref: Any, handle: Callable[[Future[Any]], None]) -> None:
        """Handle a result on the pool's thread: Ray calls back on one of its own, where its calls would block."""
        news = self._news  # of this start: after the next one nobody reads it
        assert news is not None
        ref.future().add_done_callback(lambda future: news.put(lambda: handle(future)))

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
            self._lose(f"workers do not start: {worker.reason}")
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
        for worker in [*self._leaving, *self._workers]:
            worker.reason, worker.worker_socket = worker.reason or reason, None
            if worker.batches:
                self._farewell(worker)
        if self._all_ready.is_set():
            self._tell(PoolLost(reason))
        self._all_ready.set()  # for a `start` that waits

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
        elif self._ray is not None:
            self._ray.kill(worker.actor)

    def _last_words(self, worker: _Worker) -> str:
        """The signal a worker's own handler wrote down before it died, if it could."""
        pid = worker.mark.pid if worker.mark else None
        for path in ray_environment.rays(self._temp).glob(f"session_latest/logs/worker-*-{pid}.err"):
            for line in reversed(path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").splitlines()):
                if line.startswith("*** SIG"):
                    return "died of " + line.split()[1]
        return ""


def _import_ray(log: Path | None) -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
    ray_environment.quiet(log)
    return ray


def _init_ray(ray: Any, temp: Path, slots: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            address="local",
            num_cpus=slots,
            num_gpus=0,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            object_store_memory=STORE_BYTES,
            _temp_dir=str(ray_environment.rays(temp)),
        )


def _check_closed(ray: Any) -> None:
    """Refuse a Ray that takes orders without the token: every user of this machine would be ours."""
    address = ray.get_runtime_context().gcs_address
    if authentication.answers(address):
        why = f"Ray {ray.__version__} obeys every user of this machine: it asks for no token"
        raise MusterError(why, pip_line("'ray>=2.52'", sys.executable))
    if not authentication.answers(address, ray_environment.TOKEN):
        logger.warning("Ray %s does not say whether it refuses who has no token", ray.__version__)


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


def _why(future: Future[Any]) -> str:
    """Ray's reason in one line: the last of a traceback. What it says of a process's end is guesses."""
    text = str(future.exception())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return SILENT_DEATH if not lines or "worker process has died" in text else lines[-1]
