"""Which configuration a trial has: from the space, the seed and its number alone. Knows no result."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
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
        self._grid = Grid(_walked(space) if searcher == "grid" else space.gridded if searcher == "random" else ())
        self.points = self._grid.points
        rounds = trials or (1 if self._grid.domains else TRIALS)
        self.count = self.points * rounds + (len(first) if self._grid.domains else max(0, len(first) - rounds))
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
        return self._filled(number, {}, self._grid.point((number - self._first) % self.points))

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

    def _drawn(self, number: int, name: str) -> float:
        """In [0, 1). Every parameter has a stream of its own, so that a new one leaves the others as they were."""
        key = msgspec.msgpack.encode((self._seed, number, name))
        return (int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 11) * 2.0**-53


class Grid:
    """Every combination of values once, found by its number: the last parameter changes fastest, and one whose `when`
    does not hold has no part in it. A `when` on what is drawn holds or not when that is known: here it does."""

    def __init__(self, domains: Sequence[Domain]) -> None:
        self.domains = tuple(domains)
        names = {domain.name for domain in domains}
        self._when = [[one for one in domain.when if one[0] in names] for domain in domains]
        self._asked = [[one for when in self._when[at:] for one in when] for at in range(len(domains) + 1)]
        self._known: dict[tuple[int, tuple[bool, ...]], list[int]] = {}
        self.points = self._below(0, {})[-1]

    def point(self, number: int) -> Config:
        found: Config = {}
        for at, domain in enumerate(self.domains):
            if not self._holds(at, found):
                continue
            ends = self._below(at, found)
            if len(ends) == 1:  # as many below each value
                index, number = divmod(number, ends[0] // _count(domain))
            else:
                index = bisect_right(ends, number)
                number -= ends[index - 1] if index else 0
            found[domain.name] = domain.nth(index)
        return found

    def _holds(self, at: int, config: Config) -> bool:
        return all(other in config and config[other] in values for other, values in self._when[at])

    def _below(self, at: int, config: Config) -> list[int]:
        """How many points there are up to each value of this parameter, with what was chosen before; where no `when`
        asks for it, up to the last one alone."""
        if at == len(self.domains):
            return [1]
        key = at, tuple(other in config and config[other] in values for other, values in self._asked[at])
        if key not in self._known:
            self._known[key] = self._counted(at, config)
        return self._known[key]

    def _counted(self, at: int, config: Config) -> list[int]:
        domain = self.domains[at]
        if not self._holds(at, config):
            return self._below(at + 1, config)[-1:]
        count = _count(domain)
        if all(other != domain.name for other, _ in self._asked[at + 1]):
            return [count * self._below(at + 1, config)[-1]]
        if count > TRIALS_MOST:  # it is refused whatever is below them
            return [count]
        values = (domain.nth(index) for index in range(count))
        return list(accumulate(self._below(at + 1, {**config, domain.name: value})[-1] for value in values))


def _count(domain: Domain) -> int:
    assert domain.count is not None, "checked"
    return domain.count


def _walked(space: Space) -> tuple[Domain, ...]:
    """What a grid goes through: everything that has a number of values."""
    for domain in space.domains:
        if domain.count is None:
            hint = f"give {domain.name} a `step` or a list, or take the searcher `random`"
            raise JobFileError(f"params.space.{domain.name}: a grid has no end of values of {domain.form}", hint)
    return space.domains
