"""What the pool tells of its batches, whatever the order in which Ray's news of them comes. Without Ray."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agent import sweep
from agent.pool import BatchDone, Pool, PoolEvent, WorkerDied, _Worker
from jobs.work import Outcome

BATCHES = 6
OUTCOME = msgspec.msgpack.encode(Outcome((), 0, 0, 0, 0.0, 0, ()))


def settled(broken: str) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result((OUTCOME, broken))
    return future


@given(st.permutations(range(BATCHES)), st.integers(0, BATCHES))
def test_outcomes_are_told_in_the_order_they_ran_and_a_death_after_them(order: list[int], good: int) -> None:
    """The first `good` batches succeed, the next one kills its worker, and those behind it break with it."""
    events: list[PoolEvent] = []
    pool = Pool(Path(), 1, events.append)
    pool._lost = "no Ray"  # so that nobody is put in a dead worker's place
    worker = _Worker(0, "seat", None, mark=sweep.Mark(0, 0.0), unsettled=BATCHES)
    worker.batches = dict.fromkeys(range(BATCHES), b"")
    for ticket in order:
        if ticket >= good:
            worker.reason = "died"
        pool._settled(worker, ticket, settled("" if ticket < good else "died"))
    told = [event.ticket for event in events if isinstance(event, BatchDone)]
    assert told == list(range(good))
    dead = [event for event in events if isinstance(event, WorkerDied)]
    assert dead == ([WorkerDied(0, tuple(range(good, BATCHES)), "died", False)] if good < BATCHES else [])
    assert not dead or events[-1] == dead[0]
