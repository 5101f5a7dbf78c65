"""Inference, from submit to merged result, beside plain numpy, Ray actors and Ray Data: an MLP of 784-448-160-10.

    python -m benchmarks.infer [--ssh] [--agents 2] [--rows 3500000] [--runs 3] [--no-peer]

Rows of 784 float32, one file under several names, or copied so often. `ratio`: our rows per second over those of plain
numpy in as many processes as there are cores, with the batch that is best for it: it reads the same windows of the same
files and writes its results; with --ssh, where our agent pulls them through an sshd on loopback, the same computation
is fed by `ssh cat` of them; with --agents N, over those of a single agent with all cores. `parts`: over plain Ray
actors (ten, ten rows a call) and Ray Data's map_batches on samples; `cpu`: processor time of agents and daemon over
what the cores had, from submit to merged result.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl

from benchmarks.fed import Fed
from benchmarks.measure import CORES, add_no_peer, alternate, machine, report
from benchmarks.served import finish, processor_seconds, served
from muster.coordinator.commands.submit import submit
from muster.jobs.contract.kind import Bench, Runner
from muster.jobs.contract.plan import Plan, Window, decode_plan
from muster.jobs.inference.params import InferParams
from muster.jobs.kinds.infer import Infer
from muster.jobs.sources.layer_writer import LayerWriter
from muster.jobs.sources.read_rows import new_buffer, read_window
from tests.support import networks, sshd
from tests.support.farm import FarmHarness, until
from tests.support.sshd import HOST, Sshd

SIZES = (784, 448, 160, 10)
FILE_ROWS = 350_000  # 1.1 GB
SHARD = "64MiB"
SHARD_BYTES = 64 << 20
DISK = "2GiB"  # of the agent that pulls: too little to keep the inputs of one run for the next
BATCHES = (128, 256, 512, 1024, 2048, 4096)
ACTORS, ACTOR_ROWS = 10, 10
ACTOR_SAMPLE, DATA_SAMPLE = 60_000, 700_000  # rows
ROW_BYTES = 4 * SIZES[0]

Array = np.ndarray[Any, Any]


def forward(arrays: dict[str, Array], rows: Array, batch: int, out: Array) -> None:
    """As anybody would write it."""
    for start in range(0, len(rows), batch):
        x = rows[start : start + batch]
        x = np.maximum(x @ arrays["w0"] + arrays["b0"], 0)
        x = np.maximum(x @ arrays["w1"] + arrays["b1"], 0)
        out[start : start + batch] = x @ arrays["w2"] + arrays["b2"]


def write_source(file: Path, rows: int) -> None:
    random = np.random.default_rng(0)
    with LayerWriter(file, SIZES[:1], "<f4") as layer:
        for start in range(0, rows, 10_000):
            layer.append(random.standard_normal((min(10_000, rows - start), SIZES[0]), dtype="f4"))


@dataclass(frozen=True)
class Source:
    """One file, and how many layers it is."""

    file: Path
    rows: int  # of the file
    names: int

    @property
    def total(self) -> int:
        return self.rows * self.names


class Ours:
    """A farm with agents that have joined, and the time of a job on it. With a server the agent comes over ssh."""

    def __init__(self, farm: FarmHarness, source: Source, agents: int = 1, server: Sshd | None = None) -> None:
        self.farm, self.source, self.server = farm, source, server
        folder = farm.folder / "job"
        (folder / "layers").mkdir(parents=True)
        self.files = [folder / "layers" / f"layer{number:03}.npy" for number in range(source.names)]
        for path in self.files:  # over ssh, names of one file would be pulled but once
            shutil.copyfile(source.file, path) if server else path.symlink_to(source.file)
        networks.save_npz(folder / "net.npz", networks.weights(sizes=SIZES))
        self.job_file = folder / "job.yaml"
        self.job_file.write_text(
            f"name: bench\nkind: infer\nsource: layers\nshard: {{size: {SHARD}}}\nparams: {{model: net.npz}}\n"
        )
        self.spent: list[tuple[float, float]] = []  # of each run: processor seconds of daemon and agents, seconds
        cpus = max(1, CORES // agents)
        for number in range(agents):
            self._join(f"bench{number}", cpus)
        until(lambda: all(farm.agent_status(f"bench{i}") for i in range(agents)), "the agents to join", 60)
        self._await_pools()

    def _join(self, name: str, cpus: int) -> None:
        options, where = ["--cpus", str(cpus)], None
        if self.server is not None:
            options += ["--disk", DISK, "--ssh-config", str(self.server.ssh_config())]
            where = f"{HOST}:{self.farm.root.path}"
        self.farm.join(name, *options, where=where)

    def _await_pools(self) -> None:
        """They are up once a first small job has run."""
        rows = {"warm": np.random.default_rng(1).standard_normal((16 * CORES, 4096), dtype="f4")}
        self.farm.wait(self.farm.submit(rows, shard_rows=1), seconds=120)

    def rate(self) -> float:
        """Rows per second, from submit to the merged result."""
        before, began = processor_seconds(self.farm), time.monotonic()
        job = submit(self.farm.root, self.job_file)
        finish(self.farm, job)
        seconds = time.monotonic() - began
        self.spent.append((processor_seconds(self.farm) - before, seconds))
        self.farm.coordinator("rm", job)
        return self.source.total / seconds

    def busy(self) -> float:
        """What part of the cores' time daemon and agents had, in the run in which it was most."""
        return round(max(cpu / seconds for cpu, seconds in self.spent) / CORES, 3)

    def cpu(self) -> float:
        """Processor seconds of daemon and agents for a row, in the run in which it was least."""
        return min(cpu for cpu, _ in self.spent) / self.source.total

    def plan(self) -> Plan:
        job = submit(self.farm.root, self.job_file)
        plan = decode_plan(self.farm.root.job(job).plan.read_bytes())
        self.farm.coordinator("cancel", job)
        return plan


