"""Measures a point of the study of batched inference: a farm's jobs, or Ray's actors, on cores that are machines.

The server and the first machine have one core together, by `sched_setaffinity`, the second machine has the other.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks import reach, shaped
from benchmarks.infer import SIZES as LAYERS
from benchmarks.infer import Predictor, ray_running, write_source
from benchmarks.measure import CORES, give_up, tree_seconds
from benchmarks.served import TIMING, processor_seconds
from benchmarks.shaped import Shaped
from benchmarks.studies.cores import held_to, on_core
from benchmarks.studies.infer.settings import Setting
from benchmarks.studies.points import Figures, Line, Point
from muster.agent.commands.status import state_of
from muster.coordinator.commands.submit import submit
from tests.support import networks
from tests.support.farm import FarmHarness, running, until
from tests.support.sshd import HOST

SHARD_ROWS_MOST = 20_000  # 64 MB
SHARDS_A_WORKER = 4
ASK_SECONDS = 0.05  # each answer takes processor time from what is measured
ASK_SOON_SECONDS = 0.005  # where it is the latency that is
ONE_ROW_RUNS = 5
ONE_ROW_CALLS = 200
METER_SECONDS = 0.5
LINK = "1gbit"


def measure(point: Point, scratch: Path, lines: Mapping[str, Line]) -> Figures:
    setting = msgspec.convert(point.settings, Setting)
    if setting.machines * setting.cores > CORES:
        give_up(f"{setting.machines * setting.cores} cores are wanted, and there are {CORES}")
    source = scratch / f"rows-{setting.rows}.npy"
    if not source.exists():
        write_source(source, setting.rows)
    with held_to(setting.cores), tempfile.TemporaryDirectory(dir=scratch) as folder:
        return (_ours if setting.side == "ours" else _ray)(setting, source, Path(folder))


def _ours(setting: Setting, source: Path, folder: Path) -> Figures:
    with ExitStack() as stack:
        farm = stack.enter_context(running(folder / "farm", **TIMING, pool="processes"))
        net = None
        if setting.link != "folder":
            net = stack.enter_context(shaped.running(folder / "sshd", LINK, ["second"], farm.marked))
        ours = Ours(farm, setting, source, net)
        one_row = [ours.run(ours.one_row, ASK_SOON_SECONDS).seconds for _ in range(ONE_ROW_RUNS * setting.one_row)]
        with metered(net) as peak:
            runs = [ours.run(ours.job_file) for _ in range(setting.runs)]
    busy = sum(run.processor for run in runs) / sum(run.seconds for run in runs)
    return {
        "rates": [round(setting.rows / run.seconds, 1) for run in runs],
        "processor": round(busy / (setting.machines * setting.cores), 3),
        "one row ms": round(1000 * statistics.median(one_row), 2) if one_row else None,
        "succeeded": min(run.succeeded for run in runs),
        "peak MB/s": round(max(peak) / 1e6, 1) if net else None,
    }


@dataclass(frozen=True)
class Run:
    """One job, from submit to the merged result."""

    seconds: float
    processor: float  # seconds of the daemon, the agents and the connections
    succeeded: float  # of its attempts, those that counted


class Ours:
    """A farm whose machines have joined, with the job and one of a single row."""

    def __init__(self, farm: FarmHarness, setting: Setting, source: Path, net: Shaped | None) -> None:
        self._farm, self._setting, self._net = farm, setting, net
        networks.save_npz(farm.folder / "net.npz", networks.weights(sizes=LAYERS))
        self.job_file = self._job("rows", setting.rows)
        os.link(source, self.job_file.parent / "layers" / "rows.npy")
        self.one_row = self._job("row", 1)
        write_source(self.one_row.parent / "layers" / "row.npy", 1)
        for number in range(setting.machines):
            self._join(number, net if number else None)
        for number in range(setting.machines):
            until(lambda number=number: self._is_ready(number), "a machine's workers", 120)  # type: ignore[misc]
        self.run(self.one_row)

    def _job(self, name: str, rows: int) -> Path:
        setting, folder = self._setting, self._farm.folder / name
        (folder / "layers").mkdir(parents=True)
        fair = -(-rows // (SHARDS_A_WORKER * setting.workers))
        shard = max(1, setting.batch, min(fair, SHARD_ROWS_MOST))
        params = {"model": "../net.npz", **({"batch": setting.batch} if setting.batch else {})}
        job = {"name": name, "kind": "infer", "source": "layers", "shard": {"rows": shard}, "params": params}
        (folder / "job.yaml").write_bytes(msgspec.json.encode(job))  # which is YAML, too
        return folder / "job.yaml"

    def _join(self, number: int, net: Shaped | None) -> None:
        setting, farm = self._setting, self._farm
        options = ["--cpus", str(setting.workers // setting.machines)]
        prefix = on_core(number) if setting.machines > 1 else []
        where = None
        if net is not None:
            options += ["--ssh-config", str(net.sshd.ssh_config()), "--disk", "8GiB"]
            options += ["--have", str(farm.folder)] if setting.link == "copy" else []
            where, prefix = f"{HOST}:{farm.root.path}", [*prefix, *net.machines[0].enter]
        farm.join(f"m{number}", *options, where=where, prefix=prefix)

    def _is_ready(self, number: int) -> bool:
        state = state_of(self._farm.folder / "spools" / f"m{number}")
        return state is not None and state.linked and state.ready

    def run(self, job_file: Path, ask_seconds: float = ASK_SECONDS) -> Run:
        for layer in (job_file.parent / "layers").iterdir():
            os.utime(layer)  # else a machine has what it pulled for the run before
        before, began = self._spent(), time.monotonic()
        job = submit(self._farm.root, job_file)
        while self._farm.status(job).state == "running":
            time.sleep(ask_seconds)
        seconds, processor = time.monotonic() - began, self._spent() - before
        status = self._farm.wait(job)
        done = status.totals.committed
        self._farm.coordinator("rm", job)
        return Run(seconds, processor, round(done / (done + status.failures), 4))

    def _spent(self) -> float:
        """Processor seconds, and those of the server's end of what comes by ssh."""
        return processor_seconds(self._farm) + (tree_seconds(self._net.sshd.pid) if self._net else 0.0)


