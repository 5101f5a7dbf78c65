"""What a search calls its best goes through `kind: infer`, and is as good there as the search said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster.coordinator.commands.submit import submit
from muster.jobs.training.data import dataset
from muster.jobs.user_code.runner import own_trials
from tests.integration.test_tune import best, result
from tests.support.farm import Array, FarmHarness, running

DIGITS = dataset.load("digits", Path())  # images of 8 by 8, uint8 up to 16
TRIALS: dict[str, dict[str, Any]] = {
    "mlp": {"space": {"lr": {"loguniform": [0.01, 0.3]}, "hidden": {"randint": [8, 65]}, "momentum": 0.9}},
    "conv1": {"space": {"lr": {"loguniform": [0.01, 0.1]}, "filters": {"randint": [4, 17]}, "momentum": 0.9}},
}
SEARCH: dict[str, Any] = {"data": "digits", "metric": "accuracy", "trials": 3, "stop": {"iterations": 5}}
NET = """
import torch

def net():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
"""
OWN = """
import numpy as np

def train(config, state, budget, data):
    x, y = data["x"].reshape(len(data["x"]), -1), data["y"]
    at, centers = state or (0, np.zeros((10, x.shape[1]), "f4"))
    rows = np.arange(len(x)) % 5 == at % 5
    for label in range(10):
        centers[label] += config["lr"] * (x[rows & (y == label)].mean(axis=0) - centers[label])
    right = predict(config, (at, centers), data["valid_x"]) == data["valid_y"]
    return {"accuracy": right.mean()}, (at + 1, centers)

def predict(config, state, rows, shift=0):
    assert 0.1 <= config["lr"] <= 0.9
    x = rows.reshape(len(rows), -1)
    return ((x[:, None] - state[1]) ** 2).sum(axis=2).argmin(axis=1) + shift

class Opened:
    def __init__(self, path, device):
        with np.load(path) as arrays:
            self.names = len(arrays.files)

    def __call__(self, batch):
        return np.full(len(batch), self.names)
