"""The whole farm, simulated: thousands of worlds with kills, cuts, full disks and people, and no promise broken."""

from __future__ import annotations

import os

from tests.simulator.__main__ import run
from tests.simulator.world import World

SCHEDULES = int(os.environ.get("MUSTER_SCHEDULES", "300"))


def test_no_schedule_of_faults_breaks_a_promise() -> None:
    figures = run(range(1, SCHEDULES + 1), os.cpu_count() or 1)
    assert not figures["broken"], "again: python -m tests.simulator --seed N --tell"
    assert figures["jobs"]["complete"] > SCHEDULES, "most of them come to their end"
    assert len(figures["faults"]) > 30, f"faults that nobody tried: {figures['faults']}"


def test_a_seed_tells_the_same_story_again() -> None:
    assert World(17).run() == World(17).run()
