"""Frames come out as they went in, however the pipe cuts them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.jobs.user_code.runner import runner

SIZES = st.sampled_from([0, 1, 7, 1000, runner.READ_BYTES - 1, runner.READ_BYTES, runner.READ_BYTES + 1, 200_000])


class Cut:
    """A pipe that gives as many bytes at a time as it likes."""

    def __init__(self, raw: bytes, counts: list[int]) -> None:
        self._raw, self._counts = raw, counts

    def read(self, view: memoryview) -> int:
        wanted = self._counts.pop() if self._counts else len(view)
        part, self._raw = self._raw[: min(len(view), wanted)], self._raw[min(len(view), wanted) :]
        view[: len(part)] = part
        if not part:
            raise EOFError
        return len(part)


def raw_of(header: dict[str, Any], arrays: dict[str, Any]) -> bytes:
    return b"".join(map(bytes, runner.pack(header, arrays)))


@given(st.lists(st.lists(SIZES, max_size=3), min_size=1, max_size=4), st.lists(st.integers(1, 70_000), max_size=30))
def test_frames_come_as_they_went(frames: list[list[int]], counts: list[int]) -> None:
    sent = [
        ({"shard": number}, {f"a{i}": np.arange(size, dtype="u1") for i, size in enumerate(sizes)})
        for number, sizes in enumerate(frames)
    ]
    inlet = runner.Inlet(Cut(b"".join(raw_of(*frame) for frame in sent), counts).read)
    for header, arrays in sent:
        found, came = inlet.frame(1 << 20)
        assert found["shard"] == header["shard"] and list(came) == list(arrays)
        assert all(np.array_equal(came[name], array) for name, array in arrays.items())
    with pytest.raises(EOFError):
        inlet.frame(1 << 20)


def test_a_long_header_is_refused_before_there_is_room_for_it() -> None:
    with pytest.raises(ValueError, match="a header of 1099511627776 bytes"):
        runner.Inlet(Cut(runner.LENGTH.pack(1 << 40), []).read).frame(1 << 20)
