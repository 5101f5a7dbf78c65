"""The parameter-server study: an MLP of 784-64-10, trained by 1 to 20 workers, in rounds and asynchronously.

    python -m benchmarks.study [--workers 1,2,5,10,15,20] [--modes sync,async] [--plots docs/study]

Strong scaling: 60 virtual workers of 10 rows each whatever machines there are, so every run takes the same steps.
`--scaling weak`: as many virtual workers as machines, 100 rows each, the learning rate unchanged, for gradients are
averaged. Numbers of workers up to the cores there are run with real agents. All are also run with agents that have no
Ray and sleep `--row-ms` for each row beside computing it: what is theirs is labelled as simulated. Everything else, the
server, the rounds, the bytes, is real. Writes four pictures, their numbers as CSV, and a page with the speed-ups.
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import datasets
from benchmarks.measure import CORES, machine
from benchmarks.served import finish, served
from muster.jobs.common.errors import NotFoundError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.training import plots, report
from muster.jobs.training.data import named_sets
from muster.jobs.training.params import TrainParams
from muster.jobs.training.progress import BestMark, Point
from muster.jobs.training.report import TrainingRun
from tests.support.farm import FarmHarness, until
from tests.support.simulated import SimulatedAgent

LAYERS = [64]  # small, for all simulated machines share this one's cores
STRONG = {"workers": 60, "microbatch": 10}
WEAK_ROWS = 100
RUN_SECONDS = 1800.0


class SlowAgent(SimulatedAgent):
    """Computes, and then sleeps until a slower machine would have."""

    row_seconds = 0.0
    rows = 0  # of one contribution

    def _compute_part(self, key: Any, numbers: RangeSet) -> None:
        began, before = time.monotonic(), len(self._finished)
        super()._compute_part(key, numbers)
        time.sleep(max(0.0, self.row_seconds * self.rows * len(numbers) - (time.monotonic() - began)))
        spent = time.monotonic() - began
        self._finished[before:] = [msgspec.structs.replace(one, compute=spent) for one in self._finished[before:]]


@contextmanager
def farm_of(folder: Path, workers: int, rows: int, row_seconds: float | None) -> Iterator[FarmHarness]:
    """A farm with so many machines: real ones, or ones whose compute time is simulated."""
    with served(folder) as farm:
        for number in range(workers):
            if row_seconds is None:
                farm.join(f"w{number}", "--cpus", "1")
            else:
                agent = SlowAgent(
                    farm.root, folder / "spools" / f"w{number}", f"w{number}", env=farm.environment(), cpus=1
                )
                agent.row_seconds, agent.rows = row_seconds, rows
                farm.agents.append(agent)
                agent.go()
        until(lambda: all(farm.agent_status(f"w{number}") for number in range(workers)), "the machines to join", 120)
        yield farm


def trained(folder: Path, mode: str, workers: int, given: argparse.Namespace, simulated: bool) -> TrainingRun:
    """One training, as it was recorded."""
    params = params_of(mode, workers, given)
    row_seconds = given.row_ms / 1000 if simulated else None
    with farm_of(folder, workers, params["microbatch"], row_seconds) as farm:
        if not simulated:  # the pools are up once something has run
            finish(farm, farm.submit({}, kind="train", params={"rounds": 3, "workers": workers}))
        job = farm.submit({}, kind="train", params=params)
        until(lambda: farm.status(job).state == "complete", f"{mode} with {workers} workers", RUN_SECONDS)
        assert not [agent.error for agent in farm.agents if agent.error], "every machine worked to the end"
        found = json.loads((farm.root.job(job).result / "made" / "training.json").read_text())
    points, marks = msgspec.convert(found["points"], list[Point]), msgspec.convert(found["marks"], list[BestMark])
    run = TrainingRun(mode, workers, points, marks, simulated=simulated)
    reached = run.reached(given.target)
    told = f"{reached.seconds:.1f} s, {reached.iteration:,} iterations" if reached else "not reached"
    print(f"{run.label}: {run.rate:.1f} iterations/s; {given.target:g}: {told}", flush=True)
    return run


def params_of(mode: str, workers: int, given: argparse.Namespace) -> dict[str, Any]:
    size = STRONG if given.scaling == "strong" else {"workers": workers, "microbatch": WEAK_ROWS}
    spec = msgspec.to_builtins(datasets.spec(given.folder))
    data = {part: spec[part] for part in named_sets.PARTS}
    known = {"data": data, "mode": mode, "lr": given.lr, "target": given.target, "rounds": given.rounds}
    params = {**known, **size, "layers": LAYERS, "eval_every": given.eval_every, "checkpoint_rounds": given.rounds}
    assert msgspec.convert(params, TrainParams)
    return params


def page(runs: list[TrainingRun], given: argparse.Namespace) -> str:
    """The table, with what its columns mean, and the pictures."""
    what = "60 virtual workers of 10 rows" if given.scaling == "strong" else "a virtual worker of 100 rows a machine"
    simulated = f"simulated ones take {given.row_ms:g} ms a row, all on this machine's cores"
    lines = [
        "# Training with 1 to 20 workers",
        "",
        f"`python -m benchmarks.study` on {datetime.date.today()}, {machine()}:",
        f"an MLP of 784-64-10 on {given.data} to an accuracy of {given.target:g}; {what},",
        f"plain SGD with a learning rate of {given.lr:g}, gradients averaged; {simulated}.",
        "Speed-up is T1 / TN, the product of throughput (rows a second) and steps (rows needed).",
        "",
        *_caveats(runs),
        "",
        "| mode | workers | simulated | seconds | iterations | speed-up | throughput | steps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in report.speedups(runs, given.target):
        told = f"{one.run.mode} | {one.run.workers} | {'yes' if one.run.simulated else 'no'} | {one.seconds:.1f}"
        lines.append(f"| {told} | {one.iterations:,} | {one.ratio:.2f} | {one.throughput:.2f} | {one.steps:.2f} |")
    names = (report.SPEEDUP, report.ACCURACY_BY_TIME, report.ACCURACY_BY_ITERATION, report.ITERATIONS_BY_TIME)
    lines += ["", *[f"![{name}]({name}.png)" for name in names]]
    return "\n".join(lines) + "\n"


def _caveats(runs: list[TrainingRun]) -> list[str]:
    """What the figures do not say by themselves."""
    lines = []
    if any(not run.simulated for run in runs):
        lines += [
            "- A real step of so small a model takes some milliseconds: what real machines show is mostly what a round",
            "  costs beside it. Real and simulated runs are not to be compared with each other.",
        ]
    if any(run.simulated for run in runs):
        lines += [
            "- All simulated machines, the coordinator, its helpers and the driver share this machine's cores: where",
            "  the curve of many machines flattens, it is these that are busy.",
        ]
    if any(run.simulated and run.mode == "async" for run in runs):
        lines += [
            "- In `async` a simulated machine hands in all it was granted as one push, a real one each contribution by",
            "  itself: iterations of the two are not alike, and speed-up counts rows.",
        ]
    return lines


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--workers", default="1,2,5,10,15,20")
    options.add_argument("--modes", default="sync,async")
    options.add_argument("--scaling", choices=("strong", "weak"), default="strong")
    options.add_argument("--data", choices=sorted(named_sets.DATASETS), default="mnist")
    options.add_argument("--target", type=float, default=0.88)
    options.add_argument("--lr", type=float, default=0.3)
    options.add_argument("--rounds", type=int, default=150)
    options.add_argument("--eval-every", type=int, default=2)
    options.add_argument("--row-ms", type=float, default=3.0, help="what a simulated machine takes for a row")
    options.add_argument("--plots", type=Path, default=Path("study"))
    given = options.parse_args()
    given.folder = named_sets.fetched(given.data)
    print(machine(), flush=True)
    counts = [int(count) for count in given.workers.split(",")]
    tried = [(count, False) for count in counts if count <= CORES] + [(count, True) for count in counts]
    runs = []
    for mode in given.modes.split(","):
        for count, simulated in tried:
            with tempfile.TemporaryDirectory(prefix="muster-study-") as folder:
                runs.append(trained(Path(folder) / "farm", mode, count, given, simulated))
    try:
        plots.write(given.plots, runs, given.target)
    except NotFoundError as error:
        print(f"{error.message}: {error.hint}")
    text = page(runs, given)
    (given.plots / "README.md").write_text(text)
    print(text, flush=True)


if __name__ == "__main__":
    main()