# --- plain numpy -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """One window, and where its results go."""

    window: Window
    first_row: int
    target: Path
    batch: int


_plain: dict[str, Any] = {}


def _open_plain() -> None:
    threadpoolctl.threadpool_limits(1)
    _plain.update(arrays=networks.weights(sizes=SIZES), buffer=new_buffer(SHARD_BYTES))


def _compute_plain(task: Task) -> int:
    rows, _ = read_window(task.window, _plain["buffer"])
    out = np.load(task.target, mmap_mode="r+")
    forward(_plain["arrays"], rows, task.batch, out[task.first_row : task.first_row + len(rows)])
    return len(rows)


class Plain:
    """numpy in a process per core."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        folder.mkdir()
        self._targets = [folder / f"{i}.npy" for i in range(len(plan.layers))]
        for target, layer in zip(self._targets, plan.layers, strict=True):
            np.lib.format.open_memmap(target, "w+", "<f4", (layer.rows, SIZES[-1])).flush()
        self._plan = plan
        self._pool = ProcessPoolExecutor(CORES, initializer=_open_plain)
        rates = {batch: max(self._run(batch, 4 * CORES) for _ in range(2)) for batch in (BATCHES[0], *BATCHES)}
        self.batch = max(rates, key=lambda batch: rates[batch])

    def rate(self) -> float:
        return self._run(self.batch, None)

    def _run(self, batch: int, count: int | None) -> float:
        """Rows per second of the first `count` windows, or of all."""
        tasks = [
            Task(window, number * layer.shard_rows, target, batch)
            for layer, target in zip(self._plan.layers, self._targets, strict=True)
            for number in range(layer.count)
            if isinstance(window := layer.window(number), Window)
        ][:count]
        began = time.monotonic()
        rows = sum(self._pool.map(_compute_plain, tasks))
        return rows / (time.monotonic() - began)


# --- Ray ---------------------------------------------------------------------------------------------------------


@contextmanager
def ray_running(cpus: int) -> Iterator[Any]:
    os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_USAGE_STATS_ENABLED="0")
    import ray

    ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield ray
    finally:
        ray.shutdown()


class Predictor:
    """For an actor, or for map_batches."""

    def __init__(self) -> None:
        threadpoolctl.threadpool_limits(1)
        self.arrays = networks.weights(sizes=SIZES)

    def predict(self, rows: Array) -> Array:
        out = np.empty((len(rows), SIZES[-1]), "f4")
        forward(self.arrays, rows, len(rows), out)
        return out

    def __call__(self, batch: dict[str, Array]) -> dict[str, Array]:
        return {"out": self.predict(batch["data"])}


def actors_rate(file: Path) -> float:
    """Rows per second of ten actors, ten rows in each call, on a sample."""
    rows = np.load(file, mmap_mode="r")[:ACTOR_SAMPLE]
    with ray_running(ACTORS) as ray:
        actors = [ray.remote(Predictor).options(num_cpus=1).remote() for _ in range(ACTORS)]
        ray.get([actor.predict.remote(rows[:ACTOR_ROWS]) for actor in actors])
        began = time.monotonic()
        cuts = range(0, len(rows), ACTOR_ROWS)
        ray.get([actors[i % ACTORS].predict.remote(rows[at : at + ACTOR_ROWS]) for i, at in enumerate(cuts)])
        return len(rows) / (time.monotonic() - began)


def data_rate(file: Path, batch: int) -> float | None:
    """Rows per second of Ray Data, from files to results in memory, on a sample; None where it is not installed."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder, ray_running(2 * CORES):  # reads need slots too
        try:
            import ray.data
        except ImportError as error:
            print(f"  no Ray Data here: {error}", flush=True)
            return None
        rows = np.load(file, mmap_mode="r")[:DATA_SAMPLE]
        for i, piece in enumerate(np.array_split(rows, 16 * CORES)):
            np.save(Path(folder) / f"{i}.npy", piece)
        ray.data.DataContext.get_current().enable_progress_bars = False
        best = 0.0
        for size in (batch, 4096):
            began = time.monotonic()
            compute = ray.data.ActorPoolStrategy(size=CORES)
            found = ray.data.read_numpy(folder).map_batches(Predictor, batch_size=size, compute=compute)
            count = sum(len(done["out"]) for done in found.iter_batches(batch_size=None))
            assert count == len(rows)
            best = max(best, count / (time.monotonic() - began))
        return best


