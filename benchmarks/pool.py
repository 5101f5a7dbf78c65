"""What a pool of workers costs: a call of a worker, its processor time, and the memory of one that is idle.

    python -m benchmarks.pool [--calls 1000] [--runs 3] [--no-peer]

Each pool in turn, as an agent has it, with two workers that do nothing: Ray by calls, Ray's socket for rounds, plain
processes. `ours`: calls a second, one after the other, through Ray by calls. The peer: those of an actor of a bare Ray,
by `ray.get`. `parts`: of each pool a call's p50 and p99 in microseconds, its processor time (of the pool's processes
and of this one, which is the agent), the seconds until both workers are up, and the memory (PSS) of the pool while
nothing runs.
"""

from __future__ import annotations

import argparse
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil

from benchmarks.measure import CORES, add_no_peer, alternate, machine, report, tree_seconds
from muster.agent.core.events import BatchEnded, Needs, PoolEvent, SlotUp
from muster.agent.pool.interface import Workers
from muster.agent.pool.pool import Pool
from muster.agent.pool.processes import Processes
from muster.agent.pool.ray_local import LocalRay
from muster.jobs.contract.plan import Layer, MadeSource
from muster.jobs.workbench.batch import Batch
from tests.support.standin import batch

STAND = "tests.support.standin:Stand"
ROOT = Path(__file__).parents[1]
MADE = MadeSource(rounds="whole")
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

    def __init__(self, folder: Path, workers: Workers, in_rounds: bool = False) -> None:
        self.events: queue.SimpleQueue[PoolEvent] = queue.SimpleQueue()
        self.pool = Pool(folder, 2, self.events.put, workers)
        self.batch = _in_rounds(batch("nothing", folder)) if in_rounds else batch("nothing", folder)
        self.latencies: list[float] = []
        self.cpu: list[float] = []
        self.tickets = 0
        begun = time.monotonic()
        self.pool.start()
        for _ in range(2):
            event = self.events.get(timeout=120)
            assert isinstance(event, SlotUp), event
        self.start = time.monotonic() - begun
        self.pss = _pss()
        self.calls(50)
        self.latencies.clear()

    def calls(self, count: int) -> float:
        """Calls a second, one after the other."""
        before, began = tree_seconds(os.getpid()), time.monotonic()
        for _ in range(count):
            begun = time.monotonic()
            self.tickets += 1
            self.pool.submit(0, self.tickets, self.batch, Needs())
            event = self.events.get(timeout=60)
            assert isinstance(event, BatchEnded), event
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
            "idle MiB": round(self.pss / 2**20),
        }


def _in_rounds(one: Batch) -> Batch:
    layer: Layer = msgspec.structs.replace(one.layer, source=MADE)
    return msgspec.structs.replace(one, layer=layer)


def _pss() -> int:
    """Of all processes below this one: memory that they share counts once."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total


@contextmanager
def tried(workers: Workers, in_rounds: bool = False) -> Iterator[Tried]:
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        found = Tried(Path(folder), workers, in_rounds)
        try:
            yield found
        finally:
            found.pool.stop()


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
    for name, workers, in_rounds in (
        ("processes", Processes(bench=STAND), False),
        ("ray, rounds", LocalRay(2, bench=STAND), True),
    ):
        with tried(workers, in_rounds) as found:
            alternate(given.runs, **{name: lambda found=found: found.calls(given.calls)})
            parts[name] = found.parts()
    with tried(LocalRay(2, bench=STAND)) as ours:
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
