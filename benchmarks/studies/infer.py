"""Batched inference of an MLP of 784-448-160-10, as the study had it: actors, rows a call, nodes. Ours, Ray's, theirs.

A machine is a core: the server and the first one have one together, by `sched_setaffinity`, the second one the other.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from benchmarks import shaped
from benchmarks.infer import SIZES as LAYERS
from benchmarks.infer import Predictor, ray_running, write_source
from benchmarks.measure import CORES, give_up, tree_seconds
from benchmarks.served import TIMING, processor_seconds
from benchmarks.shaped import Shaped
from benchmarks.studies.pages import Cell, table
from benchmarks.studies.points import Figures, Line, Page, Point, Study
from muster.agent.commands.status import state_of
from muster.coordinator.commands.submit import submit
from muster.jobs.contract.pictures import Bars, Curves, Picture
from tests.support import netns, networks
from tests.support.farm import FarmHarness, running, until
from tests.support.sshd import HOST

EVERY_CORE = sorted(os.sched_getaffinity(0))
SIZES = (100_000, 1_000_000)
SHARD_ROWS_MOST = 20_000  # 64 MB
SHARDS_A_WORKER = 4
ASK_SECONDS = 0.05  # each answer takes processor time from what is measured
ONE_ROW_RUNS = 5
ONE_ROW_CALLS = 200
METER_SECONDS = 0.5
LINK = "1gbit"

Link = Literal["folder", "link", "copy"]
THERE = {"one": 1519.0, "ten": 15201.0, "two": 14749.0}  # rows a second that the study had
LABELS = {
    "one": "one actor, a row a call",
    "ten": "10 actors, 10 rows a call",
    "two": "the same on two machines",
    "own": "our own settings, one machine",
    "own two": "our own settings, two machines",
    "own whole": "our own settings, one machine with all cores",
}
SIDES = {"ray": "Ray here", "ours": "ours"}
GAINS: dict[Link, str] = {
    "folder": "the second reads the source by a shared folder",
    "link": "the second has a link of 1 Gbit/s to it",
    "copy": "the same link, and a copy of the source",
}
SWEEP_BATCHES = (1, 10, 100, 1000)
SWEEP_WORKERS = {1: (1, 2, 5, 10), 2: (2, 4, 10)}  # by machines, of all together


class Setting(msgspec.Struct, frozen=True):
    """One run of one side."""

    side: Literal["ours", "ray"] = "ours"
    rows: int = SIZES[0]
    machines: int = 1
    workers: int = 1  # of all machines together
    batch: int = 0  # rows of a call; 0: ours alone, what it takes by itself
    cores: int = 1  # of a machine
    link: Link = "folder"  # of the second machine
    runs: int = 5


OURS = {
    "one": Setting(batch=1),
    "ten": Setting(workers=10, batch=10),
    "two": Setting(machines=2, workers=10, batch=10),
    "own": Setting(),
    "own two": Setting(machines=2, workers=2),
    "own whole": Setting(workers=2, cores=2),
}
RAY = {
    "one": Setting("ray", batch=1),
    "ten": Setting("ray", workers=10, batch=10),
}


def points(short: bool) -> list[Point]:
    if short:
        small = Setting(rows=600, batch=10, runs=2)
        return [
            _point("ours/600/one", small),
            _point("ours/600/two", msgspec.structs.replace(small, machines=min(2, CORES), workers=2)),
        ]
    found = [_point(f"ours/{rows}/{name}", _of(one, rows)) for rows in SIZES for name, one in OURS.items()]
    found += [_point(f"ray/{SIZES[0]}/{name}", one) for name, one in RAY.items()]
    found += [
        _point(f"gain/{SIZES[1]}/{link}", Setting(rows=SIZES[1], machines=2, workers=2, link=link))
        for link in GAINS
        if link != "folder"
    ]
    for machines, workers in SWEEP_WORKERS.items():
        for count, batch in product(workers, SWEEP_BATCHES):
            sweep = Setting(machines=machines, workers=count, batch=batch, runs=1)
            found.append(_point(f"sweep/{machines}x{count}x{batch}", sweep))
    return found


def _of(setting: Setting, rows: int) -> Setting:
    return msgspec.structs.replace(setting, rows=rows)


def _point(name: str, setting: Setting) -> Point:
    return Point(name, msgspec.to_builtins(setting))


# --- measuring ------------------------------------------------------------------------------------------------


def measure(point: Point, scratch: Path, lines: Mapping[str, Line]) -> Figures:
    setting = msgspec.convert(point.settings, Setting)
    if setting.machines * setting.cores > CORES:
        give_up(f"{setting.machines * setting.cores} cores are wanted, and there are {CORES}")
    source = scratch / f"rows-{setting.rows}.npy"
    if not source.exists():
        write_source(source, setting.rows)
    with held_to(setting.cores), tempfile.TemporaryDirectory(dir=scratch) as folder:
        return (_ours if setting.side == "ours" else _ray)(setting, source, Path(folder))


@contextmanager
def held_to(cores: int) -> Iterator[None]:
    """This thread, and all that it starts meanwhile, have the first cores alone."""
    os.sched_setaffinity(0, EVERY_CORE[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, EVERY_CORE)


def on_core(number: int) -> list[str]:
    """What to put before a command that is to have another core alone."""
    return ["taskset", "-c", str(EVERY_CORE[number])]


def _ours(setting: Setting, source: Path, folder: Path) -> Figures:
    with ExitStack() as stack:
        farm = stack.enter_context(running(folder / "farm", **TIMING, pool="processes"))
        net = None
        if setting.link != "folder":
            net = stack.enter_context(shaped.running(folder / "sshd", LINK, ["second"], farm.marked))
        ours = Ours(farm, setting, source, net)
        one_row = statistics.median([ours.run(ours.one_row) for _ in range(ONE_ROW_RUNS)])
        ours.shares.clear()
        before, began = processor_seconds(farm), time.monotonic()
        with metered(net) as peak:
            seconds = [ours.run(ours.job_file) for _ in range(setting.runs)]
        busy = (processor_seconds(farm) - before) / (time.monotonic() - began)
    return {
        "rates": [round(setting.rows / one, 1) for one in seconds],
        "processor": round(busy / (setting.machines * setting.cores), 3),
        "one row ms": round(1000 * one_row, 2),
        "succeeded": min(ours.shares),
        "peak MB/s": round(max(peak) / 1e6, 1) if net else None,
    }


class Ours:
    """A farm whose machines have joined, with the job and one of a single row."""

    def __init__(self, farm: FarmHarness, setting: Setting, source: Path, net: Shaped | None) -> None:
        self._farm, self._setting = farm, setting
        self.shares: list[float] = []  # of each job's attempts, those that counted
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

    def run(self, job_file: Path) -> float:
        """Seconds from submit to the merged result."""
        began = time.monotonic()
        job = submit(self._farm.root, job_file)
        while self._farm.status(job).state == "running":
            time.sleep(ASK_SECONDS)
        seconds = time.monotonic() - began
        self._farm.wait(job)
        status = self._farm.status(job)
        done = status.totals.committed
        self.shares.append(round(done / (done + status.failures), 4))
        self._farm.coordinator("rm", job)
        return seconds


@contextmanager
def metered(net: Shaped | None) -> Iterator[list[float]]:
    """What the second machine's link carried, in bytes a second, both ways together, every half second."""
    found, ended = [0.0], threading.Event()

    def carried() -> int:
        assert net is not None
        names = [f"/sys/class/net/{netns.LINK}/statistics/{way}_bytes" for way in ("rx", "tx")]
        said = subprocess.run([*net.machines[0].enter, "cat", *names], capture_output=True, text=True, check=True)
        return sum(map(int, said.stdout.split()))

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


