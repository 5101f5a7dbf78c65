"""What a pool of workers costs: a call of a worker, its processor time, and the memory of one that is idle.

    python -m benchmarks.pool [--calls 1000] [--runs 3] [--no-peer]

Each pool in turn, as an agent has it, with two workers that do nothing: plain processes, Ray's socket for rounds, a Ray
cluster of one node (where a network namespace can be had), Ray by calls. `ours`: calls a second, one after the other,
through Ray by calls. The peer: those of an actor of a bare Ray, by `ray.get`. `parts`: of each pool a call's p50 and
p99 in microseconds, its processor time (of this process, which is the agent, and of all below it: a cluster's own
processes too), the seconds until both workers are up, and the memory (PSS) while nothing runs: of the pool with its
workers, without what a cluster has anyway, and of this process. That of a whole agent is in benchmarks.start.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.measure import CORES, add_no_peer, alternate, machine, memory_of, report, tree_seconds
from muster.agent.core.events import Needs
from tests.support import netns
from tests.support.pools import ROOT, Rig, cluster_for
from tests.support.standin import batch

BARE = """
import sys, time, ray
ray.init(num_cpus=int(sys.argv[1]), include_dashboard=False, log_to_driver=False)
class Actor:
    def call(self, number, raw): return raw
actor = ray.remote(Actor).remote()
ray.get([actor.call.remote(0, b"") for _ in range(100)])
for line in sys.stdin:
    count = int(line)
    begun = time.monotonic()
    for number in range(count): ray.get(actor.call.remote(number, bytes(500)))
    print(count / (time.monotonic() - begun), flush=True)
"""


class Tried:
    """A pool of two workers that is up, and what was measured of it."""

    def __init__(self, rig: Rig, in_rounds: bool = False) -> None:
        self.rig = rig
        self.batch = batch("nothing", rig.log.parent, in_rounds)
        self.latencies: list[float] = []
        self.cpu: list[float] = []
        self.tickets = 0
        begun = time.monotonic()
        rig.start()
        self.start = time.monotonic() - begun
        self.agent = memory_of([psutil.Process()])
        nodes = [] if rig.cluster is None else rig.cluster.nodes
        self.pool = memory_of([*rig.below(), *(worker for node in nodes for worker in node.workers())])
        self.calls(50)
        self.latencies.clear()

    def calls(self, count: int) -> float:
        """Calls a second, one after the other."""
        before, began = tree_seconds(os.getpid()), time.monotonic()
        for _ in range(count):
            begun = time.monotonic()
            self.tickets += 1
            self.rig.pool.submit(0, self.tickets, self.batch, Needs())
            self.rig.done()
            self.latencies.append(time.monotonic() - begun)
        seconds = time.monotonic() - began
        self.cpu.append((tree_seconds(os.getpid()) - before) / count)
        return count / seconds

    def parts(self) -> dict[str, float]:
        found = statistics.quantiles(self.latencies, n=100)
        return {
            "p50 µs": round(found[49] * 1e6),
            "p99 µs": round(found[98] * 1e6),
            "processor µs": round(min(self.cpu) * 1e6),
            "start s": round(self.start, 2),
            "idle MiB": round(self.pool / 2**20),
            "agent MiB": round(self.agent / 2**20),
        }


@contextmanager
def tried(kind: str, in_rounds: bool = False) -> Iterator[Tried]:
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as text, cluster_for(kind, Path(text)) as cluster:
        folder = Path(text) / "pool"
        folder.mkdir()
        rig = Rig(kind, folder, cluster=cluster)
        try:
            yield Tried(rig, in_rounds)
        finally:
            rig.pool.stop()


@contextmanager
def bare() -> Iterator[subprocess.Popen[str]]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", BARE, str(CORES)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=env, cwd="/"
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def bare_rate(process: subprocess.Popen[str], count: int) -> float:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{count}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--calls", type=int, default=1000)
    options.add_argument("--runs", type=int, default=3)
    add_no_peer(options)
    given = options.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)  # workers look for the stand-in there
    print(machine(), flush=True)
    parts = {}
    for name, kind, in_rounds in (
        ("processes", "processes", False),
        ("ray, rounds", "ray", True),
        ("cluster, calls", "cluster", False),
    ):
        if kind == "cluster" and (why := netns.obstacle()):
            print(f"no {name} here: {why}", flush=True)
            continue
        with tried(kind, in_rounds) as found:
            alternate(given.runs, **{name: lambda found=found: found.calls(given.calls)})
            parts[name] = found.parts()
    with tried("ray") as ours:
        if given.no_peer:
            rates = alternate(given.runs, ours=lambda: ours.calls(given.calls))
        else:
            with bare() as peer:
                rates = alternate(
                    given.runs, ours=lambda: ours.calls(given.calls), bare=lambda: bare_rate(peer, given.calls)
                )
        parts["ray, calls"] = ours.parts()
    best = {name: max(found) for name, found in rates.items()}
    report(best["ours"], best.get("bare"), parts)


if __name__ == "__main__":
    main()
