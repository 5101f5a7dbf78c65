"""Measures a point of the parameter server's study: with real machines, or with a clock that goes by measured times."""

from __future__ import annotations

import importlib.util
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil

from benchmarks import goal, reach, shaped
from benchmarks.lockstep import slow_machines
from benchmarks.measure import CORES, give_up, tree_seconds
from benchmarks.served import ASK_SECONDS, TIMING
from benchmarks.studies.cores import on_core
from benchmarks.studies.points import Figures, Line, Point
from benchmarks.studies.training import replay
from benchmarks.studies.training.replay import Costs
from benchmarks.studies.training.settings import LINK, Setting, bases, name_of, params_of
from muster.jobs.training import checkpoint
from muster.jobs.training.data import dataset
from muster.jobs.training.params import DataSpec, TrainParams, settled
from muster.jobs.training.progress import CourseRecord
from muster.jobs.training.serial import run_serially
from muster.jobs.training.steps.learner import Learner
from tests.support.farm import FarmHarness, running, until
from tests.support.sshd import HOST

LINK_BYTES = 117e6  # a second that such a link carries
WARM_ROUNDS = 5
COST_ITERATIONS, COST_TEST_ROWS = 400, 100
FEW_WORKERS = 3  # of a machine's share: as many as 60 are for 20 machines
OPENING_ROUNDS = 10
SERVER_ROUNDS = 60
SERVER_SECONDS = 0.2  # what each simulated machine takes for a round


def measure(point: Point, scratch: Path, lines: Mapping[str, Line]) -> Figures:
    what = point.name.split("/")[0]
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        if what == "bytes":
            return _fewer_bytes(dict(point.settings), Path(folder))
        if what == "resnet18":
            return _resnet(dict(point.settings), Path(folder))
        setting = msgspec.convert(point.settings, Setting)
        if what == "course":
            return _course(setting)
        if what == "replayed":
            found = {one: lines[name_of(one, setting)].figures for one in bases(setting)}
            return _replayed(setting, found.get("course", {}), found["costs"], found["server"])
        return {"costs": _costs, "server": _server, "real": real}[what](setting, Path(folder))


# --- real machines --------------------------------------------------------------------------------------------


@contextmanager
def farm_of(folder: Path, machines: int, link: bool = False) -> Iterator[FarmHarness]:
    """With real agents, each held to a core, that are there. `link`: the server has one of that rate, and so has each
    machine."""
    with ExitStack() as stack:
        farm = stack.enter_context(running(folder / "farm", **TIMING, pool="processes"))
        names = [f"m{number}" for number in range(machines)]
        config, where, enter = list[str](), None, [list[str]() for _ in names]
        if link:
            net = stack.enter_context(shaped.running(folder / "sshd", LINK, names, farm.marked, server_rate=LINK))
            config, where = ["--ssh-config", str(net.sshd.ssh_config())], f"{HOST}:{farm.root.path}"
            enter = [machine.enter for machine in net.machines]
        for number, name in enumerate(names):
            farm.join(name, "--cpus", "1", *config, where=where, prefix=[*on_core(number % CORES), *enter[number]])
        until(lambda: all(map(farm.agent_status, names)), "the machines to join", 60)
        yield farm


def trained(
    farm: FarmHarness, params: Mapping[str, Any], most_seconds: float = float("inf")
) -> tuple[CourseRecord, float]:
    """Its course, to the end or to the first checkpoint after so many seconds of training, and how long machines
    computed."""
    job = farm.submit({}, kind="train", params=params)
    while (status := farm.status(job)).state == "running":
        if status.progress is not None and (status.progress.numbers.get("seconds") or 0.0) > most_seconds:
            farm.coordinator("cancel", job)
        time.sleep(ASK_SECONDS)
    status = farm.wait(job, "complete", "cancelled")
    told = checkpoint.newest_told(farm.root.job(job).checkpoints)
    assert told is not None, f"{job} has no checkpoint"
    return told.record, sum(agent.busy for agent in status.agents)


