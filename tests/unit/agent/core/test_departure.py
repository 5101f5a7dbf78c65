"""When an agent leaves by itself."""

from __future__ import annotations

from muster.agent.core.departure import Departure


def test_it_leaves_once_it_had_nothing_to_do_for_so_long_in_one_go() -> None:
    departure = Departure(idle=10.0, limit=None, begun=0.0)
    assert not departure.look(0.0, may_work=True, at_work=False)
    assert not departure.look(9.0, may_work=True, at_work=False)
    assert not departure.look(9.5, may_work=True, at_work=True)
    assert not departure.look(12.0, may_work=True, at_work=False)
    assert not departure.look(21.9, may_work=True, at_work=False)
    assert departure.look(22.0, may_work=True, at_work=False) == "nothing to do for 10 s"
    assert not departure.look(50.0, may_work=True, at_work=False), "it says so once"


def test_time_in_which_it_may_not_work_is_not_idle() -> None:
    departure = Departure(idle=10.0, limit=None, begun=0.0)
    assert not departure.look(100.0, may_work=False, at_work=False)
    assert not departure.look(101.0, may_work=True, at_work=False)
    assert not departure.look(105.0, may_work=False, at_work=False)
    assert not departure.look(114.0, may_work=True, at_work=False)
    assert departure.look(124.0, may_work=True, at_work=False)


def test_its_time_is_over_whatever_it_does() -> None:
    departure = Departure(idle=10.0, limit=3600.0, begun=100.0)
    assert not departure.look(3699.0, may_work=True, at_work=True)
    assert departure.look(3700.0, may_work=False, at_work=True) == "its time of 1 h is over"


def test_without_a_limit_it_stays() -> None:
    assert not Departure(None, None, 0.0).look(1e9, may_work=True, at_work=False)
