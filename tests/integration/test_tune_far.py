"""A search on agents behind a real sshd, and one by folder: checkpoints of some megabytes go to and fro."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.integration.test_remote import Remote
from tests.integration.test_tune import SMALL, best, committed, rows_of
from tests.support.farm import FarmHarness, running, until
from tests.support.sshd import Sshd

WORK = """
import time
import numpy as np

def train(config, state, budget, trial):
    at, rows, _ = state or (0, np.arange(5_000_000, dtype="u1"), trial)
    assert len(rows) == 5_000_000 and rows[-1] == 4_999_999 % 256
    time.sleep(0.2)
    return {"accuracy": config["lr"] * (at + 1)}, (at + 1, rows, trial)
"""


STATE_BYTES = 5_000_000


def moved(farm: FarmHarness) -> tuple[int, int]:
    """What the far machine has fetched, and what it had itself."""
    [agent] = [one for one in farm.agents_now() if one.name == "far"]
    return agent.bytes_pulled, agent.bytes_spared


def test_a_machine_behind_a_link_does_not_fetch_again_what_it_made(tmp_path: Path, server: Sshd) -> None:
    with running(tmp_path) as farm:
        far = Remote(farm, server).join()
        until(far.is_at_work, "the far agent to work")
        params = {**SMALL, "trials": 4, "stop": {"iterations": 5}, "segment": 0.001}
        job = farm.submit({}, work=WORK, kind="tune", code="work.py:train", params=params)
        found = best(farm, job)
        assert found["checkpoint_bytes"] > 4 * 5 * STATE_BYTES and found["moved_bytes"] == 0

        until(lambda: moved(farm)[1] >= 4 * 4 * STATE_BYTES, "the agent to tell what it was spared")
        pulled, spared = moved(farm)
        assert pulled < STATE_BYTES and spared < 4 * 5 * STATE_BYTES
        assert "what it made itself spared its link" in farm.coordinator("agents").stdout


def test_a_machine_that_fetches_what_others_made_does_not_fetch_what_it_made(tmp_path: Path, server: Sshd) -> None:
    with running(tmp_path) as farm:
        far = Remote(farm, server).join()
        farm.join("near", "--cpus", "1")
        until(far.is_at_work, "the far agent to work")
        until(lambda: farm.is_live("near"), "the near agent to work")
        params = {**SMALL, "trials": 9, "stop": {"iterations": 9}, "segment": 0.001, "scheduler": "halving"}
        job = farm.submit({}, work=WORK, kind="tune", code="work.py:train", params=params)
        found = best(farm, job)
        assert {one.name for one in farm.status(job).agents if one.shards} == {"far", "near"}
        until(lambda: farm.agents_now() and moved(farm)[1] >= 2 * STATE_BYTES, "the agent to tell what it was spared")
        pulled, _ = moved(farm)
        assert pulled <= found["moved_bytes"] + 2 * STATE_BYTES  # in the tail it may copy what others have open


def test_checkpoints_go_from_machine_to_machine_whoever_leaves(tmp_path: Path, server: Sshd) -> None:
    with running(tmp_path) as farm:
        far = Remote(farm, server).join()
        until(far.is_at_work, "the far agent to work")
        params = {**SMALL, "trials": 12, "stop": {"iterations": 6}, "segment": 0.4}
        job = farm.submit({}, work=WORK, kind="tune", code="work.py:train", params=params)
        until(lambda: committed(farm, job) >= 3, "the far one to have begun")
        Remote(farm, server, "late").join()
        until(lambda: {one.name for one in farm.status(job).agents if one.shards} == {"far", "late"}, "both to work")
        until(lambda: committed(farm, job) >= 20, "trials to go on")
        os.kill(far.process.pid, signal.SIGKILL)
        farm.wait(job, seconds=120)
        found = best(farm, job)
        assert found["iterations"] == sum(int(row["iterations"]) for row in rows_of(farm, job))
        assert found["checkpoint_bytes"] > found["tried"] * 5_000_000
        trials = json.loads((farm.root.job(job).result / "made" / "trials.json").read_text())
        assert all(
            one["curve"] == [{"accuracy": one["config"]["lr"] * (at + 1)} for at in range(one["iterations"])]
            for one in trials
        )
