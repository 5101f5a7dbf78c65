"""A sender that all but stalls is not waited for; a thin link is."""

from __future__ import annotations

import pytest

from muster.coordinator.connect.serve_push import LEAST_RATE, RATE_SECONDS, LeastRate
from muster.jobs.common.errors import LinkError


@pytest.mark.parametrize(("waited", "nbytes"), [(1.0, LEAST_RATE), (30.0, 30 * LEAST_RATE), (0.0, 1), (1e-4, 1)])
def test_a_thin_link_and_a_slow_disk_of_ours_are_no_stall(waited: float, nbytes: int) -> None:
    rate = LeastRate()
    for _ in range(2000):
        rate.note(waited, nbytes)


def test_a_radio_may_be_away_for_two_minutes() -> None:
    rate = LeastRate()
    rate.note(120.0, 1)
    rate.note(60.0, 60 << 14)


@pytest.mark.parametrize("waited", [1.0, 10.0, RATE_SECONDS])
def test_a_trickle_ends(waited: float) -> None:
    rate = LeastRate()
    with pytest.raises(LinkError, match="is not waited for"):
        for _ in range(int(RATE_SECONDS / waited) + 1):
            rate.note(waited, 1)
