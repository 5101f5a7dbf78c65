"""What a link and a channel are, and messages on a channel. Every wait has a deadline; decides nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from coordinator.protocol.frames import HEAD, MAGIC, NOISE_SHOWN, frame, payload_size
from coordinator.protocol.messages import PROTOCOL, Bye, Decoder, Greeting, Message, encode
from jobs.errors import LinkError, ProtocolError

Role = Literal["control", "push", "pull"]
GREETING_SECONDS = 30.0
SEND_SECONDS = 30.0

_greeting = Decoder(Greeting | Bye)


class Channel(ABC):
    """A byte stream each way. All but `abort` is for one thread."""

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
        data = bytearray()
        while len(data) < size:
            piece = self.receive_some(size - len(data), seconds)
            if not piece:
                raise LinkError(self._gone(bytes(data)))
            data += piece
        return bytes(data)

    def say(self, message: Message) -> None:
        self.send(frame(encode(message)))

    def hear(self, decode: Decoder, seconds: float) -> Message:
        """The next message; a LinkError if none comes within `seconds`."""
        head = self.receive_exactly(HEAD.size, seconds)
        return decode(self.receive_exactly(payload_size(head), seconds))

    def _gone(self, cut: bytes) -> str:
        words = self.last_words()
        said = f": {words}" if words else ""
        return f"the other end closed the channel{' within a message' if cut else ''}{said}"


class Link(ABC):
    """One coordinator, reached one way. Opening a channel may be asked for by any thread."""

    @abstractmethod
    def open(self, role: Role) -> Channel:
        """A channel whose other end is `coordinator connect --role ROLE`; a LinkError if there is no way."""

    @abstractmethod
    def __str__(self) -> str:
        """The place, for people."""

    @abstractmethod
    def close(self) -> None:
        """Give back what channels share. Channels are closed before."""


def greet(channel: Channel, seconds: float = GREETING_SECONDS) -> Greeting:
    """Read the first frame. Whatever is printed before it, and another protocol, are errors that say so."""
    head = channel.receive_exactly(HEAD.size, seconds)
    if not head.startswith(MAGIC):
        raise ProtocolError(f"printed before the first message: {_noise(channel, head)!r}")
    hello = _greeting(channel.receive_exactly(payload_size(head), seconds))
    if isinstance(hello, Bye):
        raise LinkError(hello.reason)
    assert isinstance(hello, Greeting)
    if hello.protocol != PROTOCOL:
        older = "this machine" if hello.protocol > PROTOCOL else "the coordinator's machine"
        message = f"the coordinator speaks protocol {hello.protocol}, this agent {PROTOCOL}"
        raise ProtocolError(message, f"upgrade muster on {older}")
    return hello


def _noise(channel: Channel, head: bytes) -> str:
    """The start of what was printed, as far as it comes at once."""
    try:
        head += channel.receive_some(NOISE_SHOWN, 0.5)
    except LinkError:
        pass
    return head[:NOISE_SHOWN].decode(errors="replace")
