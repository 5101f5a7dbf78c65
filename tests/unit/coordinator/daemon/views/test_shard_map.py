"""The map of a job's shards: each is in one cell, and no job is too large for it."""

from __future__ import annotations

from muster.coordinator.api.status import MapRow
from muster.coordinator.daemon.views.shard_map import CELLS_MOST, ROWS_MOST, map_of
from muster.coordinator.protocol.values import encode
from muster.coordinator.scheduler.entities import Holding
from tests.support.sched import World, seed


def at_work(count: int) -> World:
    """Some shards are committed, some finished, some at work and one is given up."""
    world = World()
    world.add(seed(count=count), attempts=1)
    world.enter("a", "b", "c", cpus=4)
    world.finish("a", hungry=False)
    world.commit("a", world.last("a"))
    world.finish("b", hungry=False)
    world.fail("c", hungry=False)
    return world


def counts(row: MapRow) -> list[int]:
    return [sum(cells) for cells in (row.committed, row.finished, row.running, row.given_up)]


def test_each_shard_is_in_a_cell_as_what_it_is() -> None:
    world = at_work(100)
    layer = world.layer()
    (row,) = map_of(world.state.jobs["j.1"]).rows
    assert (row.name, row.shards, row.cell, len(row.committed)) == ("L", 100, 1, 100)
    finished = sum(len(one.finished) for one in layer.holdings.values())
    running = sum(len(one.open) for one in layer.holdings.values())
    assert counts(row) == [len(layer.committed), finished, running, 1] and min(counts(row)) > 0
    assert [i for i, one in enumerate(row.committed) if one] == list(layer.committed)


def test_what_two_machines_have_at_work_counts_once() -> None:
    world = World()
    world.add(seed(count=4))
    world.enter("a")
    layer, (held,) = world.layer(), world.state.agents["a"].holdings.values()
    layer.holdings["b", 1, 99] = Holding("b", "j.1", "L", 1, 99, 0.0, held.open.copy())
    (row,) = map_of(world.state.jobs["j.1"]).rows
    assert counts(row)[2] == len(held.open) > 0


def test_a_million_shards_make_no_larger_map_than_a_thousand() -> None:
    for count in (1_000, 1_000_000):
        found = map_of(at_work(count).state.jobs["j.1"])
        (row,) = found.rows
        cells = len(row.committed)
        assert cells <= 240 and (cells - 1) * row.cell < count <= cells * row.cell
        assert len(encode(found)) < 8_000


def test_many_layers_share_rows() -> None:
    world = World()
    world.add(*(seed(f"L{i}", count=100 + i) for i in range(100)))
    rows = map_of(world.state.jobs["j.1"]).rows
    assert len(rows) <= ROWS_MOST and rows[0].name == "L0 … L4" and rows[-1].name.endswith("L99")
    assert sum(row.shards for row in rows) == sum(100 + i for i in range(100))
    assert sum(len(row.committed) for row in rows) <= CELLS_MOST


def test_of_rounds_there_is_none() -> None:
    world = World()
    world.add(seed(count=0, made=True, rounds=True))
    assert map_of(world.state.jobs["j.1"]).rows == []
