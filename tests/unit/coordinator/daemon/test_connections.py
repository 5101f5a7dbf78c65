"""Which connection ends for another's sake: one that says nothing, then one of whoever has most."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.coordinator.daemon.connections import OWN_FILES, PER_NAME, Connections


@dataclass(eq=False)
class One:
    heard: float | None = None


def some(limit: int) -> Connections[One]:
    made: Connections[One] = Connections(limit + OWN_FILES)
    made.limit = limit
    return made


@pytest.mark.parametrize(("descriptors", "least"), [(1, 1), (20, 10), (256, 192), (1 << 16, (1 << 16) - OWN_FILES)])
def test_some_descriptors_are_never_a_connection_s(descriptors: int, least: int) -> None:
    assert Connections(descriptors).limit == least


def test_a_newer_channel_takes_the_place_of_the_same_agent_s_older_one_alone() -> None:
    all_of_them, first, second, other, pull = some(100), One(1.0), One(2.0), One(0.0), One(0.0)
    for one, name, kind in [(first, "a", "push"), (other, "b", "push"), (pull, "a", "pull")]:
        assert all_of_them.open(one) == [] == all_of_them.name(one, name, kind)
    assert all_of_them.open(second) == []
    assert all_of_them.name(second, "a", "push") == [first]
    assert all_of_them.name(first, "a", "push") == [], "what has ended ends nothing"
    assert all_of_them.name(second, "a", "push") == []
    assert len(all_of_them) == 3


def test_a_machine_has_so_many_channels_and_no_more() -> None:
    all_of_them = some(10_000)
    channels = [One(float(i)) for i in range(3 * PER_NAME)]
    ended = []
    for i, one in enumerate(channels):
        all_of_them.open(one)
        ended += all_of_them.name(one, "a", f"round {i}")
    assert ended == channels[:-PER_NAME]


def test_who_opens_connections_without_end_ends_its_own() -> None:
    all_of_them, agent, watcher = some(20), One(1.0), One(50.0)
    all_of_them.open(agent)
    all_of_them.name(agent, "good", "push")
    all_of_them.open(watcher)
    for heard in (None, 2.0):
        for _ in range(200):
            one = One()
            gone = all_of_them.open(one)
            one.heard = heard
            assert agent not in gone and watcher not in gone
            assert len(all_of_them) <= 20


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.sampled_from(["", "x", "y"]), st.booleans())))
def test_there_are_never_more_than_may_be_and_the_newest_stays(steps: list[tuple[str, str, bool]]) -> None:
    all_of_them = some(5)
    alive: set[One] = set()
    for time, (name, kind, speaks) in enumerate(steps):
        one = One()
        alive.add(one)
        alive -= set(all_of_them.open(one))
        if speaks:
            one.heard = float(time)
            alive -= set(all_of_them.name(one, name, kind) if name else [])
        assert one in alive and len(alive) == len(all_of_them) <= 5
