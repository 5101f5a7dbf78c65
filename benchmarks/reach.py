"""Seconds to 0.975 on MNIST of two machines that train one mlp with local steps: a link of 1 Gbit/s, or one machine.

    python -m benchmarks.reach [--link 1gbit] [--target 0.975] [--seeds 3]

The model is the mlp 784-448-160-10 (425,130 parameters). Ours: `mode: local`, two virtual workers, seconds as its
own clock counts them. All evaluate on the whole test set off the clock, and start up off it: pools, clusters and data
are ready. Learning rates are tuned for each side. `ratio`: the peer's seconds over ours, medians of the seeds.

With `--link` there is a server and two agents with one processor each, in network namespaces (needs root), each agent's
link shaped by `tc tbf` to that rate each way; ours goes over ssh. The peer is Ray's parameter-server pattern (H = 1,
gradients in float32, sgd with momentum in the server) on a Ray cluster of the same namespaces; batches of 1,024 rows a
worker on both sides. `parts`: the same of ours with H = 1, and the bytes that each machine's link carried.

Without, there are two agents by folder. The peer is plain numpy in one process with one thread, with the batch that is
best for it. `parts`: over the same with all threads, which has the same cores as ours and nothing to exchange.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks import goal, pattern, shaped
from benchmarks.goal import Judge, Reached
from benchmarks.measure import CORES, machine, report
from benchmarks.served import finish, served
from benchmarks.shaped import Shaped
from benchmarks.train import Batches, model_of
from muster.jobs.training.data.dataset import Data
from muster.jobs.training.params import DataSpec, TrainParams
from tests.support import netns
from tests.support.farm import FarmHarness, until
from tests.support.netns import Machine
from tests.support.sshd import HOST

AGENTS = 2
MOST_STEPS = 2000

# What each side does best with, of what was tried.
LOCAL = {"mode": "local", "momentum": 0.9, "nesterov": True, "bits": 16, "eval_every": 1}
FAR = {**LOCAL, "local_steps": 48, "microbatch": 1024, "lr": 0.3}
NEAR = {**LOCAL, "local_steps": 100, "microbatch": 64, "lr": 0.05}
SYNC: dict[str, Any] = {"microbatch": 1024, "lr": 0.25, "momentum": 0.9, "eval_every": 5}
ALONE: dict[int, dict[str, Any]] = {
    1: {"microbatch": 128, "lr": 0.05, "momentum": 0.9},
    CORES: {"microbatch": 256, "lr": 0.15, "momentum": 0.9},
}
ALONE_JUDGED_EVERY = 10  # steps
H1 = "ours, H = 1"


class Ours:
    """A farm with its agents, whose pools are up."""

    def __init__(self, farm: FarmHarness, spec: DataSpec, target: float) -> None:
        self._farm, self._spec, self._target = farm, spec, target

    def join_near(self) -> None:
        for number in range(AGENTS):
            self._farm.join(f"bench{number}", "--cpus", str(max(CORES // AGENTS, 1)))
        self._warm()

    def join_far(self, net: Shaped) -> None:
        where = f"{HOST}:{self._farm.root.path}"
        for number, agent in enumerate(net.machines):
            options = ["--cpus", "1", "--ssh-config", str(net.sshd.ssh_config())]
            self._farm.join(f"bench{number}", *options, where=where, prefix=agent.enter)
        self._warm()

    def _warm(self) -> None:
        names = [f"bench{number}" for number in range(AGENTS)]
        until(lambda: all(map(self._farm.agent_status, names)), "the agents to join", 60)
        self._run({**SYNC, "rounds": 20, "eval_every": 20})

    def reach(self, params: dict[str, Any], seed: int) -> Reached:
        found = self._run({**params, "rounds": MOST_STEPS, "seed": seed, "target": self._target})
        if not found["reached_target"]:
            raise SystemExit(f"ours did not reach {self._target}: {found['best_accuracy']}")
        at = found["iteration"]
        ends = [point[1] for point in found["points"][:at]]
        return Reached(_without_start(ends, found["redone"]), at * found["params"]["local_steps"], found["accuracy"])

    def _run(self, params: dict[str, Any]) -> dict[str, Any]:
        told = {"data": msgspec.to_builtins(self._spec), "workers": AGENTS, "checkpoint_rounds": 1 << 30, **params}
        job = self._farm.submit({}, kind="train", name="train", params=told)
        finish(self._farm, job)
        found: dict[str, Any] = json.loads((self._farm.root.job(job).result / "made" / "training.json").read_text())
        self._farm.coordinator("rm", job)
        return found


def _without_start(ends: list[float], redone: int) -> float:
    """Of all rounds. The first, in which workers open the data, counts as a usual one, and so does each done again."""
    took = [after - before for before, after in itertools.pairwise(ends)]
    return sum(took) + (1 + redone) * statistics.median(took) if took else ends[0]


def alone(params: TrainParams, found: Data, target: float, threads: int) -> Reached:
    """Plain numpy in this process."""
    import threadpoolctl

    model, judge = model_of(params), Judge(params, found)
    batches = Batches(found, params.microbatch, params.seed)
    weights, gradient = model.start(params.seed), np.empty(model.dim, "f4")
    moved, rate, share = np.zeros_like(weights), np.float32(params.lr), np.float32(1 / params.microbatch)
    seconds, steps, accuracy = 0.0, 0, 0.0
    with threadpoolctl.threadpool_limits(threads):
        while accuracy < target and steps < MOST_STEPS:
            began = time.monotonic()
            for _ in range(ALONE_JUDGED_EVERY):
                model.gradient(weights, *batches.next(), gradient)
                gradient *= share
                moved *= np.float32(params.momentum)
                moved += gradient
                np.multiply(moved, rate, out=gradient)
                weights -= gradient
            seconds, steps = seconds + time.monotonic() - began, steps + ALONE_JUDGED_EVERY
            accuracy = judge.accuracy(weights)
    return Reached(seconds, steps, accuracy)


class Sides:
    """Runs of several sides in turn, seed by seed, and what the link of a machine carried in each."""

    def __init__(self, agent: Machine | None = None) -> None:
        self._agent = agent
        self.seconds: dict[str, list[float]] = {}
        self.carried_mb: dict[str, list[float]] = {}

    def run(self, name: str, seed: int, side: Callable[[], Reached]) -> None:
        before = carried(self._agent)
        found = side()
        self.carried_mb.setdefault(name, []).append((carried(self._agent) - before) / 1e6)
        self.seconds.setdefault(name, []).append(found.seconds)
        print(f"  seed {seed}: {name} {found.seconds:.2f} s, {found.steps} steps, {found.accuracy}", flush=True)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])


def carried(agent: Machine | None) -> int:
    """Bytes that its link has carried so far, both ways together."""
    if agent is None:
        return 0
    names = [f"/sys/class/net/{netns.LINK}/statistics/{way}_bytes" for way in ("rx", "tx")]
    said = subprocess.run([*agent.enter, "cat", *names], capture_output=True, text=True, check=True).stdout
    return sum(map(int, said.split()))


def over_a_link(folder: Path, given: argparse.Namespace) -> None:
    """Beside Ray."""
    spec = goal.named("mnist")
    found = goal.laid(spec, folder)
    names = [f"agent{number}" for number in range(AGENTS)]
    with (
        served(folder / "farm") as farm,
        shaped.running(folder / "sshd", given.link, names, farm.marked) as net,
    ):
        sides, ours = Sides(net.machines[0]), Ours(farm, spec, given.target)
        ours.join_far(net)

        def ray(seed: int) -> Reached:
            params = TrainParams(**SYNC, seed=seed, rounds=MOST_STEPS, local_steps=1, facts=found.facts)
            with pattern.cluster(net, folder / f"ray{seed}") as address:
                return pattern.reach(net, address, folder, params, given.target)

        for seed in range(1, given.seeds + 1):
            sides.run("ours", seed, partial(ours.reach, FAR, seed))
            sides.run("ray", seed, partial(ray, seed))
        sides.run(H1, 1, partial(ours.reach, SYNC, 1))
    carried = {name: statistics.median(those) for name, those in sides.carried_mb.items()}
    parts = {
        "link": given.link,
        "seconds of ours, H = 1": round(sides.median(H1), 2),
        "MB a machine": {name: round(mb, 1) for name, mb in carried.items()},
        "bytes of H = 1 over ours": round(carried[H1] / carried["ours"], 1),
    }
    report_seconds(sides.median("ours"), sides.median("ray"), parts)


def on_one_machine(folder: Path, given: argparse.Namespace) -> None:
    """Beside plain numpy."""
    spec = goal.named("mnist")
    found = goal.laid(spec, folder)
    sides = Sides()
    with served(folder / "farm") as farm:
        ours = Ours(farm, spec, given.target)
        ours.join_near()
        for seed in range(1, given.seeds + 1):
            sides.run("ours", seed, partial(ours.reach, NEAR, seed))
            for threads, best in ALONE.items():
                params = TrainParams(**best, seed=seed, local_steps=1, facts=found.facts)
                sides.run(f"numpy{threads}", seed, partial(alone, params, found, given.target, threads))
    ours_seconds, every = sides.median("ours"), sides.median(f"numpy{CORES}")
    parts = {f"of numpy with {CORES} threads": round(every, 2), "over it": round(every / ours_seconds, 3)}
    report_seconds(ours_seconds, sides.median("numpy1"), parts)


def report_seconds(ours: float, peer: float, parts: dict[str, Any]) -> None:
    """As runs a minute, so that more is better."""
    report(60 / ours, 60 / peer, {"seconds of ours": round(ours, 2), "of the peer": round(peer, 2), **parts})


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--link", metavar="RATE", help="as tc has it: across such links, beside Ray")
    options.add_argument("--target", type=float, default=0.975)
    options.add_argument("--seeds", type=int, default=3)
    given = options.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as made:
        (over_a_link if given.link else on_one_machine)(Path(made), given)


if __name__ == "__main__":
    main()
