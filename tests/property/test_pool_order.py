"""What the pool tells of its batches, whenever the news of a worker's death comes between its words. Without Ray."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.pool.interface import BatchDone, PoolEvent, WorkerDied
from muster.agent.pool.ray_local import Pool, _Worker
from muster.agent.pool.worker import WorkerDone
from muster.agent.pool.worker_socket import WorkerSocket
from muster.jobs.common.processes import ProcessId
from muster.jobs.workbench.batch import Outcome

BATCHES = 6
OUTCOME = msgspec.msgpack.encode(Outcome((), 0, 0, 0, 0.0, 0, ()))


@given(st.integers(0, BATCHES), st.integers(0, BATCHES), st.booleans())
def test_outcomes_are_told_in_the_order_they_ran_and_a_death_after_them(good: int, noticed: int, breaks: bool) -> None:
    """The first `good` batches succeed; the worker breaks at the next, or dies, which may be noticed before its last
    words are heard."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker_socket = WorkerSocket(ours)
        worker_socket.name = "seat"
        events: list[PoolEvent] = []
        pool = Pool(Path(), 1, events.append)
        worker = _Worker(0, "seat", mark=ProcessId(0, 0.0), is_open=True, worker_socket=worker_socket)
        worker.batches = dict.fromkeys(range(BATCHES), b"")
        pool._workers = [worker]
        pool._pass_on(worker)
        pool._lost = "no Ray"  # so that nobody is put in a dead worker's place
        for ticket in range(BATCHES if breaks else good):
            if ticket == noticed or (breaks and ticket == good):
                worker.reason = worker.reason or "died"
            broken = "it broke" if ticket >= good else ""
            pool._heard(worker_socket, msgspec.msgpack.encode(WorkerDone(ticket, b"" if broken else OUTCOME, broken)))
        worker.reason = worker.reason or "died"
        assert not [event for event in events if isinstance(event, WorkerDied)]
        pool._silent(worker_socket)
    assert [event.ticket for event in events if isinstance(event, BatchDone)] == list(range(good))
    assert events[good:] == [WorkerDied(0, tuple(range(good, BATCHES)), "died", False)]
