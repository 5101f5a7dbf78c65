"""A parameter server with 1 to 20 workers, as the study had it: a small convolution on CIFAR-10. Ours beside theirs.

There each worker's gradient moved the weights by the learning rate. Ours averages, so that its rate is theirs times
the workers: the same steps. `real`: so many real agents. `replayed`: see `benchmarks.studies.replay`.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import psutil

from benchmarks import goal, reach, shaped
from benchmarks.lockstep import slow_machines
from benchmarks.measure import CORES, give_up, tree_seconds
from benchmarks.served import TIMING, finish
from benchmarks.studies import replay
from benchmarks.studies.pages import Cell, table
from benchmarks.studies.points import Figures, Line, Page, Study
from benchmarks.studies.points import Point as Asked
from benchmarks.studies.replay import Costs, Curve
from muster.jobs.contract.pictures import Curves, Picture
from muster.jobs.training.data import dataset, named_sets
from muster.jobs.training.params import TrainParams, settled
from muster.jobs.training.progress import BestMark, Point
from muster.jobs.training.report import Speedup, TrainingRun, speedups
from muster.jobs.training.steps.learner import Learner
from tests.support.farm import FarmHarness, running, until
from tests.support.sshd import HOST

COUNTS = (1, 2, 5, 10, 15, 20)
ROWS = 100  # of a worker's batch, in weak scaling
STRONG = {"workers": 60, "microbatch": 10}  # whatever number of machines shares them
THEIR_RATE = 1e-4  # of each worker's gradient
RATE, MOST_RATE = 0.05, 0.2  # one that makes sense: of each worker's gradient, and at most of all
SEED = 5  # of the first weights: with some all three filters give zeros, and nothing is learned
STRONG_RATE = 0.1
TARGET = 0.40
BEST_THERE = (10, 4.0)  # workers, and how many times as fast as one they were
ROUNDS, EVERY = 2000, 25
MOST_SECONDS = 1200.0  # of a curve
WARM_ROUNDS = 5
COST_ROUNDS, COST_TEST_ROWS = 400, 100
SERVER_ROUNDS, SERVER_SECONDS = 60, 0.2  # and what each simulated machine takes for a round
LINK, LINK_BYTES = "1gbit", 117e6  # a second that such a link carries

Mode = Literal["sync", "async"]
Scaling = Literal["weak", "strong"]

FEWER = {  # ways to 0.975 on MNIST with as few bytes
    "h1-32bits": reach.SYNC,
    "h8-8bits": {**reach.LOCAL, "bits": 8, "local_steps": 8, "microbatch": 1024, "lr": 0.3, "outer_momentum": 0.5},
    "h100-8bits": {**reach.NEAR, "bits": 8},
    "h200-8bits": {**reach.NEAR, "bits": 8, "local_steps": 200},
}  # fmt: skip
GAINS = ("mode", "machines", "how", "seconds", "iterations", "speed-up", "there", "of it throughput", "of it steps")
RESNET = {"workers": 2, "microbatch": 32, "rounds": 40, "eval_every": 10, "lr": 0.02, "momentum": 0.9}
RESNET_ROWS, RESNET_TEST_ROWS = 2000, 200


class Setting(msgspec.Struct, frozen=True):
    """One curve, or what one is replayed by."""

    mode: Mode = "sync"
    scaling: Scaling = "weak"
    machines: int = 1
    rate: float = RATE
    link: bool = False  # whether machines have one of 1 Gbit/s each; the server's own carries all
    rounds: int = ROUNDS
    every: int = EVERY
    data: str = "cifar10"


def points(short: bool) -> list[Asked]:
    if short:
        small = Setting(rounds=8, every=2, data="digits", rate=0.1)
        return [
            _asked("real", small),
            *(_asked("costs", small, mode=mode) for mode in ("sync", "async")),
            *(
                _asked(what, small, mode=mode, machines=5)
                for what in ("server", "replayed")
                for mode in ("sync", "async")
            ),
        ]
    modes: tuple[Mode, ...] = ("sync", "async")
    scalings: tuple[Scaling, ...] = ("weak", "strong")
    one, real = Setting(), [count for count in COUNTS if count <= CORES]
    found = [
        _asked("costs", one, scaling=scaling, mode=mode, rate=_rate(scaling)) for scaling in scalings for mode in modes
    ]
    found += [_asked("server", one, mode=mode, machines=count) for mode in modes for count in COUNTS]
    for what, counts in (("real", real), ("replayed", COUNTS)):
        for scaling, mode, count in itertools.product(scalings, modes, counts):
            found.append(_asked(what, one, scaling=scaling, mode=mode, machines=count, rate=_rate(scaling)))
        found += [_asked(what, one, scaling="strong", machines=count, rate=STRONG_RATE, link=True) for count in counts]
        found += [_asked(what, one, mode=mode, machines=count, rate=THEIR_RATE) for mode in modes for count in counts]
    found += [Asked(f"bytes/{way}", {"target": 0.975, "seeds": 3, **params}) for way, params in FEWER.items()]
    return found + [Asked(f"resnet18/{count}", {"machines": count, **RESNET}) for count in real]


def _rate(scaling: Scaling) -> float:
    return RATE if scaling == "weak" else STRONG_RATE


def _asked(what: str, setting: Setting, **other: Any) -> Asked:
    setting = msgspec.structs.replace(setting, **other)
    return Asked(_name(what, setting), msgspec.to_builtins(setting))


def _name(what: str, setting: Setting) -> str:
    if what == "server":
        return f"server/{setting.mode}/{setting.machines}"
    if what == "costs":
        return f"costs/{setting.scaling}/{setting.mode}"
    rate = "" if setting.rate != THEIR_RATE else "/1e-4"
    return f"{what}/{setting.scaling}/{setting.mode}/{setting.machines}{rate}{'/link' if setting.link else ''}"


def params_of(setting: Setting) -> dict[str, Any]:
    """As a job file has them."""
    way: dict[str, Any] = {"mode": setting.mode, "lr": setting.rate, **STRONG}
    if setting.scaling == "weak":  # as there: nobody waits, and each gradient moves the weights by the whole rate
        way |= {"workers": setting.machines, "microbatch": ROWS, "lr": min(setting.rate * setting.machines, MOST_RATE)}
        way |= {"staleness": "none", "damped": False} if setting.mode == "async" else {}
    data = setting.data if setting.data == dataset.DIGITS else {"name": setting.data}
    kept = {"seed": SEED, "rounds": setting.rounds, "eval_every": setting.every, "checkpoint_rounds": 1 << 30}
    return {"data": data, "model": "conv1", "filters": 3, **way, **kept}


# --- measuring ------------------------------------------------------------------------------------------------


def measure(point: Asked, scratch: Path, lines: Mapping[str, Line]) -> Figures:
    what = point.name.split("/")[0]
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        if what == "bytes":
            return _fewer_bytes(dict(point.settings), Path(folder))
        if what == "resnet18":
            return _resnet(dict(point.settings), Path(folder))
        setting = msgspec.convert(point.settings, Setting)
        if what == "replayed":
            return _replayed(setting, lines)
        return {"costs": _costs, "server": _server, "real": _real}[what](setting, Path(folder))


@contextmanager
def farm_of(folder: Path, machines: int, link: bool = False) -> Iterator[FarmHarness]:
    """With real agents of a core each, whose workers are up."""
    with ExitStack() as stack:
        farm = stack.enter_context(running(folder / "farm", **TIMING, pool="processes"))
        names = [f"m{number}" for number in range(machines)]
        if link:
            net = stack.enter_context(shaped.running(folder / "sshd", LINK, names, farm.marked))
            config = ["--ssh-config", str(net.sshd.ssh_config())]
            for name, machine in zip(names, net.machines, strict=True):
                farm.join(name, "--cpus", "1", *config, where=f"{HOST}:{farm.root.path}", prefix=machine.enter)
        else:
            for name in names:
                farm.join(name, "--cpus", "1")
        until(lambda: all(map(farm.agent_status, names)), "the machines to join", 60)
        yield farm


def warmed(farm: FarmHarness, params: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a training before which machines have its data, and their workers are up."""
    trained(farm, {**params, "rounds": WARM_ROUNDS, "eval_every": WARM_ROUNDS})
    return trained(farm, params)


