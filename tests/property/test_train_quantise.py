"""Fixed point: rounding, limits, bytes. What a peer sends is refused unless it can be a sum."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from muster.jobs.training.aggregation import fixed_point
from muster.jobs.training.aggregation.contribution import (
    Contribution,
    ContributionSum,
    ContributionTally,
    added,
    packed,
    unpacked,
)
from muster.jobs.training.aggregation.fixed_point import BadValues, Quantiser
from muster.jobs.training.aggregation.weights_delta import Compressor, apply
from muster.jobs.training.data import sampling
from muster.jobs.training.params import TrainParams, settled

Array = np.ndarray[Any, Any]
DIM = 23

vectors = hnp.arrays(np.float32, DIM, elements=st.floats(-100, 100, width=32))
bits_given = st.sampled_from([8, 16, 32])


def tally_of(params: TrainParams, workers: int = 1) -> ContributionTally:
    return ContributionTally(workers, workers * params.samples, 5, 0, 0, 3, 3)


@given(vectors, bits_given, st.integers(1, 40))
def test_rounding_is_within_a_unit_and_within_the_limit(values: Array, bits: int, workers: int) -> None:
    limit, peak = (2 ** (bits - 1) - 1) // workers, fixed_point.peak_of(values)
    scale = fixed_point.scale_for(peak, bits, limit)
    noise = sampling.bits_of(1, 2, 3, sampling.NOISE) if bits == 8 else None
    rounded = Quantiser(DIM, bits, limit).rounded(values, scale, peak, noise)
    assert not fixed_point.saturates(peak, scale, bits, limit)
    assert int(np.abs(rounded.astype(np.int64)).max()) <= limit
    error = np.abs(rounded - values.astype(np.float64) * scale)
    slack = np.abs(values) * scale * 1e-6  # of float32
    assert (error <= (1 if bits == 8 else 0.5) + slack).all()


@given(vectors, bits_given)
def test_what_saturates_is_said_to_and_clipped(values: Array, bits: int) -> None:
    limit, peak = (2 ** (bits - 1) - 1) // 12, fixed_point.peak_of(values)
    rounded = Quantiser(DIM, bits, limit).rounded(values, 1e9, peak, None)
    assert int(np.abs(rounded.astype(np.int64)).max()) <= limit
    if peak > 0.2:
        assert fixed_point.saturates(peak, 1e9, bits, limit) == (peak * 1e9 > limit)


def test_chance_rounds_to_the_mean() -> None:
    values = np.full(100_000, 0.3, np.float32)
    rounded = Quantiser(len(values), 8, 10).rounded(values, 1.0, 0.3, sampling.bits_of(1, 1, 1))
    assert set(rounded.tolist()) == {0, 1}
    assert rounded.mean() == pytest.approx(0.3, abs=0.01)


@given(st.integers(1, 12), bits_given, st.data())
def test_a_contribution_survives_the_wire(workers: int, bits: Any, luck: st.DataObject) -> None:
    params = settled(TrainParams(bits=bits))
    most = params.limit * workers
    values = luck.draw(hnp.arrays(fixed_point.DTYPES[bits], DIM, elements=st.integers(-most, most)))
    sent = packed(Contribution(values, tally_of(params, workers)))
    got = unpacked(sent, params, DIM, workers)
    np.testing.assert_array_equal(got.values, values)
    assert got.tally == tally_of(params, workers)


@given(st.data(), bits_given)
@settings(max_examples=50)
def test_any_grouping_adds_up_to_the_same(luck: st.DataObject, bits: Any) -> None:
    params = settled(TrainParams(bits=bits))
    elements = st.integers(-params.limit, params.limit)
    parts = [
        Contribution(luck.draw(hnp.arrays(fixed_point.DTYPES[bits], DIM, elements=elements)), tally_of(params))
        for _ in range(params.workers)
    ]
    whole = added(parts, DIM, bits)
    np.testing.assert_array_equal(whole.values, np.sum([part.values.astype(np.int64) for part in parts], axis=0))
    groups = [ContributionSum(DIM, bits) for _ in range(3)]
    for part in luck.draw(st.permutations(parts)):
        luck.draw(st.sampled_from(groups)).add(part)
    again = added(luck.draw(st.permutations(groups)), DIM, bits)
    np.testing.assert_array_equal(again.values, whole.values)
    assert again.tally == whole.tally


@given(st.binary(max_size=200))
def test_noise_is_no_contribution(raw: bytes) -> None:
    with pytest.raises(BadValues):
        unpacked(raw, settled(TrainParams()), DIM, 2)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_a_sum_beyond_its_parts_is_refused(bits: Any) -> None:
    params = settled(TrainParams(bits=bits))
    values = np.zeros(DIM, fixed_point.DTYPES[bits])
    for odd in (2 * params.limit + 1, -2 * params.limit - 1, int(np.iinfo(values.dtype).min)):
        values[4] = odd
        with pytest.raises(BadValues, match="beyond"):
            unpacked(packed(Contribution(values, tally_of(params, 2))), params, DIM, 2)


@pytest.mark.parametrize(
    "changed",
    [
        {"workers": 3},
        {"samples": 1},
        {"loss": -1},
        {"loss": 1 << 62},
        {"saturated": 3},
        {"saturated": -1},
        {"odd": 7},
        {"peak": 0x7FC00000},
        {"peak": -1},
        {"buffer_peak": 1 << 40},
    ],
    ids=str,
)
def test_a_tally_that_cannot_be_is_refused(changed: dict[str, int]) -> None:
    params = settled(TrainParams())
    tally = msgspec.structs.replace(tally_of(params, 2), **changed)
    with pytest.raises(BadValues):
        unpacked(packed(Contribution(np.zeros(DIM, "<i4"), tally)), params, DIM, 2)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        zlib.compress(bytes(DIM))[:-1],
        zlib.compress(bytes(DIM)) + b"x",
        zlib.compress(bytes(DIM - 1)),
        zlib.compress(bytes(1 << 24)),
        b"no zlib",
    ],
    ids=range(6),
)
def test_bytes_that_are_no_vector(raw: bytes) -> None:
    with pytest.raises(BadValues):
        fixed_point.unpack(raw, DIM, 8, 100)


@given(st.lists(vectors, min_size=1, max_size=6), bits_given)
@settings(max_examples=50)
def test_both_ends_have_the_same_weights_and_nothing_is_lost(steps: list[Array], bits: Any) -> None:
    compressor = Compressor(DIM, DIM - 3, bits)
    near = far = np.zeros(DIM, np.float32)
    wanted = np.zeros(DIM)
    for round_, step in enumerate(steps):
        new = near + step
        update = compressor.update(round_ + 1, near, new)
        wanted += step
        far = apply(update, far, DIM - 3)
        np.testing.assert_array_equal(far, new)
        near = new
    left = compressor.residual if bits < 32 else 0
    np.testing.assert_allclose(near + left, wanted, atol=1e-2, rtol=1e-4)
