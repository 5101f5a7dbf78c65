"""A trial whose checkpoint is large, on a machine behind ssh whose disk is a few times as large as that.

`make large` has a checkpoint of 500 MB and 2 GiB of disk; by default there is a tenth of both.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tests.integration.test_remote import Remote
from tests.integration.test_tune import best
from tests.support.farm import running, until
from tests.support.sshd import Sshd

STATE_MB = int(os.environ.get("MUSTER_LARGE_MB", "400")) // 8
DISK_MB = STATE_MB * 2147 // 500  # 2 GiB for 500 MB
SECONDS = 60 + STATE_MB
WORK = f"""
import numpy as np

def train(config, state, budget, trial):
    at, rows = state or (0, np.random.default_rng(trial).integers(0, 256, {STATE_MB} * 1_000_000, dtype="u1"))
    assert rows[-1] == np.random.default_rng(trial).integers(0, 256, {STATE_MB} * 1_000_000, dtype="u1")[-1]
    return {{"accuracy": config["lr"] * (at + 1)}}, (at + 1, rows)
"""


def spool_mb(folder: Path) -> float:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() and "ray" not in path.parts else 0
    return total / 1e6


def test_a_large_checkpoint_goes_to_and_fro_within_the_disk_that_is_lent(tmp_path: Path, server: Sshd) -> None:
    with running(tmp_path / "farm", lease=60.0) as farm:
        far = Remote(farm, server).join("--disk", f"{DISK_MB * 1_000_000}")
        until(far.is_at_work, "the far agent to work", SECONDS)
        params = {
            "space": {"lr": {"uniform": [0.0, 1.0]}},
            "metric": "accuracy",
            "trials": 2,
            "stop": {"iterations": 3},
            "segment": 0.001,
        }
        job = farm.submit({}, work=WORK, kind="tune", code="work.py:train", params=params)
        peak = 0.0

        def over() -> bool:
            nonlocal peak
            peak = max(peak, spool_mb(far.spool))
            return farm.status(job).state != "running"

        until(over, "the search to end", SECONDS)
        found = best(farm, job)
        print(f"{peak:.0f} of {DISK_MB} MB; {found['checkpoint_bytes'] / 1e6:.0f} MB of checkpoints")
        assert found["iterations"] == 6 and found["checkpoint_bytes"] >= 6 * STATE_MB * 1_000_000
        assert peak <= DISK_MB
