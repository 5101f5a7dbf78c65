"""`Farm.executor` beside Dask's executor, and loky: calls of a millisecond through `map`, and single calls.

    python -m benchmarks.executor [--calls 5000] [--singles 300] [--runs 3] [--no-peer]

`ours`: calls/s of a function that is busy for 1 ms, by `Executor.map` with its defaults, on one agent by folder with
two slots. The peer is `Client.get_executor().map` of Dask on two workers of a thread each. The same function travels as
source here and as a pickle there; each side is warm, and they run in turn.

`parts`: loky at the best of several chunk sizes; the same calls in two plain processes, without anything in between;
the median of one call and its result after the other, by folder, with client and agent over ssh, and of Dask, loky and
Ray tasks; the rate of empty calls; and the rates of the first and the last third of a steady feed of a minute.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.measure import add_no_peer, alternate, machine, report
from benchmarks.served import processor_seconds, served
from muster.coordinator.client import Farm
from tests.support import sshd
from tests.support.farm import FarmHarness, until
from tests.support.sshd import obstacle

SLOTS = 2
CHUNKS = (1, 10, 30, 100)  # of loky, which does not find its own
FED_SECONDS = 60.0
FED_AHEAD = 1000
WARM_CALLS = 20


def busy(number: int) -> int:
    import time

    until = time.perf_counter() + 0.001
    while time.perf_counter() < until:
        pass
    return number


def empty(number: int) -> int:
    return number


def rate(executor: Executor, count: int, function: Callable[[int], int] = busy, **more: Any) -> float:
    began = time.monotonic()
    assert list(executor.map(function, range(count), **more)) == list(range(count))
    return count / (time.monotonic() - began)


def latency(call: Callable[[int], int], count: int) -> float:
    """Milliseconds of one call and its result, the median of many, one after the other."""
    found = []
    for number in range(count):
        began = time.perf_counter()
        assert call(number) == number
        found.append(time.perf_counter() - began)
    return round(1000 * statistics.median(found), 2)


def by(executor: Executor) -> Callable[[int], int]:
    """An empty call there."""
    return lambda number: executor.submit(empty, number).result()


@contextmanager
def ours(folder: Path) -> Iterator[tuple[FarmHarness, Executor]]:
    with served(folder) as farm:
        farm.join("bench", "--cpus", str(SLOTS))
        until(lambda: farm.is_live("bench"), "the agent to join", 60)
        with Farm(farm.root.path).executor(wait_for_agents=60) as executor:
            yield farm, executor


@contextmanager
def ours_over_ssh(folder: Path) -> Iterator[Executor]:
    """Of another farm, to which agent and client come through an sshd on loopback."""
    folder.mkdir()
    with sshd.running(folder / "sshd") as server, served(folder / "farm") as farm:
        config = server.ssh_config(name="config")
        farm.join("bench", "--cpus", str(SLOTS), "--ssh-config", str(config), where=f"{sshd.HOST}:{farm.root.path}")
        until(lambda: farm.is_live("bench"), "the agent to join", 60)
        place = Farm(f"{sshd.HOST}:{farm.root.path}", ssh_config=config, cache=folder / "cache")
        with place.executor(wait_for_agents=60) as executor:
            yield executor


@contextmanager
def ray() -> Iterator[Callable[[int], int]]:
    """An empty task of Ray's."""
    os.environ["RAY_AUTH_MODE"] = "disabled"  # which would cost it something, and says so on the terminal
    import ray

    ray.init(num_cpus=SLOTS, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        task = ray.remote(empty)
        yield lambda number: ray.get(task.remote(number))
    finally:
        ray.shutdown()


@contextmanager
def dask() -> Iterator[Executor]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=SLOTS, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
        client.get_executor(pure=False) as executor,
    ):
        yield executor


@contextmanager
def loky() -> Iterator[Executor]:
    from joblib.externals.loky import get_reusable_executor

    executor = get_reusable_executor(max_workers=SLOTS, timeout=600)
    yield executor
    executor.shutdown()


def fed(executor: Any, seconds: float) -> tuple[float, float]:
    """Calls/s in the first and the last third of a feed that never ends, so many calls ahead."""
    until, ends = time.monotonic() + seconds, list[float]()

    def numbers() -> Iterator[int]:
        number = 0
        while time.monotonic() < until:
            yield number
            number += 1

    began = time.monotonic()
    for _ in executor.map(busy, numbers(), buffersize=FED_AHEAD):
        ends.append(time.monotonic() - began)
    third = seconds / 3
    return sum(one < third for one in ends) / third, sum(2 * third <= one < seconds for one in ends) / third


def measure(folder: Path, given: argparse.Namespace) -> None:
    calls = given.calls
    with ExitStack() as stack:
        farm, mine = stack.enter_context(ours(folder))
        sides: dict[str, Callable[[], float]] = {"ours": lambda: rate(mine, calls)}
        plain = stack.enter_context(ProcessPoolExecutor(SLOTS, mp_context=get_context("spawn")))
        sides["plain"] = lambda: rate(plain, calls, chunksize=-(-calls // SLOTS))
        parts: dict[str, Any] = {}
        if not given.no_peer:
            theirs, chunked = stack.enter_context(dask()), stack.enter_context(loky())
            sides["peer"] = lambda: rate(theirs, calls)
            sides["loky"] = lambda: max(rate(chunked, calls, chunksize=size) for size in CHUNKS)
        for side in sides.values():  # warm
            side()
        before = processor_seconds(farm)
        rates = alternate(given.runs, **sides)
        cpu = (processor_seconds(farm) - before) / (calls * given.runs)
        best = {name: max(found) for name, found in rates.items()}
        parts["over two plain processes"] = round(best["ours"] / best["plain"], 3)
        parts["a call and its result, ms"] = latency(by(mine), given.singles)
        parts["empty calls/s"] = round(rate(mine, 4 * calls, empty))
        if not given.no_peer:
            parts["loky at its best chunk, calls/s"] = round(best["loky"])
            parts["over loky"] = round(best["ours"] / best["loky"], 3)
            parts["Dask, a call and its result, ms"] = latency(by(theirs), given.singles)
            parts["loky, a call and its result, ms"] = latency(by(chunked), given.singles)
        if given.fed:
            first, last = fed(mine, given.fed)
            parts |= {"a steady feed, calls/s at first": round(first), "and at the end": round(last)}
    parts |= alone(folder, given)
    report(best["ours"], best.get("peer"), parts, cpu)


def alone(folder: Path, given: argparse.Namespace) -> dict[str, float]:
    """Latencies of what has the machine for itself, once the others are gone."""
    found = {}
    if not obstacle():
        with ours_over_ssh(folder / "far") as far:
            latency(by(far), WARM_CALLS)
            found["over ssh, a call and its result, ms"] = latency(by(far), given.singles)
    if not given.no_peer:
        with ray() as call:
            latency(call, WARM_CALLS)
            found["Ray, a call and its result, ms"] = latency(call, given.singles)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--calls", type=int, default=5000)
    options.add_argument("--singles", type=int, default=300)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--fed", type=float, default=FED_SECONDS, help="seconds of the steady feed; 0 for none")
    add_no_peer(options)
    given = options.parse_args()
    print(machine(), flush=True)
    os.environ.setdefault("MUSTER_POOL", "processes")
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as name:
        measure(Path(name), given)


if __name__ == "__main__":
    main()
