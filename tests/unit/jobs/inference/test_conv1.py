"""The convolution of a search: rows through it as its training had them, and what is none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from muster.jobs.inference import mlp
from muster.jobs.inference.network import BadWeights
from muster.jobs.user_code.runner import own_trials

DRAW = np.random.default_rng(0)


def trained(shape: tuple[int, ...]) -> tuple[own_trials.Conv1, dict[str, Any]]:
    """A convolution as the search's own code has it, and its file's arrays."""
    rows = DRAW.integers(0, 256, (40, *shape), dtype=np.uint8)
    unit = np.float32(1 / 255)
    data = SimpleNamespace(x=rows.astype("f4") * unit, y=DRAW.integers(0, 3, 40), classes=3)
    net = own_trials.Conv1({"filters": 5}, data, 0)
    return net, {**net.arrays, "shape": np.array(shape), "unit": unit, "rows": rows}


@pytest.mark.parametrize("shape", [(7, 6), (7, 6, 2), (4, 4, 3)])
def test_logits_are_those_of_the_training(tmp_path: Path, shape: tuple[int, ...]) -> None:
    net, arrays = trained(shape)
    rows = arrays.pop("rows")
    np.savez(tmp_path / "best.npz", **arrays)
    found = mlp.load(tmp_path / "best.npz", "npz", "relu", "none")
    wanted = net._outs(net._shaped(net._data.x))[-1]
    assert found.output == ("<f4", (3,)) and found.width == np.prod(shape)
    for given in (rows, net._data.x, rows.reshape(len(rows), -1)):
        assert np.allclose(found.batch(given), wanted, rtol=0, atol=1e-5)
    assert np.array_equal(found.batch(rows), found.batch(net._data.x))


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
