"""Files of a result as they are written."""

from __future__ import annotations

from typing import Any

import numpy as np

from muster.jobs.results.result_formats import Offsets


class Npy:
    def write(self, piece: object) -> None:
        return


def counted(*pieces: list[int]) -> int:
    npy: Any = Npy()
    offsets = Offsets(npy)
    for piece in pieces:
        offsets.write(memoryview(np.array(piece, "<i8").tobytes()))
    return offsets.counted()


def test_lengths_that_wrap_are_not_counted() -> None:
    assert counted([1, 2], [0, 4]) == 7
    assert counted([1, -1]) == -1
    assert counted([1 << 62, 1 << 62, 1 << 62, (1 << 62) + 2]) == -1
    assert counted(*[[1 << 62]] * 4, [2]) == -1
