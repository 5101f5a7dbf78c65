"""The core's one check notices each contradiction that is planted, and its snapshot says what there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError

import pytest

from muster.agent.core.actions import Copy, Run
from muster.agent.core.events import LinkDown, PoolLost
from muster.agent.core.state import State
from muster.jobs.common.ranges import RangeSet
from tests.unit.agent.core.test_state_machine import A, World, grant, info, of


def at_work() -> World:
    """Shards 0 and 3 run or are finished, the others wait."""
    world = World()
    first, _ = of(Run, world.hear(info(), grants=[grant(0, 10)]))
    world.ended(first, seconds=20.0)
    return world


def hold_finished(state: State) -> None:
    state.holdings[A].grant((1, 2), RangeSet([(0, 1)]), {}, 0.0)


def repeat_ticket(state: State) -> None:
    first, second = state.slots.every
    first.flights.append(second.flights[0])


def wait_and_run(state: State) -> None:
    number = next(iter(state.holdings[A].placed))
    state.holdings[A].waiting.add(number, number + 1)


def lose_flight(state: State) -> None:
    state.slots.every[0].flights.clear()


def lose_input(state: State) -> None:
    state.holdings[A].inputs[next(iter(state.holdings[A].waiting))] = "gone"


def halve_input(state: State) -> None:
    state.inputs.whole["x"], state.inputs.halves["x"] = Copy("x", 0, b""), 0


def miscount_inputs(state: State) -> None:
    state.inputs.nbytes += 1


def keep_emptied(state: State) -> None:
    state.push.under_way, state.push.emptied = None, ["x"]


def forget_part(state: State) -> None:
    state.finished_parts.parts.clear()


def miscount_parts(state: State) -> None:
    state.finished_parts.nbytes += 1


def hold_twice(state: State) -> None:
    attempts = state.holdings[A].attempts
    attempts[1, 2] = attempts[1, 1].copy()


def know_input_of_none(state: State) -> None:
    state.inputs.whole["x"] = Copy("x", 0, b"")
    state.holdings[A].inputs[99] = "x"


def pause_leaving(state: State) -> None:
    state.draining, state.paused = "SIGTERM", "paused"


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (hold_finished, "both held and finished"),
        (repeat_ticket, "a ticket twice"),
        (wait_and_run, "both placed and waiting"),
        (lose_flight, "placed on no flight"),
        (lose_input, "an input that is not there"),
        (halve_input, "an input in two states"),
        (miscount_inputs, "miscounted"),
        (keep_emptied, "left on the disk"),
        (forget_part, "that no layer has"),
        (miscount_parts, "bytes of parts miscounted"),
        (hold_twice, "held twice"),
        (know_input_of_none, "an input of a number not held"),
        (pause_leaving, "finishes what runs"),
    ],
)
def test_the_check_notices(plant: Callable[[State], None], told: str) -> None:
    state = at_work().core.state
    state.check()
    plant(state)
    with pytest.raises(AssertionError, match=told):
        state.check()


def test_a_snapshot_says_what_there_is_and_does_not_change() -> None:
    world = at_work()
    before = world.core.snapshot()
    assert (before.up, before.linked, before.ready, before.busy, before.why_idle) == (True, True, True, (0, 1), "")
    assert (before.running, before.waiting, before.finished) == (2, 7, 1)
    world.tell(LinkDown("cut"), PoolLost("raylet died"))
    after = world.core.snapshot()
    assert (after.up, after.asked, after.linked, after.ready, after.why_idle) == (False, False, False, False, "cut")
    assert (before.up, before.busy) == (True, (0, 1))
    with pytest.raises(FrozenInstanceError):
        before.up = False  # type: ignore[misc]
