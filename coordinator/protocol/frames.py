"""Frames: magic, length, payload. Bytes in, payloads out; does no I/O and trusts no length it is told."""

from __future__ import annotations

import struct

from muster.jobs.common.errors import ProtocolError

MAGIC = b"mus1"
HEAD = struct.Struct(">4sI")
FRAME_LIMIT = 16 << 20  # bytes of one payload; a peer that claims more is cut off
AGENT_LIMIT = 1 << 20  # of one that reaches the daemon from an agent's channel
NOISE_SHOWN = 120


def frame(payload: bytes) -> bytes:
    """`payload` as it goes on the wire."""
    if len(payload) > FRAME_LIMIT:
        raise ProtocolError(f"a message of {len(payload)} bytes is above the limit of {FRAME_LIMIT}")
    return HEAD.pack(MAGIC, len(payload)) + payload


def payload_size(head: bytes, limit: int = FRAME_LIMIT) -> int:
    """The length a frame's eight bytes announce, or an error that shows what came instead of a frame."""
    magic, size = HEAD.unpack(head)
    if magic != MAGIC:
        raise ProtocolError(f"expected a frame, got {head[:NOISE_SHOWN]!r}")
    if size > limit:
        raise ProtocolError(f"a frame of {size} bytes is above the limit of {limit}")
    return int(size)


class FrameReader:
    """Feed it bytes as they come, cut anywhere; take payloads out. Holds at most one frame and what was fed."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        payloads: list[bytes] = []
        while len(self._buffer) >= HEAD.size:
            end = HEAD.size + payload_size(bytes(self._buffer[: HEAD.size]))
            if len(self._buffer) < end:
                break
            payloads.append(bytes(self._buffer[HEAD.size : end]))
            del self._buffer[:end]
        return payloads

    @property
    def pending(self) -> int:
        """Bytes of a frame not yet whole; at end of stream, more than 0 means it was cut."""
        return len(self._buffer)