# --- what is compared --------------------------------------------------------------------------------------------


def alone(folder: Path, source: Source, runs: int, agents: int, ssh: bool) -> None:
    with ExitStack() as stack:
        (folder / "sshd").mkdir()
        server = stack.enter_context(sshd.running(folder / "sshd")) if ssh else None
        ours = Ours(stack.enter_context(served(folder / "farm")), source, agents, server)
        rates = alternate(runs, ours=ours.rate)
    report(max(rates["ours"]), None, {"cpu": ours.busy()}, ours.cpu())


def by_folder(folder: Path, source: Source, runs: int) -> None:
    with served(folder / "farm") as farm:
        ours = Ours(farm, source)
        plain = Plain(ours.plan(), folder / "plain")
        print(f"numpy's best batch is {plain.batch}", flush=True)
        rates = alternate(runs, ours=ours.rate, plain=plain.rate)
    best, peer = max(rates["ours"]), max(rates["plain"])
    actors, data = actors_rate(source.file), data_rate(source.file, plain.batch)
    parts: dict[str, Any] = {"cpu": ours.busy(), "ray actors 10x10": round(best / actors, 1)}
    parts["ray data map_batches"] = round(best / data, 2) if data else None
    report(best, peer, parts, ours.cpu())


def inferring(params: InferParams, path: Path) -> Runner:
    """The kernel of our own job."""
    threadpoolctl.threadpool_limits(1)
    return Infer().open(Bench(params, cpus=1, timeout=None, scratch=Path(os.devnull), model=path))


def over_ssh(folder: Path, source: Source, runs: int) -> None:
    import msgspec

    (folder / "sshd").mkdir()
    with sshd.running(folder / "sshd") as server, served(folder / "farm") as farm:
        ours = Ours(farm, source, server=server)
        plan = ours.plan()
        make = partial(inferring, msgspec.convert(plan.work.params, InferParams), ours.job_file.parent / "net.npz")
        fed = Fed(server, ours.files, source.rows, plan.layers[0].shard_rows, SIZES[0], make)
        rates = alternate(runs, ours=ours.rate, fed=fed.rate)
    report(max(rates["ours"]), max(rates["fed"]), {"cpu": ours.busy()}, ours.cpu())


def several(folder: Path, source: Source, runs: int, agents: int) -> None:
    """Farms in turn, as agents of both would share the cores."""
    rates: dict[str, Callable[[], float]] = {}
    for name, count in (("several", agents), ("one", 1)):
        rates[name] = partial(_once, folder, source, count)
    found = alternate(runs, **rates)
    report(max(found["several"]), max(found["one"]), {"agents": agents})


def _once(folder: Path, source: Source, agents: int) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as here, served(Path(here) / "farm") as farm:
        return Ours(farm, source, agents).rate()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ssh", action="store_true", help="the agent comes through an sshd on loopback")
    options.add_argument("--agents", type=int, default=1, help="beside one, with as many cores together")
    options.add_argument("--rows", type=int, default=3_500_000, help="in all")
    options.add_argument("--runs", type=int, default=3)
    add_no_peer(options)
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="muster-bench-"))
    try:
        print(machine(), flush=True)
        names = -(-given.rows // FILE_ROWS) if given.rows >= FILE_ROWS else 1
        source = Source(folder / "rows.npy", -(-given.rows // names), names)
        write_source(source.file, source.rows)
        print(f"{source.total:,} rows of {SIZES[0]} float32, {source.total * ROW_BYTES / 1e9:.1f} GB", flush=True)
        if given.no_peer:
            alone(folder, source, given.runs, given.agents, given.ssh)
        elif given.agents > 1:
            several(folder, source, given.runs, given.agents)
        else:
            (over_ssh if given.ssh else by_folder)(folder, source, given.runs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
