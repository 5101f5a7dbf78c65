"""What a link and a channel are, and messages on a channel. Every wait has a deadline; decides nothing."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from muster.coordinator.protocol.control import Bye, Greeting
from muster.coordinator.protocol.frames import HEAD, MAGIC, NOISE_SHOWN, frame, payload_size
from muster.coordinator.protocol.values import PROTOCOL, Decoder, Message, encode
from muster.jobs.common.errors import LinkError, MusterError, ProtocolError, VersionError

Role = Literal["control", "push", "pull", "round"]
GREETING_SECONDS = 30.0
SEND_SECONDS = 30.0
PACE_SECONDS = 30.0  # a link that moves less than PACE_BYTES in that time, when more is wanted, is as good as dead
PACE_BYTES = 1 << 15

_greeting = Decoder(Greeting | Bye)


class Channel(ABC):
    """A byte stream each way. All but `abort` is for one thread."""

    takes_files = False  # whether the other end reads what lies in the folder of `Link.hand_over`

    @abstractmethod
    def send(self, data: bytes | memoryview, seconds: float = SEND_SECONDS) -> None:
        """All of `data`; a LinkError if the other end takes none of it for `seconds`, or is gone."""

    @abstractmethod
    def receive_some(self, limit: int, seconds: float) -> bytes:
        """What has come, at most `limit` bytes; b"" at the end of the stream; a LinkError after `seconds`."""

    @abstractmethod
    def abort(self) -> None:
        """From any thread: whatever waits on this channel, now or later, ends with a LinkError."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back. Never raises."""

    @abstractmethod
    def last_words(self) -> str:
        """The last line the other end printed beside the protocol; "" for none."""

    def receive_exactly(self, size: int, seconds: float) -> bytes:
        return b"".join(self.pieces(size, seconds))

    def pieces(self, size: int, seconds: float) -> Iterator[bytes]:
        """`size` bytes as they come; a LinkError after `seconds` without any, or when they only trickle."""
        pace, left = Pace(), size
        while left:
            piece = self.receive_some(left, seconds)
            if not piece:
                raise self.ended(cut=left < size)
            left -= len(piece)
            if left:
                pace.moved(len(piece))
            yield piece

    def say(self, message: Message) -> None:
        self.send(frame(encode(message)))

    def hear(self, decode: Decoder, seconds: float) -> Message:
        """The next message; a LinkError if none comes within `seconds`."""
        head = self.receive_exactly(HEAD.size, seconds)
        return decode(self.receive_exactly(payload_size(head), seconds))

    def ended(self, cut: bool) -> MusterError:
        """Why the stream has ended, `cut` within a message or not."""
        words = self.last_words()
        said = f": {words}" if words else ""
        return LinkError(f"the other end closed the channel{' within a message' if cut else ''}{said}")

    def noisy(self, noise: str) -> MusterError:
        """What to make of text that came where the first message should be."""
        return ProtocolError(f"the other end printed {first_line(noise)!r} before the first message")


class Pace:
    """Ends what only trickles: a deadline on each byte would let one byte a second go on for good."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._bytes = 0

    def moved(self, nbytes: int) -> None:
        """More is wanted still. A LinkError if too little has moved for too long since the first of it."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        self._bytes += nbytes
        if now - self._since < PACE_SECONDS:
            return
        if self._bytes < PACE_BYTES:
            raise LinkError(f"only {self._bytes} bytes moved in {now - self._since:.0f} s")
        self._since, self._bytes = now, 0


class Link(ABC):
    """One coordinator, reached one way. Opening a channel may be asked for by any thread."""

    @abstractmethod
    def open(self, role: Role) -> Channel:
        """A channel whose other end is `coordinator connect --role ROLE`; a LinkError if there is no way."""

    def hand_over(self, folder: Path) -> None:  # noqa: B027
        """Before any channel is opened: files in `folder` may be taken as they are, if the other end is on this
        machine."""

    def prepare(self) -> None:  # noqa: B027
        """Before any thread opens a channel, on the terminal's: find the way, and ask for what it wants, once."""

    @abstractmethod
    def __str__(self) -> str:
        """The place, for people."""

    @abstractmethod
    def close(self) -> None:
        """Give back what channels share, from any thread; an `open` under way ends with a LinkError."""


def greet(channel: Channel, seconds: float = GREETING_SECONDS) -> Greeting:
    """Read the first frame. Whatever is printed before it, and another protocol, are errors that say so."""
    head = channel.receive_exactly(HEAD.size, seconds)
    if not head.startswith(MAGIC):
        raise channel.noisy(_noise(channel, head))
    hello = _greeting(channel.receive_exactly(payload_size(head), seconds))
    if isinstance(hello, Bye):
        raise LinkError(hello.reason)
    assert isinstance(hello, Greeting)
    if hello.protocol != PROTOCOL:
        older = "this machine" if hello.protocol > PROTOCOL else "the coordinator's machine"
        message = f"the coordinator speaks protocol {hello.protocol}, this agent {PROTOCOL}"
        raise VersionError(message, f"upgrade muster on {older}")
    return hello


def first_line(text: str) -> str:
    """The first that is not blank."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _noise(channel: Channel, head: bytes) -> str:
    """The start of what was printed, as far as it comes at once."""
    try:
        head += channel.receive_some(NOISE_SHOWN, 0.5)
    except LinkError:
        pass
    return head[:NOISE_SHOWN].decode(errors="replace")
