"""Frames and runs of bytes out of a buffered stream: what `stream` and `fetch` send a client. Trusts no length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import msgspec

from muster.coordinator.protocol.frames import HEAD, payload_size
from muster.jobs.common.errors import LinkError, ProtocolError
from muster.jobs.parts.part_file import CHUNK

Read = Callable[[int], bytes]
_T = TypeVar("_T")


class Messages(Generic[_T]):
    """A decoder for one type of message."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[_T]) -> None:
        self._decoder = decoder

    def next(self, read: Read, within: bool) -> _T | None:
        """The next one; None at the stream's end, which is a LinkError where one is `within` something."""
        head = _exactly(read, HEAD.size, "a frame", within)
        if not head:
            return None
        raw = _exactly(read, payload_size(head), "a frame")
        try:
            return self._decoder.decode(raw)
        except (msgspec.DecodeError, ValueError) as error:
            raise ProtocolError(f"a message that does not decode: {error}") from None


def pieces(read: Read, nbytes: int, what: str) -> Iterator[bytes]:
    """So many bytes of `what`, a megabyte at most at a time."""
    while nbytes > 0:
        piece = _exactly(read, min(nbytes, CHUNK), what)
        yield piece
        nbytes -= len(piece)


def _exactly(read: Read, count: int, what: str, within: bool = True) -> bytes:
    """`count` bytes, or b"" at the end; a LinkError for an end `within`."""
    raw = read(count)
    if len(raw) == count or (not raw and not within):
        return raw
    raise LinkError(f"the connection ended within {what}")
