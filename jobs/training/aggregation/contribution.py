"""What virtual workers give for a round, alone or added up: integers, so that order and grouping never show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from muster.jobs.training.aggregation import fixed_point
from muster.jobs.training.aggregation.fixed_point import BadValues
from muster.jobs.training.params import TrainParams

Array = np.ndarray[Any, Any]
LOSS_UNIT = 1 << 20  # of one sample's loss
LOSS_MOST = 1 << 24  # what one sample's can count for
INFINITY = 0x7F800000  # its bits


class ContributionTally(msgspec.Struct, frozen=True, array_like=True):
    """All of a contribution but its vector."""

    workers: int  # virtual ones in it
    samples: int
    loss: int  # summed over the samples, in units of 1 / LOSS_UNIT
    saturated: int  # workers with a value beyond their share of the range
    odd: int  # workers whose loss or values are not finite
    peak: int  # the largest magnitude before rounding: the bits of a float32, which order as it does
    buffer_peak: int  # the same of a model's buffers

    def plus(self, other: ContributionTally) -> ContributionTally:
        return ContributionTally(
            self.workers + other.workers,
            self.samples + other.samples,
            self.loss + other.loss,
            self.saturated + other.saturated,
            self.odd + other.odd,
            max(self.peak, other.peak),
            max(self.buffer_peak, other.buffer_peak),
        )

    @property
    def mean_loss(self) -> float:
        return self.loss / LOSS_UNIT / max(self.samples, 1)


NOTHING = ContributionTally(0, 0, 0, 0, 0, 0, 0)


def bits_of(peak: float) -> int:
    """Of a float32 of at least 0."""
    return int(np.array(peak, "<f4").view("<i4"))


def float_of(bits: int) -> float:
    return float(np.array(bits, "<i4").view("<f4"))


class Contribution:
    """A vector of integers and its tally. `values` belongs to whoever made it until the next one is made."""

    __slots__ = ("tally", "values")

    def __init__(self, values: Array, tally: ContributionTally) -> None:
        self.values = values
        self.tally = tally


class ContributionSum:
    """Contributions of different virtual workers, added up in as many bits as each of them has."""

    def __init__(self, dim: int, bits: int) -> None:
        self.values = np.zeros(dim, fixed_point.DTYPES[bits])
        self.tally = NOTHING

    def add(self, part: Contribution | ContributionSum) -> None:
        self.values += part.values
        self.tally = self.tally.plus(part.tally)

    def clear(self) -> None:
        self.values[:] = 0
        self.tally = NOTHING


def added(parts: Sequence[Contribution | ContributionSum], dim: int, bits: int) -> ContributionSum:
    total = ContributionSum(dim, bits)
    for part in parts:
        total.add(part)
    return total


def packed(part: Contribution | ContributionSum) -> bytes:
    """As it travels: a msgpack of the tally and the vector's bytes."""
    return msgspec.msgpack.encode((part.tally, fixed_point.pack(part.values)))


def unpacked(data: bytes, params: TrainParams, dim: int, workers: int) -> Contribution:
    """What `packed` made of the contributions of so many workers; BadValues for anything that cannot be one."""
    try:
        tally, raw = msgspec.msgpack.decode(data, type=tuple[ContributionTally, bytes])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BadValues(f"no contribution: {error}") from None
    check(tally, params, workers)
    return Contribution(fixed_point.unpack(raw, dim, params.bits, params.limit * workers), tally)


def check(tally: ContributionTally, params: TrainParams, workers: int) -> None:
    """Refuse a tally that no machine of ours would send for the work of so many workers."""
    if tally.workers != workers or tally.samples != workers * params.samples:
        raise BadValues(
            f"{tally.workers} workers and {tally.samples} samples, not {workers} and {workers * params.samples}"
        )
    if not 0 <= tally.loss <= tally.samples * LOSS_MOST * LOSS_UNIT:
        raise BadValues(f"a loss of {tally.loss} units cannot be")
    if not (0 <= tally.saturated <= workers and 0 <= tally.odd <= workers):
        raise BadValues("more workers in trouble than there are")
    if not (0 <= tally.peak <= INFINITY and 0 <= tally.buffer_peak <= INFINITY):
        raise BadValues("a largest value that is no number")


class RoundHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Goes down with each round. With a virtual worker's number it decides every bit of that worker's contribution."""

    round: int  # the version of the weights; in `async` the number of pushes they have seen
    redo: int  # how often this round had to be done again
    steps: int
    scale: float  # fixed-point units of 1.0, for the sum over a contribution's samples
    rate: float  # learning rate of local steps
    weights: str  # xxh3_128 of the weights, in hex
    buffer_scale: float = 1.0  # the same for a model's buffers
