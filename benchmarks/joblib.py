"""scikit-learn's GridSearchCV within `muster.joblib`, beside joblib's own loky on the same cores.

    python -m benchmarks.joblib [--fits 20] [--runs 7] [--no-peer]

An SVC on digits, 15 candidates in 5 folds: 75 fits, on two agents by folder of one cpu each, beside loky with two
workers. Both are warm; so many searches in a row are one run, and the sides run in turn. `ours`: fits/s; the scores
must be equal. `parts`: 320 fits of a small tree.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from joblib import parallel_config

import muster
from benchmarks.measure import add_no_peer, alternate, machine, report
from benchmarks.served import processor_seconds, served
from muster import Farm
from muster.coordinator.client.calls.joblib_backend import FarmBackend
from tests.support.farm import until

CPUS = 2
SVC_GRID = {"C": [0.1, 1, 10, 100, 1000], "gamma": [1e-4, 1e-3, 1e-2]}
TREE_GRID = {"max_depth": [4, 6, 8, 10], "min_samples_leaf": [1, 2, 4, 8], "criterion": ["gini", "entropy"]}
TREE_FOLDS = 10
FITS = {"svc": 75, "tree": 320}


def search(which: str) -> Any:
    """One search over digits; what it found."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC
    from sklearn.tree import DecisionTreeClassifier

    x, y = load_digits(return_X_y=True)
    if which == "svc":
        return GridSearchCV(SVC(), SVC_GRID, cv=5, n_jobs=-1, refit=False).fit(x, y)
    tree = DecisionTreeClassifier(random_state=0)
    return GridSearchCV(tree, TREE_GRID, cv=TREE_FOLDS, n_jobs=-1, refit=False).fit(x, y)


class Side:
    """Searches within a backend."""

    def __init__(self, backend: Callable[[], AbstractContextManager[Any]]) -> None:
        self._backend = backend
        self.scores: dict[str, Any] = {}

    def rate(self, which: str, count: int) -> float:
        """Fits/s of so many searches in a row."""
        began = time.monotonic()
        with self._backend():
            for _ in range(count):
                self.scores[which] = search(which).cv_results_["mean_test_score"]
        return count * FITS[which] / (time.monotonic() - began)


def measure(folder: Path, given: argparse.Namespace) -> None:
    with served(folder) as farm, ExitStack() as stack:
        for name in ("one", "two")[:CPUS]:
            farm.join(name, "--cpus", "1")
        until(lambda: farm.is_live("one") and farm.is_live("two"), "the agents to join", 60)
        executor = stack.enter_context(muster.joblib(Farm(farm.root.path), wait_for_agents=60))
        ours = Side(lambda: parallel_config(backend=FarmBackend(executor)))
        sides = {"ours": ours}
        if not given.no_peer:
            sides["peer"] = Side(lambda: parallel_config("loky", n_jobs=CPUS))
        for side in sides.values():  # warm, and equal
            for which in ("svc", "tree"):
                side.rate(which, 1)
        for which in ("svc", "tree"):
            for side in sides.values():
                np.testing.assert_array_equal(side.scores[which], ours.scores[which])
        before = processor_seconds(farm)
        rates = alternate(given.runs, **{name: _run(side, "svc", given.fits) for name, side in sides.items()})
        cpu = (processor_seconds(farm) - before) / (given.fits * given.runs * FITS["svc"])
        few = max(1, given.fits // 4)
        trees = alternate(given.runs, **{name: _run(side, "tree", few) for name, side in sides.items()})
    middle = {name: statistics.median(found) for name, found in rates.items()}
    parts = {f"320 fits of a tree, {name}, fits/s": round(statistics.median(found), 1) for name, found in trees.items()}
    if "peer" in trees:
        ratio = statistics.median(trees["ours"]) / statistics.median(trees["peer"])
        parts["320 fits of a tree, ratio"] = round(ratio, 3)
    report(middle["ours"], middle.get("peer"), parts, cpu)


def _run(side: Side, which: str, count: int) -> Callable[[], float]:
    return lambda: side.rate(which, count)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--fits", type=int, default=20, help="searches in a row")
    options.add_argument("--runs", type=int, default=7)
    add_no_peer(options)
    given = options.parse_args()
    print(machine(), flush=True)
    os.environ.setdefault("MUSTER_POOL", "processes")
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as name:
        measure(Path(name), given)


if __name__ == "__main__":
    main()