def warmed(farm: FarmHarness, params: Mapping[str, Any], most_seconds: float = float("inf")) -> CourseRecord:
    """The course of a training before which machines have its data, and their workers are up."""
    trained(farm, {**params, "rounds": WARM_ROUNDS, "eval_every": WARM_ROUNDS})
    return trained(farm, params, most_seconds)[0]


def real(setting: Setting, folder: Path) -> Figures:
    with farm_of(folder, setting.machines, setting.link) as farm:
        return kept(warmed(farm, params_of(setting), setting.most_seconds))


def kept(record: CourseRecord) -> Figures:
    """The curve at its marks, with all rows between them."""
    thin, rows, at = [], 0, {mark.iteration for mark in record.marks}
    for point in record.points:
        rows += point.samples
        if point.iteration in at or point is record.points[-1]:
            thin.append([point.iteration, round(point.seconds, 4), round(point.loss, 4), rows, point.machines])
            rows = 0
    marks = [[mark.iteration, round(mark.seconds, 4), mark.accuracy, round(mark.loss, 4)] for mark in record.marks]
    best = max(mark.accuracy for mark in record.marks) if record.marks else None
    return {"iterations/s": round(pace(record), 2), "best": best, "points": thin, "marks": marks}


def pace(record: CourseRecord) -> float:
    """Iterations a second after the first, in which workers start."""
    first, last = record.points[0], record.points[-1]
    return (last.iteration - first.iteration) / max(last.seconds - first.seconds, 1e-9)


def few_rows(data: str, folder: Path, rows: int | None, test_rows: int, zoom: int = 1) -> dict[str, str]:
    """A data set's first rows, as files; each pixel `zoom` times as wide and as high."""
    found = dataset.load(DataSpec(name=data), folder)
    images = [x.repeat(zoom, 1).repeat(zoom, 2) for x in (found.x[:rows], found.test_x[:test_rows])]
    arrays = {"x": images[0], "y": found.y[:rows], "test_x": images[1], "test_y": found.test_y[:test_rows]}
    for part, array in arrays.items():
        np.save(folder / f"{part}.npy", array)
    return {part: str(folder / f"{part}.npy") for part in arrays}


def _fewer_bytes(params: dict[str, Any], folder: Path) -> Figures:
    """Two machines behind links of 1 Gbit/s, to the target, and what the link of one of them carried."""
    target, seeds, spec = params.pop("target"), params.pop("seeds"), goal.named(params.pop("data"))
    found: dict[str, list[float]] = {"seconds": [], "rows": [], "MB": [], "accuracy": []}
    with (
        running(folder / "farm", **TIMING, pool="processes") as farm,
        shaped.running(folder / "sshd", LINK, ["m0", "m1"], farm.marked) as net,
    ):
        ours = reach.Ours(farm, spec, target)
        ours.join_far(net)
        for seed in range(1, seeds + 1):
            before = reach.carried(net.machines[0])
            reached = ours.reach(params, seed)
            found["MB"].append(round((reach.carried(net.machines[0]) - before) / 1e6, 3))
            found["seconds"].append(round(reached.seconds, 2))
            found["rows"].append(reached.steps * reach.AGENTS * params["microbatch"])
            found["accuracy"].append(reached.accuracy)
    return {**found}


def _resnet(params: dict[str, Any], folder: Path) -> Figures:
    if importlib.util.find_spec("torch") is None:
        give_up("torch is not installed")
    machines = params.pop("machines")
    data = few_rows(params.pop("data"), folder, *(params.pop(what) for what in ("rows", "test_rows", "zoom")))
    with farm_of(folder, machines) as farm:
        return kept(warmed(farm, {"model": "resnet18", "data": data, "checkpoint_rounds": 1 << 30, **params}))


# --- what replays go by ---------------------------------------------------------------------------------------


