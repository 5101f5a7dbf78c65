"""Searches beside Ray Tune: the same functions, configurations and data on both sides, in turn, both warm.

    python -m benchmarks.tune [--runs 3] [--parts short,study,first,equal,halving] [--rows 12000] [--no-peer]

Ours are two agents by folder with a processor each; Ray Tune has as many processors and one for a trial.

`short`: 64 trials of 10 iterations of 10 ms; `ratio` is Ray Tune's wall time over ours. `study`: 16 configurations of
an mlp on MNIST's first rows, to 0.99 of training accuracy or 40 iterations, and what a trial costs beside the seconds
inside trials; `uneven_s` of it nobody can spare who begins them in their order, as the last slots stand empty. `first`:
the time from submit until the first trial reaches that target, on both sides, the median of five seeds, and how long a
search with `goal: first` goes on after it. `equal`: 16 equal trials on two slots and on one, and beside a plain pool of
two processes. `halving`: its iterations over those of fifo, and the test accuracy of each one's best. What has a bar
stands under `bars` with it.
"""

from __future__ import annotations

import argparse
import heapq
import io
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np

from benchmarks import trials
from benchmarks.infer import ray_running
from benchmarks.measure import CORES, add_no_peer, give_up, machine, report
from benchmarks.served import finish, served
from muster.jobs.common.errors import SourceError
from muster.jobs.training.data import dataset
from muster.jobs.training.params import DataSpec
from muster.jobs.tuning.journal import SEGMENTS
from muster.jobs.tuning.searchers import Configurations
from muster.jobs.tuning.space import Space
from muster.jobs.tuning.trials import Segment
from tests.support.farm import FarmHarness, until

PARTS = ("short", "study", "first", "equal", "halving")
SLOTS = 2
SPACE = {"lr": {"uniform": [0.001, 0.1]}, "momentum": {"uniform": [0.1, 0.9]}, "hidden": {"randint": [32, 512]}}
TARGET, ITERATIONS = 0.99, 40
WORK = Path(trials.__file__).read_text()
METRIC = "train_accuracy"


@dataclass
class Searched:
    """What came of one search, on whichever side."""

    wall: float  # seconds from submit to the end
    inside: list[float]  # seconds in the iterations of each trial, in their order
    iterations: int
    count: int
    best: float = 0.0  # test accuracy of the best trial by the metric
    target: float | None = None  # seconds from submit until it was known that the first reached it
    reached: list[int] = field(default_factory=list)  # iterations of each that did

    def overhead(self, slots: int = SLOTS) -> float:
        """Wall seconds a trial, beside what was inside trials."""
        return (self.wall - sum(self.inside) / slots) / self.count

    def uneven(self, slots: int = SLOTS) -> float:
        """As much of it as follows from the trials' lengths, where each goes to the slot that is free first."""
        free = [0.0] * slots
        for seconds in self.inside:
            heapq.heapreplace(free, free[0] + seconds)
        return (max(free) - sum(self.inside) / slots) / self.count


@dataclass(frozen=True)
class Asked:
    """One search."""

    function: str  # of `benchmarks.trials`
    configs: list[dict[str, Any]]
    iterations: int
    target: float = 2.0  # nobody reaches it
    scheduler: str = "fifo"
    goal: str = "all"
    cpus: int = 1


def configurations(count: int, seed: int, **more: Any) -> list[dict[str, Any]]:
    drawn = Configurations(Space(SPACE), seed=seed, trials=count)
    return [{**drawn.config(number), "trial": number, **more} for number in range(count)]


# --- ours --------------------------------------------------------------------------------------------------


