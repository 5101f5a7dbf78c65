"""Empty shards, each durably committed, beside as many Ray tasks and Dask futures on the same cores.

    python -m benchmarks.dispatch [--shards 100000] [--runs 3] [--batch 1000] [--no-peer]

Ours: a `map` of a function that gives back its row, one row a shard, one agent by folder; from submit to merged result,
every shard under its own key in the store and on the disk. Ray: a task for each number, its result fetched; nothing is
kept. Dask: a future for each, if distributed is installed. `ratio`: our shards per second over Ray's tasks. `parts` has
the rates of both with `--batch` numbers to each task, as whoever needs no key, no retry and no time of each number
would write it; the shards of ours stay single.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.measure import CORES, add_no_peer, alternate, machine, report
from benchmarks.served import Counted, finish, served

BATCHED_TIMES = 10  # as many numbers for the batched peers: else they would be done before they are at speed
WORK = "def same(rows):\n    return rows\n"


class Ours(Counted):
    """Shards, a row each."""

    def _run(self, count: int) -> None:
        rows = np.arange(count, dtype="f4")[:, None]
        job = self.farm.submit({"rows": rows}, 1, WORK, kind="map", code="work.py:same", name="empty")
        finish(self.farm, job)
        self.farm.coordinator("rm", job)


def ray_rate(shards: int, batch: int) -> float:
    """Numbers per second in a Ray of their own, so many to a task."""
    os.environ["RAY_AUTH_MODE"] = "disabled"  # which would cost it something, and says so on the terminal
    import ray

    ray.init(num_cpus=CORES, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        task = ray.remote(_same)
        ray.get([task.remote(numbers) for numbers in batches(10 * CORES, 1)])
        began = time.monotonic()
        ray.get([task.remote(numbers) for numbers in batches(shards, batch)])
        return shards / (time.monotonic() - began)
    finally:
        ray.shutdown()


def dask_rate(shards: int, batch: int) -> float:
    """Numbers per second in a local cluster of as many processes as there are cores, so many to a future."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=CORES, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.gather(client.map(_same, batches(10 * CORES, 1), pure=False))
        began = time.monotonic()
        client.gather(client.map(_same, batches(shards, batch), pure=False))
        return shards / (time.monotonic() - began)


def batches(count: int, each: int) -> list[list[int]]:
    return [list(range(first, min(first + each, count))) for first in range(0, count, each)]


def _same(numbers: list[int]) -> list[int]:
    return [_itself(number) for number in numbers]


def _itself(number: int) -> int:
    return number


def _has_dask() -> bool:
    try:
        import distributed  # noqa: F401
    except ImportError:
        return False
    return True


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shards", type=int, default=100_000)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--batch", type=int, default=1000, help="numbers to a task of the batched peers")
    add_no_peer(options)
    given = options.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        measure(Path(folder), given.runs, given.shards, {} if given.no_peer else peers_of(given.shards, given.batch))


def peers_of(shards: int, batch: int) -> dict[str, Callable[[], float]]:
    peers: dict[str, Callable[[], float]] = {"ray": lambda: ray_rate(shards, 1)}
    peers["ray_batched"] = lambda: ray_rate(BATCHED_TIMES * shards, batch)
    if _has_dask():
        peers["dask"] = lambda: dask_rate(shards, 1)
        peers["dask_batched"] = lambda: dask_rate(BATCHED_TIMES * shards, batch)
    return peers


def measure(folder: Path, runs: int, shards: int, peers: dict[str, Callable[[], float]]) -> None:
    """Each side in turn; ours waits while the others run, and its idle agent costs them a hundredth of a core."""
    with served(folder / "farm") as farm:
        ours = Ours(farm, shards, warm=4 * CORES)
        rates = alternate(runs, ours=ours.rate, **peers)
    best = {name: max(found) for name, found in rates.items()}
    others = {name: rate for name, rate in best.items() if name not in {"ours", "ray"}}
    parts: dict[str, float] = {f"{name.replace('_', ', ')} numbers/s": round(rate) for name, rate in others.items()}
    parts |= {"over dask": round(best["ours"] / best["dask"], 2)} if "dask" in best else {}
    report(best["ours"], best.get("ray"), parts, min(ours.cpu))


if __name__ == "__main__":
    main()
