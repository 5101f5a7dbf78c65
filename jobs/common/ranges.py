"""A set of shard numbers kept as sorted half-open ranges, so that a million untouched shards cost nothing."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

Pairs = list[tuple[int, int]]
SWEPT = 64  # from so many ranges on, and a share of one in as many, both sets are gone through once


class RangeSet:
    """Integers ≥ 0. `_lo[i] < _hi[i] < _lo[i + 1]`: ranges are sorted, disjoint and never touch."""

    __slots__ = ("_count", "_hi", "_lo")

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._lo: list[int] = []
        self._hi: list[int] = []
        self._count = 0
        for lo, hi in pairs:
            self.add(lo, hi)

    @classmethod
    def of(cls, numbers: Iterable[int]) -> RangeSet:
        """From single numbers, cheapest when they come in order."""
        made = cls()
        los, his, last = made._lo, made._hi, -1
        for number in numbers:
            if number < last:
                made.add(number, number + 1)
                continue
            if number == last:
                his.pop()
            else:
                los.append(number)
            last = number + 1
            his.append(last)
            made._count += 1
        return made

    @classmethod
    def canonical(cls, pairs: Sequence[tuple[int, int]]) -> RangeSet:
        """From ranges that are known to be sorted and apart, as `pairs` gives them and decoded messages have them."""
        made = cls()
        made._set([lo for lo, _ in pairs], [hi for _, hi in pairs])
        return made

    @classmethod
    def union(cls, parts: Iterable[RangeSet]) -> RangeSet:
        """What is in any of them. They are apart where it has as many numbers as they have together."""
        made = cls()
        for part in parts:
            made._lo += part._lo
            made._hi += part._hi
        made._gather()
        return made

    @classmethod
    def alike(cls, parts: Iterable[RangeSet], others: Iterable[RangeSet]) -> bool:
        """Whether each number is in as many of the ones as of the others: then as many ranges of these begin, and as
        many of those end, at each bound as the other way round."""
        begins: list[int] = []
        ends: list[int] = []
        for part in parts:
            begins += part._lo
            ends += part._hi
        for other in others:
            begins += other._hi
            ends += other._lo
        return sorted(begins) == sorted(ends)

    def _set(self, lo: list[int], hi: list[int]) -> None:
        self._lo, self._hi, self._count = lo, hi, sum(hi) - sum(lo)

    @classmethod
    def checked(cls, pairs: Sequence[tuple[int, int]], limit: int) -> RangeSet:
        """From what a peer sent: sorted, disjoint, within [0, limit); a ValueError otherwise."""
        edge = 0
        for lo, hi in pairs:
            if not edge <= lo < hi <= limit:
                raise ValueError(f"range {lo}-{hi} is out of order or beyond {limit}")
            edge = hi
        return cls(pairs)

    def add(self, lo: int, hi: int) -> None:
        """Put [lo, hi) in."""
        if lo >= hi:
            return
        if not self._hi or lo > self._hi[-1]:
            self._lo.append(lo)
            self._hi.append(hi)
            self._count += hi - lo
            return
        first = bisect_left(self._hi, lo)
        last = bisect_right(self._lo, hi)
        if first < last:
            lo, hi = min(lo, self._lo[first]), max(hi, self._hi[last - 1])
            self._count -= sum(self._hi[first:last]) - sum(self._lo[first:last])
        self._lo[first:last] = [lo]
        self._hi[first:last] = [hi]
        self._count += hi - lo

    def discard(self, lo: int, hi: int) -> None:
        """Take [lo, hi) out, as far as it is in."""
        if lo >= hi:
            return
        first = bisect_right(self._hi, lo)
        last = bisect_left(self._lo, hi)
        if first >= last:
            return
        los: list[int] = []
        his: list[int] = []
        if self._lo[first] < lo:
            los.append(self._lo[first])
            his.append(lo)
        if hi < self._hi[last - 1]:
            los.append(hi)
            his.append(self._hi[last - 1])
        self._count -= sum(self._hi[first:last]) - sum(self._lo[first:last]) - sum(his) + sum(los)
        self._lo[first:last], self._hi[first:last] = los, his

    def update(self, other: RangeSet) -> None:
        if self._swept_with(other):
            self._lo, self._hi = self._lo + other._lo, self._hi + other._hi
            self._gather()
            return
        for lo, hi in other.pairs():
            self.add(lo, hi)

    def remove(self, other: RangeSet) -> None:
        """Take out whatever `other` has."""
        if not self._lo or not other._lo:
            return
        if len(other._lo) > len(self._lo):
            other = self & other
        if self._swept_with(other):
            self._cut_out(other)
            return
        for lo, hi in other.pairs():
            self.discard(lo, hi)

    def _swept_with(self, other: RangeSet) -> bool:
        """Whether going through both is cheaper than moving what lies behind each range of `other`."""
        return len(other._lo) > SWEPT and len(other._lo) * SWEPT > len(self._lo)

    def _gather(self) -> None:
        """Out of ranges in any order, which may overlap: one ends where as many have ended as have begun."""
        lo, hi = sorted(self._lo), sorted(self._hi)
        if len(lo) <= 1:
            self._set(lo, hi)
            return
        gaps = [i for i in range(1, len(lo)) if hi[i - 1] < lo[i]]
        self._set(lo[:1] + [lo[i] for i in gaps], [hi[i - 1] for i in gaps] + hi[-1:])

    def _cut_out(self, other: RangeSet) -> None:
        left: Pairs = []
        cuts, i = [*other.pairs(), (self.top, self.top)], 0
        for lo, hi in self.pairs():
            while cuts[i][1] <= lo and i < len(other._lo):
                i += 1
            while cuts[i][0] < hi and lo < hi:
                left.append((lo, cuts[i][0]))
                lo = cuts[i][1]
                i += lo < hi
            left.append((lo, hi))
        left = [(lo, hi) for lo, hi in left if lo < hi]
        self._set([lo for lo, _ in left], [hi for _, hi in left])

    def take(self, count: int, below: int | None = None) -> RangeSet:
        """Take out and return the lowest `count` numbers, of those below a limit if there is one."""
        taken = RangeSet()
        while count > 0 and self._lo and (below is None or self._lo[0] < below):
            lo = self._lo[0]
            hi = min(self._hi[0], lo + count)
            hi = hi if below is None else min(hi, below)
            taken.add(lo, hi)
            self.discard(lo, hi)
            count -= hi - lo
        return taken

    def __and__(self, other: RangeSet) -> RangeSet:
        shared = RangeSet()
        small, large = (self, other) if len(self._lo) <= len(other._lo) else (other, self)
        if not small._lo:
            return shared
        los: list[int] = []
        his: list[int] = []
        for lo, hi in zip(small._lo, small._hi):  # noqa: B905 - being strict would double its cost
            first, last = bisect_right(large._hi, lo), bisect_left(large._lo, hi)
            if first < last:
                start = len(los)
                los += large._lo[first:last]
                his += large._hi[first:last]
                los[start], his[-1] = max(lo, los[start]), min(hi, his[-1])
        shared._set(los, his)
        return shared

    def __or__(self, other: RangeSet) -> RangeSet:
        small, large = (self, other) if len(self._lo) <= len(other._lo) else (other, self)
        both = large.copy()
        both.update(small)
        return both

    def __sub__(self, other: RangeSet) -> RangeSet:
        left = self.copy()
        left.remove(other)
        return left

    def copy(self) -> RangeSet:
        twin = RangeSet()
        twin._lo, twin._hi, twin._count = self._lo.copy(), self._hi.copy(), self._count
        return twin

    def pairs(self) -> Pairs:
        """As the wire and the store have it."""
        return list(zip(self._lo, self._hi))  # noqa: B905 - being strict would double its cost

    @property
    def bottom(self) -> int:
        """The lowest number, 0 when empty."""
        return self._lo[0] if self._lo else 0

    @property
    def top(self) -> int:
        """One above the highest number, 0 when empty."""
        return self._hi[-1] if self._hi else 0

    def __contains__(self, number: int) -> bool:
        i = bisect_right(self._lo, number) - 1
        return i >= 0 and number < self._hi[i]

    def __iter__(self) -> Iterator[int]:
        for lo, hi in self.pairs():
            yield from range(lo, hi)

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and self._lo == other._lo and self._hi == other._hi

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return ",".join(str(lo) if hi == lo + 1 else f"{lo}-{hi - 1}" for lo, hi in self.pairs())

    def __repr__(self) -> str:
        return f"RangeSet({self.pairs()})"
