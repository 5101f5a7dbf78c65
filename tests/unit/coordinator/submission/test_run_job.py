"""Some items of a run's whole list: how it is cut for these alone, and that each keeps its number."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.core.state_machine import TICK_BUSY_SECONDS, TICK_IDLE_SECONDS
from muster.coordinator.runs.wish import Wish
from muster.coordinator.submission import run_job, run_sources
from muster.coordinator.submission.submit import Planned
from muster.jobs.common.errors import RefusedError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import ItemsSource
from muster.jobs.sources import items

COUNT = 300


@pytest.fixture(scope="module")
def planned() -> Iterator[Planned]:
    yield run_job.planned("run", run_sources.read(Wish(words=("true",), array=f"1-{COUNT}")))


@given(st.sets(st.integers(0, COUNT - 1), min_size=1), st.integers(1, 40), st.integers(1, 40))
def test_only_the_items_that_are_left_are_run_and_under_their_numbers(
    planned: Planned, left: set[int], shards: int, shards_most: int
) -> None:
    numbers = RangeSet.of(sorted(left))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_job, "SHARDS", shards)
        patch.setattr(run_job, "SHARDS_MOST", shards_most)
        [layer] = run_job.only(planned, numbers).plan.layers
    ran = [
        number
        for shard in layer.numbers
        for number in range(layer.first_row(shard), layer.first_row(shard) + layer.rows_of(shard))
    ]
    assert ran == sorted(left) == list(layer.run_rows) and layer.rows == COUNT
    assert max(map(layer.rows_of, range(layer.count))) == layer.shard_rows
    assert (layer.only is None) == (len(left) == COUNT)
    assert layer.total_in_bytes == sum(layer.window(shard).nbytes for shard in layer.numbers)
    assert (layer.digest == planned.plan.layers[0].digest) == (layer.source == planned.plan.layers[0].source)


def test_what_is_waited_for_on_purpose_leaves_the_way_a_quarter_of_the_second_that_is_promised(
    planned: Planned,
) -> None:
    flush = planned.plan.work.flush
    assert flush is not None and flush + max(TICK_BUSY_SECONDS, TICK_IDLE_SECONDS) <= 0.75
    assert "within a second" in (Path(__file__).parents[4] / "docs" / "run.md").read_text()


def test_a_list_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(9):
        (tmp_path / f"{number}.txt").write_bytes(bytes(number))
    for words in (("wc", ":::", *(f"{number}.txt" for number in range(9))), ("wc", ":::", "some", "words")):
        made = run_job.planned("run", run_sources.read(Wish(words=words)))
        source = made.plan.layers[0].source
        assert isinstance(source, ItemsSource)
        read = items.read_list(made.items.path, source)
        assert items.cut(read, 1, 1 << 60)[0] == source.cuts and len(read) == len(words) - 2
        assert sum(read.sizes) == (0 if source.columns else 36)


def test_items_that_lie_too_far_apart_are_refused(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_job, "SHARDS_MOST", 100)
    monkeypatch.setattr(run_job, "ITEMS_SHARDS_LIMIT", 200)
    run_job.only(planned, RangeSet.of(sorted(random.Random(0).sample(range(COUNT), 40))))
    with pytest.raises(RefusedError, match="of the 300 items lies apart at 150 places"):
        run_job.only(planned, RangeSet.of(range(0, COUNT, 2)))
