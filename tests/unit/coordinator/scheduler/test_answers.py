"""Machines of one fingerprint whose answers to a known problem differ in their bits: who takes part, what is said."""

from __future__ import annotations

from typing import Any

from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler.answers import AGENTS_KEPT, PROBLEMS_KEPT, counted, packed, unpacked
from muster.coordinator.scheduler.entities import Problem
from tests.support.sched import World, every, only, seed

ASKED, ELSE = "0" * 32, "1" * 32  # problems
BITS, ODD = "a" * 32, "b" * 32
PRINT = "numpy 2.4.6 AVX2"
PROBLEM = Problem("cluster", 1, PRINT, ASKED)


def enter(world: World, name: str, bits: str, problem: str = ASKED, **more: Any) -> list[c.Action]:
    """It joins with that answer, and asks for work."""
    said = world.join(name, **{"fingerprint": PRINT, "answers": {"cluster": (problem, bits)}, **more})
    return [*said, *world.sync(name)]


def why_not(world: World, name: str, job: str = "j.1") -> str:
    return str(world.state.obstacle(world.state.agents[name], world.state.jobs[job]) or "")


def farm(*said: tuple[str, str], **more: Any) -> World:
    """A job, and agents that came with these answers, one after another."""
    world = World(**more)
    world.add()
    for name, bits in said:
        enter(world, name, bits)
    return world


def test_machines_that_answer_alike_all_take_part() -> None:
    world = farm(("one", BITS), ("two", BITS))
    assert world.grants.keys() == {"one", "two"} and not every(c.SendDiffers, world.said)
    assert world.state.answers == {PROBLEM: {"one": BITS, "two": BITS}}


def test_whoever_differs_from_the_first_gets_nothing_and_hears_of_whom_and_in_what() -> None:
    world = farm(("one", BITS))
    said = only(c.SendDiffers, enter(world, "two", ODD))
    why = why_not(world, "two")
    assert world.grants.keys() == {"one"} and said == c.SendDiffers(world.sessions["two"], {"cluster": why})
    assert "with other bits (bbbbbbbbbbbb) than one (aaaaaaaaaaaa), whose kernels have the same" in why
    assert "`coordinator verify JOB --rerun 100 --on two`" in why


def test_other_kinds_are_not_touched() -> None:
    world = farm(("one", BITS))
    world.add(seed("M"), job="m.1", kind="map")
    enter(world, "two", ODD)
    world.state.agents["two"].hello.kernels["map"] = 1
    assert why_not(world, "two") and not why_not(world, "two", "m.1")


def test_only_what_should_be_alike_is_compared() -> None:
    world = farm(("one", BITS))
    enter(world, "print", ODD, fingerprint="numpy 2.4.5 AVX2")
    enter(world, "problem", ODD, problem=ELSE)
    enter(world, "kernel", ODD, kernel=2)
    world.join("older", fingerprint=PRINT)
    world.sync("older")
    assert world.grants.keys() == {"one", "print", "problem", "older"} and not every(c.SendDiffers, world.said)
    assert "version 2" in why_not(world, "kernel")


def test_a_job_that_is_to_find_out_runs_on_the_machine_it_names() -> None:
    world = farm(("one", BITS), ("two", ODD))
    world.add(seed("M"), job="check.1", machine="two")
    world.sync("two")
    assert world.last("two").job == "check.1" and why_not(world, "two", "check.1") == ""


def test_the_third_decides_and_what_the_odd_one_out_has_is_handed_back() -> None:
    world = farm(("bad", ODD), ("one", BITS))
    held = world.last("bad")
    assert world.grants.keys() == {"bad"}
    said = enter(world, "two", BITS)
    told = {world.state.by_session[one.session].name: one.kinds for one in every(c.SendDiffers, said)}
    assert told["one"] == {} and "than one (aaaaaaaaaaaa)" in told["bad"]["cluster"] and "two" not in told
    assert only(c.SendDrop, said).numbers == held.numbers and world.open_of("bad") == 0
    assert world.open_of("one") and world.open_of("two") and why_not(world, "bad")


def test_a_machine_that_was_mended_takes_part_and_so_do_those_that_were_right() -> None:
    world = farm(("bad", ODD), ("one", BITS))
    enter(world, "bad", BITS, process="bad-2")
    world.sync("one")
    assert world.open_of("bad") and world.open_of("one")


def test_a_machine_that_differs_from_what_it_said_itself_is_believed_while_nobody_else_spoke() -> None:
    world = farm(("one", ODD))
    enter(world, "one", BITS, process="one-2")
    assert world.state.answers == {PROBLEM: {"one": BITS}} and world.open_of("one")


def test_it_is_told_again_with_each_hello() -> None:
    world = farm(("one", BITS), ("two", ODD))
    assert only(c.SendDiffers, enter(world, "two", ODD)).kinds.keys() == {"cluster"}
    assert not every(c.SendDiffers, enter(world, "one", BITS))


def test_what_was_said_before_a_restart_counts_before_it_is_said_again() -> None:
    before = farm(("one", BITS), ("two", ODD))
    assert only(c.StoreAnswers, before.join("three", fingerprint=PRINT, answers={"cluster": (ASKED, BITS)}))
    world = farm(("two", ODD), answers=unpacked(packed(before.state.answers)))
    assert not world.grants and "than one" in why_not(world, "two")
    assert unpacked(None) == {}


def test_nothing_is_stored_that_was_known() -> None:
    world = farm(("one", BITS))
    assert not every(c.StoreAnswers, enter(world, "one", BITS))
    assert only(c.StoreAnswers, enter(world, "two", BITS))


def test_who_says_much_is_kept_within_bounds() -> None:
    world = World()
    for number in range(PROBLEMS_KEPT + 5):
        world.join("much", fingerprint=PRINT, answers={"cluster": (f"{number:032x}", BITS)})
    assert (
        len(world.state.answers) == PROBLEMS_KEPT and Problem("cluster", 1, PRINT, "0" * 32) not in world.state.answers
    )
    for number in range(AGENTS_KEPT + 5):
        world.join(f"agent-{number}", fingerprint=PRINT, answers={"cluster": (ELSE, BITS)})
    assert len(world.state.answers[Problem("cluster", 1, PRINT, ELSE)]) == AGENTS_KEPT
    enter(world, "late", ODD, problem=ELSE)
    world.add()
    assert why_not(world, "late") and not why_not(world, f"agent-{AGENTS_KEPT + 4}")


def test_of_as_many_the_first_count() -> None:
    assert counted({"one": BITS, "two": ODD}) == ("one", BITS)
    assert counted({"one": BITS, "two": ODD, "three": ODD}) == ("two", ODD)
    assert counted({"one": BITS, "two": ODD, "three": ODD, "four": BITS}) == ("one", BITS)
