"""A job while one process of its farm is killed each minute, beside the same job in peace.

    python -m benchmarks.kills [--shards 4800] [--seconds 0.1] [--every 60] [--runs 7] [--seed 1]

Two agents with a slot each, whose shards wait for so long, which needs no cores. Each run kills a daemon, an agent and
a worker, and one more of the others by turns: Ray's processes, a runner, a `connect`. All of it is started again at
once, as a supervisor would. From submit to merged result, in turn, an hour in all; `ours` is the median of the rates
with kills, `peer` of those in peace.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.measure import alternate, machine, report
from benchmarks.served import ASK_SECONDS, TIMING, finish
from tests.campaign.jobs import CODE, NAP
from tests.campaign.strikes import Strikes

IN_EACH_RUN = ("daemon", "agent", "worker")
BY_TURNS = ("raylet", "connect", "gcs", "runner", "pool's host", "runtime env agent", "dashboard agent")


class Struck(Strikes):
    """A farm, and how fast a job of its is."""

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        super().__init__(folder, given.seed)
        self.farm.lease, self.farm.heartbeat, self.farm.tick = TIMING["lease"], TIMING["heartbeat"], TIMING["tick"]
        self.farm.env[NAP] = str(given.seconds)
        self.shards, self.every = given.shards, given.every
        self.turns = itertools.cycle(BY_TURNS)
        self.begin()
        finish(self.farm, self._submit(16))  # both pools are up once they have run some

    def _submit(self, shards: int) -> str:
        return self.farm.submit({"a": np.zeros((shards, 1), "f4")}, 1, CODE, kind="map", code="work.py:half")

    def rate(self, kills: bool) -> float:
        """In shards a second."""
        began = time.monotonic()
        job, due = self._submit(self.shards), began + self.every / 2
        kinds, kind = itertools.chain(IN_EACH_RUN, self.turns), ""
        while self.farm.status(job).state == "running":
            if kills and time.monotonic() >= due:
                kind = kind or next(kinds)
                self.look()
                if self.strike(kind):  # else it is not there just now
                    print(f"    killed: {kind}", flush=True)
                    due, kind = due + self.every, ""
                self.revive()
            time.sleep(ASK_SECONDS)
        seconds = time.monotonic() - began
        self.farm.wait(job)
        self.farm.coordinator("rm", job)
        return self.shards / seconds


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shards", type=int, default=4800)
    options.add_argument("--seconds", type=float, default=0.1, help="of a shard")
    options.add_argument("--every", type=float, default=60.0, help="seconds between kills")
    options.add_argument("--runs", type=int, default=7)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was started is ended, too
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as made:
        struck = Struck(Path(made) / "farm", given)
        try:
            rates = alternate(given.runs, kills=lambda: struck.rate(True), peace=lambda: struck.rate(False))
        finally:
            struck.close()
    report(median(rates["kills"]), median(rates["peace"]), {"killed": dict(struck.done), "rates": rates})


if __name__ == "__main__":
    main()
