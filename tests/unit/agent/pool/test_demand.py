"""How many workers a pool on demand keeps."""

from __future__ import annotations

from muster.agent.core.events import Needs
from muster.agent.pool.demand import IDLE_SECONDS, Demand

ONE, TWO = Needs(1), Needs(2)


def test_it_grows_at_once_and_shrinks_after_a_minute_without_work() -> None:
    demand = Demand()
    assert demand.now({ONE: 4}, 0.0) == {ONE: 4}
    assert demand.now({ONE: 1}, 1.0) == {ONE: 4}
    assert demand.now({}, IDLE_SECONDS) == {ONE: 4}
    assert demand.now({}, IDLE_SECONDS + 1.0) == {}


def test_work_in_between_begins_the_minute_anew() -> None:
    demand = Demand()
    demand.now({ONE: 2}, 0.0)
    demand.now({}, 50.0)
    assert demand.now({ONE: 2}, 55.0) == {ONE: 2}
    assert demand.now({}, 100.0) == {ONE: 2}
    assert demand.now({}, 161.0) == {}


def test_workers_of_another_sort_give_way_at_once() -> None:
    demand = Demand()
    demand.now({ONE: 4}, 0.0)
    assert demand.now({TWO: 2}, 1.0) == {TWO: 2}
