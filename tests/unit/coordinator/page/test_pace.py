"""What looking may cost the daemon, and what a browser is sent."""

from __future__ import annotations

import random

import pytest

from muster.coordinator.api.status import AgentStatus
from muster.coordinator.page.blocks import Block, changes
from muster.coordinator.page.history import SAMPLE_SECONDS, SAMPLES, History
from muster.coordinator.page.pace import BYTES_PER_SECOND, FIRST_BYTES, AskPace, SendPace
from muster.coordinator.page.pace import SAMPLES as KEPT


def test_asking_takes_half_a_hundredth_of_the_daemons_time() -> None:
    pace, now, asked = AskPace(), 0.0, 0.0
    for _ in range(1000):
        now = max(now, pace.not_before)
        now, asked = now + 0.05, asked + 0.05
        pace.answered("Status", 0.05, now)
    assert asked / now < 0.00505


def test_who_comes_and_goes_costs_no_more_than_a_hundredth_while_there() -> None:
    pace, asked, looked = AskPace(), 0.0, 0.0
    for came in range(0, 4000, 40):
        now = float(came)
        while (now := max(now, pace.not_before)) < came + 20:
            now, asked = now + 0.03, asked + 0.03
            pace.answered("Status", 0.03, now)
        looked += 20
    assert asked / looked < 0.008


@pytest.mark.parametrize("took", [0.03, 0.3])
def test_whoever_comes_first_sees_the_farm_at_once(took: float) -> None:
    pace = AskPace()
    for kind in ("Status", "Agents"):
        assert pace.not_before <= 100.0
        pace.answered(kind, took, 100.0)
    for _ in range(3):
        pace.answered("Status", took, 100.0)
    assert pace.not_before > 100.0, "and then what that took is waited for"


def test_a_daemon_that_is_sometimes_slow_is_asked_for_no_more() -> None:
    pace, now, asked, chance = AskPace(), 0.0, 0.0, random.Random(3)
    for _ in range(2000):
        took = chance.choice((0.01, 0.02, 0.03))
        now = max(now, pace.not_before) + took
        asked += took
        pace.answered("Status", took, now)
    assert asked / now < 0.00525


def test_one_answer_that_had_to_wait_holds_up_nothing_for_long() -> None:
    pace = AskPace()
    pace.answered("Status", 30.0, 0.0)
    assert pace.not_before <= 10
    for _ in range(KEPT):
        pace.answered("Status", 0.001, 100.0)
    pace.answered("Status", 30.0, 100.0)
    assert pace.not_before < 110


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