@contextmanager
def metered(net: Shaped | None) -> Iterator[list[float]]:
    """What the second machine's link carried, in bytes a second, both ways together, every half second."""
    found, ended = [0.0], threading.Event()

    def carried() -> int:
        return reach.carried(net.machines[0] if net else None)

    def watch() -> None:
        before, at = carried(), time.monotonic()
        while not ended.wait(METER_SECONDS):
            bytes_now, now = carried(), time.monotonic()
            found.append((bytes_now - before) / (now - at))
            before, at = bytes_now, now

    if net is None:
        yield found
        return
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        ended.set()
        watcher.join()


def _ray(setting: Setting, source: Path, folder: Path) -> Figures:
    rows = np.load(source)
    with ray_running(setting.workers) as ray:
        actors = [ray.remote(Predictor).options(num_cpus=1).remote() for _ in range(setting.workers)]
        ray.get([actor.predict.remote(rows[: setting.batch]) for actor in actors])
        one_row = statistics.median(
            timed(lambda: ray.get(actors[0].predict.remote(rows[:1]))) for _ in range(ONE_ROW_CALLS)
        )
        cuts = range(0, len(rows), setting.batch)

        def run() -> None:
            calls = [actors[i % len(actors)].predict.remote(rows[at : at + setting.batch]) for i, at in enumerate(cuts)]
            assert sum(map(len, ray.get(calls))) == len(rows)

        before, began = tree_seconds(os.getpid()), time.monotonic()
        seconds = [timed(run) for _ in range(setting.runs)]
        busy = (tree_seconds(os.getpid()) - before) / (time.monotonic() - began)
    return {
        "rates": [round(setting.rows / one, 1) for one in seconds],
        "processor": round(busy / setting.cores, 3),
        "one row ms": round(1000 * one_row, 2),
        "succeeded": 1.0,  # else `run` would not have ended
        "peak MB/s": None,
    }


def timed(what: Callable[[], Any]) -> float:
    began = time.monotonic()
    what()
    return time.monotonic() - began
