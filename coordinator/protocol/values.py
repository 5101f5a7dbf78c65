"""What messages are made of: bounded numbers, texts and names, and how one becomes bytes. No I/O, no decisions."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from muster.jobs.common.errors import ProtocolError
from muster.jobs.common.validation import one_line

PROTOCOL = 1
PROBE_LIMIT = 64 << 20  # bytes one `Probe` may ask for
PIECE_BYTES = 1 << 20  # of an input that are compared by one digest; the last piece of a run may be shorter
PIECES_MOST = 64  # in one `Fetch`
Count = Annotated[int, Meta(ge=0, le=1 << 53)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e10)]
Bucket = Annotated[int, Meta(ge=-1024, le=1024)]  # of a histogram
Short = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=16_384)]
Interval = Annotated[float, Meta(gt=0.0, le=86_400.0)]  # seconds; each is waited for, so none may be without end
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]  # `$` would let a newline follow
Farm = Annotated[str, Meta(pattern=r"\A([0-9a-f]{32})?\Z")]  # uuid of a root, "" where there is none yet
Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]
Range = tuple[Count, Count]
Ranges = Annotated[list[Range], Meta(max_length=65_536)]
Numbers = Annotated[dict[Name, Count], Meta(max_length=256)]
_encoder = msgspec.msgpack.Encoder()
_T = TypeVar("_T")


class Message(msgspec.Struct, frozen=True, tag_field="t", tag="message"):
    """One message. Each class gives its tag itself: what goes over the wire stays whatever classes are called."""


def check_canonical(numbers: list[Range]) -> None:
    """A ValueError, which refuses a message that is decoded, unless ranges are sorted, not empty and apart."""
    edge = -1
    for lo, hi in numbers:
        if not edge < lo < hi:
            raise ValueError("ranges that are not sorted and apart")
        edge = hi


def encode(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message)


class Decoder:
    """Decodes one closed set of messages; anything else is a ProtocolError of one line."""

    def __init__(self, types: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(types)

    def __call__(self, payload: bytes) -> Message:
        try:
            return self._decoder.decode(payload)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise ProtocolError(f"a message that is not of the protocol: {one_line(str(error))}") from None
