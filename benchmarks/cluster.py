"""Clustering, from submit to merged result, beside the bare kernel in plain processes, and scikit-learn.

    python -m benchmarks.cluster [--ssh] [--peer sklearn] [--values 65536] [--clusters 128] [--seconds 18] [--runs 3]
        [--no-peer]

Rows of float32, one file under several names, or copied so often. `ratio`: our rows per second over the bare kernel's
with as many processes as there are cores: it reads the same windows of the same files; with --ssh, where our agent
pulls them through an sshd on loopback, the kernel is fed by `ssh cat` of them. `parts.sklearn`: over scikit-learn's
KMeans under joblib on a sample of the rows, with the ratio of inertias beside it. `parts.ssh`: the share of all
processor time that the connections took, the agent's own process and `coordinator connect` counted in ours. With
`--peer sklearn` the `ratio` is that over scikit-learn, and no bare kernel runs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.fed import Fed, clustering, kernel, open_kernel
from benchmarks.measure import CORES, add_no_peer, alternate, machine, report, tree_seconds
from benchmarks.served import finish, processor_seconds, served
from muster.coordinator.commands.submit import submit
from muster.jobs.contract.plan import Window, decode_plan
from muster.jobs.sources.layer_writer import LayerWriter
from muster.jobs.sources.read_rows import new_buffer, read_window
from tests.support import sshd
from tests.support.farm import FarmHarness, until
from tests.support.sshd import HOST, Sshd

FILE_BYTES = 1 << 30
SHARD_BYTES = 64 << 20
DISK = "2GiB"  # of the agent that pulls: too little to keep the inputs of one run for the next
COPIES_BYTES = 8 << 30  # of the file, which the server's memory should hold
SAMPLE_ROWS = {65_536: 12, 1_024: 200}


@dataclass(frozen=True)
class Setting:
    """One size of the problem."""

    values: int
    clusters: int
    names: int  # layers, all one file
    file_bytes: int = FILE_BYTES

    @property
    def file_rows(self) -> int:
        return self.file_bytes // (4 * self.values)

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
    """A farm with one agent that has joined, and the time of a job on it. With a server the agent comes over ssh."""

    def __init__(self, farm: FarmHarness, file: Path, setting: Setting, server: Sshd | None = None) -> None:
        self.farm, self.setting, self.server = farm, setting, server
        self.cpu: list[float] = []  # of each run: processor seconds of daemon and agent for a row
        folder = farm.folder / "job"
        (folder / "layers").mkdir(parents=True)
        self.files = [folder / "layers" / f"layer{number:03}.npy" for number in range(setting.names)]
        for path in self.files:  # over ssh, names of one file would be pulled but once
            shutil.copyfile(file, path) if server else path.symlink_to(file)
        os.sync()  # now, not while we measure
        self.job_file = folder / "job.yaml"
        self.job_file.write_text(
            "name: bench\nkind: cluster\nsource: layers\n"
            f"shard: {{rows: {setting.shard_rows}}}\nparams: {{n_clusters: {setting.clusters}}}\n"
        )
        self.agent = self._join()
        until(lambda: farm.agent_status("bench"), "the agent to join", 60)
        self._await_pool()

    def _join(self) -> psutil.Process:
        options = ["--cpus", str(CORES)]
        if self.server is None:
            return psutil.Process(self.farm.join("bench", *options).pid)
        options += ["--disk", DISK, "--ssh-config", str(self.server.ssh_config())]
        return psutil.Process(self.farm.join("bench", *options, where=f"{HOST}:{self.farm.root.path}").pid)

    def _await_pool(self) -> None:
        """The pool is up once a first small job has run."""
        rows = {"warm": np.random.default_rng(1).standard_normal((4 * CORES, 4096), dtype="f4")}
        self.farm.wait(self.farm.submit(rows, shard_rows=1), seconds=120)

    def rate(self) -> float:
        """Rows per second, from submit to the merged result."""
        before, began = processor_seconds(self.farm), time.monotonic()
        job = submit(self.farm.root, self.job_file)
        finish(self.farm, job)
        seconds = time.monotonic() - began
        self.cpu.append((processor_seconds(self.farm) - before) / self.setting.rows)
        self.farm.coordinator("rm", job)
        return self.setting.rows / seconds

    def link_seconds(self) -> float:
        """Processor time of both ends of the agent's connections, so far."""
        assert self.server is not None
        own = self.agent.cpu_times()
        return own.user + own.system + tree_seconds(self.server.pid)

    def windows(self) -> list[Window]:
        """The very windows our shards are."""
        job = submit(self.farm.root, self.job_file)
        plan = decode_plan(self.farm.root.job(job).plan.read_bytes())
        self.farm.coordinator("cancel", job)
        every = (layer.window(number) for layer in plan.layers for number in range(layer.count))
        return [window for window in every if isinstance(window, Window)]


_buffer: Any = None


def _open(clusters: int) -> None:
    """Once per process of the plain pool: the kernel, and a buffer as our workers have one."""
    global _buffer  # noqa: PLW0603
    _buffer = new_buffer(SHARD_BYTES)
    open_kernel(partial(clustering, clusters))


