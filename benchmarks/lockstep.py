"""Rounds of 20 machines in lockstep, whose steps take 100 ms each, beside what that alone would allow.

    python -m benchmarks.lockstep [--agents 20] [--step-ms 100] [--rounds 60] [--runs 3]

The machines are simulated: agents without Ray that compute a small step (an mlp of 784-64-10, 100 rows) and then sleep
until a slower machine would have done it. All they do beside it, each with two helpers, is on this machine's cores,
with the coordinator and the driver. `parts`: processor time of an agent's part of a round, by who spent it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil

from benchmarks.measure import machine, report
from benchmarks.served import finish, served
from muster.jobs.common.ranges import RangeSet
from tests.support.farm import FarmHarness, until
from tests.support.simulated import SimulatedAgent

LAYERS = [64]  # small, for all simulated machines share this one's cores
ROWS = 100  # of a step
WARM_ROUNDS = 5
DATA_ROWS = 5_000


class SlowAgent(SimulatedAgent):
    """Computes, sleeps until a slower machine would have, and hands in each contribution by itself."""

    seconds = 0.0  # of a contribution

    def _compute_part(self, key: Any, numbers: RangeSet) -> None:
        for number in numbers:
            began, before = time.monotonic(), len(self._finished)
            super()._compute_part(key, RangeSet.of([number]))
            time.sleep(max(0.0, self.seconds - (time.monotonic() - began)))
            spent = time.monotonic() - began
            self._finished[before:] = [msgspec.structs.replace(one, compute=spent) for one in self._finished[before:]]
            for part in list(self.parts):
                self.push(part)


@contextmanager
def slow_machines(folder: Path, count: int, seconds: float) -> Iterator[FarmHarness]:
    """A farm of so many, each of which takes so long for a contribution."""
    with served(folder) as farm:
        for number in range(count):
            name = f"w{number}"
            agent = SlowAgent(farm.root, folder / "spools" / name, name, env=farm.environment(), cpus=1)
            agent.seconds = seconds
            farm.agents.append(agent)
            agent.go()
        until(lambda: all(farm.agent_status(f"w{number}") for number in range(count)), "the machines to join", 120)
        yield farm


def params_of(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    data = {"x": str(folder / "x.npy"), "y": str(folder / "y.npy"), "test": 0.01}
    once = {"eval_every": 1 << 30, "checkpoint_rounds": 1 << 30, "rounds": given.rounds + WARM_ROUNDS}
    return {"data": data, "layers": LAYERS, "workers": given.agents, "microbatch": ROWS, **once}


def write_data(folder: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", rng.integers(0, 255, (DATA_ROWS, 28, 28)).astype("u1"))
    np.save(folder / "y.npy", rng.integers(0, 10, DATA_ROWS))


def rate(farm: FarmHarness, params: dict[str, Any]) -> float:
    job = farm.submit({}, kind="train", params=params)
    finish(farm, job)
    assert not [agent.error for agent in farm.agents if agent.error], "every machine worked to the end"
    found = json.loads((farm.root.job(job).result / "made" / "training.json").read_text())
    farm.coordinator("rm", job)
    first, last = found["points"][WARM_ROUNDS - 1], found["points"][-1]
    return float((last[0] - first[0]) / (last[1] - first[1]))


def spent(farm: FarmHarness) -> Counter[str]:
    """Processor seconds so far, by who spent them."""
    seconds: Counter[str] = Counter()
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        with suppress(psutil.Error):
            times = process.cpu_times()
            if process.pid == farm.daemon.pid:
                seconds["driver"] += times.children_user + times.children_system  # type: ignore[assignment]
            who = "daemon" if process.pid == farm.daemon.pid else "machines" if process == me else "helpers"
            seconds[who] += times.user + times.system  # type: ignore[assignment]
    return seconds


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--agents", type=int, default=20)
    options.add_argument("--step-ms", type=float, default=100.0)
    options.add_argument("--rounds", type=int, default=60)
    options.add_argument("--runs", type=int, default=3)
    given = options.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as name:
        measure(Path(name), given)


def measure(folder: Path, given: argparse.Namespace) -> None:
    write_data(folder)
    rates, params = [], params_of(folder, given)
    with slow_machines(folder / "farm", given.agents, given.step_ms / 1000) as farm:
        before, began = spent(farm), time.monotonic()
        for number in range(given.runs):
            rates.append(rate(farm, params))
            print(f"  run {number + 1}: {rates[-1]:.2f} rounds/s", flush=True)
        seconds, took = spent(farm) - before, time.monotonic() - began
    shares = given.runs * given.agents * params["rounds"]
    parts = {f"{who} ms": round(1000 * value / shares, 2) for who, value in sorted(seconds.items())}
    report(max(rates), 1000 / given.step_ms, {**parts, "cores busy": round(seconds.total() / took, 2)})


if __name__ == "__main__":
    main()
