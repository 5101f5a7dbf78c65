"""Workers that are actors of a Ray of our own on this machine, with a socket each.

Ray, in a process of its own (`ray_host`), starts the workers and tells of their deaths; what they run goes over a
socket to each (`socket_workers`).
"""

from __future__ import annotations

import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import psutil

from muster.agent.pool import cleanup, ray_environment
from muster.agent.pool.interface import Closed, Needs, Opened, Word
from muster.agent.pool.ray_host import HostOrder, HostWord, SeatOrder
from muster.agent.pool.socket_workers import SILENT_DEATH, Lane, SocketWorkers
from muster.agent.pool.worker import BENCH
from muster.agent.pool.worker_socket import WorkerSocket
from muster.jobs.common import launch, processes
from muster.jobs.common.errors import MusterError

START_SECONDS = 60.0  # for Ray and the first worker; it sometimes hangs
HOST_END_SECONDS = 5.0  # for Ray's driver, once it hung up
LOOK_SECONDS = 0.05  # between two looks at Ray's servers while it starts
SERVERS = ("gcs_server", "raylet")
HELPERS = ("/monitor.py", "/log_monitor.py", "/dashboard.py")
LOG_TAIL_BYTES = 16384
logger = logging.getLogger(__name__)


class LocalRay(SocketWorkers):
    """An actor for each seat. `slots`: how many there will be, about."""

    heeds_needs = False  # its actors ask Ray for nothing

    def __init__(
        self, slots: int, log: Path | None = None, bench: str = BENCH, start_seconds: float = START_SECONDS
    ) -> None:
        super().__init__()
        self._slots = slots
        self._log = log
        self._bench = bench
        self._start_seconds = start_seconds
        self._temp = Path()
        self._host: subprocess.Popen[bytes] | None = None  # Ray's driver
        self._to_host: WorkerSocket | None = None
        self._to_host_lock = threading.Lock()  # a frame at a time
        self._servers: dict[str, psutil.Process] = {}  # Ray's, by name, once they were seen
        self._works = threading.Event()  # a worker was up, or it is closed
        self._opened = self._closed = False

    # --- life ---

    def open(self, temp: Path, tell: Callable[[Word], None]) -> None:
        self._temp, self._servers, self._opened, self._closed = temp, {}, False, False
        self._works.clear()
        ray_environment.furnish(temp)
        self.open_lanes(tell, self._address)
        self._start_host()
        threading.Thread(target=self._watch_start, name="pool start", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        self._works.set()
        for lane in self.close_lanes():
            if lane.process is not None:
                processes.kill_tree(lane.process)
        if self._to_host is not None:
            with suppress(OSError):
                self._to_host.socket.shutdown(socket.SHUT_RDWR)
        host, self._host = self._host, None
        if host is not None:  # what it started dies with it; what does not is named as ours
            host.kill()
            host.wait()

    def _start_host(self) -> None:
        ours, theirs = socket.socketpair()
        log = self._log or Path(os.devnull)
        with theirs, ray_environment.environment(self._temp), log.open("ab") as out:
            self._host = subprocess.Popen(
                launch.python("muster.agent.pool.ray_host", str(theirs.fileno()), self._temp.name),
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=[theirs.fileno()], start_new_session=True,
                cwd=cleanup.empty(self._temp),
            )  # fmt: skip
        self._to_host = host = WorkerSocket(ours)
        words = (str(self._temp), self._slots, self._bench, str(self._address), str(self._log or ""))
        with suppress(OSError):  # one that ended at once is heard of as any other end is, with what it said
            host.send(msgspec.msgpack.encode(HostOrder(*words, ray_environment.TOKEN)))
        threading.Thread(target=self._hear_host, args=(host, self._host), name="pool host", daemon=True).start()

    def _hear_host(self, host: WorkerSocket, process: subprocess.Popen[bytes]) -> None:
        """Its words, handled on the sockets' thread; its end is Ray's."""
        while (raw := host.receive()) is not None:
            self.put(partial(self._told, msgspec.msgpack.decode(raw, type=HostWord)))
        self.put(partial(self._host_ended, process))
        host.close()

    def _host_ended(self, process: subprocess.Popen[bytes]) -> None:
        """What it printed is the reason, where it ended by itself before Ray was up: its Python may be broken."""
        why, hopeless = "Ray's driver ended", None
        with suppress(subprocess.TimeoutExpired, OSError):
            if not self._opened and process.wait(HOST_END_SECONDS) > 0:
                lines = self._log.read_text(errors="replace").strip().splitlines() if self._log else []
                why = f"{why} with exit status {process.returncode}{f': {lines[-1]}' if lines else ''}"
                hint = f"`{sys.executable} -c 'import ray'` has to work; else install muster again in this environment"
                hopeless = MusterError(why, hint)
        self._lose(why, hopeless)

    def _told(self, word: HostWord) -> None:
        lane = self.lane(word.seat)
        if word.seat:
            self.ended(word.seat, self._last_words(lane) or word.why)
        elif word.why:
            self._lose(word.why, MusterError(word.why, word.hint) if word.hint else None)
        elif not self._closed:
            self._dismiss_helpers()
            self._opened = True
            self.tell(Opened())

    def _watch_start(self) -> None:
        """Until a worker is up: without its servers Ray would hang a minute."""
        deadline = time.monotonic() + self._start_seconds
        while not self._works.wait(LOOK_SECONDS):
            if dead := self._dead_server():
                return self.put(partial(self._lose, f"Ray's {dead} died while Ray started"))
            if time.monotonic() > deadline:
                return self.put(partial(self._lose, f"Ray was not ready within {self._start_seconds:.0f} s"))
        if dead := self._dead_server():
            return self.put(partial(self._lose, f"Ray's {dead} died while Ray started"))
        for name, process in self._servers.items():  # they are not replaced: the first to die is the end
            self._when_gone(process.pid, partial(self._lose, f"Ray's {name} died"))
        return None

    def _dead_server(self) -> str:
        """Which of Ray's servers was there and is no more; "" for none."""
        host = self._host
        with suppress(psutil.Error):
            for process in psutil.Process(host.pid).children() if host is not None else ():
                with suppress(psutil.Error):
                    if process.name() in SERVERS:
                        self._servers.setdefault(process.name(), process)
        return next((name for name, process in self._servers.items() if not processes.is_alive(process)), "")

    @property
    def _address(self) -> Path:
        return self._temp / "lane"

    def _dismiss_helpers(self) -> None:
        """End those of Ray's helpers that one machine has no use for: 130 MB, and half of what Ray does when idle."""
        host = self._host
        with suppress(psutil.Error):
            for process in psutil.Process(host.pid).children() if host is not None else ():
                with suppress(psutil.Error):
                    if any(word.endswith(HELPERS) and "/ray/" in word for word in process.cmdline()):
                        process.kill()

    def _lose(self, reason: str, hopeless: MusterError | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        self._works.set()
        for line in ray_environment.complaints(self._temp):
            logger.info("Ray said: %s", line)
        self.tell(Closed(reason, hopeless))

    # --- workers ---

    def start(self, seat: str, needs: Needs) -> None:
        self.put(partial(self.add, Lane(seat)))
        self._order(SeatOrder(seat))

    def kill(self, seat: str) -> None:
        lane = self.lane(seat)
        if lane is not None and lane.process is not None:
            processes.kill_tree(lane.process)
        else:
            self._order(SeatOrder(seat, kill=True))

    def came_up(self, lane: Lane) -> None:
        self._works.set()
        if lane.process is not None:
            self._when_gone(lane.process.pid, lambda: self.ended(lane.seat, self._last_words(lane) or SILENT_DEATH))

    def fell_silent(self, lane: Lane) -> None:
        self.ended(lane.seat, self._last_words(lane) or SILENT_DEATH)

    def _order(self, order: SeatOrder) -> None:
        with self._to_host_lock, suppress(OSError):  # its end is news of its own
            if self._to_host is not None:
                self._to_host.send(msgspec.msgpack.encode(order))

    def _when_gone(self, pid: int, handle: Callable[[], None]) -> None:
        """Handle the end of a process that need not be our child. Without pidfds the next call to it tells."""
        if hasattr(os, "pidfd_open"):
            arguments = (pid, lambda: self.put(handle))
            threading.Thread(target=_wait_gone, args=arguments, name=f"pool watch {pid}", daemon=True).start()

    def _last_words(self, lane: Lane | None) -> str:
        """The signal a worker's own handler wrote down before it died, if it could."""
        pid = lane.process.pid if lane is not None and lane.process is not None else None
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