def trained(farm: FarmHarness, params: Mapping[str, Any]) -> dict[str, Any]:
    """With the seconds that machines computed."""
    job = farm.submit({}, kind="train", params=params)
    finish(farm, job)
    found: dict[str, Any] = json.loads((farm.root.job(job).result / "made" / "training.json").read_text())
    return {**found, "busy": sum(agent.busy for agent in farm.status(job).agents)}


def curve_of(found: Mapping[str, Any]) -> Curve:
    return Curve(msgspec.convert(found["points"], list[Point]), msgspec.convert(found["marks"], list[BestMark]))


def kept(curve: Curve) -> Figures:
    """The curve at its marks, with all rows between them."""
    thin, rows, at = [], 0, {mark.iteration for mark in curve.marks}
    for point in curve.points:
        rows += point.samples
        if point.iteration in at or point is curve.points[-1]:
            thin.append([point.iteration, round(point.seconds, 4), round(point.loss, 4), rows, point.machines])
            rows = 0
    marks = [[mark.iteration, round(mark.seconds, 4), mark.accuracy, round(mark.loss, 4)] for mark in curve.marks]
    last = curve.points[-1]
    best = max(mark.accuracy for mark in curve.marks) if curve.marks else None
    return {"iterations/s": round(last.iteration / last.seconds, 2), "best": best, "points": thin, "marks": marks}


