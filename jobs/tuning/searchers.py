"""Which configuration a trial has: from the space, the seed and its number alone. Knows no result."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from muster.jobs.common.errors import JobFileError
from muster.jobs.tuning.space import Config, Domain, Space

Searcher = Literal["random", "grid", "optuna"]  # the last asks what results say: see `search.Search.config`

TRIALS_MOST = 1 << 24
TRIALS = 16  # where neither a number nor a grid says how many


class Configurations:
    """All of a search, each found when it is asked for. Those that people gave are the first, and where they say."""

    def __init__(
        self,
        space: Space,
        searcher: Searcher = "random",
        seed: int = 0,
        trials: int | None = None,
        first: Sequence[Mapping[str, Any]] = (),
        enqueued: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        """A JobFileError for a space that the searcher cannot walk. `trials`: of every point of the grid, if any."""
        self._space, self._seed, self._first = space, seed, len(first)
        self.given = {**dict(enumerate(first)), **enqueued}  # trial → what people want of it
        self._grid = _walked(space) if searcher == "grid" else space.gridded if searcher == "random" else ()
        self.points = prod(domain.count or 1 for domain in self._grid)
        rounds = trials or (1 if self._grid else TRIALS)
        self.count = self.points * rounds + (len(first) if self._grid else max(0, len(first) - rounds))
        self.count = max(self.count, max(enqueued, default=-1) + 1)
        if self.count > TRIALS_MOST:
            hint = "give fewer values, or `choice` in place of `grid`"
            raise JobFileError(f"params.space: {self.count:,} trials, a search may have {TRIALS_MOST:,}", hint)
        for position, config in enumerate(first):
            space.check(config, f"params.first[{position}]")
        for number, config in enqueued.items():
            space.check(config, f"params.enqueued.{number}")

    def config(self, number: int) -> Config:
        """That of trial `number`. What a given configuration leaves open is drawn."""
        if number in self.given:
            return self.filled(number, self.given[number])
        return self._filled(number, {}, self._point((number - self._first) % self.points))

    def filled(self, number: int, given: Mapping[str, Any]) -> Config:
        """What trial `number` has of which somebody gave so much; the rest is drawn."""
        return self._filled(number, given, {})

    def _filled(self, number: int, given: Mapping[str, Any], chosen: Mapping[str, Any]) -> Config:
        config: Config = {}
        for domain in self._space.domains:
            if domain.name in given:
                config[domain.name] = given[domain.name]
            elif domain.holds(config):
                value = chosen[domain.name] if domain.name in chosen else domain.at(self._drawn(number, domain.name))
                config[domain.name] = value
        return config

    def _point(self, number: int) -> Config:
        """Of the grid; the last parameter changes fastest."""
        found: Config = {}
        for domain in reversed(self._grid):
            number, index = divmod(number, domain.count or 1)
            found[domain.name] = domain.nth(index)
        return found

    def _drawn(self, number: int, name: str) -> float:
        """In [0, 1). Every parameter has a stream of its own, so that a new one leaves the others as they were."""
        key = msgspec.msgpack.encode((self._seed, number, name))
        return (int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 11) * 2.0**-53


def _walked(space: Space) -> tuple[Domain, ...]:
    """What a grid goes through: everything that has a number of values."""
    for domain in space.domains:
        if domain.count is None:
            hint = f"give {domain.name} a `step` or a list, or take the searcher `random`"
            raise JobFileError(f"params.space.{domain.name}: a grid has no end of values of {domain.form}", hint)
    return space.domains