# --- the page -------------------------------------------------------------------------------------------------


def page(lines: Mapping[str, Line]) -> Page:
    pictures: dict[str, Picture] = {}
    body = [*_what(), *_runs(lines, pictures), *_gains(lines), *_sweep(lines, pictures), *_worse(lines)]
    return Page("Batched inference", body, pictures)


def _what() -> list[str]:
    return [
        "An MLP of 784-448-160-10, 425,130 parameters, over rows of 784 float32: from submit to the merged, durable",
        "result, each run; the mean of the runs, with the smallest and the largest. *There*: what the study had",
        "with Ray on its machines. Ray here: rows in memory to results in memory, nothing is kept.",
        "",
        "All of it is real: nothing is replayed. **A machine is one core** of this one; the server has the first",
        "machine's",
        "core, too. What more cores or more than two machines would do cannot be shown here. With 10 workers on one",
        "core, as there, these take turns. A call is a batch here, within a shard; each worker has some four",
        "shards. Workers are plain processes (`--pool processes`).",
        "",
    ]


def spread(line: Line) -> tuple[float, str]:
    """The mean, and how far runs were from it."""
    rates = line.figures["rates"]
    mean = statistics.mean(rates)
    return mean, f"{mean:,.0f} ({min(rates):,.0f} to {max(rates):,.0f})" if len(rates) > 1 else f"{mean:,.0f}"


