"""How long to wait before the next try to connect."""

from __future__ import annotations

from muster.agent.channels.backoff import Backoff


def longest(low: float, high: float) -> float:
    return high


def test_dead_connections_back_off_to_15_seconds_soon_and_60_later() -> None:
    backoff = Backoff(longest)
    assert [backoff.dead(0.0) for _ in range(6)] == [2, 4, 8, 15, 15, 15]
    assert backoff.dead(121.0) == 60


def test_an_answer_starts_it_over() -> None:
    backoff = Backoff(longest)
    for _ in range(10):
        backoff.dead(0.0)
    backoff.good()
    assert backoff.dead(500.0) == 2


def test_many_agents_do_not_come_back_at_once() -> None:
    pauses = {Backoff().dead(0.0) for _ in range(100)}
    assert len(pauses) > 90
    assert all(0 < pause <= 2 for pause in pauses)


def test_a_coordinator_that_is_gone_is_looked_for_each_second_at_first() -> None:
    backoff = Backoff()
    assert {backoff.gone() for _ in range(60)} == {1.0}
    assert backoff.gone() == 5.0
