"""Many numbers kept as counts in buckets, sixteen to each doubling, and their quantiles: right to 2.2%. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import log2

PER_DOUBLING = 16
LEAST_SECONDS = 1e-6
BUCKET_MOST = 320  # of seconds: from a millionth to a million
BYTES_MOST = 16 * 53


def bucket_of_seconds(seconds: float) -> int:
    return max(-BUCKET_MOST, min(BUCKET_MOST, round(PER_DOUBLING * log2(max(seconds, LEAST_SECONDS)))))


def bucket_of_bytes(nbytes: int) -> int:
    return min(BYTES_MOST, round(PER_DOUBLING * log2(max(nbytes, 1))))


def value_of(bucket: int) -> float:
    """The middle of a bucket."""
    return float(2.0 ** (bucket / PER_DOUBLING))


def counted(buckets: Iterable[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for bucket in buckets:
        found[bucket] = found.get(bucket, 0) + 1
    return found


def add(into: dict[int, int], more: Mapping[int, int]) -> None:
    for bucket, count in more.items():
        into[bucket] = into.get(bucket, 0) + count


def quantile(counts: Mapping[int, int], share: float) -> float | None:
    """The value that `share` of all do not exceed; None where there are none."""
    wanted, below = share * sum(counts.values()), 0
    for bucket in sorted(counts):
        below += counts[bucket]
        if below and below >= wanted:
            return value_of(bucket)
    return None


def share_below(counts: Mapping[int, int], value: float) -> float:
    """Of all, how many are less than `value`."""
    whole = sum(counts.values())
    return sum(count for bucket, count in counts.items() if value_of(bucket) < value) / whole if whole else 0.0
