"""What people enqueue: each has a place of its own, once, and none behind the end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from muster.jobs.common.errors import DamagedError, NotFoundError, RefusedError
from muster.jobs.tuning.queue import Queue, Queued


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue(tmp_path / "checkpoints")


def test_what_is_sent_again_has_the_place_that_it_has(queue: Queue) -> None:
    first, second = Queued("a", {"lr": 0.1}), Queued("b", {"lr": 0.1, "act": "relu", "hidden": [64, 32]})
    assert [queue.add(one) for one in (first, second, first, second)] == [0, 1, 0, 1]
    assert queue.since(0) == [first, second] and queue.since(1) == [second] and queue.since(2) == []
    with pytest.raises(RefusedError, match="'a' was enqueued with another configuration"):
        queue.add(Queued("a", {"lr": 0.2}))


def test_nothing_comes_behind_the_end_and_the_end_is_not_set_over_what_nobody_saw(queue: Queue) -> None:
    one = Queued("a", {"lr": 0.1})
    queue.add(one)
    assert not queue.close(0)
    assert queue.close(1) and queue.close(1)
    assert queue.add(one) == 0
    with pytest.raises(RefusedError, match="the search has ended"):
        queue.add(Queued("b", {"lr": 0.1}))
    assert [known.name for known in queue.since(0)] == ["a", ""]


def test_an_end_that_is_asked_for_stands_behind_what_was_added_and_is_there_once(queue: Queue) -> None:
    queue.add(Queued("a"))
    assert queue.end() and not queue.end()
    assert [(one.closed, one.asked) for one in queue.since(0)] == [(False, False), (True, True)]
    with pytest.raises(RefusedError, match="the search has ended"):
        queue.add(Queued("b"))
    assert queue.close(1) and queue.since(1)[0].asked


def test_of_many_who_add_at_once_each_has_one_place_and_none_is_lost(queue: Queue) -> None:
    names = [str(number % 20) for number in range(60)]
    with ThreadPoolExecutor(12) as pool:
        places = list(pool.map(lambda name: queue.add(Queued(name, {"lr": 0.5})), names))
    there = queue.since(0)
    assert sorted(one.name for one in there) == sorted(set(names))
    assert [there[place].name for place in places] == names


def test_while_many_add_and_one_ends_what_was_taken_stands_before_the_end(queue: Queue) -> None:
    def add(number: int) -> int | None:
        try:
            return queue.add(Queued(str(number)))
        except RefusedError:
            return None

    def end() -> None:
        while not queue.close(len(queue.since(0))):
            pass

    with ThreadPoolExecutor(8) as pool:
        adding = [pool.submit(add, number) for number in range(40)]
        pool.submit(end).result()
        places = [one.result() for one in adding]
    *there, last = queue.since(0)
    assert last.closed and not any(one.closed for one in there)
    assert sorted(place for place in places if place is not None) == list(range(len(there)))


def test_what_cannot_be_read_is_named_and_a_folder_that_is_gone_is_not_made_anew(queue: Queue, tmp_path: Path) -> None:
    queue.add(Queued("a"))
    (tmp_path / "checkpoints" / "00000000.queued").write_bytes(b"{")
    with pytest.raises(DamagedError, match=r"00000000\.queued"):
        queue.since(0)
    with pytest.raises(NotFoundError):
        Queue(tmp_path / "gone" / "checkpoints").add(Queued("a"))
