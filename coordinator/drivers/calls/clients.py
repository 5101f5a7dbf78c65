"""Who comes to a session: the socket, a thread that hears each line and one that says. Decides nothing of batches."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from queue import SimpleQueue

from muster.coordinator.api.calls import Blob, CallBatch, ForgetBlobs, FromClient
from muster.coordinator.api.requests import Problem, problem_of
from muster.coordinator.drivers.calls.sheets import CallSheets
from muster.coordinator.farm_root import calls_line
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.calls_line import CallsLine
from muster.coordinator.farm_root.paths import JobFolder
from muster.coordinator.protocol.values import Decoder, Message
from muster.jobs.common.errors import LinkError, MusterError, SpaceError

Heard = Callable[["Client", "Message | None", bytes], None]  # None: its line ended

_decode = Decoder(FromClient)
log = logging.getLogger("muster.driver")


class Client:
    """One line, from its beginning to its end."""

    def __init__(self, line: CallsLine, sheets: CallSheets, heard: Heard) -> None:
        self._line, self._sheets, self._heard = line, sheets, heard
        self._out: SimpleQueue[tuple[Message, bytes | memoryview] | None] = SimpleQueue()
        self.name = ""  # once it has said so
        for work in (self._hear, self._say):
            threading.Thread(target=work, name="client", daemon=True).start()

    def say(self, message: Message, behind: bytes | memoryview = b"") -> None:
        self._out.put((message, behind))

    def end(self, problem: Problem | None = None) -> None:
        """After what was said so far, and this."""
        if problem is not None:
            self.say(problem)
        self._out.put(None)

    def _say(self) -> None:
        try:
            while (one := self._out.get()) is not None:
                self._line.say(*one)
        except LinkError:
            pass
        self._line.close()

    def _hear(self) -> None:
        try:
            while (said := self._line.hear(_decode)) is not None:
                if isinstance(said, Blob):
                    self._sheets.keep(said.digest, self._line.pieces(said.nbytes))
                elif isinstance(said, ForgetBlobs):  # here too, as one may come again behind it
                    self._sheets.forget(said.digests)
                else:
                    self._heard(self, said, self._line.take(said.nbytes) if isinstance(said, CallBatch) else b"")
        except LinkError:
            pass
        except MusterError as error:
            self.end(problem_of(error))
        except OSError as error:
            self.end(problem_of(SpaceError(f"the session cannot keep what it is sent: {error.strerror}")))
        self._heard(self, None, b"")


def listen(place: JobFolder, sheets: CallSheets, heard: Heard) -> None:
    """Take in whoever comes, in a thread of its own, to the end of this process. The socket's file stays: once another
    driver is there, it is that one's."""
    place.calls.unlink(missing_ok=True)  # of an earlier driver
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with roots.address(place.calls) as where:
            server.bind(where)
    finally:
        os.umask(before)
    server.listen()

    def take_in() -> None:
        while True:
            sock, _ = server.accept()
            Client(calls_line.of_socket(sock), sheets, heard)

    threading.Thread(target=take_in, name="door", daemon=True).start()
