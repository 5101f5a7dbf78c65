"""The parent's ends of a runner's pipes: one frame out, one frame in, by a deadline, while what it prints is drained.

Knows nothing of processes beyond asking whether theirs is alive. The frames are those of the runner.
"""

from __future__ import annotations

import fcntl
import os
import select
import time
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import numpy as np

from muster.jobs.contract.text_limits import RUNNER_BYTES
from muster.jobs.user_code.runner import runner

Array = np.ndarray[Any, Any]
Answer = tuple[dict[str, Any], dict[str, Array]]

TICK_SECONDS = 0.25
QUIET_SECONDS = 0.05
_DRAIN = 1 << 16
_DRAINS = 64  # reads after a reply: a thread of the user's may print for ever


class Gone(Exception):
    """The other end is dead, or has closed its pipes."""


class Late(Exception):
    """The deadline passed."""


class Garbled(Exception):
    """What came is not a frame."""


class Deadline:
    """So many seconds from now; the time that the other end is kept from running does not count."""

    def __init__(self, seconds: float | None) -> None:
        self._at = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float:
        return inf if self._at is None else self._at - time.monotonic()

    def put_off(self, seconds: float) -> None:
        if self._at is not None:
            self._at += seconds


class PrintedText:
    """What was printed: the first and the last of it, and how much there was."""

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self._count = 0

    def feed(self, data: bytes) -> None:
        self._count += len(data)
        room = RUNNER_BYTES - len(self._head)
        self._head += data[:room]
        self._tail = (self._tail + data[room:])[-RUNNER_BYTES:]

    def text(self) -> str:
        left_out = self._count - len(self._head) - len(self._tail)
        cut = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out else b""
        return (self._head + cut + self._tail).decode(errors="replace")


class Pipes:
    """One runner's pipes. Every wait ends with the deadline, the runner's death, or what it waits for."""

    def __init__(
        self, commands: int, replies: int, printed: int, alive: Callable[[], bool], stopped: Callable[[], bool]
    ) -> None:
        self._commands: int | None = commands
        self._replies = replies
        self._output: int | None = printed
        self._alive = alive  # asked every TICK_SECONDS of waiting
        self._stopped = stopped  # whether the runner is kept from running
        self._looked = 0.0
        self._until = Deadline(None)  # of the answer that is read
        self._noisy = False  # something was printed when we last looked, and perhaps more
        self._inlet = runner.Inlet(self._read)
        self.printed = PrintedText()
        for fd in (commands, replies, printed):
            os.set_blocking(fd, False)
        self._answers = self._polled(replies, select.POLLIN)

    def ask(self, header: Mapping[str, Any], arrays: Mapping[str, Array], seconds: float | None) -> Answer:
        """Send a frame; the header and the arrays of the frame that answers it."""
        self._until = Deadline(seconds)
        self._send(runner.pack(dict(header), dict(arrays)))
        try:
            answer = self._inlet.frame(runner.HEADER_LIMIT)
        except (ValueError, TypeError, LookupError, MemoryError) as error:
            raise Garbled(str(error)) from None
        if self._noisy:
            self.drain()
        return answer

    def drain(self) -> None:
        """Take what is printed already."""
        for _ in range(_DRAINS):
            if not self._drain_once():
                return

    def drain_for(self, seconds: float) -> None:
        """Take what is printed until then, or until it has been quiet for a moment after something came."""
        until, quiet = time.monotonic() + seconds, seconds
        while self._output is not None and (left := min(quiet, until - time.monotonic())) > 0:
            if not select.select([self._output], [], [], left)[0]:
                return
            self._drain_once()
            quiet = QUIET_SECONDS

    def forget(self) -> None:
        """What was printed so far belongs to an earlier call."""
        self.printed = PrintedText()

    def finish(self) -> None:
        """No more commands: the runner ends by itself, unless the user's code keeps it."""
        if self._commands is not None:
            os.close(self._commands)
        self._commands = None

    def close(self) -> None:
        self.finish()
        os.close(self._replies)
        if self._output is not None:
            os.close(self._output)

    def _send(self, buffers: list[memoryview]) -> None:
        assert self._commands is not None, "finished"
        while buffers:
            try:
                sent = os.writev(self._commands, buffers[: runner.WRITE_BUFFERS])
            except BlockingIOError:
                self._wait(self._commands)
                continue
            except BrokenPipeError:
                raise Gone from None
            runner.skip(buffers, sent)

    def _read(self, view: memoryview) -> int:
        self._wait(self._replies)
        if not (count := os.readv(self._replies, [view])):
            raise Gone
        return count

    def _wait(self, fd: int) -> None:
        """Until `fd` is ready, or closed at the other end."""
        while True:
            left = min(TICK_SECONDS, self._until.left())
            if left <= 0 and not self._stopped():
                raise Late
            began = time.monotonic()
            poll = self._answers if fd == self._replies else self._polled(fd, select.POLLOUT)
            ready = {which for which, _ in poll.poll((left if left > 0 else TICK_SECONDS) * 1000)}
            if not ready and self._stopped():
                self._until.put_off(time.monotonic() - began)
            self._noisy = self._output in ready
            if self._noisy:
                self._drain_once()
            if fd in ready:
                return
            self._look()

    def _polled(self, fd: int, event: int) -> select.poll:
        """What is looked at first was done last: who finds an answer there finds what was printed before it, too."""
        poll = select.poll()
        poll.register(fd, event)
        if self._output is not None:
            poll.register(self._output, select.POLLIN)
        return poll

    def _look(self) -> None:
        """Each tick: a child of the runner may hold its pipes, and print, long after its death."""
        if time.monotonic() < self._looked + TICK_SECONDS:
            return
        self._looked = time.monotonic()
        if not self._alive():
            raise Gone

    def _drain_once(self) -> bool:
        """Whether something was there. At its end the output is closed: the user's code closed its side."""
        if self._output is None:
            return False
        try:
            data = os.read(self._output, _DRAIN)
        except BlockingIOError:
            return False
        if data:
            self.printed.feed(data)
            return True
        os.close(self._output)
        self._output = None
        self._answers = self._polled(self._replies, select.POLLIN)
        return False


def widen(*fds: int) -> None:
    """Let pipes hold more, where the system has that and allows it."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        for fd in fds:
            try:
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, runner.PIPE_BYTES)
            except OSError:  # the user's share of pipe memory is used up
                return
