"""The agent's side of Ray's driver: starts the process, passes orders on, and tells what it says. Knows no slots."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from muster.agent.pool import cleanup
from muster.agent.pool.ray_words import FirstOrder, HostWord, RayDown, SeatOrder
from muster.agent.pool.worker_socket import WorkerSocket
from muster.jobs.common import launch

END_SECONDS = 5.0  # for its process, once it hung up


class RayDriver:
    """One run of `ray_host`. Its words are told on a thread of its own; a RayDown is the last, and comes in any case
    unless it is closed."""

    def __init__(
        self, order: FirstOrder, temp: Path, environment: Mapping[str, str], told: Callable[[HostWord], None]
    ) -> None:
        """`environment`: all that its process finds there."""
        self._told = told
        self._log = Path(order.log) if order.log else None
        self._lock = threading.Lock()
        self._heard = False
        self._closing = False
        ours, theirs = socket.socketpair()
        with theirs, (self._log or Path(os.devnull)).open("ab") as out:
            self._child = subprocess.Popen(
                launch.python("muster.agent.pool.ray_host", str(theirs.fileno()), temp.name),
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=[theirs.fileno()], start_new_session=True,
                cwd=cleanup.empty(temp), env=environment,
            )  # fmt: skip
        self._line = WorkerSocket(ours)
        self._order(order)
        self._thread = threading.Thread(target=self._hear, name="ray driver", daemon=True)
        self._thread.start()

    def order(self, order: SeatOrder) -> None:
        self._order(order)

    def close(self) -> None:
        """End it, and all that it started, without a word."""
        self._closing = True
        self._line.hang_up()
        self._child.kill()
        self._child.wait()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._line.close()

    def _order(self, order: FirstOrder | SeatOrder) -> None:
        with self._lock, suppress(OSError):  # its end is news of its own
            self._line.send(msgspec.msgpack.encode(order))

    def _hear(self) -> None:
        word: HostWord | None = None
        while not isinstance(word, RayDown) and (raw := self._line.receive()) is not None:
            word = msgspec.msgpack.decode(raw, type=HostWord)
            self._heard = True
            self._told(word)
        if not self._closing and not isinstance(word, RayDown):
            self._told(self._ended())

    def _ended(self) -> RayDown:
        """What it printed is the reason, where it ended by itself before Ray was up: its Python may be broken."""
        why = "Ray's driver ended"
        with suppress(subprocess.TimeoutExpired, OSError):
            if not self._heard and self._child.wait(END_SECONDS) > 0:
                lines = self._log.read_text(errors="replace").strip().splitlines() if self._log else []
                why = f"{why} with exit status {self._child.returncode}{f': {lines[-1]}' if lines else ''}"
                hint = f"`{sys.executable} -c 'import ray'` has to work; else install muster again in this environment"
                return RayDown(why, hint)
        return RayDown(why)
