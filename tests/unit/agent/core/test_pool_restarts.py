"""A lost pool is started again with growing pauses, and no more once it was lost alike again and again."""

from __future__ import annotations

from muster.agent.core.pool_restarts import EQUAL_LOSSES, PoolRestarts


def test_the_pauses_grow_and_the_last_of_equal_losses_is_the_end() -> None:
    restarts = PoolRestarts()
    pauses = [restarts.lost("Ray's raylet died", 0.0) for _ in range(EQUAL_LOSSES)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, None]


def test_another_reason_is_another_count() -> None:
    restarts = PoolRestarts()
    for number in range(3 * EQUAL_LOSSES):
        assert restarts.lost(f"reason {number % 2}", 0.0) is not None


def test_a_batch_that_was_done_between_them_begins_anew() -> None:
    restarts = PoolRestarts()
    for _ in range(3 * EQUAL_LOSSES):
        assert restarts.lost("Ray's raylet died", 0.0) == 1.0
        restarts.worked()


def test_a_pool_of_somebody_elses_machines_is_asked_for_again_without_end() -> None:
    restarts = PoolRestarts(limit=None)
    pauses = [restarts.lost("the head is gone", 0.0) for _ in range(3 * EQUAL_LOSSES)]
    assert None not in pauses and pauses[-1] == 60.0
