"""From `agent join` to the first committed shard, beside a bare `ray.init` and one call of an actor.

    python -m benchmarks.start [--runs 5] [--pool processes] [--no-peer]

Ours: a job waits at a farm that is served; the clock runs from the start of the command `agent join`, by folder, to the
moment that its first shard is in the coordinator's store: the machine's test of the kinds it has is in it. The peer: a
Python that imports ray, starts one as it comes and calls an actor once. Both are counted in starts a minute. `parts`
has the memory (PSS) of the agent, and of its pool, once it has nothing to do.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from benchmarks.measure import CORES, add_no_peer, alternate, machine, memory_of, report
from benchmarks.served import TIMING
from tests.support.farm import FarmHarness, running, until

LOOK_SECONDS = 0.002
WORKER = "muster.agent.pool.worker"  # a plain process
BARE = """
import ray, sys
ray.init(num_cpus=int(sys.argv[1]), log_to_driver=False)
class Actor:
    def call(self): return 1
assert ray.get(ray.remote(Actor).remote().call.remote()) == 1
print("done", flush=True)
"""


def ours(farm: FarmHarness, name: str, options: list[str], memory: dict[str, int]) -> float:
    """Starts a minute: one agent, to its first shard, and gone again. `memory` is told what it takes idle."""
    rows = np.random.default_rng(0).standard_normal((64, 64), dtype="f4")
    job = farm.submit({"rows": rows}, shard_rows=1)
    began = time.monotonic()
    agent = farm.join(name, "--cpus", str(CORES), *options)
    while not farm.status(job).totals.committed:
        assert agent.poll() is None, farm.said()
        time.sleep(LOOK_SECONDS)
    seconds = time.monotonic() - began
    farm.wait(job, seconds=120)
    if not options:  # then its first shards may be done before Ray is there
        until(lambda: farm.processes("ray::RayWorker") and not farm.processes(WORKER), "Ray's workers alone", 120)
    agent_itself = psutil.Process(agent.pid)
    memory["agent MiB"] = memory_of([agent_itself]) >> 20
    memory["pool MiB"] = memory_of(agent_itself.children(recursive=True)) >> 20
    agent.terminate()
    agent.wait()
    farm.coordinator("rm", job)
    return 60 / seconds


def bare() -> float:
    """The same of a Ray as it comes."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    began = time.monotonic()
    command = [sys.executable, "-c", BARE, str(CORES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env) as process:
        assert process.stdout is not None
        assert any(line == b"done\n" for line in process.stdout)
        seconds = time.monotonic() - began
    return 60 / seconds


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=5)
    options.add_argument(
        "--pool", choices=("ray", "processes"), default="ray", help="of the agent; default as it comes"
    )
    add_no_peer(options)
    given = options.parse_args()
    print(machine(), flush=True)
    chosen = [] if given.pool == "ray" else ["--pool", given.pool]
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder, running(Path(folder), **TIMING) as farm:
        names = iter(f"start-{number}" for number in range(given.runs))
        memory: dict[str, int] = {}
        sides = {"ours": lambda: ours(farm, next(names), chosen, memory)} | ({} if given.no_peer else {"bare": bare})
        rates = alternate(given.runs, **sides)
    best = {name: max(found) for name, found in rates.items()}
    parts = {f"{name}, seconds": round(60 / rate, 2) for name, rate in best.items()} | memory
    report(best["ours"], best.get("bare"), parts)


if __name__ == "__main__":
    main()
