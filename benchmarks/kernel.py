"""The one-feature kernel beside np.sort of the same rows and sklearn's KMeans: time and inertia. Starts no farm.

`python -m benchmarks.kernel [--full]`. The last line is JSON: rows of 65,536 values a second, ours and np.sort's, the
worst share of the two (ratio), and every case in `parts`.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muster.jobs.clustering.lloyd import LloydSettings, cluster

Rows = NDArray[Any]
SHAPES = ("normal", "laplace", "t3", "relu", "bimodal", "uniform")
QUICK_SHAPES = ("normal", "t3", "relu")
LONG = 65_536
LENGTHS = {256: 4_096, 1_024: 1_024, 4_096: 256, LONG: 32}  # values a row: rows
CLUSTERS = (16, 128)
ROUNDS = 5


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    shape: str
    values: int
    clusters: int
    sort_us: float  # per row, as the others
    ours_us: float
    sklearn_us: float
    inertia: float  # ours over sklearn's k-means++ with n_init=1, mean over rows and seeds

    @property
    def sorts(self) -> float:
        return self.ours_us / self.sort_us

    @property
    def speedup(self) -> float:
        return self.sklearn_us / self.ours_us


def sample(shape: str, count: int, n: int) -> Rows:
    """Float32 rows of a distribution, always the same."""
    rng = np.random.default_rng([SHAPES.index(shape), n])
    normal = rng.standard_normal((count, n))
    made: dict[str, Callable[[], Rows]] = {
        "normal": lambda: normal,
        "laplace": lambda: rng.laplace(size=(count, n)),
        "t3": lambda: rng.standard_t(3, (count, n)),
        "relu": lambda: np.maximum(normal, 0),
        "bimodal": lambda: normal * 0.3 + rng.choice([-2.0, 2.0], (count, n)),
        "uniform": lambda: rng.random((count, n)),
    }
    rows: Rows = made[shape]().astype(np.float32)
    return rows


def alternating(*calls: Callable[[], object]) -> list[float]:
    """The best time of each call in seconds, taking turns: machines are noisy."""
    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for i, call in enumerate(calls):
            begun = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - begun)
    return best


def measure(shape: str, n: int, k: int, seeds: int) -> Case:
    rows = sample(shape, LENGTHS[n], n)
    settings = LloydSettings(k)
    sort, ours = alternating(lambda: np.sort(rows, axis=1), lambda: cluster(rows, settings))
    few = rows[: 1 if n == LONG else 16]
    seconds, theirs = sklearn_runs(few, k, seeds)
    return Case(
        shape=shape,
        values=n,
        clusters=k,
        sort_us=round(sort / len(rows) * 1e6, 2),
        ours_us=round(ours / len(rows) * 1e6, 1),
        sklearn_us=round(seconds * 1e6),
        inertia=round(float((cluster(few, settings).inertia / theirs).mean()), 4),
    )


def sklearn_runs(rows: Rows, k: int, seeds: int) -> tuple[float, Rows]:
    """Best seconds per row, on one thread, and each row's mean inertia."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    best, inertia = float("inf"), np.zeros((len(rows), seeds))
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # relu rows may have fewer distinct values than clusters
        for i, row in enumerate(rows):
            for seed in range(seeds):
                begun = time.perf_counter()
                inertia[i, seed] = KMeans(k, init="k-means++", n_init=1, random_state=seed).fit(row[:, None]).inertia_
                best = min(best, time.perf_counter() - begun)
    return best, inertia.mean(axis=1)


def cases(shapes: tuple[str, ...], seeds: int) -> Iterator[Case]:
    heads = ("shape", "values", "k", "sort us", "ours us", "x sort", "x sklearn", "inertia")
    print("{:8} {:>7} {:>4} {:>9} {:>9} {:>7} {:>9} {:>8}".format(*heads))
    for n in LENGTHS:
        for k in CLUSTERS:
            for shape in shapes:
                case = measure(shape, n, k, seeds)
                print(
                    f"{shape:8} {n:7} {k:4} {case.sort_us:9.2f} {case.ours_us:9.1f} {case.sorts:7.2f} "
                    f"{case.speedup:9.0f} {case.inertia:8.4f}",
                    flush=True,
                )
                yield case


def summary(found: list[Case]) -> dict[str, object]:
    """`ratio`: np.sort's time over ours, the worst of the long rows; 0.4 is 2.5 sorts."""
    worst = max((case for case in found if case.values == LONG), key=lambda case: case.sorts)
    return {
        "ours": round(1e6 / worst.ours_us, 1),
        "peer": round(1e6 / worst.sort_us, 1),
        "ratio": round(1 / worst.sorts, 3),
        "parts": {
            f"{case.shape}/{case.values}/{case.clusters}": {
                **{name: value for name, value in asdict(case).items() if name.endswith("_us") or name == "inertia"},
                "sorts": round(case.sorts, 2),
                "sklearn": round(case.speedup, 1),
            }
            for case in found
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all six distributions and more seeds: some minutes")
    full = parser.parse_args().full
    found = list(cases(SHAPES if full else QUICK_SHAPES, 5 if full else 2))
    print(json.dumps(summary(found)))


if __name__ == "__main__":
    main()
