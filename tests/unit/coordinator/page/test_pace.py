"""What looking may cost the daemon, and what a browser is sent."""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate, pairwise

import pytest

from muster.coordinator.api.status import AgentStatus
from muster.coordinator.daemon.looking import LookBudget
from muster.coordinator.page.blocks import Block, changes
from muster.coordinator.page.history import SAMPLE_SECONDS, SAMPLES, History
from muster.coordinator.page.pace import BYTES_PER_SECOND, FIRST_BYTES, AskPace, SendPace

EVERY = {"counts": 1.0, "rates": 2.0, "agents": 2.0, "job": 5.0, "figures": 10.0}  # seconds, where that may be
LARGE = {"counts": 0.001, "rates": 0.008, "agents": 0.010, "job": 0.010, "figures": 0.012}  # of 1,000 machines
SMALL = dict.fromkeys(LARGE, 0.00015)


class World:
    """A daemon that uses `busy` cores for all else, and pages with these questions."""

    def __init__(self, busy: float, costs: dict[str, float], pages: int = 1) -> None:
        self.now, self.busy, self.costs = 100.0, busy, costs
        self.answers: list[tuple[float, str, float]] = []  # when, of what, what it took
        self._used = self.now * busy
        self._budget = LookBudget(0.0, 0.0)
        self.pages = [AskPace() for _ in range(pages)]

    def look(self, seconds: float, names: Sequence[str]) -> None:
        """All pages want these for so long, and then nothing."""
        for page in self.pages:
            page.keep(names)
            for name in names:
                page.forget(name)
        end = self.now + seconds
        while names:
            each = [(one.may_ask(name, EVERY[name]), one, name) for one in self.pages for name in names]
            (at, _), page, name = min(each, key=lambda found: found[0])
            if max(self.now, at) >= end:
                break
            self._pass(max(0.0, at - self.now))
            page.asked(name, self.now)
            took = self.costs[name]
            self._used += took
            self._pass(took)
            told = self._budget.answered(took, self.now, self._used)
            page.answered(name, took, told.rate, told.owed, self.now)
            self.answers.append((self.now, name, took))
        self._pass(end - self.now)

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        self._used += seconds * self.busy

    def taken(self, seconds: float) -> float:
        """By looking, of any so many seconds the most."""
        times = [at for at, *_ in self.answers]
        sums = [0.0, *accumulate(took for *_, took in self.answers)]
        return max(sums[bisect(times, at + seconds)] - sums[i] for i, at in enumerate(times))

    def apart(self, name: str) -> list[float]:
        """Seconds from one answer to the next."""
        return [later - before for before, later in pairwise([at for at, one, _ in self.answers if one == name])]


@pytest.mark.parametrize("pages", [1, 8])
@pytest.mark.parametrize("busy", [0.05, 0.15, 1.0])
@pytest.mark.parametrize("costs", [LARGE, SMALL])
def test_of_any_minute_looking_takes_a_hundredth_of_what_the_daemon_uses(
    busy: float, costs: dict[str, float], pages: int
) -> None:
    """Or of a tenth of a core, if that is more; and at most an answer beside."""
    world, chance = World(busy, costs, pages), random.Random(7)
    while world.now < 1000:
        world.look(chance.choice((3.0, 20.0, 100.0)), chance.sample(list(EVERY), chance.randint(1, 5)))
        world.look(chance.choice((0.1, 5.0, 200.0)), [])
    assert world.taken(60) <= 0.01 * 60 * max(busy, 0.1) + pages * max(costs.values())
    assert world.taken(world.now) <= 0.005 * world.now * max(busy, 0.1) + pages * max(costs.values())


def test_on_a_small_farm_all_is_asked_as_often_as_it_is_new() -> None:
    world = World(0.01, SMALL)
    world.look(600, list(EVERY))
    assert all(max(world.apart(name)) <= every + 0.01 for name, every in EVERY.items())


