"""The convolution of a search: rows through it as its training had them, and what is none."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from muster.jobs.contract.shard_size import WORTH_SECONDS
from muster.jobs.inference import mlp
from muster.jobs.inference.conv1 import VALUE_SECONDS
from muster.jobs.inference.network import BadWeights
from muster.jobs.job_file.make_plan import make_plan
from muster.jobs.job_file.read import parse_job
from muster.jobs.user_code.runner import own_trials

DRAW = np.random.default_rng(0)


def trained(shape: tuple[int, ...]) -> tuple[own_trials.NetworkTrial, dict[str, Any]]:
    """A convolution as the search's own code has it, and its file's arrays."""
    rows = DRAW.integers(0, 256, (40, *shape), dtype=np.uint8)
    unit = np.float32(1 / 255)
    x, y = rows.astype("f4") * unit, DRAW.integers(0, 3, 40)
    data = SimpleNamespace(x=x, y=y, valid_x=x, valid_y=y, classes=3)
    net = own_trials.conv1({"filters": 5, "batch": 8}, data, 0)
    net.step()
    again = own_trials.conv1({"filters": 5}, data, 0)
    again.load(net.save(), 1)
    assert np.array_equal(again.weights, net.weights) and again.save() == net.save()
    with np.load(io.BytesIO(net.save())) as arrays:
        found = {name: arrays[name] for name in arrays if not name.startswith(own_trials.SPEED)}
    return net, {**found, "shape": np.array(shape), "unit": unit, "rows": rows}


@pytest.mark.parametrize("shape", [(7, 6), (7, 6, 2), (4, 4, 3)])
def test_logits_are_those_of_the_training(tmp_path: Path, shape: tuple[int, ...]) -> None:
    net, arrays = trained(shape)
    rows = arrays.pop("rows")
    np.savez(tmp_path / "best.npz", **arrays)
    found = mlp.load(tmp_path / "best.npz", "npz", "relu", "none")
    wanted = net._judging.forward(net.weights, net._data.x)
    assert found.output == ("<f4", (3,)) and found.width == np.prod(shape)
    for given in (rows, net._data.x, rows.reshape(len(rows), -1)):
        assert np.allclose(found.batch(given), wanted, rtol=0, atol=1e-5)
    assert np.array_equal(found.batch(rows), found.batch(net._data.x))


def test_a_row_takes_what_its_neighbourhoods_do_and_not_what_a_file_so_large_would(tmp_path: Path) -> None:
    _, arrays = trained((28, 28))
    del arrays["rows"]
    np.savez(tmp_path / "best.npz", **arrays)
    found = mlp.load(tmp_path / "best.npz", "npz", "relu", "none")
    flat = mlp.Mlp([(np.zeros((28 * 28, 6), "f4"), None)], "relu", "none")
    assert found.row_seconds > found.row_values * VALUE_SECONDS > 20 * flat.row_seconds
    _, wider = trained((28, 28, 3))
    del wider["rows"]
    np.savez(tmp_path / "wide.npz", **wider)
    assert mlp.load(tmp_path / "wide.npz", "npz", "relu", "none").row_seconds > 2 * found.row_seconds


def test_its_rows_are_cut_by_what_they_take(tmp_path: Path) -> None:
    _, arrays = trained((28, 28))
    del arrays["rows"]
    np.savez(tmp_path / "best.npz", **arrays)
    (tmp_path / "w").mkdir()
    np.lib.format.open_memmap(tmp_path / "w" / "x.npy", "w+", np.uint8, (20_000, 28, 28))
    job = parse_job("name: a\nkind: infer\nsource: w\nparams: {model: best.npz}\n", "job.yaml")
    plan = make_plan(job, tmp_path, None)
    seconds = mlp.load(tmp_path / "best.npz", "npz", "relu", "none").row_seconds
    assert "as the kind reckons" in plan.cut
    assert WORTH_SECONDS / 2 < plan.layers[0].shard_rows * seconds < WORTH_SECONDS * 2


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("shape", np.array([7, 5]), "dense.weight is float32 of shape"),
        ("shape", np.array([7, 6, 2]), "conv.weight is float32 of shape"),
        ("shape", np.array([3, 6]), "shape is [3, 6], expected height"),
        ("shape", np.array([7.0, 6.0]), "shape is [7.0, 6.0], expected height"),
        ("conv.weight", np.zeros((9, 5)), "conv.weight is float64"),
        ("unit", np.zeros(2, "f4"), "unit is float32 of shape (2,)"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path: Path, name: str, value: Any, said: str) -> None:
    _, arrays = trained((7, 6))
    del arrays["rows"]
    np.savez(tmp_path / "best.npz", **{**arrays, name: value})
    with pytest.raises(BadWeights) as caught:
        mlp.load(tmp_path / "best.npz", "npz", "relu", "none")
    assert said in str(caught.value)
