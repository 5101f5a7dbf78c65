"""The link to a root on this machine: `coordinator connect` as a child, over pipes."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from muster.agent.links.base import SEND_SECONDS, Channel, Link, Pace, Role
from muster.jobs.common.errors import LinkError
from muster.jobs.common.launch import python

PIPE_BYTES = 1 << 20
WORDS_BYTES = 4096
END_SECONDS = 2.0  # for the child to end by itself once its stdin is closed


class PipeLink(Link):
    """`connect` is the command that serves a channel; a role is added to it."""

    def __init__(self, root: Path, connect: list[str] | None = None) -> None:
        self.root = root
        self._connect = connect or python("muster.coordinator.cli", "connect", "--root", str(root))
        self._files: Path | None = None

    def hand_over(self, folder: Path) -> None:
        self._files = folder

    def open(self, role: Role) -> Channel:
        files = ["--files", str(self._files)] if role == "push" and self._files is not None else []
        try:
            channel = PipeChannel([*self._connect, "--role", role, *files])
            channel.takes_files = bool(files)
            return channel
        except OSError as error:
            raise LinkError(f"{self._connect[0]} cannot be started: {error.strerror}") from None

    def __str__(self) -> str:
        return str(self.root)

    def close(self) -> None:
        return


class PipeChannel(Channel):
    """A child, by default in a session of its own: a Ctrl-C in the terminal is for the agent, which still has to say
    goodbye."""

    def __init__(self, command: list[str], own_session: bool = True) -> None:
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, cwd="/", start_new_session=own_session
        )
        assert self._child.stdin and self._child.stdout and self._child.stderr
        self._in, self._out, self._err = (
            f.fileno() for f in (self._child.stdin, self._child.stdout, self._child.stderr)
        )
        for fd in (self._in, self._out, self._err):
            os.set_blocking(fd, False)
            _widen(fd)
        self._words = b""
        self._err_open = True

    def send(self, data: bytes | memoryview, seconds: float = SEND_SECONDS) -> None:
        view, pace = memoryview(data), Pace()
        while view:
            self._await(self._in, select.POLLOUT, seconds)
            with suppress(BlockingIOError):
                try:
                    written = os.write(self._in, view)
                except BrokenPipeError:
                    raise self.ended(cut=False) from None
                view = view[written:]
                if view:
                    pace.moved(written)

    def receive_some(self, limit: int, seconds: float) -> bytes:
        while True:
            self._await(self._out, select.POLLIN, seconds)
            with suppress(BlockingIOError):
                return os.read(self._out, limit)

    def _await(self, fd: int, what: int, seconds: float) -> None:
        """Until `fd` is ready, reading stderr meanwhile: a full one would stall the child."""
        deadline = time.monotonic() + seconds
        while True:
            poll = select.poll()
            poll.register(fd, what)
            if self._err_open:
                poll.register(self._err, select.POLLIN)
            ready = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
            if self._err in ready:
                self._read_words()
            if fd in ready:
                return
            if time.monotonic() >= deadline:
                raise LinkError(f"the other end was silent for {seconds:.0f} s")

    def _read_words(self) -> None:
        with suppress(BlockingIOError):
            words = os.read(self._err, WORDS_BYTES)
            self._err_open = bool(words)
            self._words = (self._words + words)[-WORDS_BYTES:]

    def abort(self) -> None:
        self._child.kill()

    def close(self) -> None:
        for file in (self._child.stdin, self._child.stdout, self._child.stderr):
            if file is not None:
                with suppress(OSError):
                    file.close()
        try:
            self._child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def last_words(self) -> str:
        lines = self._said().strip().splitlines()
        return lines[-1].strip() if lines else ""

    def _said(self) -> str:
        """The end of what it printed on stderr so far."""
        if self._err_open:
            self._read_words()
        return self._words.decode(errors="replace")


def _widen(fd: int) -> None:
    """A larger pipe, where the system has it and the user's share of them is not used up."""
    if sys.platform == "linux":
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
