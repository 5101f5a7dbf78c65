"""Clustering by folder, from submit to merged result, beside the bare kernel in a plain process pool and scikit-learn.

    python -m benchmarks.cluster [--values 65536] [--clusters 128] [--seconds 20] [--runs 3]

Rows of float32, one file under several names. `ratio`: our rows per second over the bare kernel's, which reads the same
windows of the same files with as many processes as there are cores. `parts.sklearn`: over scikit-learn's KMeans under
joblib on a sample of the rows, with the ratio of inertias beside it.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import CORES, alternate, machine, report
from coordinator.commands.submit import submit
from jobs.kinds import Bench, Shard
from jobs.kinds.cluster import Cluster
from jobs.model import Window
from jobs.plan import decode_plan
from jobs.window import new_buffer, read_window
from jobs.writer import LayerWriter
from tests.farm import Farm, running, until

FILE_BYTES = 256 << 20
SHARD_BYTES = 64 << 20
SAMPLE_ROWS = {65_536: 12, 1_024: 200}


@dataclass(frozen=True)
class Setting:
    """One size of the problem."""

    values: int
    clusters: int
    names: int  # layers, all one file

    @property
    def file_rows(self) -> int:
        return FILE_BYTES // (4 * self.values)

    @property
    def rows(self) -> int:
        return self.file_rows * self.names

    @property
    def shard_rows(self) -> int:
        return max(1, SHARD_BYTES // (4 * self.values))


def write_source(folder: Path, setting: Setting) -> Path:
    """One file of normal rows; every layer is a name of it."""
    random = np.random.default_rng(0)
    with LayerWriter(folder / "rows.npy", (setting.values,), "<f4") as layer:
        left = setting.file_rows
        while left > 0:
            count = min(left, max(1, (16 << 20) // (4 * setting.values)))
            layer.append(random.standard_normal((count, setting.values), dtype="f4"))
            left -= count
    return folder / "rows.npy"


class Ours:
    """A farm with one agent that has joined, and the time of a job on it."""

    def __init__(self, farm: Farm, file: Path, setting: Setting) -> None:
        self.farm, self.setting = farm, setting
        folder = farm.folder / "job"
        (folder / "layers").mkdir(parents=True)
        for number in range(setting.names):
            (folder / "layers" / f"layer{number:03}.npy").symlink_to(file)
        self.job_file = folder / "job.yaml"
        self.job_file.write_text(
            "name: bench\nkind: cluster\nsource: layers\n"
            f"shard: {{rows: {setting.shard_rows}}}\nparams: {{n_clusters: {setting.clusters}}}\n"
        )
        farm.join("bench", "--cpus", str(CORES))
        until(lambda: farm.agent_status("bench"), "the agent to join", 60)
        self._await_pool()

    def _await_pool(self) -> None:
        """The pool is up once a first small job has run."""
        rows = {"warm": np.random.default_rng(1).standard_normal((4 * CORES, 4096), dtype="f4")}
        self.farm.wait(self.farm.submit(rows, shard_rows=1), seconds=120)

    def rate(self) -> float:
        """Rows per second, from submit to the merged result."""
        began = time.monotonic()
        job = submit(self.farm.root, self.job_file)
        self.farm.wait(job, seconds=1200)
        seconds = time.monotonic() - began
        self.farm.coordinator("rm", job)
        return self.setting.rows / seconds

    def windows(self) -> list[Window]:
        """The very windows our shards are."""
        job = submit(self.farm.root, self.job_file)
        plan = decode_plan(self.farm.root.job(job).plan.read_bytes())
        self.farm.coordinator("cancel", job)
        return [layer.window(number) for layer in plan.layers for number in range(layer.count)]


_buffer: Any = None
_runner: Any = None


def _open(clusters: int) -> None:
    """Once per process of the plain pool: the kernel, and a buffer as our workers have one."""
    global _buffer, _runner  # noqa: PLW0603
    _buffer = new_buffer(SHARD_BYTES)
    kind = Cluster()
    bench = Bench(params=kind.Params(n_clusters=clusters), cpus=1, timeout=None, scratch=Path(tempfile.gettempdir()))
    _runner = kind.open(bench)


def _compute(window: Window) -> int:
    rows, _ = read_window(window, _buffer)
    _runner.run(Shard("bench", 0, 0, rows))
    return int(window.shape[0])


class Bare:
    """The kernel in a plain process pool."""

    def __init__(self, windows: list[Window], clusters: int) -> None:
        self.windows = windows
        self.pool = ProcessPoolExecutor(CORES, initializer=_open, initargs=(clusters,))
        list(self.pool.map(_compute, windows[: 2 * CORES]))

    def rate(self) -> float:
        began = time.monotonic()
        rows = sum(self.pool.map(_compute, self.windows))
        return rows / (time.monotonic() - began)


def sklearn_rate(file: Path, setting: Setting) -> tuple[float, float]:
    """scikit-learn's rows per second under joblib on a sample, and our inertia over its."""
    from joblib import Parallel, delayed

    rows = np.load(file, mmap_mode="r")[: SAMPLE_ROWS.get(setting.values, 32)]
    with Parallel(n_jobs=CORES) as parallel:
        parallel(delayed(_fit)(rows[0][:1000].copy(), 8) for _ in range(CORES))
        began = time.monotonic()
        inertias = parallel(delayed(_fit)(np.array(row), setting.clusters) for row in rows)
        rate = len(rows) / (time.monotonic() - began)
    _open(setting.clusters)
    ours = _runner.run(Shard("bench", 0, 0, np.array(rows)))["inertia"]
    return rate, float(np.mean(ours / np.array(inertias)))


def _fit(row: Any, clusters: int) -> float:
    from sklearn.cluster import KMeans

    return float(KMeans(clusters, n_init=1, random_state=0).fit(row.reshape(-1, 1)).inertia_)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--values", type=int, default=65_536)
    options.add_argument("--clusters", type=int, default=128)
    options.add_argument("--seconds", type=float, default=18.0, help="of work in each run, about")
    options.add_argument("--runs", type=int, default=3)
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="muster-bench-"))
    try:
        measure(folder, given)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(folder: Path, given: argparse.Namespace) -> None:
    print(machine(), flush=True)
    setting = _sized(folder, given)
    file = folder / "rows.npy"
    print(f"{setting.rows:,} rows of {setting.values:,} float32, {setting.clusters} clusters", flush=True)
    with running(folder / "farm", heartbeat=5.0, lease=60.0, tick=1.0) as farm:
        ours = Ours(farm, file, setting)
        bare = Bare(ours.windows(), setting.clusters)
        rates = alternate(given.runs, ours=ours.rate, bare=bare.rate)
    sklearn, inertia = sklearn_rate(file, setting)
    best, peer = max(rates["ours"]), max(rates["bare"])
    report(best, peer, {"sklearn": round(best / sklearn, 1), "inertia over sklearn's": round(inertia, 4)})


def _sized(folder: Path, given: argparse.Namespace) -> Setting:
    """Enough names of the file to keep the bare kernel busy for as long as was asked."""
    one = Setting(given.values, given.clusters, 1)
    file = write_source(folder, one)
    _open(given.clusters)
    rows = np.load(file, mmap_mode="r")[: one.shard_rows]
    began = time.monotonic()
    _runner.run(Shard("bench", 0, 0, np.array(rows)))
    per_row = (time.monotonic() - began) / len(rows)
    names = max(1, round(given.seconds * CORES / per_row / one.file_rows))
    return Setting(given.values, given.clusters, names)


if __name__ == "__main__":
    main()