class Ours:
    """Two agents of this machine."""

    def __init__(self, farm: FarmHarness, agents: int = SLOTS, cpus: int = 1) -> None:
        self._farm = farm
        for number in range(agents):
            farm.join(f"w{number}", "--cpus", str(cpus))
        until(lambda: all(farm.is_live(f"w{number}") for number in range(agents)), "the agents to join", 120)
        self.search(Asked("pause", [{"pause": 0.3, "trial": n} for n in range(4 * agents)], 1))  # pools and runners

    def search(self, asked: Asked) -> Searched:
        stop = {"iterations": asked.iterations, METRIC: asked.target}
        params = {
            "space": dict.fromkeys(asked.configs[0], 0),
            "first": asked.configs,
            "trials": len(asked.configs),
            "metric": METRIC,
            "stop": stop,
            "scheduler": asked.scheduler,
            "goal": asked.goal,
            **({"grace": 3} if asked.scheduler == "halving" else {}),
        }
        fields: dict[str, Any] = {"kind": "tune", "code": f"work.py:{asked.function}", "params": params}
        began, at = time.monotonic(), time.time()
        job = self._farm.submit({}, work=WORK, resources={"cpus": asked.cpus}, **fields)
        finish(self._farm, job)
        wall, place = time.monotonic() - began, self._farm.root.job(job)
        reached, result = first_reached(place.checkpoints), place.result / "made"
        summary = json.loads((result / "best.json").read_text())
        told = json.loads((result / "trials.json").read_text())
        return Searched(
            wall,
            [sum(at["inside"] for at in one["curve"]) for one in sorted(told, key=itemgetter("number"))],
            summary["iterations"],
            len(told),
            told[0]["metrics"].get("test_accuracy", 0.0),
            reached - at if reached is not None else None,
            sorted(one["iterations"] for one in told if one["state"] == "target"),
        )


def first_reached(journal: Path) -> float | None:
    """When it was durably known that a trial had reached its target, by the clock of files; None if none has."""
    for path in sorted(journal.glob(f"*{SEGMENTS}")):
        if any(one.why == "target" for one in msgspec.msgpack.decode(path.read_bytes(), type=list[Segment])):
            return path.stat().st_mtime
    return None


@contextmanager
def ours_running(agents: int = SLOTS, cpus: int = 1) -> Iterator[Ours]:
    with tempfile.TemporaryDirectory(prefix="muster-tune-") as folder, served(Path(folder) / "farm") as farm:
        yield Ours(farm, agents, cpus)


# --- Ray Tune ----------------------------------------------------------------------------------------------


class RayTune:
    """A cluster that is up, and Tune as its manual has it. `storage`: where it keeps its experiments."""

    def __init__(self, storage: Path) -> None:
        self._storage = storage
        self.search(Asked("pause", [{"pause": 0.1, "trial": n} for n in range(SLOTS)], 1))

    def search(self, asked: Asked) -> Searched:
        from ray import tune

        watch = _watch(asked.target)
        began = time.monotonic()
        tuner = tune.Tuner(
            tune.with_resources(_ray_trial, {"cpu": asked.cpus}),
            param_space={
                "given": tune.grid_search(asked.configs),
                "function": asked.function,
                "iterations": asked.iterations,
                "target": asked.target,
            },
            tune_config=tune.TuneConfig(metric=METRIC, mode="max"),
            run_config=tune.RunConfig(storage_path=str(self._storage), verbose=0, callbacks=[watch]),
        )
        with redirect_stdout(io.StringIO()):  # it says where its files are, whatever it is told
            found = tuner.fit()
        wall = time.monotonic() - began
        if found.errors:
            give_up(f"Ray Tune: {found.errors[0]}")
        every = (found[number].metrics or {} for number in range(len(found)))
        last = [one for one in every if METRIC in one]  # not of who was ended before a first iteration
        best = max(last, key=lambda one: one[METRIC])
        reached = sorted(one["training_iteration"] for one in last if one[METRIC] >= asked.target)
        return Searched(
            wall,
            [one["total"] for one in last],
            sum(one["training_iteration"] for one in last),
            len(last),
            best.get("test_accuracy", 0.0),
            watch.reached - began if watch.reached else None,
            reached,
        )


def _ray_trial(config: dict[str, Any]) -> None:
    """The same function, called as long."""
    from ray import tune

    function, state, total = getattr(trials, config["function"]), None, 0.0
    for _ in range(config["iterations"]):
        metrics, state = function(config["given"], state, 1)
        total += metrics["inside"]
        tune.report({**metrics, "total": total})
        if metrics[METRIC] >= config["target"]:
            return


def _watch(target: float) -> Any:
    """What notes when the first result reached the target."""
    from ray import tune

    class Watch(tune.Callback):
        reached: float | None = None

        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            if self.reached is None and result[METRIC] >= target:
                self.reached = time.monotonic()

    return Watch()


