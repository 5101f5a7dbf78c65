"""A helper's end of a channel: how long it waits for the other."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from muster.coordinator.connect.pipe import Pipe
from muster.jobs.common.errors import LinkError


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """What it reads from, and what is written there."""
    ours, theirs = os.pipe()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def test_whoever_says_nothing_at_all_is_waited_for_less_long(ends: tuple[int, int]) -> None:
    with pytest.raises(LinkError, match="nothing came for"):
        Pipe(ends[0], ends[1], idle=3600.0, first=0.01).read_frame()


def test_after_the_first_byte_it_has_the_time_that_everyone_has(ends: tuple[int, int]) -> None:
    pipe = Pipe(ends[0], ends[1], idle=0.01, first=3600.0)
    os.write(ends[1], b"m")
    with pytest.raises(LinkError, match="nothing came for"):
        pipe.read_frame()