def _compute(window: Window) -> int:
    rows, _ = read_window(window, _buffer)
    kernel(rows)
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
    open_kernel(partial(clustering, setting.clusters))
    ours = kernel(np.array(rows))["inertia"]
    return rate, float(np.mean(ours / np.array(inertias)))


def _fit(row: Any, clusters: int) -> float:
    from sklearn.cluster import KMeans

    return float(KMeans(clusters, n_init=1, random_state=0).fit(row.reshape(-1, 1)).inertia_)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ssh", action="store_true", help="the agent comes through an sshd on loopback")
    options.add_argument("--peer", choices=("bare", "sklearn"), default="bare", help="by folder: what ours is beside")
    options.add_argument("--values", type=int, default=65_536)
    options.add_argument("--clusters", type=int, default=128)
    options.add_argument("--seconds", type=float, default=18.0, help="of work in each run, about")
    options.add_argument("--runs", type=int, default=3)
    add_no_peer(options)
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="muster-bench-"))
    try:
        print(machine(), flush=True)
        setting = _sized(folder, given)
        print(f"{setting.rows:,} rows of {setting.values:,} float32, {setting.clusters} clusters", flush=True)
        if given.no_peer:
            _alone(folder, setting, given.runs, given.ssh)
        else:
            sides = _over_ssh if given.ssh else _beside_sklearn if given.peer == "sklearn" else _by_folder
            sides(folder, setting, given.runs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _alone(folder: Path, setting: Setting, runs: int, ssh: bool) -> None:
    with ExitStack() as stack:
        (folder / "sshd").mkdir()
        server = stack.enter_context(sshd.running(folder / "sshd")) if ssh else None
        ours = Ours(stack.enter_context(served(folder / "farm")), folder / "rows.npy", setting, server)
        rates = alternate(runs, ours=ours.rate)
    report(max(rates["ours"]), None, {}, min(ours.cpu))


def _by_folder(folder: Path, setting: Setting, runs: int) -> None:
    file = folder / "rows.npy"
    with served(folder / "farm") as farm:
        ours = Ours(farm, file, setting)
        bare = Bare(ours.windows(), setting.clusters)
        rates = alternate(runs, ours=ours.rate, bare=bare.rate)
    sklearn, inertia = sklearn_rate(file, setting)
    best, peer = max(rates["ours"]), max(rates["bare"])
    parts = {"sklearn": round(best / sklearn, 1), "inertia over sklearn's": round(inertia, 4)}
    report(best, peer, parts, min(ours.cpu))


def _beside_sklearn(folder: Path, setting: Setting, runs: int) -> None:
    file, inertias = folder / "rows.npy", []

    def sklearn() -> float:
        rate, inertia = sklearn_rate(file, setting)
        inertias.append(inertia)
        return rate

    with served(folder / "farm") as farm:
        ours = Ours(farm, file, setting)
        rates = alternate(runs, ours=ours.rate, sklearn=sklearn)
    parts = {"values": setting.values, "inertia over sklearn's": round(inertias[0], 4)}
    report(max(rates["ours"]), max(rates["sklearn"]), parts, min(ours.cpu))


def _over_ssh(folder: Path, setting: Setting, runs: int) -> None:
    (folder / "sshd").mkdir()
    with sshd.running(folder / "sshd") as server, served(folder / "farm") as farm:
        ours = Ours(farm, folder / "rows.npy", setting, server)
        make = partial(clustering, setting.clusters)
        fed = Fed(server, ours.files, setting.file_rows, setting.shard_rows, setting.values, make)
        links = {"ours": ours.link_seconds, "fed": lambda: fed.processor_seconds() + tree_seconds(server.pid)}
        shares: dict[str, list[float]] = {name: [] for name in links}
        rates = alternate(runs, ours=_sharing(ours.rate, links["ours"], shares["ours"]),
                          fed=_sharing(fed.rate, links["fed"], shares["fed"]))  # fmt: skip
    parts = {"ssh": {name: round(min(share), 3) for name, share in shares.items()}}
    report(max(rates["ours"]), max(rates["fed"]), parts, min(ours.cpu))


def _sharing(rate: Callable[[], float], spent: Callable[[], float], shares: list[float]) -> Callable[[], float]:
    """The same, noting what part of all processor time was spent meanwhile."""

    def run() -> float:
        before, began = spent(), time.monotonic()
        found = rate()
        shares.append((spent() - before) / (CORES * (time.monotonic() - began)))
        return found

    return run


def _sized(folder: Path, given: argparse.Namespace) -> Setting:
    """Enough names of the file to keep the bare kernel busy for about as long as was asked."""
    one = Setting(given.values, given.clusters, 1)
    file = write_source(folder, one)
    open_kernel(partial(clustering, given.clusters))
    rows = np.load(file, mmap_mode="r")[: one.shard_rows]
    began = time.monotonic()
    kernel(np.array(rows))
    per_row = (time.monotonic() - began) / len(rows)
    names = CORES * max(1, round(given.seconds / per_row / one.file_rows))  # as many for each core
    return Setting(given.values, given.clusters, min(names, COPIES_BYTES // FILE_BYTES) if given.ssh else names)


if __name__ == "__main__":
    main()
