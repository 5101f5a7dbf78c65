"""Which bundles may come in: the room of the disk is given away once, and a shard's bundle comes from one machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.intake import Coming, Intake
from muster.coordinator.scheduler.layers import SPACE_MARGIN_BYTES
from muster.jobs.common.ranges import RangeSet
from tests.support.sched import World, seed

MIB = 1 << 20
LEASE = 60.0


def world(out_bytes: int = MIB) -> World:
    made = World()
    made.add(seed(count=100, out_bytes=out_bytes))
    made.enter("a")
    return made


def coming(numbers: tuple[int, int], nbytes: int, agent: str = "a", since: float = 0.0) -> Coming:
    return Coming(agent, "L", RangeSet([numbers]), nbytes, since)


def lack(intake: Intake, of: World, bundle: Coming, free: int) -> str:
    return intake.lack(of.state, of.state.open_layers["L"], bundle, free)


@given(st.lists(st.tuples(st.integers(0, 40 * MIB), st.booleans()), max_size=30), st.integers(0, 300 * MIB))
def test_what_was_accepted_never_adds_up_to_more_than_there_is(offers: list[tuple[int, bool]], free: int) -> None:
    intake, here, promised = Intake(), world(0), {}
    for token, (nbytes, ends) in enumerate(offers):
        bundle = coming((token, token + 1), nbytes)
        if not lack(intake, here, bundle, free):
            intake.accept(token, bundle)
            promised[token] = nbytes
        if ends and promised:
            over = next(iter(promised))
            intake.ended(over)
            del promised[over]
        assert intake.nbytes == sum(promised.values()) <= max(free - SPACE_MARGIN_BYTES, 0)


def test_the_refusal_names_what_is_kept_free_with_units() -> None:
    said = lack(Intake(), world(), coming((0, 1), MIB), 60 * MIB)
    assert said == ("a bundle of layer L needs 1 MiB in the root, 0 B are left beside the 64 MiB that are kept free"), (
        said
    )


def test_a_bundle_larger_than_was_reckoned_takes_nothing_that_is_promised_to_others() -> None:
    here = world()
    here.add(seed("M", count=100, out_bytes=MIB), job="j.2")
    others = here.state.open_layers["M"].reserved
    assert others == 200 * MIB
    free = SPACE_MARGIN_BYTES + others + 3 * MIB
    assert lack(Intake(), here, coming((0, 1), 3 * MIB), free) == ""
    assert "larger than was reckoned" in lack(Intake(), here, coming((0, 1), 4 * MIB), free)
    assert lack(Intake(), here, coming((0, 4), 4 * MIB), free) == "", "what was promised to it is its own"


@pytest.mark.parametrize(
    ("agent", "since", "taken"), [("a", 1.0, False), ("a", LEASE, False), ("b", 1.0, False), ("b", LEASE, True)]
)
def test_a_shard_that_is_coming_comes_once_or_from_another_machine_when_the_first_is_slow(
    agent: str, since: float, taken: bool
) -> None:
    intake, state = Intake(), world().state
    intake.accept(1, coming((0, 5), MIB))
    again = coming((4, 6), MIB, agent, since)
    assert intake.sender(state, again) == ("" if taken else "a")
    assert intake.sender(state, coming((5, 6), MIB, agent, since)) == ""
    intake.ended(1)
    assert intake.sender(state, again) == ""


def test_nobody_waits_for_the_bundle_of_a_machine_that_is_silent_or_gone() -> None:
    for silent in (True, False):
        intake, here = Intake(), world()
        intake.accept(1, coming((0, 5), MIB))
        assert intake.sender(here.state, coming((0, 5), MIB, "b")) == "a"
        here.tick(int(here.state.timing.silence) + 2) if silent else here.handle(e.AgentDropped("a"))
        assert not intake.sender(here.state, coming((0, 5), MIB, "b"))


_BUNDLES = st.tuples(st.integers(0, 9), st.integers(1, 5), st.sampled_from("ab"), st.integers(0, 90))


@given(st.lists(st.tuples(_BUNDLES, st.integers(0, 3)), max_size=30))
def test_who_sends_a_shard_is_found_as_by_looking_through_all(
    steps: list[tuple[tuple[int, int, str, int], int]],
) -> None:
    intake, here = Intake(), world()
    here.enter("b")
    state = here.state
    sending: dict[int, Coming] = {}
    for token, ((first, count, agent, since), ends) in enumerate(steps):
        bundle = coming((first, first + count), 1, agent, float(since))
        senders = [
            one.agent
            for one in sending.values()
            if one.numbers & bundle.numbers and (one.agent == agent or bundle.since - one.since < LEASE)
        ]
        assert intake.sender(state, bundle) == next(iter(senders), "")
        intake.accept(token, bundle)  # though somebody may send it: of two copies the first to be whole is committed
        sending[token] = bundle
        for over in list(sending)[:ends]:
            intake.ended(over)
            del sending[over]
