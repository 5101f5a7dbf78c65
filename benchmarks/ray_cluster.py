"""Shards of 20 ms with 4 MiB of input on a Ray cluster of four nodes, beside plain Ray tasks on the same cluster.

    python -m benchmarks.ray_cluster [--shared] [--shards 288] [--runs 6] [--group 1,4] [--no-peer]

A head without slots and four nodes with a slot each, by `ray start` in a network namespace on this machine. Ours: a job
of kind `cluster`, one agent with `--ray`, from submit to merged result, each shard durably committed. The peer: a
driver in Python that reads the same windows, gives them to tasks that run the same kernel, and fetches what they
return; so many shards to a task as `--group` says, each of them in turn, and the best counts. The nodes do not see the
source, so that bytes go as arguments; with `--shared` they do, and ours reads it there. `ratio`: the median over runs
of our shards per second over the peer's. `parts` has what the kernel alone takes for a shard here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fed import clustering, kernel, open_kernel
from benchmarks.measure import add_no_peer, alternate, give_up, machine, report
from benchmarks.served import finish, served
from muster.coordinator.commands.submit import submit
from muster.jobs.contract.plan import Window, decode_plan
from muster.jobs.sources.read_rows import read_window
from tests.support import netns, ray_cluster
from tests.support.farm import FarmHarness
from tests.support.ray_cluster import RayCluster

NODES = 4
VALUES = 2048
ROWS = 512  # of a shard: 4 MiB
SHARD_SECONDS = 0.020
AHEAD = 2  # tasks for each slot
WARM = 8 * NODES  # shards that bring every node's worker up


class Ours:
    """A farm whose one agent is the cluster. It joins for each run and leaves after it: workers of its own, idle for
    less than the minute that they are kept, would hold the slots that the peer needs."""

    def __init__(self, farm: FarmHarness, cluster: RayCluster, job_file: Path, warm: Path, shards: int) -> None:
        self.farm, self.job_file, self.warm, self.shards = farm, job_file, warm, shards
        self.options = ["--ray", cluster.address, "--ray-token", str(cluster.token), "--cpus", str(NODES)]
        self.enter = cluster.enter

    def rate(self) -> float:
        agent = self.farm.join("bench", *self.options, prefix=self.enter)
        self._run(self.warm)  # each node's worker is up once it has run
        rate = self.shards / self._run(self.job_file)
        agent.terminate()
        agent.wait()
        return rate

    def _run(self, job_file: Path) -> float:
        """Seconds from submit to merged result."""
        began = time.monotonic()
        job = submit(self.farm.root, job_file)
        finish(self.farm, job)
        seconds = time.monotonic() - began
        self.farm.coordinator("rm", job)
        return seconds


def write_job(folder: Path, shards: int, clusters: int) -> Path:
    """A source of so many shards and its job file."""
    (folder / "source").mkdir(parents=True)
    rows = np.lib.format.open_memmap(folder / "source" / "rows.npy", "w+", "<f4", (shards * ROWS, VALUES))
    random = np.random.default_rng(0)
    for number in range(shards):
        rows[number * ROWS : (number + 1) * ROWS] = random.standard_normal((ROWS, VALUES), dtype="f4")
    rows.flush()
    job_file = folder / "job.yaml"
    job_file.write_text(
        f"name: bench\nkind: cluster\nsource: source\nshard: {{rows: {ROWS}}}\nparams: {{n_clusters: {clusters}}}\n"
    )
    return job_file


def fitting_clusters() -> tuple[int, float]:
    """So many clusters that a shard takes about as long as it should, and the seconds that it then takes."""
    rows = np.random.default_rng(0).standard_normal((ROWS, VALUES), dtype="f4")
    best, took = 2, 0.0
    for clusters in (2, 3, 4, 6, 8, 12, 16, 24, 32):
        open_kernel(partial(clustering, clusters))
        kernel(rows)
        began = time.monotonic()
        kernel(rows)
        seconds = time.monotonic() - began
        if took and seconds > SHARD_SECONDS:
            break
        best, took = clusters, seconds
    return best, took


class Peer:
    """The driver of plain tasks, in a process in the cluster's namespace that is told how many shards go to a task."""

    def __init__(self, cluster: RayCluster, windows: Path, clusters: int) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(cluster.token), "PYTHONPATH": str(Path.cwd())}
        command = [*cluster.enter, sys.executable, "-m", "benchmarks.ray_cluster", "--be-peer"]
        command += [cluster.address, str(windows), str(clusters)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
        )

    def rate(self, group: int) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{group}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def be_peer(address: str, windows: Path, clusters: int) -> None:
    """Runs of plain tasks, one for each line of standard input."""
    import ray

    os.environ["RAY_DEDUP_LOGS"] = "0"
    ray.init(address, log_to_driver=False, configure_logging=False)
    found = [Window(**one) for one in json.loads(windows.read_text())]

    @ray.remote(num_cpus=1)
    def work(*shards: np.ndarray) -> list[dict[str, np.ndarray]]:
        return [_computed(clusters, rows) for rows in shards]

    def run(group: int) -> None:
        waiting: list[Any] = []
        done = 0
        for first in range(0, len(found), group):
            waiting.append(work.remote(*[read_window(one)[0] for one in found[first : first + group]]))
            while len(waiting) >= AHEAD * NODES:
                ready, waiting = ray.wait(waiting)
                done += sum(len(ray.get(one)) for one in ready)
        done += sum(len(ray.get(one)) for one in waiting)
        assert done == len(found)

    run(1)
    for line in sys.stdin:
        began = time.monotonic()
        run(int(line))
        print(len(found) / (time.monotonic() - began), flush=True)


