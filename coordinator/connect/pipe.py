"""The two ends of a helper: its stdio, and its connection to the daemon. Knows no role."""

from __future__ import annotations

import os
import select
import socket

from muster.coordinator.farm_root import paths as roots
from muster.coordinator.protocol.frames import HEAD, frame, payload_size
from muster.coordinator.protocol.transfer import Attach
from muster.coordinator.protocol.values import Message, encode
from muster.jobs.common.errors import LinkError, ProtocolError

FIRST_SECONDS = 60.0  # until the first byte: the other end knows what it came for, though its link may be thin and busy
IDLE_SECONDS = 180.0  # three leases without a byte: whoever was there is gone
GONE = "the coordinator went away"


class Pipe:
    """Bytes in from one descriptor, frames and files out to another, with a deadline on each wait.

    `first`: seconds until the first byte, where it is to come sooner than all others. `daemon`: a descriptor that has
    nothing to say while we wait here; if it has, the coordinator is gone.
    """

    def __init__(self, inward: int, outward: int, idle: float = IDLE_SECONDS, first: float | None = None) -> None:
        self._in, self._out, self._idle, self._later = inward, outward, first or idle, idle
        self.daemon: int | None = None
        os.set_blocking(outward, False)  # nothing here may block for good in a write or a sendfile

    def read_exactly(self, size: int) -> bytes:
        """`size` bytes; b"" if the other end closed before the first of them."""
        data = bytearray()
        while len(data) < size:
            piece = self.read_some(size - len(data))
            if not piece:
                if data:
                    raise ProtocolError("the channel ended within a frame")
                return b""
            data += piece
        return bytes(data)

    def read_some(self, limit: int) -> bytes:
        while True:
            self._await(self._in, select.POLLIN, "came")
            try:
                data = os.read(self._in, limit)
            except BlockingIOError:
                continue
            self._idle = self._later
            return data

    def read_frame(self) -> bytes | None:
        head = self.read_exactly(HEAD.size)
        return self.read_exactly(payload_size(head)) if head else None

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._out, view) :]
            except BlockingIOError:
                self._await(self._out, select.POLLOUT, "was taken")

    def send_file(self, fd: int, offset: int, nbytes: int) -> int:
        """Bytes of an open file straight from the page cache, at most `nbytes`; 0 at its end."""
        while True:
            try:
                return os.sendfile(self._out, fd, offset, nbytes)
            except BlockingIOError:
                self._await(self._out, select.POLLOUT, "was taken")

    def send(self, message: Message) -> None:
        self.write(frame(encode(message)))

    def _await(self, fd: int, event: int, what: str) -> None:
        poll = select.poll()
        poll.register(fd, event)
        if self.daemon is not None:
            poll.register(self.daemon, select.POLLIN)
        ready = [one for one, _ in poll.poll(self._idle * 1000)]
        if not ready:
            raise LinkError(f"nothing {what} for {self._idle:.0f} s")
        if self.daemon in ready:
            raise LinkError(GONE)


class Daemon:
    """The other side of a helper: the daemon's socket."""

    def __init__(self, root: roots.Root, role: str, pinned: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with roots.address(root.socket) as where:
            self._socket.connect(where)
        self.fd = self._socket.fileno()
        self._pipe = Pipe(self.fd, self.fd)
        self._pipe.send(Attach(role, pinned))

    def ask(self, payload: bytes) -> bytes:
        """One frame to the daemon, its answer back."""
        self.tell(payload)
        try:
            answer = self._pipe.read_frame()
        except OSError:
            answer = None
        if answer is None:
            raise LinkError(GONE)
        return answer

    def tell(self, payload: bytes) -> None:
        """A frame that wants no answer."""
        try:
            self._pipe.write(frame(payload))
        except OSError:
            raise LinkError(GONE) from None