@pytest.mark.parametrize("pages", [1, 3])
def test_nothing_starves_on_a_large_farm_and_what_takes_little_is_asked_oftener(pages: int) -> None:
    world = World(0.15, LARGE, pages)
    world.look(1200, list(EVERY))
    assert all(max(world.apart(name)) <= 120 * pages for name in EVERY)
    if pages == 1:
        counts, rates = world.apart("counts"), world.apart("rates")
        assert 5 * sum(counts) / len(counts) < sum(rates) / len(rates)


@pytest.mark.parametrize("costs", [SMALL, LARGE])
def test_whoever_comes_sees_all_at_once(costs: dict[str, float]) -> None:
    world = World(0.15, costs)
    world.look(60, [])
    came = world.now
    world.look(1, list(EVERY))
    assert {name for at, name, _ in world.answers if at >= came} == set(EVERY)


def test_what_nobody_used_is_kept_for_some_seconds_alone() -> None:
    budget = LookBudget(0.0, 0.0)
    assert budget.answered(0.0, 10_000.0, 1000.0).owed >= -0.005 * 0.1 * 31
    assert budget.answered(1.0, 10_001.0, 1001.1).owed > 0.9


def test_a_daemon_that_is_gone_is_tried_no_sooner_than_it_was_said() -> None:
    pace = AskPace()
    pace.unanswered(50.0)
    assert pace.may_ask("counts", 1.0)[0] == 50.0


def test_a_browser_is_sent_no_more_than_its_share() -> None:
    pace, now, sent, chance = SendPace(), 0.0, 0, random.Random(1)
    while now < 600:
        now = max(now + 1, pace.not_before)
        nbytes = chance.randrange(200_000)
        pace.sent(nbytes, now)
        sent += nbytes
    assert sent <= 200_000 + BYTES_PER_SECOND * max(now, pace.not_before)
    first = SendPace()
    first.sent(10 * FIRST_BYTES, 0.0)
    assert first.not_before == FIRST_BYTES / BYTES_PER_SECOND


# --- what is new -----------------------------------------------------------------------------------------------


def test_only_cells_that_differ_travel() -> None:
    old = Block("a", '<td id="a.0"></td><td id="a.1"></td>', ["1", "2"])
    new = old._replace(cells=["1", "3"])
    assert changes({}, [old]) == {"order": ["a"], "whole": {"a": [old.skeleton, ["1", "2"]]}}
    assert changes({"a": old}, [new]) == {"cells": {"a.1": "3"}}
    assert changes({"a": new}, [new]) == {}


def test_another_row_brings_its_block_and_another_block_brings_all() -> None:
    a, b = Block("a", "x", []), Block("b", "y", [])
    assert changes({"a": a, "b": b}, [a._replace(skeleton="z"), b]) == {"whole": {"a": ["z", []]}}
    found = changes({"a": a}, [b, a])
    assert found["order"] == ["b", "a"] and set(found["whole"]) == {"a", "b"}


# --- small lines -----------------------------------------------------------------------------------------------


def machine(processor: float | None) -> AgentStatus:
    return AgentStatus("one", "one", "live", 0.0, 4, 0, 0, 0, processor=processor)


def test_a_line_has_a_gap_where_nobody_looked() -> None:
    history = History()
    for slot in (0, 1, 4):
        history = history.added([machine(float(slot))], 1e9 + slot * SAMPLE_SECONDS)
        history = history.added([machine(99.0)], 1e9 + slot * SAMPLE_SECONDS + 1)
    assert history.line("one", "processor")[-5:] == [0.0, 1.0, None, None, 4.0]
    assert history.line("two", "processor") == [None] * SAMPLES
    assert History().line("one", "processor") == [None] * SAMPLES


def test_a_line_keeps_a_fixed_number_and_forgets_who_left() -> None:
    history = History()
    for slot in range(3 * SAMPLES):
        history = history.added([machine(float(slot))], slot * SAMPLE_SECONDS)
    assert history.line("one", "processor") == [float(one) for one in range(2 * SAMPLES, 3 * SAMPLES)]
    assert not history.added([], 4 * SAMPLES * SAMPLE_SECONDS).samples
