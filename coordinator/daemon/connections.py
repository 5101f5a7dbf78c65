"""Which connections are open, whose they are, and which ends for another's sake. Reads and writes none."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Collection
from typing import Generic, Protocol, TypeVar

PER_NAME = 32  # of one machine: control, push, pull, and one for each layer of rounds
OWN_FILES = 64  # descriptors that are no connection's: the database, logs, pipes to helpers, files being read
DESCRIPTORS = 1 << 16  # wanted; with more, programs that close all they might have would take long to start


def raise_limit() -> int:
    """How many files this process may have open, which is as many as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError):  # a system may have less than it says
        return soft
    return wanted


class Heard(Protocol):
    @property
    def heard(self) -> float | None:
        """When its last message came; None before the first."""


_T = TypeVar("_T", bound=Heard)


class Connections(Generic[_T]):
    """One per daemon. What `open` and `name` return has lost its place and is to be ended."""

    def __init__(self, descriptors: int) -> None:
        self.limit = max(descriptors - OWN_FILES, descriptors // 2, 1)
        self._open: dict[_T, tuple[str, str]] = {}  # in the order they came: whose, and of which kind

    def __len__(self) -> int:
        return len(self._open)

    def open(self, one: _T) -> list[_T]:
        """A connection of nobody that is known yet."""
        gone = [self._least(list(self._open))] if len(self._open) >= self.limit else []
        self._open[one] = ("", "")
        return self._without(gone)

    def name(self, one: _T, name: str, kind: str = "") -> list[_T]:
        """It turned out to be `name`'s, whose older one of the same kind ends; "" for a kind that has no one place."""
        if self._open.get(one) in {None, (name, kind)}:
            return []
        gone = [other for other, known in self._open.items() if kind and known == (name, kind)]
        self._open[one] = (name, kind)
        kept = [other for other, (whose, _) in self._open.items() if whose == name and other not in {*gone, one}]
        if len(kept) >= PER_NAME:
            gone.append(self._least(kept))
        return self._without(gone)

    def close(self, one: _T) -> None:
        self._open.pop(one, None)

    def _without(self, gone: list[_T]) -> list[_T]:
        for one in gone:
            self.close(one)
        return gone

    def _least(self, among: Collection[_T]) -> _T:
        """The oldest that never said anything; else, of whoever has most, the one that was silent longest."""
        if (silent := next((one for one in among if one.heard is None), None)) is not None:
            return silent
        count = Counter(self._open[one][0] for one in among)
        greediest = max(count, key=lambda name: count[name])
        return min((one for one in among if self._open[one][0] == greediest), key=lambda one: one.heard or 0.0)