def _costs(setting: Setting, folder: Path) -> Figures:
    """Of one machine: a contribution's compute, and what a round of it takes beside. A small test set, as scores count
    as compute."""
    params = {**params_of(setting), "data": few_rows(setting.data, folder, None, COST_TEST_ROWS)}
    iterations = min(COST_ITERATIONS, 5 * setting.rounds)
    with farm_of(folder, 1, setting.link) as farm:
        trained(farm, {**params, "rounds": WARM_ROUNDS})
        record, busy = _timed(farm, params, iterations)
        took = _seconds(record)
        mean = statistics.mean(took)
        if setting.scaling == "strong" and setting.mode == "sync":  # a share may be small, and what is beside with it
            few, _ = _timed(farm, {**params, "workers": FEW_WORKERS}, iterations)
            compute = (mean - statistics.mean(_seconds(few))) / (params["workers"] - FEW_WORKERS)
        else:
            compute = busy * params["microbatch"] / sum(point.samples for point in record.points)
    a_round = sum(point.samples for point in record.points) / params["microbatch"] / len(record.points)
    return {
        "compute ms": round(1000 * compute, 4),
        "beside ms": round(1000 * max(0.0, mean - compute * a_round), 4),
        "spread": [round(one / mean, 3) for one in took[:: max(1, len(took) // 200)]],
    }


def _timed(farm: FarmHarness, params: dict[str, Any], iterations: int) -> tuple[CourseRecord, float]:
    """Of so many rounds, or pushes."""
    rounds = iterations if params["mode"] == "sync" else -(-iterations // params["workers"])
    return trained(farm, {**params, "rounds": rounds, "eval_every": rounds})


def _seconds(record: CourseRecord) -> list[float]:
    """Of each iteration but the first ones, in which workers open the data."""
    return [after.seconds - before.seconds for before, after in itertools.pairwise(record.points)][OPENING_ROUNDS:]


def _server(setting: Setting, folder: Path) -> Figures:
    """For how long the server's processes are busy with what one machine hands in: daemon, driver and connections."""
    rounds = min(SERVER_ROUNDS, setting.rounds // 5)
    spent = []
    with slow_machines(folder / "farm", setting.machines, SERVER_SECONDS) as farm:
        for count in (WARM_ROUNDS, WARM_ROUNDS, WARM_ROUNDS + rounds):  # what a job takes beside its rounds is in each
            before = served_seconds()
            found, _ = trained(farm, params_of(setting) | {"microbatch": 1, "rounds": count, "eval_every": count})
            spent.append(served_seconds() - before)
    return {
        "server ms": round(1000 * max(0.0, spent[2] - spent[1]) / rounds / setting.machines, 3),
        "rounds/s": round((WARM_ROUNDS + rounds) / found.points[-1].seconds, 3),
    }


def served_seconds() -> float:
    """Processor time of all that this process started: simulated machines are its own threads."""
    own = psutil.Process().cpu_times()
    return tree_seconds(os.getpid()) - own.user - own.system


# --- replayed -------------------------------------------------------------------------------------------------


def _course(setting: Setting) -> Figures:
    """What rounds come to, whenever each is over: after how many, the loss and the accuracy on the test set."""
    serial = run_serially(*resolved(setting))
    return {"scores": [[at, round(serial.losses[at - 1], 4), accuracy] for at, accuracy in serial.accuracies]}


def _replayed(setting: Setting, course: Figures, costs: Figures, server: Figures) -> Figures:
    params, data = resolved(setting)
    dim, busy = Learner(params, data).dim, server["server ms"] / 1e3
    on_link = 2 * 4 * dim / LINK_BYTES if setting.link else 0.0
    by = Costs(
        compute=costs["compute ms"] / 1e3,
        spread=costs["spread"],
        beside=max(0.0, costs["beside ms"] / 1e3 - busy),  # of which the server is a part
        server=max(busy, on_link),
    )
    if setting.mode == "sync":
        record = replay.in_rounds(params, course["scores"], setting.machines, by, setting.most_seconds)
    else:
        record = replay.asynchronously(params, data, setting.machines, by, setting.most_seconds)
    return {"parameters": dim, **kept(record)}


def resolved(setting: Setting) -> tuple[TrainParams, dataset.Data]:
    """As a submit resolves them."""
    params = settled(msgspec.convert(params_of(setting), TrainParams))
    data = dataset.load(params.data, Path("/"), params.seed)
    return msgspec.structs.replace(params, facts=data.facts), data
