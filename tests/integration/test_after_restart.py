"""What people read of a farm after its daemon began anew, a machine went, or a source changed: the same as before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.farm import FarmHarness, arrays, running, until

SHARDS = 6


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[FarmHarness]:
    with running(tmp_path, heartbeat=0.1, tick=0.05) as made:
        yield made


def test_counts_survive_a_restart_and_who_left_has_left(farm: FarmHarness) -> None:
    merged, half = farm.submit(arrays()), ""
    agent = farm.agent("lab3")
    agent.work(lambda: farm.status(merged).state == "complete")
    half = farm.submit(arrays(seed=1))
    agent.work(lambda: farm.status(half).totals.committed > 0)
    agent.leave()
    before = {job: farm.status(job) for job in (merged, half)}
    farm.restart()
    for job, was in before.items():
        now = farm.status(job)
        assert now.totals.committed == was.totals.committed
        assert now.totals.bytes_committed == was.totals.bytes_committed
        assert sum(one.shards for one in now.agents) >= now.totals.committed
    seen = farm.agent_status("lab3")
    assert seen is not None
    assert (seen.state, seen.done) == ("left", sum(status.totals.committed for status in before.values()))
    assert "is not here: it left in good order" in farm.coordinator("explain", "lab3").stdout


def test_shards_that_are_pushed_after_a_restart_count_as_finished(farm: FarmHarness) -> None:
    job = farm.submit(arrays())
    agent = farm.agent("lab3")
    agent.join()
    until(lambda: agent.sync(wait=0.05) and agent.compute(), "shards to be computed")
    agent.sync(hungry=False)
    agent.hang_up()
    farm.restart()
    agent.work(lambda: farm.status(job).state == "complete")
    [one] = farm.status(job).agents
    assert one.shards >= farm.status(job).totals.committed == SHARDS


def test_a_machine_that_goes_and_one_that_leaves_are_lines_of_the_log(tmp_path: Path) -> None:
    with running(tmp_path, lease=0.8, heartbeat=0.1, tick=0.05) as farm:
        dies, leaves = farm.agent("dies"), farm.agent("leaves")
        dies.join()
        leaves.join()
        leaves.leave()
        dies.die()
        until(lambda: "dies is gone: not heard of" in farm.root.log.read_text(), "a line about the one that went")
        assert "leaves left; 0 shards that it held wait again" in farm.root.log.read_text()


def test_a_live_machines_last_word_is_told_by_its_time(farm: FarmHarness) -> None:
    agent = farm.agent("lab3")
    agent.join()
    said = farm.coordinator("agents").stdout.splitlines()[1]
    assert said.startswith("lab3") and " s ago " in said


def test_a_job_whose_source_changed_is_to_be_submitted_again(farm: FarmHarness) -> None:
    job = farm.submit(arrays())
    agent = farm.agent("lab3")
    agent.join()
    until(lambda: agent.sync(wait=0.05) and agent.granted, "a grant")
    [layer] = farm.plan(job).layers
    np.save(farm.folder / "job-1" / "arrays" / "a.npy", np.zeros((48, 32), "f4"))
    agent.sync(hungry=False, changed=[layer.digest])
    farm.wait(job, "incomplete")
    again = f"`coordinator submit --from {job}` computes what changed as it is now"
    retried = farm.coordinator("retry", job)
    assert retried.returncode == 7 and "the source of a changed" in retried.stderr and again in retried.stderr
    explained = farm.coordinator("explain", job).stdout
    assert again in explained and "retry" not in explained
    watched = farm.coordinator("watch", job)
    assert watched.returncode == 11 and again in watched.stderr
    assert farm.status(job).state == "incomplete"


def test_a_retry_that_would_change_nothing_exits_with_seven(farm: FarmHarness) -> None:
    job = farm.submit(arrays())
    assert farm.coordinator("retry", job).returncode == 7
    farm.agent("lab3").work(lambda: farm.status(job).state == "complete")
    assert farm.coordinator("retry", job).returncode == 7