_opened = 0


def _computed(clusters: int, rows: np.ndarray) -> dict[str, np.ndarray]:
    global _opened  # noqa: PLW0603
    if _opened != clusters:
        import threadpoolctl

        threadpoolctl.threadpool_limits(limits=1)
        open_kernel(partial(clustering, clusters))
        _opened = clusters
    return dict(kernel(rows))


def _as_plain(window: Window) -> dict[str, object]:
    return {"path": window.path, "offset": window.offset, "shape": window.shape, "dtype": window.dtype,
            "nbytes": window.nbytes, "stamp": None}  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == ["--be-peer"]:
        return be_peer(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shared", action="store_true", help="the nodes see the source")
    options.add_argument("--shards", type=int, default=288)
    options.add_argument("--runs", type=int, default=6)
    options.add_argument("--group", default="1,4", help="shards to a task of the peer")
    add_no_peer(options)
    given = options.parse_args()
    if why := netns.obstacle():
        give_up(why)
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        measure(Path(folder), given)
    return None


def measure(folder: Path, given: argparse.Namespace) -> None:
    clusters, seconds = fitting_clusters()
    job_file = write_job(folder / "job", given.shards, clusters)
    warm = write_job(folder / "warm", WARM, clusters)
    groups = [] if given.no_peer else [int(text) for text in given.group.split(",")]
    with served(folder / "farm") as farm, ray_cluster.running(folder) as cluster:
        for _ in range(NODES):
            cluster.add(cpus=1, hidden=[] if given.shared else [folder / "job" / "source", folder / "warm" / "source"])
        ours = Ours(farm, cluster, job_file, warm, given.shards)
        windows = folder / "windows.json"
        windows.write_text(json.dumps(_windows(farm, job_file)))
        with ExitStack() as stack:
            sides = {}
            if groups:
                peer = stack.enter_context(closing(Peer(cluster, windows, clusters)))
                sides = {f"tasks of {group}": partial(peer.rate, group) for group in groups}
            rates = alternate(given.runs, ours=ours.rate, **sides)
    beside = zip(rates["ours"], *[rates[name] for name in sides], strict=True)
    ratios = [one / max(others) for one, *others in beside if others]
    parts: dict[str, Any] = {name: round(statistics.median(found), 1) for name, found in rates.items()}
    parts |= {"clusters": clusters, "shard ms": round(seconds * 1000, 1)}
    parts |= {"ratios": [round(one, 2) for one in sorted(ratios)]} if ratios else {}
    middle = statistics.median(rates["ours"])
    report(middle, middle / statistics.median(ratios) if ratios else None, parts)


def _windows(farm: FarmHarness, job_file: Path) -> list[dict[str, object]]:
    """The very windows that our shards are."""
    job = submit(farm.root, job_file)
    plan = decode_plan(farm.root.job(job).plan.read_bytes())
    farm.coordinator("cancel", job)
    every = (layer.window(number) for layer in plan.layers for number in range(layer.count))
    return [_as_plain(window) for window in every if isinstance(window, Window)]


if __name__ == "__main__":
    main()
