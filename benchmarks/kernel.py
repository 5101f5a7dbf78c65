"""The one-feature kernel beside np.sort, sklearn's KMeans and kmeans1d: time and inertia. Starts no farm.

`python -m benchmarks.kernel [--full]`. The last line is JSON: rows of 65,536 values a second, ours and kmeans1d's,
which finds the optimum that ours comes within a few thousandths of, where ours is least ahead (ratio), and every case
in `parts`. `--distributions` prints the table of docs/cluster.md instead: inertia on forty kinds of rows, over
sklearn's and over the least there is.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.distributions import BELLS, DISTRIBUTIONS, Rows, sample
from muster.jobs.clustering.lloyd import LloydSettings, cluster

SHAPES = tuple(BELLS)
QUICK_SHAPES = ("normal", "t3", "relu")
LONG = 65_536
LENGTHS = {256: 4_096, 1_024: 1_024, 4_096: 256, LONG: 32}  # values a row: rows
CLUSTERS = (16, 128)
ROUNDS = 5
ODD_ROWS, ODD_VALUES, ODD_CLUSTERS = 200, 1_024, 16
NOTHING = 1e-12  # of a row's variance, added to all inertias: some of the best are 0


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    shape: str
    values: int
    clusters: int
    sort_us: float  # per row, as the others
    ours_us: float
    sklearn_us: float
    kmeans1d_us: float  # the optimum by dynamic programming, compiled
    inertia: float  # ours over sklearn's k-means++ with n_init=1, mean over rows and seeds
    optimum: float  # ours over kmeans1d's, mean over rows

    @property
    def sorts(self) -> float:
        return self.ours_us / self.sort_us

    @property
    def speedup(self) -> float:
        return self.sklearn_us / self.ours_us


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
    best_seconds, best = kmeans1d_runs(few, k)
    nothing = NOTHING * few.astype(np.float64).var(axis=1)
    found = cluster(few, settings).inertia + nothing
    return Case(
        shape=shape,
        values=n,
        clusters=k,
        sort_us=round(sort / len(rows) * 1e6, 2),
        ours_us=round(ours / len(rows) * 1e6, 1),
        sklearn_us=round(seconds * 1e6),
        kmeans1d_us=round(best_seconds * 1e6),
        inertia=round(float((found / (theirs + nothing)).mean()), 4),
        optimum=round(float((found / (best + nothing)).mean()), 4),
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


def kmeans1d_runs(rows: Rows, k: int) -> tuple[float, Rows]:
    """Best seconds per row, and each row's inertia."""
    import kmeans1d

    seconds, inertia = float("inf"), []
    for row in rows.astype(np.float64):
        begun = time.perf_counter()
        centers = kmeans1d.cluster(row, k).centroids
        seconds = min(seconds, time.perf_counter() - begun)
        inertia.append(inertia_of(row, np.array(centers)))
    return seconds, np.array(inertia)


def inertia_of(row: Rows, centers: Rows) -> float:
    """Around centers as they were put out, in float64."""
    values, centers = row.astype(np.float64), np.sort(centers.astype(np.float64))
    nearest = centers[((centers[1:] + centers[:-1]) / 2).searchsorted(values)]
    return float(np.square(values - nearest).sum())


def cases(shapes: tuple[str, ...], seeds: int) -> Iterator[Case]:
    heads = ("shape", "values", "k", "sort us", "ours us", "x sort", "x sklearn", "x kmeans1d", "inertia", "optimum")
    print("{:8} {:>7} {:>4} {:>9} {:>9} {:>7} {:>9} {:>10} {:>8} {:>8}".format(*heads))
    for n in LENGTHS:
        for k in CLUSTERS:
            for shape in shapes:
                case = measure(shape, n, k, seeds)
                print(
                    f"{shape:8} {n:7} {k:4} {case.sort_us:9.2f} {case.ours_us:9.1f} {case.sorts:7.2f} "
                    f"{case.speedup:9.0f} {case.kmeans1d_us / case.ours_us:10.1f} "
                    f"{case.inertia:8.4f} {case.optimum:8.4f}",
                    flush=True,
                )
                yield case


def summary(found: list[Case]) -> dict[str, object]:
    """`ratio`: kmeans1d's time over ours, the worst of the long rows: of those that end at an inertia like ours."""
    worst = min((case for case in found if case.values == LONG), key=lambda case: case.kmeans1d_us / case.ours_us)
    return {
        "ours": round(1e6 / worst.ours_us, 1),
        "peer": round(1e6 / worst.kmeans1d_us, 1),
        "ratio": round(worst.kmeans1d_us / worst.ours_us, 3),
        "parts": {
            f"{case.shape}/{case.values}/{case.clusters}": {
                **{
                    name: value
                    for name, value in asdict(case).items()
                    if name.endswith("_us") or name in ("inertia", "optimum")
                },
                "sorts": round(case.sorts, 2),
                "sklearn": round(case.speedup, 1),
            }
            for case in found
        },
    }


def odd_inertias(rows: Rows) -> Rows:
    """Of each row: ours, sklearn's with n_init=1 and 10, the least that kmeans1d or `exact` finds."""
    import kmeans1d
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    single = rows.dtype.kind == "f" and rows.dtype.itemsize <= 4
    given = rows.astype(np.float32 if single else np.float64)
    ours, best = (
        cluster(rows, LloydSettings(ODD_CLUSTERS, exact=exact)).centers.astype(given.dtype) for exact in (False, True)
    )
    found = []
    for seed, row in enumerate(given):
        with threadpool_limits(1):
            models = [KMeans(ODD_CLUSTERS, n_init=times, random_state=seed).fit(row[:, None]) for times in (1, 10)]
        theirs = [model.cluster_centers_[:, 0] for model in models]
        optimum = np.array(kmeans1d.cluster(row.astype(np.float64), ODD_CLUSTERS).centroids)
        inertias = [inertia_of(row, centers) for centers in (ours[seed], *theirs, best[seed], optimum)]
        found.append([*inertias[:3], min(inertias[3:])])
    return np.array(found) + NOTHING * given.astype(np.float64).var(axis=1, keepdims=True)


def odd_table() -> None:
    """As docs/cluster.md has it."""
    print("| rows | over `n_init=1` | over `n_init=10` | worst row | over the optimum | worst row |")
    print("|---|---|---|---|---|---|")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there may be fewer distinct values than clusters
        for name in DISTRIBUTIONS:
            ours, once, ten, best = odd_inertias(sample(name, ODD_ROWS, ODD_VALUES)).T
            figures = [(ours / once).mean()]
            figures += [figure for other in (ten, best) for figure in ((ours / other).mean(), (ours / other).max())]
            print(f"| {name} | " + " | ".join(f"{figure:.3f}" for figure in figures) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all six distributions and more seeds: some minutes")
    parser.add_argument("--distributions", action="store_true", help="the table of docs/cluster.md: some minutes")
    given = parser.parse_args()
    if given.distributions:
        odd_table()
        return
    found = list(cases(SHAPES if given.full else QUICK_SHAPES, 5 if given.full else 2))
    print(json.dumps(summary(found)))


if __name__ == "__main__":
    main()
