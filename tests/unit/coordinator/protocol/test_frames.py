"""Frames: what goes on the wire, what is refused, and how little is kept."""

from __future__ import annotations

import pytest

from muster.coordinator.protocol.frames import FRAME_LIMIT, HEAD, MAGIC, FrameReader, frame, payload_size
from muster.jobs.common.errors import ProtocolError


def test_a_frame_is_magic_length_payload() -> None:
    assert frame(b"abc") == b"mus1\x00\x00\x00\x03abc"
    assert payload_size(frame(b"abc")[: HEAD.size]) == 3


def test_the_limit_itself_is_allowed_and_one_more_is_not() -> None:
    assert payload_size(HEAD.pack(MAGIC, FRAME_LIMIT)) == FRAME_LIMIT
    with pytest.raises(ProtocolError, match="above the limit"):
        payload_size(HEAD.pack(MAGIC, FRAME_LIMIT + 1))
    with pytest.raises(ProtocolError, match="above the limit"):
        frame(bytes(FRAME_LIMIT + 1))


def test_a_banner_instead_of_a_frame_is_shown() -> None:
    with pytest.raises(ProtocolError, match="Welcome "):
        FrameReader().feed(b"Welcome to Debian\r\n")


def test_what_is_left_of_a_frame_is_told() -> None:
    reader = FrameReader()
    assert reader.feed(frame(b"one") + frame(b"two")[:-1]) == [b"one"]
    assert reader.pending == len(frame(b"two")) - 1
    assert reader.feed(b"o") == [b"two"]
    assert reader.pending == 0


def test_an_empty_payload_is_a_payload() -> None:
    assert FrameReader().feed(frame(b"")) == [b""]
