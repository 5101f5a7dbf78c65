"""What pairs of measurements say: the median ratio, its 90% interval, and whether new is worse. Pure; measures nothing.

The interval is of order statistics, so it assumes nothing of how ratios are spread but that pairs do not depend on each
other. With the ratios sorted, the k-th lowest and the k-th highest enclose the median of what would be measured for
ever unless fewer than k of n pairs fell on one side of it, which has the chance of so many heads of n coins. As that
jumps from one k to the next (7 pairs: 98.4%, 87.5%), the interval for 90% lies between these two, where Hettmansperger
and Sheather put it (Statistics and Probability Letters 4, 1986). Fewer than five pairs have no such interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.9
LEAST = 0.95  # of the old, what the new must reach


@dataclass(frozen=True)
class Pair:
    """One figure as both sides had it, one after the other."""

    old: float
    new: float

    def ratio(self, less_is_better: bool) -> float:
        """New over old, turned over where less is better: more is better always."""
        return self.old / self.new if less_is_better else self.new / self.old


@dataclass(frozen=True)
class Verdict:
    """What all pairs of a figure say."""

    median: float
    interval: tuple[float, float] | None  # None: there are too few pairs for one

    @property
    def worse(self) -> bool | None:
        """Whether the whole interval lies beyond the bound; None where there is no interval."""
        return None if self.interval is None else self.interval[1] < LEAST


def judge(pairs: Sequence[Pair], less_is_better: bool) -> Verdict:
    ratios = [pair.ratio(less_is_better) for pair in pairs]
    return Verdict(statistics.median(ratios), median_interval(ratios))


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Where the median lies with 90%, or None where so few values cannot say."""
    count, found = len(values), sorted(values)
    if coverage(count, 1) < CONFIDENCE:
        return None
    rank = max(k for k in range(1, count // 2 + 1) if coverage(count, k) >= CONFIDENCE)
    share = _share_of_next(count, rank)
    low = found[rank - 1] + share * (found[rank] - found[rank - 1])
    high = found[-rank] - share * (found[-rank] - found[-rank - 1])
    return low, high


def coverage(count: int, rank: int) -> float:
    """The chance that the median lies between the lowest and the highest but `rank - 1` of `count` values."""
    return 1 - 2 * sum(math.comb(count, i) for i in range(rank)) / 2.0**count


def _share_of_next(count: int, rank: int) -> float:
    """How far from this rank towards the next the ends lie: as (n - k) I : k (1 - I), with I the share of coverage."""
    outer, inner = coverage(count, rank), coverage(count, rank + 1)
    part = (outer - CONFIDENCE) / (outer - inner)
    return (count - rank) * part / (rank + (count - 2 * rank) * part)
