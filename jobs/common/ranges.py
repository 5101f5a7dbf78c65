"""A set of shard numbers kept as sorted half-open ranges, so that a million untouched shards cost nothing."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

Pairs = list[tuple[int, int]]


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
        for number in numbers:
            made.add(number, number + 1)
        return made

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
        first = bisect_left(self._hi, lo)
        last = bisect_right(self._lo, hi)
        if first < last:
            lo, hi = min(lo, self._lo[first]), max(hi, self._hi[last - 1])
            self._count -= sum(self._hi[i] - self._lo[i] for i in range(first, last))
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
        self._count -= sum(self._hi[i] - self._lo[i] for i in range(first, last))
        kept = [(self._lo[first], lo), (hi, self._hi[last - 1])]
        kept = [(a, b) for a, b in kept if a < b]
        self._lo[first:last] = [a for a, _ in kept]
        self._hi[first:last] = [b for _, b in kept]
        self._count += sum(b - a for a, b in kept)

    def update(self, other: RangeSet) -> None:
        for lo, hi in other.pairs():
            self.add(lo, hi)

    def remove(self, other: RangeSet) -> None:
        """Take out whatever `other` has."""
        for lo, hi in other.pairs():
            self.discard(lo, hi)

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
        small, large = (self, other) if len(self._lo) <= len(other._lo) else (other, self)
        shared = RangeSet()
        for lo, hi in small.pairs():
            i = bisect_right(large._hi, lo)
            while i < len(large._lo) and large._lo[i] < hi:
                shared.add(max(lo, large._lo[i]), min(hi, large._hi[i]))
                i += 1
        return shared

    def __or__(self, other: RangeSet) -> RangeSet:
        both = self.copy()
        both.update(other)
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
        return list(zip(self._lo, self._hi, strict=True))

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
