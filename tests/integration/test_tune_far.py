"""A search on an agent by folder and one behind a real sshd: checkpoints of some megabytes go to and fro."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.integration.test_remote import Remote
from tests.integration.test_tune import SMALL, best, committed, rows_of
from tests.support.farm import running, until
from tests.support.sshd import Sshd

WORK = """
import time
import numpy as np

def train(config, state, budget):
    at, rows = state or (0, np.arange(5_000_000, dtype="u1"))
    assert len(rows) == 5_000_000 and rows[-1] == 4_999_999 % 256
    time.sleep(0.2)
    return {"accuracy": config["lr"] * (at + 1)}, (at + 1, rows)
"""


def test_checkpoints_go_from_machine_to_machine_whoever_leaves(tmp_path: Path, server: Sshd) -> None:
    with running(tmp_path) as farm:
        far = Remote(farm, server).join()
        until(far.is_at_work, "the far agent to work")
        params = {**SMALL, "trials": 12, "stop": {"iterations": 6}, "segment": 0.4}
        job = farm.submit({}, work=WORK, kind="tune", code="work.py:train", params=params)
        until(lambda: committed(farm, job) >= 3, "the far one to have begun")
        farm.join("near", "--cpus", "1")
        until(lambda: {one.name for one in farm.status(job).agents if one.shards} == {"far", "near"}, "both to work")
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
