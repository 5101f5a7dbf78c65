"""Frames: however the bytes are cut the payloads are the same; whatever comes, an error or bounded memory."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from muster.coordinator.protocol.frames import FRAME_LIMIT, HEAD, MAGIC, FrameReader, frame
from muster.jobs.common.errors import ProtocolError

PAYLOADS = st.lists(st.binary(max_size=40), max_size=5)


@given(PAYLOADS)
def test_cut_at_every_byte(payloads: list[bytes]) -> None:
    stream = b"".join(map(frame, payloads))
    for cut in range(len(stream) + 1):
        reader = FrameReader()
        assert reader.feed(stream[:cut]) + reader.feed(stream[cut:]) == payloads
        assert reader.pending == 0


@given(PAYLOADS, st.lists(st.integers(0, 200), max_size=8))
def test_cut_anywhere(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(frame, payloads))
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reader = FrameReader()
    taken = [payload for lo, hi in pairwise(edges) for payload in reader.feed(stream[lo:hi])]
    assert taken == payloads


@given(st.integers(FRAME_LIMIT + 1, (1 << 32) - 1), st.binary(max_size=50))
def test_a_hostile_length_is_an_error_at_once(size: int, after: bytes) -> None:
    reader = FrameReader()
    try:
        reader.feed(HEAD.pack(MAGIC, size) + after)
    except ProtocolError:
        return
    raise AssertionError("a hostile length was believed")


@given(st.lists(st.binary(max_size=64), max_size=10))
def test_noise_is_an_error_or_waits_for_more(pieces: list[bytes]) -> None:
    reader = FrameReader()
    fed = 0
    for piece in pieces:
        fed += len(piece)
        try:
            reader.feed(piece)
        except ProtocolError:
            return
        assert reader.pending <= fed
    assert reader.pending < HEAD.size or b"".join(pieces).startswith(MAGIC)
