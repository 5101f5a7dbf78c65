"""Machines as `coordinator agents` shows them."""

from __future__ import annotations

from typing import Any

from muster.coordinator.api.status import AgentStatus
from muster.coordinator.display.agents import agents_table, overlent_lines


def machine(name: str, **said: Any) -> AgentStatus:
    values: dict[str, Any] = {"host": "box", "state": "live", "cpus": 2, "fingerprint": "", "version": "0", **said}
    values.update(dict.fromkeys(("running", "finished", "done", "bytes_in", "bytes_out"), 0))
    return AgentStatus(name=name, last_seen=100.0, **values)


def shown(*agents: AgentStatus) -> list[str]:
    return agents_table(agents, 100.0).splitlines()


def test_a_machine_of_which_nothing_was_heard_for_long_is_not_shown_as_live() -> None:
    _, quiet, well, *_ = shown(machine("one", silent=20.4), machine("two"))
    assert "silent for 20 s" in quiet and "live" not in quiet and "live" in well


def test_agents_that_lend_more_than_their_machine_has_are_named_whoever_they_are_of() -> None:
    there = {"machine": "m", "cores": 4}
    one, two, three = machine("one", **there), machine("two", **there), machine("three", cpus=1, **there)
    assert overlent_lines([one, two]) == []
    hint = "`agent set --name NAME cpus=N` there lends fewer"
    said = f"box: one (2), two (2), three (1) together lend 5 of its 4 cores; {hint}"
    assert shown(one, two, three)[-1] == said


def test_agents_of_other_machines_or_that_left_or_do_not_tell_are_not_added_up() -> None:
    one = machine("one", machine="m", cores=2)
    others = [machine("far", machine="n", cores=2), machine("old"), machine("left", machine="m", cores=2, state="left")]
    assert overlent_lines([one, *others]) == []
    assert overlent_lines([machine("alone", cpus=9, machine="m", cores=2)]) == [], "that is as its user wants it"
