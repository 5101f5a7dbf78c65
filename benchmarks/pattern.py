"""Ray's parameter-server pattern to an accuracy, on a Ray cluster of several machines, each in a network namespace.

The server's machine has an actor with the weights, as in Ray's own example, which takes a step of sgd with momentum;
each other machine has a worker that computes the gradient of a batch, in float32, one step a round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.goal import Judge, Reached
from benchmarks.shaped import Shaped
from benchmarks.train import Worker, model_of
from muster.jobs.training.data import dataset
from muster.jobs.training.params import TrainParams
from tests.support.farm import until
from tests.support.netns import Machine

Array = np.ndarray[Any, Any]

PORT = 6379
STORE_BYTES = 256 << 20
JUDGED_EVERY = 5  # steps; off the clock
START_SECONDS = 60.0
STARTED = "Ray runtime started"


@contextmanager
def cluster(net: Shaped, folder: Path) -> Iterator[str]:
    """Its address. A node for each machine, one after the other, with a resource by which an actor is put there."""
    address = f"{net.server.address}:{PORT}"
    head = ["--head", "--port", str(PORT), "--include-dashboard", "false", "--temp-dir", str(folder)]
    with ExitStack() as nodes:
        nodes.enter_context(_node(net.server, folder / "server.out", "server", head))
        for number, machine in enumerate(net.machines):
            name = f"worker{number}"
            nodes.enter_context(_node(machine, folder / f"{name}.out", name, ["--address", address]))
        yield address


@contextmanager
def _node(machine: Machine, log: Path, resource: str, more: Sequence[str]) -> Iterator[None]:
    """From when it has started until all of it has ended."""
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats", *more]
    own = ["--node-ip-address", machine.address, "--num-cpus", "1", "--resources", json.dumps({resource: 1})]
    command = [*machine.enter, *ray, *own, "--object-store-memory", str(STORE_BYTES)]
    log.parent.mkdir(exist_ok=True)
    with log.open("wb") as out:
        node = subprocess.Popen(command, env=_environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        until(lambda: node.poll() is not None or STARTED in log.read_text(), "Ray to start", START_SECONDS)
        yield
    finally:
        node.terminate()
        node.wait(START_SECONDS)


def _environment() -> dict[str, str]:
    """Without authentication, which would cost it something."""
    return {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS": "0"}


def reach(net: Shaped, address: str, folder: Path, params: TrainParams, target: float) -> Reached:
    """One run by a driver on the server's machine. `folder` has the data; `params` the optimizer and the seed."""
    (folder / "pattern.params").write_bytes(msgspec.msgpack.encode(params))
    words = [address, str(folder), str(len(net.machines)), str(target)]
    command = [*net.server.enter, sys.executable, "-m", "benchmarks.pattern", *words]
    said = subprocess.run(command, env=_environment(), stdout=subprocess.PIPE, text=True, check=True).stdout
    return Reached(**json.loads(said.splitlines()[-1]))


# --- on the cluster ---


class Server:
    """Has the weights."""

    def __init__(self, weights: Array, rate: float, momentum: float) -> None:
        self._weights, self._moved = weights.copy(), np.zeros_like(weights)
        self._rate, self._momentum = np.float32(rate), np.float32(momentum)

    def apply(self, *gradients: Array) -> Array:
        self._moved *= self._momentum
        self._moved += np.mean(gradients, axis=0)
        self._weights = self._weights - self._rate * self._moved
        return self._weights

    def weights(self) -> Array:
        return self._weights


def main() -> None:
    address, folder, workers, target = sys.argv[1:]
    import ray

    ray.init(address, _node_ip_address=address.split(":")[0], log_to_driver=False, configure_logging=False)
    raw = (Path(folder) / "pattern.params").read_bytes()
    params = msgspec.msgpack.decode(raw, type=TrainParams)
    until(lambda: sum(node["Alive"] for node in ray.nodes()) > int(workers), "all nodes", START_SECONDS)
    start = model_of(params).start(params.seed)
    server = _on(ray, Server, "server").remote(start, params.lr, params.momentum)
    participants = [
        _on(ray, Worker, f"worker{number}").remote(raw, folder, params.seed * 1000 + number)
        for number in range(int(workers))
    ]
    weights = server.weights.remote()
    ray.get([worker.gradient.remote(weights) for worker in participants])
    judge = Judge(params, dataset.read(Path(folder) / "data"))
    print(json.dumps(asdict(_train(ray, server, participants, judge, float(target), params.rounds))))


def _on(ray: Any, kind: type, resource: str) -> Any:
    return ray.remote(num_cpus=0, resources={resource: 0.5})(kind)


def _train(ray: Any, server: Any, participants: Sequence[Any], judge: Judge, target: float, most: int) -> Reached:
    """As in Ray's example the driver waits only where it evaluates."""
    weights, seconds, steps, accuracy = server.weights.remote(), 0.0, 0, 0.0
    while accuracy < target and steps < most:
        began = time.monotonic()
        for _ in range(JUDGED_EVERY):
            weights = server.apply.remote(*[worker.gradient.remote(weights) for worker in participants])
        ray.wait([weights], fetch_local=False)
        seconds, steps = seconds + time.monotonic() - began, steps + JUDGED_EVERY
        accuracy = judge.accuracy(ray.get(weights))
    return Reached(seconds, steps, accuracy)


if __name__ == "__main__":
    main()