def _runs(lines: Mapping[str, Line], pictures: dict[str, Picture]) -> list[str]:
    header = ("setting", "rows", "side", "rows/s", "over there", "processor", "one row, ms", "succeeded")
    rows: list[Sequence[Cell]] = []
    bars = []
    for size in dict.fromkeys(line.settings["rows"] for line in lines.values()):
        for name, label in LABELS.items():
            there = THERE.get(name) if size in SIZES else None
            if there:
                rows.append([label, size, "there", there, 1.0, None, None, None])
                bars.append((f"there: {label}", there))
            for side, who in SIDES.items():
                if line := lines.get(f"{side}/{size}/{name}"):
                    mean, told = spread(line)
                    times = mean / there if there else None
                    rows.append([label, size, who, told, times, *_more(line)])
                    bars.append((f"{side}: {label}", mean))
        if bars:
            pictures[f"infer-{size}"] = Bars(f"Rows a second, {size:,} rows", "", bars)
        bars = []
    drawn = [f"![rows a second]({name}.svg)" for name in pictures]
    return ["## Runs", "", *table(header, rows), "", *drawn, ""]


def _more(line: Line) -> list[Cell]:
    figures = line.figures
    return [f"{figures['processor']:.0%}", figures["one row ms"], f"{figures['succeeded']:.0%}"]


def _gains(lines: Mapping[str, Line]) -> list[str]:
    """Of a second machine, beside what it cost there."""
    first = lines.get(f"ours/{SIZES[1]}/own")
    seconds = {"folder": lines.get(f"ours/{SIZES[1]}/own two")}
    seconds |= {link: lines.get(f"gain/{SIZES[1]}/{link}") for link in GAINS if link != "folder"}
    rows: list[Sequence[Cell]] = [
        ["there: two nodes", THERE["ten"], THERE["two"], round(THERE["two"] / THERE["ten"], 2), None]
    ]
    if first:
        alone, _ = spread(first)
        for link, label in GAINS.items():
            if second := seconds[link]:
                both, _ = spread(second)
                rows.append([label, alone, both, round(both / alone, 2), second.figures["peak MB/s"]])
    header = ("a second machine", "rows/s of one", "rows/s of two", "times", "link's peak, MB/s")
    return [
        "## A second machine",
        "",
        f"At our own settings, {SIZES[1]:,} rows. There a second node cost 3%. A row is 3,136 bytes, so a link of",
        "1 Gbit/s brings",
        "at most some 38,000 a second: with a copy of the source there, or a model with more work for each byte,",
        "that does not matter.",
        "",
        *table(header, rows),
        "",
    ]


def _sweep(lines: Mapping[str, Line], pictures: dict[str, Picture]) -> list[str]:
    body = ["## Workers × rows a call × machines", "", f"Rows a second, one run each of {SIZES[0]:,} rows.", ""]
    for machines, workers in SWEEP_WORKERS.items():
        found = {
            (count, batch): spread(line)[0]
            for count, batch in product(workers, SWEEP_BATCHES)
            if (line := lines.get(f"sweep/{machines}x{count}x{batch}"))
        }
        if not found:
            continue
        header = (f"{machines} machines: workers" if machines > 1 else "1 machine: workers", *map(str, SWEEP_BATCHES))
        body += [
            *table(
                header, [[str(count), *(found.get((count, batch)) for batch in SWEEP_BATCHES)] for count in workers]
            ),
            "",
            f"![sweep](infer-sweep-{machines}.svg)",
            "",
        ]
        curves = [
            (
                f"{batch:,} rows a call",
                [(float(count), found[count, batch]) for count in workers if (count, batch) in found],
            )
            for batch in SWEEP_BATCHES
        ]
        pictures[f"infer-sweep-{machines}"] = Curves(
            f"Rows a second, machines: {machines}", "workers", "rows/s", curves
        )
    return body


def _worse(lines: Mapping[str, Line]) -> list[str]:
    ours, ray = lines.get(f"ours/{SIZES[0]}/one"), lines.get(f"ray/{SIZES[0]}/one")
    told = ""
    if ours and ray:
        told = (
            f" {ours.figures['one row ms']:.0f} ms, beside {ray.figures['one row ms']:.1f} ms of a call of Ray's actor."
        )
    return [
        "## Where ours is worse",
        "",
        "- One row alone is a whole job here, planned, durably committed and",
        f"  merged:{told or ' far slower than a call.'} Who wants single answers wants a server of models.",
        "- A job's start and merge are in every figure: with 100,000 rows, which take a second, they are a good",
        "  part of it.",
        "",
    ]


STUDY = Study("infer", points, measure, page)
