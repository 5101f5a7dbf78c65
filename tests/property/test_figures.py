"""Bins keep their sums however often they double, quantiles of buckets are right to 2.2%, and Jain's index is one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.coordinator.figures import bins, fairness, histogram

moments = st.floats(0, 1e6)
amounts = st.floats(0, 1e9)
spans = st.tuples(st.sampled_from(["one", "two"]), moments, st.floats(0, 100), amounts)


@given(st.lists(spans, max_size=40))
def test_bins_keep_what_was_added_whatever_their_width(added: list[tuple[str, float, float, float]]) -> None:
    axis, whole = bins.Axis(), {"one": 0.0, "two": 0.0}
    for machine, first, lasting, amount in added:
        axis.add(machine, "busy", first, first + lasting, amount)
        whole[machine] += amount
    for machine, row in axis.rows.items():
        values = list(row.values.get("busy", ()))
        assert len(values) <= bins.columns_for(len(axis.rows))
        assert sum(values) == pytest.approx(whole[machine], rel=1e-4, abs=1e-3)
        assert bins.Row(row.packed()).values == row.values


@given(st.lists(st.tuples(moments, amounts), min_size=1, max_size=40))
def test_the_largest_that_was_seen_is_kept(seen: list[tuple[float, float]]) -> None:
    axis = bins.Axis()
    for at, amount in seen:
        axis.raise_to("one", "memory", at, amount)
    found = max(axis.rows["one"].values.get("memory", [0.0])) if axis.rows else 0.0
    assert found == pytest.approx(max(amount for _, amount in seen), rel=1e-6)


@given(st.integers(1, 5000), st.floats(0, 1e9))
def test_a_job_of_any_length_on_any_number_of_machines_keeps_a_bounded_number_of_bins(
    machines: int, until: float
) -> None:
    axis = bins.Axis(rows={str(number): bins.Row() for number in range(machines)})
    axis.fit(until)
    assert until < bins.columns_for(machines) * axis.width
    assert bins.columns_for(machines) * machines <= max(bins.CELLS, bins.COLUMNS_LEAST * machines)


@given(st.lists(st.floats(1e-6, 1e5), min_size=1, max_size=300), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_quantile_is_right_to_the_width_of_a_bucket(seconds: list[float], share: float) -> None:
    counts = histogram.counted(map(histogram.bucket_of_seconds, seconds))
    right = float(np.quantile(seconds, share, method="inverted_cdf"))
    assert histogram.quantile(counts, share) == pytest.approx(right, rel=0.0221)


@given(st.lists(st.dictionaries(st.integers(-320, 320), st.integers(1, 1000)), max_size=5))
def test_histograms_add_up(parts: list[dict[int, int]]) -> None:
    whole: dict[int, int] = {}
    for part in parts:
        histogram.add(whole, part)
    assert sum(whole.values()) == sum(sum(part.values()) for part in parts)


shares = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=50)


@given(shares, st.floats(0.1, 10))
def test_jains_index_lies_between_one_nth_and_one_and_knows_no_scale(found: list[float], scale: float) -> None:
    index = fairness.jain(found)
    assert index is not None
    assert 1 / len(found) - 1e-9 <= index <= 1
    assert fairness.jain([scale * one for one in found]) == pytest.approx(index)


@given(st.integers(1, 100), st.floats(0.01, 1))
def test_jains_index_of_equals_is_one_and_of_one_alone_one_nth(count: int, each: float) -> None:
    assert fairness.jain([each] * count) == pytest.approx(1)
    assert fairness.jain([each] + [0.0] * (count - 1)) == pytest.approx(1 / count)


def test_of_none_busy_and_of_next_to_nothing_offered_nothing_is_said() -> None:
    assert fairness.jain([]) is None
    assert fairness.jain([0.0, 0.0]) is None
    assert fairness.share(0.5, 0.5) is None
    assert fairness.share(20.0, 10.0) == 1.0
    assert fairness.occupancy([(5.0, 10.0), (0.0, 10.0)]) == 0.25
    assert histogram.quantile({}, 0.5) is None