@contextmanager
def ray_tune() -> Iterator[RayTune]:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    try:
        from ray import tune  # noqa: F401
    except ImportError as error:
        give_up(f"Ray Tune: {error}; python -m pip install 'ray[tune]'")
    with tempfile.TemporaryDirectory(prefix="muster-ray-tune-") as storage, ray_running(CORES):
        yield RayTune(Path(storage))


# --- parts -------------------------------------------------------------------------------------------------


class Bar(msgspec.Struct, frozen=True):
    """A figure, what it should be at least or at most, and whether it is; None where there is no figure."""

    figure: float | None
    least: float = -math.inf
    most: float = math.inf

    def told(self) -> dict[str, Any]:
        bar = f">= {self.least:g}" if self.least > -math.inf else f"<= {self.most:g}"
        reached = None if self.figure is None else self.least <= self.figure <= self.most
        return {"figure": self.figure, "bar": bar, "reached": reached}


Bars = dict[str, Bar]
Sides = dict[str, Callable[[Asked], Searched]]


def in_turn(sides: Sides, asked: Asked, runs: int) -> dict[str, list[Searched]]:
    found: dict[str, list[Searched]] = {name: [] for name in sides}
    for number in range(runs):
        for name, search in sides.items():
            one = search(asked)
            found[name].append(one)
            print(f"  run {number + 1}: {name} {one.wall:.2f} s, {one.iterations} iterations", flush=True)
    return found


def ratio_of(found: dict[str, list[Searched]]) -> float | None:
    """Ray Tune's wall time over ours, of the runs that went best."""
    if "ray" not in found:
        return None
    return round(min(one.wall for one in found["ray"]) / min(one.wall for one in found["ours"]), 3)


def overheads(found: dict[str, list[Searched]]) -> dict[str, float]:
    return {name: round(median(one.overhead() for one in runs), 3) for name, runs in found.items()}


def short(sides: Sides, given: argparse.Namespace, bars: Bars) -> dict[str, Any]:
    configs = [{"pause": 0.01, "trial": number} for number in range(given.trials)]
    found = in_turn(sides, Asked("pause", configs, 10), given.runs)
    rates = {name: max(one.count / one.wall for one in runs) for name, runs in found.items()}
    bars["short: Ray Tune's wall over ours"] = Bar(ratio_of(found), least=4)
    return {"rates": rates, "overhead_s": overheads(found)}


def study(sides: Sides, given: argparse.Namespace, bars: Bars) -> dict[str, Any]:
    configs = configurations(given.samples, 0, data=given.data)
    found = in_turn(sides, Asked("epoch", configs, ITERATIONS, TARGET), given.runs)
    ours = found["ours"][0]
    kept = {name: [round(one.wall, 2) for one in runs] for name, runs in found.items()}
    costs = overheads(found)
    bars["study: Ray Tune's wall over ours"] = Bar(ratio_of(found), least=1.15)
    bars["study: wall seconds a trial beside those inside trials"] = Bar(costs["ours"], most=0.2)
    return {
        "overhead_s": costs,
        "uneven_s": round(median(one.uneven() for one in found["ours"]), 3),
        "wall_s": kept,
        "iterations": ours.iterations,
        "iterations_to_target": ours.reached,
        "test_accuracy": {name: round(runs[0].best, 4) for name, runs in found.items()},
    }


def first(sides: Sides, given: argparse.Namespace, bars: Bars) -> dict[str, Any]:
    times: dict[str, list[float]] = {name: [] for name in sides}
    after: list[float] = []
    for seed in range(given.seeds):
        configs = configurations(given.samples, seed, data=given.data)
        for name, search in sides.items():
            one = search(Asked("epoch", configs, ITERATIONS, TARGET, goal="first"))
            print(f"  seed {seed}: {name} {one.target and round(one.target, 2)} of {one.wall:.2f} s", flush=True)
            if one.target is not None:
                times[name].append(one.target)
                after += [one.wall - one.target] if name == "ours" else []
    found = {name: round(median(values), 2) for name, values in times.items() if values}
    ratio = round(found["ray"] / found["ours"], 3) if {"ray", "ours"} <= found.keys() else None
    bars["first: Ray Tune's seconds from submit to the target over ours"] = Bar(ratio, least=1)
    bars["first: seconds that the search went on after it, at most"] = Bar(
        round(max(after), 2) if after else None, most=1
    )
    return {"to_target_s": found, "on_after_it_s": [round(one, 2) for one in after]}


