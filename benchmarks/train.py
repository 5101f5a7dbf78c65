"""Synchronous rounds of one model on all cores, beside Ray's parameter-server pattern: same model, data and batch.

    python -m benchmarks.train [--ssh] [--agents 1] [--rounds 200] [--runs 3] [--bits 32] [--batch 1024] [--scaling]
        [--no-peer]

The model is the mlp 784-448-160-10 (425,130 parameters), a virtual worker a core, `batch` rows each, one step a round.
Ours: rounds per second of training as the job's own clock counts them, by folder or over loopback ssh. Ray: an actor
that has the weights, a worker a core that computes gradients, as in Ray's own example; gradients are float32 and
nothing is kept or checked. `ratio`: our rounds per second over Ray's. `parts`: what a round takes beside its compute,
and plain numpy in one process, with one thread and with all. `--scaling`: the same global batch beside one worker
alone, which takes all of it on one core.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.measure import CORES, add_no_peer, alternate, machine, report
from benchmarks.served import finish, processor_seconds, served
from muster.jobs.training.data import dataset
from muster.jobs.training.data.dataset import Data, Feeder
from muster.jobs.training.params import DataSpec, TrainParams
from muster.jobs.training.steps.models import TrainableModel, open_model
from tests.support import sshd
from tests.support.farm import FarmHarness, until
from tests.support.sshd import HOST

ROWS = 20_000
WARM_ROUNDS = 10  # at the start of each run, that do not count
SECONDS = 4.0  # of plain numpy

Array = np.ndarray[Any, Any]


class Ours:
    """A farm with its agents, and its rounds a second: of so many workers, on a core each."""

    def __init__(
        self, farm: FarmHarness, folder: Path, given: argparse.Namespace, config: Path | None, workers: int = CORES
    ) -> None:
        self._farm, self._folder, self._given, self._workers = farm, folder, given, workers
        self.cpu: list[float] = []  # of each run: processor seconds of daemon and agents for a round
        self.spent_ms: list[tuple[float, float]] = []  # of each run: a round, and the compute of one worker in it
        agents = min(workers, given.agents)
        for number in range(agents):
            options = ["--cpus", str(workers // agents), *(["--ssh-config", str(config)] if config else [])]
            farm.join(f"bench{number}", *options, where=f"{HOST}:{farm.root.path}" if config else None)
        until(lambda: all(farm.agent_status(f"bench{n}") for n in range(agents)), "the agents to join", 60)
        self._run(WARM_ROUNDS)  # the pools are up once it has run

    def rate(self) -> float:
        return self._run(self._given.rounds + WARM_ROUNDS)

    def least(self) -> tuple[float, float]:
        """Milliseconds of a round, and of compute in it, of the run that took the least beside its compute."""
        return min(self.spent_ms[1:], key=lambda spent: spent[0] - spent[1])

    def _run(self, rounds: int) -> float:
        params = msgspec.to_builtins(params_of(self._folder, self._given, rounds, self._workers))
        before = processor_seconds(self._farm)
        job = self._farm.submit({}, kind="train", name="train", params=params)
        finish(self._farm, job)
        self.cpu.append((processor_seconds(self._farm) - before) / rounds)
        agents = self._farm.status(job).agents
        found = json.loads((self._farm.root.job(job).result / "made" / "training.json").read_text())
        self._farm.coordinator("rm", job)
        ends = [point[1] for point in found["points"]]
        took = [after - before for before, after in itertools.pairwise(ends)][WARM_ROUNDS - 2 :]
        compute = sum(agent.busy for agent in agents) / rounds / self._workers
        self.spent_ms.append((1000 * sum(took) / len(took), 1000 * compute))
        return len(took) / sum(took)


def params_of(folder: Path, given: argparse.Namespace, rounds: int, workers: int = CORES) -> TrainParams:
    """`--batch` rows a core, shared by so many workers."""
    spec = DataSpec(str(folder / "x.npy"), str(folder / "y.npy"), test=0.01)
    return TrainParams(
        data=spec,
        workers=workers,
        microbatch=given.batch * CORES // workers,
        rounds=rounds,
        bits=given.bits,
        eval_every=1 << 30,
        checkpoint_rounds=1 << 30,
    )


def write_data(folder: Path) -> None:
    """Rows of MNIST's shape: what is in them does not change what a round takes."""
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", rng.integers(0, 255, (ROWS, 28, 28)).astype("u1"))
    np.save(folder / "y.npy", rng.integers(0, 10, ROWS))


def model_of(params: TrainParams) -> TrainableModel:
    assert params.facts is not None
    return open_model(params, params.facts)


# --- Ray's pattern ---


class Server:
    """Has the weights."""

    def __init__(self, weights: Array, rate: float) -> None:
        self._weights, self._rate = weights.copy(), np.float32(rate)

    def apply(self, *gradients: Array) -> Array:
        self._weights = self._weights - self._rate * np.mean(gradients, axis=0)
        return self._weights


class Worker:
    """Computes gradients."""

    def __init__(self, raw: bytes, folder: str, number: int) -> None:
        import threadpoolctl

        threadpoolctl.threadpool_limits(1)
        params, found = msgspec.msgpack.decode(raw, type=TrainParams), dataset.read(Path(folder) / "data")
        self._model, self._params = model_of(params), params
        self._batches = Batches(found, params.microbatch, number)

    def gradient(self, weights: Array) -> Array:
        out = np.empty_like(weights)
        self._model.gradient(weights, *self._batches.next(), out)
        out *= np.float32(1 / self._params.microbatch)
        return out


