"""Models in numpy: their gradients against finite differences of a plain float64 version, and data that fits or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from muster.jobs.common.errors import JobFileError
from muster.jobs.training.data.dataset import Data
from muster.jobs.training.params import Facts, TrainParams, settled
from muster.jobs.training.steps.learner import Learner
from muster.jobs.training.steps.models import TrainableModel, open_model

Array = np.ndarray[Any, Any]
ROWS = 6


def mlp_logits(arrays: dict[str, Array], x: Array) -> Array:
    x = x.reshape(len(x), -1)
    for i in range(3):
        x = x @ arrays[f"w{i}"] + arrays[f"b{i}"]
        x = np.maximum(x, 0) if i < 2 else x
    return x


def conv_logits(arrays: dict[str, Array], x: Array) -> Array:
    x = x.reshape(*x.shape[:3], -1)
    high, wide = x.shape[1] - 2, x.shape[2] - 2
    kernel = arrays["conv.weight"].reshape(3, 3, x.shape[3], -1)
    made = np.zeros((len(x), high, wide, kernel.shape[3]))
    for down in range(3):
        for right in range(3):
            made += x[:, down : down + high, right : right + wide] @ kernel[down, right]
    made = np.maximum(made + arrays["conv.bias"], 0)[:, : high // 2 * 2, : wide // 2 * 2]
    pooled = made.reshape(len(x), high // 2, 2, wide // 2, 2, -1).max(axis=(2, 4))
    return pooled.reshape(len(x), -1) @ arrays["dense.weight"] + arrays["dense.bias"]


def loss_of(logits: Array, y: Array) -> float:
    top = logits.max(axis=1)
    sums = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top
    return float((sums - logits[np.arange(len(y)), y]).sum())


CASES: list[tuple[str, tuple[int, ...], Callable[[dict[str, Array], Array], Array]]] = [
    ("mlp", (4, 5), mlp_logits),
    ("conv1", (9, 8), conv_logits),
    ("conv1", (7, 6, 3), conv_logits),
]


def opened(name: str, row: tuple[int, ...]) -> TrainableModel:
    return open_model(TrainParams(model=name, layers=(7, 6), filters=5), Facts(100, 10, row, 4))  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "row", "logits"), CASES)
def test_gradients_are_those_of_finite_differences(
    name: str, row: tuple[int, ...], logits: Callable[[dict[str, Array], Array], Array]
) -> None:
    model, luck = opened(name, row), np.random.default_rng(1)
    x, y = luck.standard_normal((ROWS, *row)).astype(np.float32), luck.integers(0, 4, ROWS)
    weights = model.start(3) + luck.normal(0, 0.1, model.dim).astype(np.float32)
    gradient = np.empty(model.dim, np.float32)
    loss = model.gradient(weights, x, y, gradient)

    def plain(at: Array) -> float:
        return loss_of(logits(model.arrays(at), x.astype(np.float64)), y)

    wide = weights.astype(np.float64)
    assert loss == pytest.approx(plain(wide), rel=1e-5)
    for i in luck.permutation(model.dim)[:150]:
        step = np.zeros(model.dim)
        step[i] = 1e-6
        slope = (plain(wide + step) - plain(wide - step)) / 2e-6
        assert gradient[i] == pytest.approx(slope, rel=1e-3, abs=1e-4), f"value {i}"
    right, lost = model.judge(weights, x, y)
    assert lost == pytest.approx(loss, rel=1e-6)
    assert right == int((logits(model.arrays(wide), x.astype(np.float64)).argmax(axis=1) == y).sum())


@pytest.mark.parametrize(("name", "row"), [("mlp", (4, 5)), ("conv1", (9, 8))])
def test_other_batch_sizes_between_change_nothing(name: str, row: tuple[int, ...]) -> None:
    model, luck = opened(name, row), np.random.default_rng(2)
    weights = model.start(1)
    batches = [(luck.random((n, *row), np.float32), luck.integers(0, 4, n)) for n in (5, 3, 5)]
    outs = [np.empty(model.dim, np.float32) for _ in batches]
    for (x, y), out in zip(batches, outs, strict=True):
        model.gradient(weights, x, y, out)
    again = np.empty(model.dim, np.float32)
    opened(name, row).gradient(weights, *batches[2], again)
    np.testing.assert_array_equal(again, outs[2])


@pytest.mark.parametrize("rows", [np.asfortranarray, lambda x: np.repeat(x, 2, axis=3)[..., ::2], np.float64])
def test_it_does_not_matter_how_rows_lie_in_memory(rows: Callable[[Array], Array]) -> None:
    model, luck = opened("conv1", (6, 6, 2)), np.random.default_rng(2)
    x, y, weights = luck.random((5, 6, 6, 2), np.float32), luck.integers(0, 4, 5), model.start(1)
    plain, other = np.empty(model.dim, np.float32), np.empty(model.dim, np.float32)
    assert model.gradient(weights, x, y, plain) == model.gradient(weights, rows(x), y, other)
    np.testing.assert_array_equal(plain, other)


def test_of_equal_maxima_one_has_the_gradient() -> None:
    """A uniform image: each pooling window has four equal values, and the gradient must not count them all."""
    model = opened("conv1", (6, 6))
    weights = np.abs(model.start(1)) + np.float32(0.01)
    out, y = np.empty(model.dim, np.float32), np.array([1])
    model.gradient(weights, np.ones((1, 6, 6), np.float32), y, out)
    wide, shift = weights.astype(np.float64), np.zeros(model.dim)
    shift[model.dim - 4 * 4 * 5 - 4 - 5] = 1e-6  # the first filter's bias, which moves all four alike

    def plain(at: Array) -> float:
        return loss_of(conv_logits(model.arrays(at), np.ones((1, 6, 6))), y)

    slope = (plain(wide + shift) - plain(wide - shift)) / 2e-6
    assert out[shift.argmax()] == pytest.approx(slope, rel=1e-3)


@pytest.mark.parametrize("row", [(64,), (3, 8), (2, 2, 2, 2)])
def test_conv1_refuses_what_is_no_image(row: tuple[int, ...]) -> None:
    with pytest.raises(JobFileError, match=r"params\.model: conv1 needs images"):
        opened("conv1", row)


def test_equal_seeds_start_equally() -> None:
    model = opened("mlp", (4, 5))
    np.testing.assert_array_equal(model.start(5), model.start(5))
    assert not np.array_equal(model.start(5), model.start(6))


def test_conv1_learns() -> None:
    luck = np.random.default_rng(4)
    y = luck.integers(0, 2, 400)
    x = luck.integers(0, 60, (400, 8, 8), dtype=np.uint8)
    x[y == 1, 2:6, 3] += 150  # a vertical line
    x[y == 0, 3, 2:6] += 150  # or one across
    data = Data(x[:300], y[:300], x[300:], y[300:], 1 / 255)
    params = settled(TrainParams(model="conv1", filters=4, rounds=20, workers=2, microbatch=32, lr=0.2))
    from muster.jobs.training.serial import run_serially

    found = run_serially(params, data)
    assert found.accuracies[-1][1] > 0.95
    assert Learner(params, data).dim == 9 * 4 + 4 + 9 * 4 * 2 + 2