def equal(given: argparse.Namespace, bars: Bars) -> dict[str, Any]:
    configs = [{"pause": given.equal_ms / 1000, "trial": number} for number in range(16)]
    rates = {}
    for slots in (1, 2):
        with ours_running(slots) as ours:
            rates[slots] = max(16 / ours.search(Asked("count", configs, 10)).wall for _ in range(given.runs))
    plain = {slots: max(_pooled(slots, given.equal_ms / 1000) for _ in range(given.runs)) for slots in (1, 2)}
    gains = {"ours": rates[2] / rates[1], "pool": plain[2] / plain[1]}
    bars["equal: two slots over one, as a share of what a pool gains"] = Bar(
        round(gains["ours"] / gains["pool"], 3), least=0.95
    )
    return {name: round(gain, 3) for name, gain in gains.items()}


def _pooled(slots: int, pause: float) -> float:
    with ProcessPoolExecutor(slots) as pool:
        list(pool.map(_whole, [0.0] * slots))
        began = time.monotonic()
        list(pool.map(_whole, [pause] * 16))
        return 16 / (time.monotonic() - began)


def _whole(pause: float) -> None:
    state = None
    for _ in range(10):
        _, state = trials.count({"pause": pause}, state, 1)


def halving(ours: Callable[[Asked], Searched], given: argparse.Namespace, bars: Bars) -> dict[str, Any]:
    configs = configurations(given.samples, 0, data=given.data)
    fifo, rungs = (ours(Asked("epoch", configs, 27, scheduler=name)) for name in ("fifo", "halving"))
    share, points = rungs.iterations / fifo.iterations, 100 * (rungs.best - fifo.best)
    bars["halving: its iterations over fifo's"] = Bar(round(share, 3), most=0.4)
    bars["halving: points of test accuracy that its best has more than fifo's"] = Bar(round(points, 2), least=-0.2)
    return {"iterations": [rungs.iterations, fifo.iterations], "test_accuracy": [rungs.best, fifo.best]}


def laid_out(folder: Path, name: str, rows: int) -> str:
    """A data set's first rows as both sides read them."""
    spec = DataSpec(name=name) if name == dataset.DIGITS else DataSpec(name=name, rows=rows)
    found = dataset.load(spec, folder)
    path = folder / "rows.npz"
    np.savez(path, x=found.x, y=found.y, test_x=found.test_x, test_y=found.test_y)
    return str(path)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--parts", default=",".join(PARTS))
    options.add_argument("--trials", type=int, default=64, help="short ones")
    options.add_argument("--samples", type=int, default=16, help="configurations of the study")
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--name", default="mnist", help="of the data set; digits for a try")
    options.add_argument("--rows", type=int, default=12_000)
    options.add_argument("--equal-ms", type=float, default=100.0, help="an iteration of the equal trials")
    add_no_peer(options)
    given = options.parse_args()
    wanted = given.parts.split(",")
    if unknown := [name for name in wanted if name not in PARTS]:
        options.error(f"there is no part {unknown[0]!r}")
    print(machine(), flush=True)
    parts, bars = dict[str, Any](), Bars()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-tune-rows-")))
        try:
            given.data = laid_out(folder, given.name, given.rows) if {"study", "first", "halving"} & set(wanted) else ""
        except SourceError as error:
            give_up(f"{error.message}; {error.hint}")
        if "equal" in wanted:
            parts["equal"] = equal(given, bars)
        sides: Sides = {} if given.no_peer else {"ray": stack.enter_context(ray_tune()).search}
        sides["ours"] = stack.enter_context(ours_running()).search
        for name, part in (("short", short), ("study", study), ("first", first)):
            if name in wanted:
                parts[name] = part(sides, given, bars)
        if "halving" in wanted:
            parts["halving"] = halving(sides["ours"], given, bars)
    rates = parts.get("short", {}).pop("rates", {"ours": 0.0})
    report(rates["ours"], rates.get("ray"), {"bars": {what: bar.told() for what, bar in bars.items()}, **parts})


if __name__ == "__main__":
    main()
