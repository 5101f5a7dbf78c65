"""Two agents, one four times slower than the other: how near to the ideal makespan a job ends.

    python -m benchmarks.tail [--shards 400] [--seconds 0.1] [--slower 4] [--runs 3]

A shard waits for so long on the fast agent and so many times longer on the slow one, which needs no cores, so that only
the way shards are shared out shows. Each agent has two slots. From submit to merged result; `peer` is the rate of both
agents busy from the first moment to the last, `ratio` ours over it. `parts`: by how much earlier the one machine
computed its last shard than the other, in shards of the slow one, in the best run and in the worst.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.measure import alternate, machine, report
from benchmarks.served import finish, served
from tests.support.farm import FarmHarness, until

VARIABLE = "BENCH_SHARD_SECONDS"
WORK = f"""import os
import time

def wait(rows):
    time.sleep(float(os.environ["{VARIABLE}"]))
    return rows
"""
SLOTS = 2


class Ours:
    """A farm with the two agents."""

    def __init__(self, farm: FarmHarness, shards: int, seconds: float, slower: float) -> None:
        self.farm, self.shards, self.seconds, self.slower = farm, shards, seconds, slower
        self.gaps: list[float] = []
        for name, factor in (("fast", 1.0), ("slow", slower)):
            farm.env[VARIABLE] = str(seconds * factor)
            farm.join(name, "--cpus", str(SLOTS))
            until(lambda name=name: farm.agent_status(name), f"{name} to join", 60)  # type: ignore[misc]
        finish(farm, self._submit(8 * SLOTS))  # both pools are up once they have run some

    def _submit(self, shards: int) -> str:
        rows = np.zeros((shards, 1), "f4")
        return self.farm.submit({"rows": rows}, 1, WORK, kind="map", code="work.py:wait", name="tail")

    @property
    def ideal(self) -> float:
        """Shards per second of all slots, always busy."""
        return SLOTS / self.seconds + SLOTS / (self.seconds * self.slower)

    def rate(self) -> float:
        began = time.monotonic()
        job = self._submit(self.shards)
        finish(self.farm, job)
        seconds = time.monotonic() - began
        self.gaps.append(self._gap(job))
        self.farm.coordinator("rm", job)
        return self.shards / seconds

    def _gap(self, job: str) -> float:
        """Between the last shards of the two, in shards of the slow one."""
        table = np.load(self.farm.root.job(job).result / "rows" / "shards.npy")
        ended = table["started"] + table["seconds"]
        last = [ended[table["agent"] == name].max() for name in np.unique(table["agent"])]
        return float(max(last) - min(last)) / (self.seconds * self.slower)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shards", type=int, default=400)
    options.add_argument("--seconds", type=float, default=0.1, help="of a shard on the fast agent")
    options.add_argument("--slower", type=float, default=4.0)
    options.add_argument("--runs", type=int, default=3)
    given = options.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as made, served(Path(made) / "farm") as farm:
        ours = Ours(farm, given.shards, given.seconds, given.slower)
        rates = alternate(given.runs, ours=ours.rate)
    gaps = {"best": round(min(ours.gaps), 2), "worst": round(max(ours.gaps), 2)}
    report(max(rates["ours"]), ours.ideal, {"between the last shards": gaps})


if __name__ == "__main__":
    main()
