"""paramiko made steady: a socket that cannot jam for good, and a transport that does not wait for itself.

Knows nothing of hosts, keys or roles.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import paramiko
from paramiko.buffered_pipe import PipeTimeout

from muster.agent.links.far_command import CIPHERS

JAM_SECONDS = 30.0  # a write that takes no byte for so long ends the connection
USER_TIMEOUT_MS = 30_000
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
READ_LIMIT = 1 << 20  # bytes asked of the socket at once, whatever length a packet claims
FIRST_BYTES = 256
KEPT_BYTES = 16 << 20
HEARD_BYTES = 1024  # fewer are no sign of life: a connection that only trickles is given up with a silent one

logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # it logs tracebacks of what we turn into errors


class WatchedSocket(Protocol):
    """What is under a connection: a socket, or a channel of another connection."""

    def recv(self, size: int) -> bytes: ...
    def send(self, data: bytes) -> int: ...
    def settimeout(self, seconds: float | None) -> None: ...
    def close(self) -> None: ...


class Line:
    """What paramiko takes for its socket. Everything but `recv` and `send` may be called by any thread."""

    def __init__(self, stream: WatchedSocket) -> None:
        self.stream = stream
        self._closed = False  # paramiko looks at this
        self._jammed_at: float | None = None
        self.heard_at = time.monotonic()  # when the last HEARD_BYTES were complete
        self._unheard = 0  # bytes since then
        self.first = b""  # the start of what came: before encryption it is text that may say why

    def recv(self, size: int) -> bytes:
        data = self.stream.recv(min(size, READ_LIMIT))
        self._unheard += len(data)
        if self._unheard >= HEARD_BYTES:
            self.heard_at, self._unheard = time.monotonic(), 0
        if len(self.first) < FIRST_BYTES:
            self.first += data[:FIRST_BYTES]
        return data

    def send(self, data: bytes) -> int:
        try:
            sent = self.stream.send(data)
        except TimeoutError:
            if self.jammed_for() > JAM_SECONDS:
                raise OSError(errno.ETIMEDOUT, "nothing was taken") from None
            self._jammed_at = self._jammed_at or time.monotonic()
            raise
        self._jammed_at = None
        return sent

    def jammed_for(self) -> float:
        """Seconds since a write began that has not moved; 0 if there is none."""
        at = self._jammed_at
        return time.monotonic() - at if at is not None else 0.0

    def settimeout(self, seconds: float | None) -> None:
        self.stream.settimeout(seconds)

    def close(self) -> None:
        self._closed = True
        with suppress(OSError, EOFError, paramiko.SSHException):
            self.stream.close()


class Transport(paramiko.Transport):
    """While keys are exchanged no message of a channel may be sent. paramiko lets its own thread wait for the end of an
    exchange that only this thread can end: for 30 s, and then the connection is lost. Here such messages wait, not the
    thread."""

    def __init__(self, line: Line) -> None:
        self._held: deque[Any] = deque()
        super().__init__(line)  # type: ignore[arg-type]

    def _send_user_message(self, data: Any) -> None:
        if threading.current_thread() is self and not self.clear_to_send.is_set() and self.initial_kex_done:
            self._held.append(data)
            return
        super()._send_user_message(data)  # type: ignore[misc]

    def _parse_newkeys(self, m: Any) -> None:
        super()._parse_newkeys(m)  # type: ignore[misc]
        while self._held and self.clear_to_send.is_set():
            super()._send_user_message(self._held.popleft())  # type: ignore[misc]


class ArrivedData:
    """What came on a channel and was not read, in the pieces it came in. It takes the place of paramiko's own buffer,
    which copies each byte four times; all of its methods that are called are here. One thread feeds, one reads."""

    def __init__(self) -> None:
        self._more = threading.Condition()
        self._pieces: deque[bytes | memoryview] = deque()
        self._bytes = 0
        self._closed = False

    def __len__(self) -> int:
        return self._bytes

    def read_ready(self) -> bool:
        return bool(self._bytes)

    def feed(self, data: bytes) -> None:
        with self._more:
            self._pieces.append(data)
            self._bytes += len(data)
            self._more.notify()

    def read(self, limit: int, timeout: float | None = None) -> bytes:
        """The first piece, or as much of it; b"" at the end; a PipeTimeout if nothing comes in time."""
        with self._more:
            if not self._more.wait_for(lambda: self._bytes > 0 or self._closed, timeout):
                raise PipeTimeout
            if not self._bytes:
                return b""
            return self._take(limit)

    def _take(self, limit: int) -> bytes:
        """In one piece: whoever reads would else take turns with whoever feeds, at a higher cost than the copy's."""
        taken: list[bytes | memoryview] = []
        while self._pieces and limit:
            piece = self._pieces.popleft()
            if len(piece) > limit:
                self._pieces.appendleft(memoryview(piece)[limit:])
                piece = memoryview(piece)[:limit]
            taken.append(piece)
            limit -= len(piece)
            self._bytes -= len(piece)
        return taken[0] if len(taken) == 1 and isinstance(taken[0], bytes) else b"".join(taken)

    def close(self) -> None:
        """Nothing more comes; what is there can be read."""
        with self._more:
            self._closed = True
            self._more.notify()


def keep_freed_memory() -> None:
    """Packets are freed as fast as they come. glibc gives such memory back to the system and faults it in again for the
    next ones, at up to half of a pull's processor time; unless a block of this size was freed once."""
    bytes(KEPT_BYTES)


def prefer_fast_ciphers(transport: paramiko.Transport) -> None:
    options = transport.get_security_options()
    known = [cipher for cipher in CIPHERS if cipher in options.ciphers]
    options.ciphers = (*known, *(cipher for cipher in options.ciphers if cipher not in known))


def dial(host: str, port: int, seconds: float) -> socket.socket:
    """A TCP connection that notices a dead peer by itself."""
    made = socket.create_connection((host, port), timeout=seconds)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if sys.platform == "linux":
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    return made


class ProxyStream:
    """A command whose stdin and stdout are the connection (ProxyCommand)."""

    def __init__(self, command: str) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._words = tempfile.TemporaryFile()  # noqa: SIM115
            both, words = theirs.fileno(), self._words.fileno()
            self._child = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=both, stdout=both, stderr=words, cwd="/", start_new_session=True,
            )  # fmt: skip
        self.recv = self._socket.recv
        self.send = self._socket.send
        self.settimeout = self._socket.settimeout

    def words(self) -> str:
        """The start of what it printed on stderr."""
        try:
            return os.pread(self._words.fileno(), 4096, 0).decode(errors="replace")
        except (OSError, ValueError):
            return ""

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes whoever reads it
        self._socket.close()
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()
        self._words.close()


@contextmanager
def deadline(line: Line, seconds: float) -> Iterator[threading.Event]:
    """Closes the line after `seconds`, whatever is being waited for then; the event says whether it did."""
    passed = threading.Event()

    def end() -> None:
        passed.set()
        line.close()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield passed
    finally:
        timer.cancel()