class Batches:
    """Rows drawn as a training draws them."""

    def __init__(self, found: Data, count: int, seed: int) -> None:

        self._feeder, self._count, self._rows = Feeder(found.x, found.y, found.unit), count, len(found.x)
        self._rng = np.random.default_rng(seed)

    def next(self) -> tuple[Array, Array]:
        return self._feeder.batch(self._rng.integers(0, self._rows, self._count))


def ray_rate(folder: Path, params: TrainParams, rounds: int) -> float:
    os.environ["RAY_AUTH_MODE"] = "disabled"  # which would cost it something, and says so on the terminal
    import ray

    ray.init(num_cpus=CORES, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        raw = msgspec.msgpack.encode(params)
        model = model_of(params)
        server = ray.remote(num_cpus=0)(Server).remote(model.start(0), params.lr)
        workers = [ray.remote(num_cpus=1)(Worker).remote(raw, str(folder), number) for number in range(CORES)]
        weights = server.apply.remote(np.zeros(model.dim, "f4"))
        for number in range(rounds + WARM_ROUNDS):
            if number == WARM_ROUNDS:
                ray.get(weights)
                began = time.monotonic()
            weights = server.apply.remote(*[worker.gradient.remote(weights) for worker in workers])
            ray.wait([weights])
        return rounds / (time.monotonic() - began)
    finally:
        ray.shutdown()


# --- plain numpy ---


def numpy_rate(folder: Path, params: TrainParams, threads: int) -> float:
    """Rounds a second of the same global batch in one process."""
    import threadpoolctl

    found = dataset.read(folder / "data")
    model, batches = model_of(params), Batches(found, params.microbatch * CORES, 0)
    weights, out, rounds = model.start(0), np.empty(model.dim, "f4"), 0
    with threadpoolctl.threadpool_limits(threads):
        began = time.monotonic()
        while time.monotonic() - began < SECONDS:
            model.gradient(weights, *batches.next(), out)
            weights = weights - np.float32(params.lr / params.microbatch / CORES) * out
            rounds += 1
        return rounds / (time.monotonic() - began)


# --- all of it ---


@contextlib.contextmanager
def server_config(folder: Path, over_ssh: bool) -> Iterator[Path | None]:
    if not over_ssh:
        yield None
        return
    with sshd.running(folder / "sshd") as server:
        yield server.ssh_config()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ssh", action="store_true")
    options.add_argument("--agents", type=int, default=1)
    options.add_argument("--rounds", type=int, default=200)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--bits", type=int, default=32)
    options.add_argument("--batch", type=int, default=1024)
    add_no_peer(options)
    options.add_argument("--scaling", action="store_true", help="beside one worker, which takes the whole batch")
    given = options.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as name:
        (measure_scaling if given.scaling and not given.no_peer else measure)(Path(name), given)


def measure_scaling(folder: Path, given: argparse.Namespace) -> None:
    """Each side's farm is gone while the other is measured: it has all cores, or would have had."""
    write_data(folder)
    spent: dict[str, list[tuple[float, float]]] = {"ours": [], "one": []}
    with server_config(folder, given.ssh) as config:

        def rate(name: str, workers: int) -> float:
            with served(folder / f"{name}{len(spent[name])}") as farm:
                side = Ours(farm, folder, given, config, workers)
                found = side.rate()
            spent[name].append(side.least())
            return found

        rates = alternate(given.runs, ours=lambda: rate("ours", CORES), one=lambda: rate("one", 1))
    parts: dict[str, float] = {}
    for name, those in spent.items():
        round_ms, compute_ms = min(those)
        parts |= {f"{name} round ms": round(round_ms, 2), f"{name} compute ms": round(compute_ms, 2)}
    report(max(rates["ours"]), max(rates["one"]), parts)


def measure(folder: Path, given: argparse.Namespace) -> None:
    write_data(folder)
    found = dataset.load(params_of(folder, given, 1).data, folder)
    dataset.write(found, folder / "data")
    params = msgspec.structs.replace(params_of(folder, given, 1), facts=found.facts, local_steps=1)
    with server_config(folder, given.ssh) as config, served(folder / "farm") as farm:
        ours = Ours(farm, folder, given, config)
        peers = {
            "ray": lambda: ray_rate(folder, params, given.rounds),
            "numpy1": lambda: numpy_rate(folder, params, 1),
            "numpy": lambda: numpy_rate(folder, params, CORES),
        }
        rates = alternate(given.runs, ours=ours.rate, **({} if given.no_peer else peers))
    best = {name: max(those) for name, those in rates.items()}
    round_ms, compute_ms = ours.least()
    parts = {
        "round ms": round(round_ms, 2),
        "compute ms": round(compute_ms, 2),
        "overhead ms": round(round_ms - compute_ms, 2),
        **{f"over {name}": round(best["ours"] / rate, 3) for name, rate in best.items() if name.startswith("numpy")},
    }
    report(best["ours"], best.get("ray"), parts, min(ours.cpu[1:]))


if __name__ == "__main__":
    main()
