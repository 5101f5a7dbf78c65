"""Sockets between the agent and its workers: batches go out and outcomes come in beside Ray, whose calls take ten times
as long. Frames of bytes; knows nothing of what is in them, nor of slots."""

from __future__ import annotations

import os
import selectors
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

HEAD = struct.Struct(">Q")
RECEIVE_BYTES = 1 << 18
PEER = struct.Struct("iII")  # process, user, group
BUFFER_BYTES = 1 << 18  # what may lie in a lane unread, where the system lets us choose


class WorkerSocket:
    """One end. The agent's reads what there is, the worker's waits for whole frames."""

    def __init__(self, sock: socket.socket) -> None:
        for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, buffer, BUFFER_BYTES)
        self.socket = sock
        self.name = ""  # for whoever uses it
        self._held = bytearray()

    def send(self, frame: bytes) -> None:
        self.socket.sendall(HEAD.pack(len(frame)) + frame)

    def receive(self) -> bytes | None:
        """The next frame; None when the other end is gone."""
        while (frame := self._cut()) is None:
            if not self._read():
                return None
        return frame

    def arrived(self) -> Iterator[bytes | None]:
        """Every frame that has come in whole, after one more read; None at the end."""
        more = self._read()
        while (frame := self._cut()) is not None:
            yield frame
        if not more:
            yield None

    def finish(self) -> None:
        """The other end reads its end behind what it was sent; it may still be heard."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def hang_up(self) -> None:
        """Both ends read their end, on whatever thread."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.socket.close()

    def _read(self) -> bool:
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except OSError:
            return False
        self._held += data
        return bool(data)

    def _cut(self) -> bytes | None:
        if len(self._held) < HEAD.size:
            return None
        end = HEAD.size + HEAD.unpack_from(self._held)[0]
        if len(self._held) < end:
            return None
        frame = bytes(memoryview(self._held)[HEAD.size : end])
        del self._held[:end]
        return frame


def call(address: str) -> WorkerSocket:
    """The worker's end."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(address)
    if not is_of_our_user(sock):
        sock.close()
        raise PermissionError(f"{address} is another user's")
    return WorkerSocket(sock)


def is_of_our_user(sock: socket.socket) -> bool:
    """Whether the process at the other end is our own user's. Systems without SO_PEERCRED do not say (macOS): there the
    mode of the folder that the socket lies in has to do."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, user, _ = PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    return bool(user == os.geteuid())


class WorkerSockets:
    """The agent's ends of all lanes, and calls from other threads: one at a time, on the thread that runs it.

    With an `address`, whoever of our own user calls there has one.
    """

    def __init__(self, address: Path | None = None) -> None:
        self._calls: deque[Callable[[], None] | None] = deque()
        self._selector = selectors.DefaultSelector()
        self._answer_checks, self._bell = socket.socketpair()
        self._listener = None if address is None else _listening(address)
        for sock in (self._answer_checks, self._bell):
            sock.setblocking(False)

    def put(self, call: Callable[[], None] | None) -> None:
        """From any thread; None ends it. After the end nobody listens."""
        self._calls.append(call)
        with suppress(OSError):  # rung often enough, or gone
            self._bell.send(b"!")

    def add(self, worker_socket: WorkerSocket) -> None:
        """Hear this one too. On the thread that runs it, or before there is one."""
        self._selector.register(worker_socket.socket, selectors.EVENT_READ, worker_socket)

    def run(self, heard: Callable[[WorkerSocket, bytes], None], ended: Callable[[WorkerSocket], None]) -> None:
        """Until it is told to end."""
        self._selector.register(self._answer_checks, selectors.EVENT_READ)
        if self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ)
        try:
            while self._wait(heard, ended):
                continue
        finally:
            self._close()

    def _wait(self, heard: Callable[[WorkerSocket, bytes], None], ended: Callable[[WorkerSocket], None]) -> bool:
        for key, _ in self._selector.select():
            if isinstance(key.data, WorkerSocket):
                self._listen(key.data, heard, ended)
            elif self._listener is not None and key.fileobj is self._listener:
                self._accept(self._listener)
            elif not self._answer():
                return False
        return True

    def _listen(
        self,
        worker_socket: WorkerSocket,
        heard: Callable[[WorkerSocket, bytes], None],
        ended: Callable[[WorkerSocket], None],
    ) -> None:
        for frame in worker_socket.arrived():
            if frame is not None:
                heard(worker_socket, frame)
                continue
            self._selector.unregister(worker_socket.socket)
            worker_socket.close()
            ended(worker_socket)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            sock, _ = listener.accept()
            if not is_of_our_user(sock):
                sock.close()
                return
            sock.setblocking(True)
            self.add(WorkerSocket(sock))

    def _answer(self) -> bool:
        with suppress(BlockingIOError):
            self._answer_checks.recv(4096)
        while self._calls:
            call = self._calls.popleft()
            if call is None:
                return False
            call()
        return True

    def _close(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, WorkerSocket):
                key.data.close()
        self._selector.close()
        for sock in (self._answer_checks, self._bell, self._listener):
            if sock is not None:
                sock.close()


def _listening(address: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(address))
    listener.listen(128)
    listener.setblocking(False)
    return listener
