"""The line between a session's client and its driver: messages, some with bytes behind them. Knows what none means."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING

from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.protocol.frames import HEAD, frame, payload_size
from muster.coordinator.protocol.values import Decoder, Message, encode
from muster.jobs.common.errors import LinkError, NoDaemonError

if TYPE_CHECKING:
    from typing_extensions import Buffer  # the type checker's; nothing to install

PIECE_BYTES = 1 << 20


class CallsLine:
    """One stream in each direction. Several threads may write; one reads."""

    def __init__(self, reader: IO[bytes], send: Callable[[Buffer], object], close: Callable[[], None]) -> None:
        self._reader, self._send, self._close = reader, send, close
        self._writing = threading.Lock()

    def say(self, message: Message, *behind: Buffer) -> None:
        with self._writing:
            try:
                self._send(frame(encode(message)))
                for piece in behind:
                    self._send(piece)
            except (OSError, ValueError) as error:  # ValueError: it was closed meanwhile
                raise _broke(str(error)) from None

    def hear(self, decode: Decoder) -> Message | None:
        """The next message; None at the end."""
        head = self._read(HEAD.size)
        if not head:
            return None
        return decode(self.take(payload_size(_whole(head, HEAD.size))))

    def take(self, nbytes: int) -> bytes:
        """The bytes that follow a message."""
        return _whole(self._read(nbytes), nbytes)

    def pieces(self, nbytes: int) -> Iterator[bytes]:
        """The same, some at a time."""
        while nbytes:
            piece = self.take(min(nbytes, PIECE_BYTES))
            nbytes -= len(piece)
            yield piece

    def _read(self, count: int) -> bytes:
        try:
            return self._reader.read(count)
        except (OSError, ValueError) as error:
            raise _broke(str(error)) from None

    def close(self) -> None:
        """Whoever reads or writes is told."""
        self._close()


def of_socket(sock: socket.socket) -> CallsLine:
    """A line over a socket that is connected."""
    sock.settimeout(None)

    def close() -> None:
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other end was sooner
            pass
        sock.close()

    return CallsLine(sock.makefile("rb"), sock.sendall, close)


def connect(root: Root, job: str) -> socket.socket:
    """A socket to the driver of a session; a LinkError while it is not up."""
    port = root.job(job).calls
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with roots.address(port) as where:
            sock.connect(where)
    except OSError as error:
        sock.close()
        if not ask_daemon.answers(root):
            raise NoDaemonError(f"no coordinator serves {root.path}") from None
        raise LinkError(f"the driver of {job} does not answer: {error.strerror or error}") from None
    return sock


def _whole(raw: bytes, nbytes: int) -> bytes:
    if len(raw) < nbytes:
        raise _broke("it was cut")
    return raw


def _broke(why: str) -> LinkError:
    return LinkError(f"the line to the session broke: {why}")