def _real(setting: Setting, folder: Path) -> Figures:
    with farm_of(folder, setting.machines, setting.link) as farm:
        return kept(curve_of(warmed(farm, params_of(setting))))


def _costs(setting: Setting, folder: Path) -> Figures:
    """Of one machine: a contribution's compute, and what a round of it takes beside. A small test set, as scores count
    as compute."""
    one = msgspec.structs.replace(setting, machines=1, rounds=min(COST_ROUNDS, 10 * setting.rounds))
    params = {**params_of(one), "eval_every": one.rounds}
    if setting.data != dataset.DIGITS:
        params["data"] = few_rows(setting.data, folder, None, COST_TEST_ROWS)
    with farm_of(folder, 1) as farm:
        found = warmed(farm, params)
    ends = [point.seconds for point in curve_of(found).points]
    took = [after - before for before, after in itertools.pairwise(ends)][10:]
    mean = statistics.mean(took)
    given = sum(point.samples for point in curve_of(found).points) / params["microbatch"]
    a_round = given / len(ends)  # contributions of a round, or of a push
    compute = found["busy"] / given
    return {
        "compute ms": round(1000 * compute, 4),
        "beside ms": round(1000 * max(0.0, mean - compute * a_round), 4),
        "spread": [round(one / mean, 3) for one in took[:: max(1, len(took) // 200)]],
    }


def few_rows(name: str, folder: Path, rows: int | None, test_rows: int) -> dict[str, str]:
    """A data set's first rows, as files."""
    whole = named_sets.fetched(name)
    for part in named_sets.PARTS:
        count = test_rows if part.startswith("test") else rows
        np.save(folder / f"{part}.npy", np.load(whole / f"{part}.npy", mmap_mode="r")[:count])
    return {part: str(folder / f"{part}.npy") for part in named_sets.PARTS}


def _server(setting: Setting, folder: Path) -> Figures:
    """For how long the server's processes are busy with what one machine hands in: daemon, driver and connections."""
    rounds = min(SERVER_ROUNDS, setting.rounds)
    spent = []
    with slow_machines(folder / "farm", setting.machines, SERVER_SECONDS) as farm:
        for count in (WARM_ROUNDS, WARM_ROUNDS, WARM_ROUNDS + rounds):  # what a job takes beside its rounds is in each
            before = served_seconds()
            found = trained(farm, params_of(setting) | {"microbatch": 1, "rounds": count, "eval_every": count})
            spent.append(served_seconds() - before)
    last = curve_of(found).points[-1]
    return {
        "server ms": round(1000 * max(0.0, spent[2] - spent[1]) / rounds / setting.machines, 3),
        "rounds/s": round((WARM_ROUNDS + rounds) / last.seconds, 3),
    }


def served_seconds() -> float:
    """Processor time of all that this process started: simulated machines are its own threads."""
    own = psutil.Process().cpu_times()
    return tree_seconds(os.getpid()) - own.user - own.system


def _replayed(setting: Setting, lines: Mapping[str, Line]) -> Figures:
    wanted = [_name("costs", setting), _name("server", setting)]
    if missing := [name for name in wanted if name not in lines]:
        give_up(f"what it is replayed by is not measured: {', '.join(missing)}")
    costs, server = (lines[name].figures for name in wanted)
    params, data = resolved(setting)
    dim, busy = Learner(params, data).dim, server["server ms"] / 1e3
    on_link = 2 * 4 * dim / LINK_BYTES if setting.link else 0.0
    by = Costs(
        compute=costs["compute ms"] / 1e3,
        spread=costs["spread"],
        beside=max(0.0, costs["beside ms"] / 1e3 - busy),  # of which the server is a part
        server=max(busy, on_link),
    )
    way = replay.in_rounds if setting.mode == "sync" else replay.asynchronously
    return {"parameters": dim, **kept(way(params, data, setting.machines, by, MOST_SECONDS))}


_loaded: dict[str, dataset.Data] = {}


def resolved(setting: Setting) -> tuple[TrainParams, dataset.Data]:
    """As a submit resolves them."""
    params = settled(msgspec.convert(params_of(setting), TrainParams))
    if setting.data not in _loaded:
        _loaded[setting.data] = dataset.load(params.data, Path("/"), params.seed)
    return msgspec.structs.replace(params, facts=_loaded[setting.data].facts), _loaded[setting.data]


def _fewer_bytes(params: dict[str, Any], folder: Path) -> Figures:
    """Two machines behind links of 1 Gbit/s, to the target, and what the link of one of them carried."""
    target, seeds = params.pop("target"), params.pop("seeds")
    spec = goal.mnist()
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
    data = few_rows("cifar10", folder, RESNET_ROWS, RESNET_TEST_ROWS)
    with farm_of(folder, machines) as farm:
        return kept(curve_of(warmed(farm, {"model": "resnet18", "data": data, "checkpoint_rounds": 1 << 30, **params})))


# --- the page -------------------------------------------------------------------------------------------------


def page(lines: Mapping[str, Line]) -> Page:
    pictures: dict[str, Picture] = {}
    body = [
        *_what(),
        *_weak(runs_of(lines, "weak"), pictures),
        *_strong(runs_of(lines, "strong"), runs_of(lines, "strong", link=True), pictures),
        *_theirs(runs_of(lines, "weak", theirs=True), pictures),
        *_bytes(lines),
        *_resnets(lines),
        *_replayed_by(lines),
        *_worse(),
    ]
    return Page("A parameter server with 1 to 20 workers", body, pictures)


def runs_of(lines: Mapping[str, Line], scaling: Scaling, link: bool = False, theirs: bool = False) -> list[TrainingRun]:
    """Real ones and replayed ones. `theirs`: at the learning rate there."""
    found = []
    for name, line in lines.items():
        what = name.split("/")[0]
        if what not in ("real", "replayed"):
            continue
        setting = msgspec.convert(line.settings, Setting)
        if (setting.scaling, setting.link, setting.rate == THEIR_RATE) == (scaling, link, theirs):
            curve = curve_of(line.figures)
            found.append(
                TrainingRun(setting.mode, setting.machines, curve.points, curve.marks, simulated=what != "real")
            )
    return found


def _what() -> list[str]:
    return [
        "One convolution of 3 filters of 3 × 3, pooling and a dense layer on CIFAR-10, plain SGD. An iteration is a",
        f"round (`sync`) or the push of one worker (`async`). {ROUNDS:,} rounds, or as many pushes as make so many",
        f"rounds, or {MOST_SECONDS / 60:.0f} minutes. Evaluations, on the whole test set, are off the clock in both",
        "modes. The gradient is averaged; where the study added up the workers' gradients, the learning rate here",
        "is multiplied by the workers, which is the same step. `async` as there: nobody waits for anybody",
        "(`staleness: none`), and each gradient counts in full (`damped: false`). The first weights are those of",
        "one seed: with some seeds all of so few filters give nothing but zeros from the start.",
        "",
        f"**Real**: as many real agents, each a process of its own with a core, up to the {CORES} cores there are.",
        "**Replayed**: every gradient is computed, in the order in which it would have come; when it comes is",
        "reckoned from what was measured of one real machine and of the real server (below). On two cores more than",
        "two machines cannot be shown otherwise.",
        "",
    ]


def _weak(runs: list[TrainingRun], pictures: dict[str, Picture]) -> list[str]:
    body = [
        f"## As there: {ROWS} rows a worker, whatever number of them",
        "",
        f"The learning rate is {RATE:g} for each worker's gradient, and at most {MOST_RATE:g} in all: there it ends to",
        f"grow with the workers. Seconds to an accuracy of {TARGET:g}; the best speed-up there was {BEST_THERE[1]:g},",
        f"at {BEST_THERE[0]} workers.",
        "",
        *speedup_table(runs, there=True),
    ]
    return [*body, *_four(runs, "training-weak", pictures)]


def speedup_table(runs: Sequence[TrainingRun], there: bool = False) -> list[str]:
    """Of those that reached the target; the others are named below."""
    known = {1: 1.0, BEST_THERE[0]: BEST_THERE[1]} if there else {}
    rows: list[list[Cell]] = [
        [*_who(one.run), one.seconds, one.iterations, one.ratio, known.get(one.run.workers), one.throughput, one.steps]
        for one in speedups(runs, TARGET)
    ]
    told = [
        f"{run.mode}, {run.workers}, {_how(run)}: {max((mark.accuracy for mark in run.marks), default=0):.3f}"
        for run in runs
        if run.reached(TARGET) is None
    ]
    text = ["", f"Not reached, with the best accuracy: {'; '.join(told)}."] if told else []
    return [*table(GAINS, rows), *text, ""]


def _who(run: TrainingRun) -> list[Cell]:
    return [run.mode, run.workers, _how(run)]


def _how(run: TrainingRun) -> str:
    return "replayed" if run.simulated else "real"


def _label(run: TrainingRun) -> str:
    return f"{run.workers} of {run.mode}, {_how(run)}"


def _four(runs: Sequence[TrainingRun], name: str, pictures: dict[str, Picture]) -> list[str]:
    """Accuracy over iterations and over time, iterations over time, the speed-up; and both modes on the same axes."""
    body = []
    for mode, title in (("sync", "in rounds"), ("async", "asynchronously")):
        mine = drawn(run for run in runs if run.mode == mode)
        if not mine:
            continue
        by_iteration = [(_label(run), [(float(m.iteration), m.accuracy) for m in run.marks]) for run in mine]
        by_time = [(_label(run), [(m.seconds, m.accuracy) for m in run.marks]) for run in mine]
        paces = [(_label(run), [(p.seconds, float(p.iteration)) for p in run.points]) for run in mine]
        for what, x, y, curves in (
            ("accuracy-over-iterations", "iterations", "test accuracy", by_iteration),
            ("accuracy-over-time", "seconds", "test accuracy", by_time),
            ("iterations-over-time", "seconds", "iterations", paces),
        ):
            pictures[f"{name}-{mode}-{what}"] = Curves(f"{what.replace('-', ' ')}, {title}", x, y, curves)
            body += [f"{what.replace('-', ' ').capitalize()}, {title}:", "", f"![{what}]({name}-{mode}-{what}.svg)", ""]
    gains = speedups(runs, TARGET)
    if gains:
        pictures[f"{name}-speed-up"] = _speedups(gains)
        body += [f"Speed-up to {TARGET:g}:", "", f"![speed-up]({name}-speed-up.svg)", ""]
    return body + _both(runs, gains, name, pictures)


def drawn(runs: Iterable[TrainingRun]) -> list[TrainingRun]:
    """One for each number of machines: the real one, where there is one."""
    found = {run.workers: run for run in sorted(runs, key=lambda run: (run.workers, not run.simulated)) if run.marks}
    return list(found.values())


def _speedups(gains: Sequence[Speedup]) -> Curves:
    kinds = dict.fromkeys((one.run.mode, one.run.simulated) for one in gains)
    lines = []
    for mode, simulated in kinds:
        mine = [one for one in gains if (one.run.mode, one.run.simulated) == (mode, simulated)]
        label = f"{mode}, {_how(mine[0].run)}"
        lines.append((label, [(float(one.run.workers), one.ratio) for one in mine]))
    most = float(max(one.run.workers for one in gains))
    lines += [("as many times as fast", [(1.0, 1.0), (most, most)]), ("there, at its best", [(1.0, 1.0), BEST_THERE])]
    return Curves(f"Speed-up to {TARGET:g}", "machines", "times as fast as one", lines)


def _both(runs: Sequence[TrainingRun], gains: Sequence[Speedup], name: str, pictures: dict[str, Picture]) -> list[str]:
    """Sync beside async, at the number of machines with which either is fastest."""
    replayed = [one for one in gains if one.run.simulated]
    if not replayed:
        return []
    best = min(replayed, key=lambda one: one.seconds).run.workers
    mine = [run for run in runs if run.workers == best and run.simulated]
    curves = [(_label(run), [(m.seconds, m.accuracy) for m in run.marks]) for run in mine]
    pictures[f"{name}-both"] = Curves(f"Sync beside async, {best} machines", "seconds", "test accuracy", curves)
    told = f"In rounds and asynchronously with {best} machines, evaluations off the clock of both:"
    return [told, "", f"![both]({name}-both.svg)", ""]


def _strong(runs: list[TrainingRun], linked: list[TrainingRun], pictures: dict[str, Picture]) -> list[str]:
    if gains := speedups(runs, TARGET):
        pictures["training-strong-speed-up"] = _speedups(gains)
    drawn = ["![speed-up](training-strong-speed-up.svg)", ""] if gains else []
    return [
        f"## The same {STRONG['workers'] * STRONG['microbatch']} rows a round, shared by the machines",
        "",
        f"{STRONG['workers']} virtual workers of {STRONG['microbatch']} rows, learning rate {STRONG_RATE:g}: in",
        "rounds the model is the same to the bit, whatever number of machines there is. `async` with the defaults:",
        "at most 2 rounds stale, and a stale contribution counts less.",
        "",
        *speedup_table(runs),
        *drawn,
        "Over links of 1 Gbit/s, of which the server's own carries what all machines hand in and get:",
        "",
        *speedup_table(linked),
    ]


def _theirs(runs: list[TrainingRun], pictures: dict[str, Picture]) -> list[str]:
    rows = [
        [*_who(run), max(m.accuracy for m in run.marks), run.marks[-1].seconds, run.rate] for run in runs if run.marks
    ]
    mine = drawn(run for run in runs if run.mode == "sync")
    if mine:
        curves = [(_label(run), [(float(m.iteration), m.accuracy) for m in run.marks]) for run in mine]
        pictures["training-their-rate"] = Curves(
            "Accuracy over iterations, rate 1e-4", "iterations", "test accuracy", curves
        )
    return [
        "## At the learning rate there",
        "",
        f"{THEIR_RATE:g} for each worker's gradient, {ROWS} rows a worker: how far {ROUNDS:,} rounds come.",
        "",
        *table(("mode", "machines", "how", "best accuracy", "seconds", "iterations/s"), rows),
        "",
        *(["![accuracy over iterations](training-their-rate.svg)", ""] if mine else []),
    ]


def _bytes(lines: Mapping[str, Line]) -> list[str]:
    plain, rows = lines.get("bytes/h1-32bits"), []
    for way in FEWER:
        if line := lines.get(f"bytes/{way}"):
            mid = {name: statistics.median(line.figures[name]) for name in ("seconds", "rows", "MB", "accuracy")}
            fewer = statistics.median(plain.figures["MB"]) / mid["MB"] if plain else None
            more = mid["rows"] / statistics.median(plain.figures["rows"]) - 1 if plain else None
            told = f"{more:+.0%}" if more is not None else None
            rows.append([way, mid["seconds"], mid["MB"], fewer, told, mid["accuracy"]])
    return [
        "## Fewer bytes",
        "",
        "MNIST to 0.975, the mlp 784-448-160-10, two real machines behind real links of 1 Gbit/s, over ssh. Bytes",
        "are all that one machine's link carried, both ways. Medians of three seeds.",
        "",
        *table(("way", "seconds", "MB a machine", "times fewer", "rows seen", "accuracy"), rows),
        "",
    ]


def _resnets(lines: Mapping[str, Line]) -> list[str]:
    rows = []
    for name, line in lines.items():
        if name.startswith("resnet18/"):
            rows.append(
                [
                    line.settings["machines"],
                    line.figures["iterations/s"],
                    line.figures["points"][-1][1],
                    line.figures["best"],
                ]
            )
    return [
        "## ResNet-18",
        "",
        f"Real: torch, {RESNET['workers']} virtual workers of {RESNET['microbatch']} rows, {RESNET['rounds']} rounds",
        f"on {RESNET_ROWS:,} rows of CIFAR-10. Too short to learn much: it shows the pace.",
        "",
        *table(("machines", "rounds/s", "seconds", "accuracy"), rows),
        "",
    ]


def _replayed_by(lines: Mapping[str, Line]) -> list[str]:
    costs = [
        [name.removeprefix("costs/"), line.figures["compute ms"], line.figures["beside ms"]]
        for name, line in lines.items()
        if name.startswith("costs/")
    ]
    server = [
        [line.settings["mode"], line.settings["machines"], line.figures["server ms"], line.figures["rounds/s"]]
        for name, line in lines.items()
        if name.startswith("server/")
    ]
    return [
        "## What is replayed by",
        "",
        "Of one real machine: what a contribution takes it, and what a round takes beside. Each replayed",
        "contribution takes that mean, times how much longer or shorter than its mean a real round was, one drawn",
        "for each.",
        "",
        *table(("scaling, mode", "a contribution, ms", "beside, ms"), costs),
        "",
        "Of the real server: processor time of daemon, driver and connections for what one machine hands in, with",
        f"so many simulated machines that take {SERVER_SECONDS:g} s for one row. It takes in one after the other.",
        f"Their rounds a second, beside the {1 / SERVER_SECONDS:g} that are possible, show that it keeps up with",
        "them, who share its two cores.",
        "",
        *table(("mode", "machines", "server, ms", "rounds/s"), server),
        "",
    ]


def _worse() -> list[str]:
    return [
        "## Where ours is worse",
        "",
        "- A step of so small a model takes some milliseconds, and a round through the server about as long: one",
        "  machine alone would train it faster in a loop of plain numpy.",
        "- More machines with as many rows each need fewer rounds only as far as the learning rate can grow with",
        "  them.",
        "- What is replayed leaves out what other machines than this one would be: their noise, their network,",
        "  their failures.",
        "",
    ]


STUDY = Study("training", points, measure, page)
