"""The whole farm, simulated: thousands of worlds with kills, cuts, full disks and people, and no promise broken."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulator.__main__ import run

SCHEDULES = int(os.environ.get("MUSTER_SCHEDULES", "300"))


def test_no_schedule_of_faults_breaks_a_promise() -> None:
    figures = run(range(1, SCHEDULES + 1), os.cpu_count() or 1)
    assert not figures["broken"], "again: python -m tests.simulator --seed N --tell"
    assert figures["jobs"]["complete"] > SCHEDULES, "most of them come to their end"
    assert len(figures["faults"]) > 30, f"faults that nobody tried: {figures['faults']}"


@pytest.mark.parametrize("seed", [17, 50])
def test_a_seed_tells_the_same_story_in_another_process(seed: int) -> None:
    """To the last event and action, whatever the hashes of texts are there."""
    one, other = (_told(seed, hash_seed) for hash_seed in ("1", "2"))
    assert one == other and one.count("\n") > 100


def _told(seed: int, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.simulator", "--seed", str(seed), "--tell"]
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True).stdout