"""


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    with running(tmp_path_factory.mktemp("farm")) as made:
        made.join("one", "--cpus", "1")
        made.join("two", "--cpus", "1")
        yield made


def inferred(farm: FarmHarness, job: str, rows: Array, work: str = "", **fields: Any) -> Array:
    """What `kind: infer` gives for these rows with the best of that search."""
    params = {"model": "best.npz", **fields.pop("params", {})}
    raw = (result(farm, job) / params["model"]).read_bytes()
    file = farm.job_file({"new": rows}, 50, work, kind="infer", params=params, files={params["model"]: raw}, **fields)
    made = submit(farm.root, file)
    farm.wait(made)
    return np.load(farm.root.job(made).result / "new" / "out.npy")


@pytest.mark.parametrize("trial", list(TRIALS))
def test_the_best_network_is_as_good_on_new_rows_as_the_search_said(farm: FarmHarness, trial: str) -> None:
    found = best(farm, job := farm.submit({}, kind="tune", params={**SEARCH, "trial": trial, **TRIALS[trial]}))
    assert found["test"]["accuracy"] > 0.6
    for rows in (DIGITS.test_x, DIGITS.test_x.astype("f4") / 16):  # as the data is, and as the network has it
        labels = inferred(farm, job, rows, params={"final": "argmax"})
        assert (labels == DIGITS.test_y).mean() == found["test"]["accuracy"]
    flat = inferred(farm, job, DIGITS.test_x.reshape(len(DIGITS.test_x), -1), params={"final": "argmax"})
    assert np.array_equal(flat, labels)


SCALED = DIGITS.test_x.astype("f4") / 16


def test_the_best_estimator_scales_rows_as_the_search_did(farm: FarmHarness) -> None:
    trial = {"estimator": "sklearn.naive_bayes.GaussianNB"}
    space = {"var_smoothing": {"loguniform": [0.001, 0.1]}}
    params = {**SEARCH, "trial": trial, "space": space, "trials": 2, "stop": {"iterations": 1}}
    found = best(farm, job := farm.submit({}, kind="tune", params=params))
    raw, scaled = (inferred(farm, job, rows, params={"model": "best.skops"}) for rows in (DIGITS.test_x, SCALED))
    assert (raw == DIGITS.test_y).mean() == found["test"]["accuracy"] and np.array_equal(raw, scaled)
    import skops.io

    file = (result(farm, job) / "best.skops").read_bytes()
    alone = skops.io.loads(file, trusted=skops.io.get_untrusted_types(data=file))
    assert np.array_equal(alone.predict(SCALED.reshape(len(SCALED), -1)), raw)


def test_the_best_regressor_is_as_good_on_new_rows_as_the_search_said(farm: FarmHarness, tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    rows = draw.normal(size=(200, 3)).astype("f4")
    files = {"x": rows, "y": rows @ [1.0, 2.0, -1.0], "test_x": rows + 1, "test_y": (rows + 1) @ [1.0, 2.0, -1.2]}
    for name, array in files.items():
        np.save(tmp_path / name, array)
    data = {name: str(tmp_path / f"{name}.npy") for name in files}
    trial = {"estimator": "sklearn.linear_model.Ridge"}
    params = {"data": data, "metric": "r2", "trial": trial, "space": {"alpha": {"choice": [0.1, 1e5]}}, "trials": 4}
    found = best(farm, job := farm.submit({}, kind="tune", params=params))
    assert found["metric"] == "r2" and found["test"]["r2"] > 0.9
    numbers = inferred(farm, job, files["test_x"], params={"model": "best.skops"})
    assert np.square(numbers - files["test_y"]).mean() == pytest.approx(found["test"]["mse"])


def test_the_best_module_scales_rows_as_the_search_did(farm: FarmHarness) -> None:
    pytest.importorskip("torch")
    space = {"lr": {"loguniform": [0.01, 0.1]}, "momentum": 0.9}
    params = {**SEARCH, "trial": "torch", "space": space, "trials": 2}
    found = best(farm, job := farm.submit({}, work=NET, kind="tune", code="work.py:net", params=params))
    asked = {"model": "best.safetensors", "final": "argmax"}
    raw, scaled = (inferred(farm, job, rows, params=asked) for rows in (DIGITS.test_x, SCALED))
    assert (raw == DIGITS.test_y).mean() == found["test"]["accuracy"] and np.array_equal(raw, scaled)
    from safetensors.torch import load_file

    assert all(name.endswith(("weight", "bias")) for name in load_file(str(result(farm, job) / "best.safetensors")))


def test_the_best_state_of_an_own_function_is_as_good_on_new_rows_as_the_search_said(farm: FarmHarness) -> None:
    params = {**SEARCH, "space": {"lr": {"uniform": [0.1, 0.9]}}}
    job = farm.submit({}, work=OWN, kind="tune", code="work.py:train", params=params)
    found = best(farm, job)["best"]
    assert found["metrics"]["accuracy"] > 0.6
    order = own_trials._drawn(0, own_trials.SPLIT).permutation(len(DIGITS.x))
    held = order[: round(len(order) * 0.1)]
    labels = inferred(farm, job, DIGITS.x[held], work=OWN, code="work.py:predict")
    assert (labels == DIGITS.y[held]).mean() == found["metrics"]["accuracy"]
    more = inferred(farm, job, DIGITS.x[held], work=OWN, code="work.py:predict", params={"args": {"shift": 100}})
    assert np.array_equal(more, labels + 100)
    opened = inferred(farm, job, DIGITS.x[held], work=OWN, code="work.py:Opened")
    assert set(opened) == {4}  # tree, an array, the configuration, what a unit of the rows is
    config = np.load(result(farm, job) / "best.npz")["config"]
    assert json.loads(config.tobytes()) == found["config"]


def test_a_state_that_nobody_takes_is_refused_in_a_line(farm: FarmHarness, tmp_path: Path) -> None:
    raw = tmp_path / "best.npz"
    np.savez(raw, tree=np.frombuffer(b"{}", np.uint8), config=np.frombuffer(b"{}", np.uint8))
    file = farm.job_file({"new": DIGITS.test_x}, 50, kind="infer", params={"model": "best.npz"})
    shutil.copy(raw, file.parent / "best.npz")
    done = farm.coordinator("submit", str(file))
    assert done.returncode == 3 and "the state of a function of yours" in done.stderr
    assert "Traceback" not in done.stderr
