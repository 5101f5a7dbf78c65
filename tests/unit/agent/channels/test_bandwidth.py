"""The limit on bytes per second, by a clock of the test's own."""

from __future__ import annotations

import pytest

from muster.agent.channels.bandwidth import Bandwidth


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("rate", [16_384, 1_000_000, 100_000_000])
@pytest.mark.parametrize("latency", [0.0, 0.02, 0.1])
def test_over_ten_seconds_it_is_kept_within_five_percent(rate: int, latency: float) -> None:
    """`latency`: what each piece takes beside waiting; two channels take turns."""
    clock = Clock()
    limit = Bandwidth(rate, clock)
    piece, moved = limit.piece, 0
    assert piece
    while clock.now < 110.0:
        clock.now += limit.delay(piece) + latency
        moved += piece
    assert moved / rate == pytest.approx(10.0, rel=0.05)


def test_time_not_used_is_not_saved_up() -> None:
    clock = Clock()
    limit = Bandwidth(1000, clock)
    clock.now += 3600.0
    waited = sum(limit.delay(100) for _ in range(100))
    assert waited > 0
    assert limit.delay(0) == pytest.approx(10.0 - 0.25, abs=0.2)


def test_without_a_rate_nothing_waits() -> None:
    limit = Bandwidth(None)
    assert limit.piece is None
    assert limit.delay(1 << 40) == 0.0
