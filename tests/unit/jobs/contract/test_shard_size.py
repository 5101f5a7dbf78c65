"""How many rows a shard gets where nobody said: within which bounds, and that each reason is the one that counted."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.jobs.contract.shard_size import (
    SHARD_BYTES,
    SHARD_SECONDS,
    SHARDS,
    SHARDS_LIMIT,
    WORTH_SECONDS,
    RowCost,
    Uncut,
    fitting,
    shard_size,
)

DISPATCH_SECONDS = 0.001
rows = st.integers(1, 1 << 40) | st.integers(1, 5000)
row_bytes = st.integers(1, 1 << 34)
seconds = st.none() | st.floats(1e-12, 1e6)
shares = st.integers(1, SHARDS)


@given(rows, row_bytes, seconds, shares, st.integers(1, 5000), st.integers(1, 5000))
def test_any_cut_is_whole_and_within_the_bytes(
    count: int, nbytes: int, each: float | None, shards: int, grain: int, least: int
) -> None:
    size = shard_size(Uncut(count, nbytes, shards, grain), RowCost(each, least=least))
    assert 1 <= size.rows <= count
    assert size.rows == 1 or size.rows * nbytes <= SHARD_BYTES
    assert "\n" not in size.why and len(size.why) < 90


@given(rows, row_bytes)
def test_rows_of_unknown_cost_fall_into_shards_enough_for_many_machines(count: int, nbytes: int) -> None:
    size = shard_size(Uncut(count, nbytes), RowCost())
    assert ceil(count / size.rows) >= min(count, SHARDS)


@given(rows, row_bytes, st.floats(1e-12, 1e6))
def test_rows_of_known_cost_are_neither_long_shards_nor_ones_that_cost_more_than_they_do(
    count: int, nbytes: int, each: float
) -> None:
    size = shard_size(Uncut(count, nbytes), RowCost(each))
    shards, took = ceil(count / size.rows), size.rows * each
    assert size.rows == 1 or took <= SHARD_SECONDS * 1.001 or shards >= SHARDS_LIMIT / 2
    few = size.rows == count or size.rows * nbytes > SHARD_BYTES / 2 - nbytes  # all of it, or what its bytes allow
    assert few or took >= WORTH_SECONDS / 2.01
    if took / size.rows * (count // SHARDS) >= WORTH_SECONDS:
        assert shards >= min(count, SHARDS)


@given(rows, row_bytes, seconds, st.integers(1, 5000))
def test_a_shard_is_whole_grains_where_it_has_one(count: int, nbytes: int, each: float | None, grain: int) -> None:
    size = shard_size(Uncut(count, nbytes, grain=grain), RowCost(each, least=grain)).rows
    assert size % grain == 0 or size == count or (size < grain and size == max(1, SHARD_BYTES // nbytes)) or grain == 1


@given(rows, seconds)
def test_the_last_shard_is_no_mere_rest(count: int, each: float | None) -> None:
    size = shard_size(Uncut(count, 1), RowCost(each)).rows
    shards = ceil(count / size)
    assert size == ceil(count / shards)


CUTS = [
    (Uncut(40, 8), RowCost(), 1, "spread", "nobody knows yet what a row takes"),
    (Uncut(2000, 8), RowCost(), 31, "spread", "for many machines"),
    (Uncut(2000, 8), RowCost(1e-6, "as in a.1"), 2000, "worth", "a row takes about 1 µs as in a.1"),
    (Uncut(2000, 8), RowCost(0.25), 31, "spread", "for many machines to share"),
    (
        Uncut(20_000, 8),
        RowCost(0.25, "as in a.1"),
        40,
        "seconds",
        "about 10 s each; a row takes about 250 ms as in a.1",
    ),
    (Uncut(20_000, 8), RowCost(60.0), 1, "seconds", "about 10 s each"),
    (Uncut(1 << 20, 1 << 20), RowCost(), 128, "bytes", "128 MiB at most"),
    (Uncut(10, 1 << 30), RowCost(1e-9), 1, "bytes", "128 MiB at most"),
    (Uncut(2000, 8, grain=256), RowCost(least=256), 256, "batch", "whole batches of 256"),
    (Uncut(1 << 30, 8), RowCost(1.0), 8192, "limit", "131,072 of a layer at most"),
    (Uncut(300, 1, 256, unit="an item"), RowCost(), 1, "spread", "what an item takes"),
]


@pytest.mark.parametrize(("layer", "cost", "expected", "reason", "why"), CUTS)
def test_cuts(layer: Uncut, cost: RowCost, expected: int, reason: str, why: str) -> None:
    size = shard_size(layer, cost)
    assert (size.rows, size.reason) == (expected, reason) and why in size.why


def test_a_layer_falls_into_its_share_of_the_shards_alone() -> None:
    assert shard_size(Uncut(100, 8, shards=1), RowCost()).rows == 100


@given(st.integers(1, 1 << 40), st.floats(60, 1e6), st.floats(0, 1e6))
def test_what_would_fit_is_less_than_what_runs_too_long(count: int, at_work: float, each: float) -> None:
    size = fitting(count, at_work, each)
    assert 1 <= size <= count
    assert size == 1 or size * max(at_work / count, each) <= SHARD_SECONDS * 1.001
