"""An agent that leaves by itself: after so long without work, or when its time is over, and nothing is lost of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.farm import DEADLINE_SECONDS, FarmHarness, arrays, running, until

SLOW = """
import pathlib, time
def slow(rows, gate):
    while not pathlib.Path(gate).exists():
        time.sleep(0.05)
    return rows
"""


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[FarmHarness]:
    with running(tmp_path, heartbeat=0.2) as made:
        yield made


def said(farm: FarmHarness, name: str) -> str:
    return (farm.folder / f"agent-{name}.out").read_text()


def test_it_leaves_with_nothing_to_do_once_its_work_is_handed_in(farm: FarmHarness) -> None:
    job = farm.submit(arrays(rows=8))
    agent = farm.join("cloud", "--cpus", "1", "--idle-timeout", "2")
    assert agent.wait(DEADLINE_SECONDS) == 0
    assert "leaving (nothing to do for 2.0 s)" in said(farm, "cloud")
    assert farm.wait(job).totals.committed == 1
    left = farm.agent_status("cloud")
    assert left is not None and left.state == "left"


def test_when_its_time_is_over_it_finishes_what_runs_and_hands_back_the_rest(farm: FarmHarness, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job = farm.submit(arrays(rows=32), work=SLOW, kind="map", code="work.py:slow", params={"args": {"gate": str(gate)}})
    agent = farm.join("batch", "--cpus", "1", "--time-limit", "2s")
    until(lambda: "leaving (its time of 2.0 s is over)" in said(farm, "batch"), "it to say that its time is over")
    assert agent.poll() is None, "it waits for what runs"
    gate.touch()
    assert agent.wait(DEADLINE_SECONDS) == 0
    status = farm.status(job)
    assert 1 <= status.totals.committed < status.totals.shards == 4 and not status.failures
    assert status.totals.pending == status.totals.shards - status.totals.committed


def test_one_that_is_paused_by_its_user_does_not_leave(farm: FarmHarness) -> None:
    agent = farm.join("desk", "--cpus", "1", "--idle-timeout", "3")
    spool = str(farm.folder / "spools" / "desk")
    until(lambda: farm.is_live("desk"), "it to join")
    assert farm.agent_command("pause", "--spool", spool).returncode == 0
    job = farm.submit(arrays(rows=8))
    farm.join("other", "--cpus", "1", "--idle-timeout", "4")  # a clock: what it takes longer than the paused one
    assert farm.real["other"].wait(DEADLINE_SECONDS) == 0 and farm.wait(job)
    assert agent.poll() is None
    assert farm.agent_command("resume", "--spool", spool).returncode == 0
    assert agent.wait(DEADLINE_SECONDS) == 0


@pytest.mark.parametrize("wrong", ["soon", "0", "-1"])
def test_a_time_that_is_none_is_refused(farm: FarmHarness, wrong: str) -> None:
    ended = farm.agent_command("join", str(farm.root.path), "--idle-timeout", wrong)
    assert ended.returncode == 2 and "expected a duration" in ended.stderr
