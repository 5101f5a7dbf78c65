"""Torch modules in a process of their own: the same numbers as numpy's, buffers averaged, the same bits every time."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster.coordinator.submission.submit import plan_file
from muster.jobs.common.errors import JobFileError
from muster.jobs.contract.kind import ShardFailure
from muster.jobs.training.aggregation.contribution import ContributionSum, added
from muster.jobs.training.aggregation.synchronous import Stepped, SynchronousRounds
from muster.jobs.training.data import dataset as datafile
from muster.jobs.training.data.dataset import Data, load
from muster.jobs.training.params import TrainParams, settled
from muster.jobs.training.steps.learner import Learner
from muster.jobs.training.steps.models import open_model
from muster.jobs.training.steps.torch_trainer import TrainerPlace, settings_of
from muster.jobs.user_code.runner import torch_training

Array = np.ndarray[Any, Any]
Make = Callable[..., Learner]

MLP = """
import torch
def net(shape, classes):
    first, second = torch.nn.Linear(64, 24), torch.nn.Linear(24, classes)
    return torch.nn.Sequential(torch.nn.Flatten(), first, torch.nn.ReLU(), second)
"""
NORMED = """
import torch
def net(width=6):
    return torch.nn.Sequential(torch.nn.Conv2d(1, width, 3), torch.nn.BatchNorm2d(width), torch.nn.ReLU(),
                               torch.nn.Dropout(0.2), torch.nn.Flatten(), torch.nn.Linear(width * 36, 10))
def augment(x):
    return x + 0.1 * torch.rand(x.shape)
"""


def test_the_file_is_python_3_8() -> None:
    ast.parse(Path(torch_training.__file__).read_text(), feature_version=(3, 8))


@pytest.fixture(scope="module")
def digits() -> Data:
    return load("digits", Path())


@pytest.fixture
def make(tmp_path: Path, digits: Data) -> Iterator[Make]:
    """A learner of a module in work.py."""
    pytest.importorskip("torch", reason="the torch extra is not installed")
    opened: list[Learner] = []
    datafile.write(digits, tmp_path / "data")

    def made(source: str, **ways: Any) -> Learner:
        (tmp_path / "work.py").write_text(source)
        place = TrainerPlace(tmp_path / "data", tmp_path / "scratch", code=tmp_path, entry="work.py:net", timeout=60.0)
        params = settled(TrainParams(model="code", workers=3, microbatch=8, rounds=4, **ways))
        opened.append(Learner(params, digits, 1, place))
        return opened[-1]

    yield made
    for learner in opened:
        learner.close()


def test_gradients_are_numpys(make: Make, digits: Data) -> None:
    learner = make(MLP)
    plain = open_model(TrainParams(layers=(24,)), digits.facts)
    weights = plain.start(3)
    rows = np.arange(16)
    expected = np.empty(plain.dim, np.float32)
    loss = plain.gradient(weights, digits.x[rows] * np.float32(digits.unit), digits.y[rows], expected)
    got, lost = learner.model.run(_torchs(weights), rows, 1, 0.1, 1)
    assert lost == pytest.approx(loss, rel=1e-4)
    np.testing.assert_allclose(got, _torchs(expected), atol=1e-3)
    right, judged = learner.model.judge(_torchs(weights))
    x = digits.test_x * np.float32(digits.unit)
    assert (right, pytest.approx(judged, rel=1e-4)) == plain.judge(weights, x, digits.test_y)


def _torchs(weights: Array) -> Array:
    """Torch keeps a layer's weights as (out, in)."""
    first, second = weights[: 64 * 24].reshape(64, 24), weights[65 * 24 : 65 * 24 + 240].reshape(24, 10)
    return np.concatenate([first.T.ravel(), weights[64 * 24 : 65 * 24], second.T.ravel(), weights[-10:]])


@pytest.mark.parametrize("ways", [{}, {"mode": "local", "local_steps": 2, "momentum": 0.9, "lr": 0.02}], ids=str)
def test_any_grouping_gives_the_same_bits(make: Make, ways: dict[str, Any]) -> None:
    """With dropout, an augmentation that draws, and a BatchNorm."""

    def final(seed: int) -> str:
        learner, luck = make(NORMED, **ways), random.Random(seed)
        outer = SynchronousRounds(learner.params, learner.start(), learner.model.stepped)
        while not outer.is_over:
            groups = [ContributionSum(outer.dim, 32) for _ in range(2)]
            for v in luck.sample(range(3), 3):
                luck.choice(groups).add(learner.contribute(outer.weights, outer.header(), v))
            outer.merge(added(groups, outer.dim, 32))
        return outer.digest

    assert final(1) == final(2)


def test_buffers_are_averaged_and_never_stepped(make: Make) -> None:
    learner = make(NORMED, lr=100.0, weight_decay=0.5)
    stepped = learner.model.stepped
    assert (stepped, learner.model.buffers) == (6 * 9 + 6 + 12 + 2160 + 10, 12)
    outer = SynchronousRounds(learner.params, learner.start(), stepped)
    while outer.redo == 0:  # the first scale is a guess
        _merged(learner, outer)
    before, found = outer.weights, []
    for v in range(3):
        header = outer.header()
        found.append(learner.contribute(before, header, v).values[stepped:] / (header.buffer_scale * 8))
    assert isinstance(_merged(learner, outer), Stepped)
    np.testing.assert_allclose(outer.weights[stepped:] - before[stepped:], np.mean(found, axis=0), atol=1e-5)
    assert np.abs(outer.weights[:stepped] - before[:stepped]).max() > 1
    names = learner.model.arrays(outer.weights)
    assert names["1.running_var"].shape == (6,) and (names["1.running_var"] > 0).all()


def _merged(learner: Learner, outer: SynchronousRounds) -> object:
    parts = [ContributionSum(outer.dim, 32) for _ in range(3)]
    for v, part in enumerate(parts):
        part.add(learner.contribute(outer.weights, outer.header(), v))
    return outer.merge(added(parts, outer.dim, 32))


def test_the_users_own_loss_and_evaluation(make: Make) -> None:
    hooks = "def loss(outputs, y): return (outputs ** 2).mean()\ndef evaluate(outputs, y): return len(y) - 1\n"
    learner = make(MLP + hooks)
    zeros = np.zeros(learner.dim, np.float32)
    assert learner.model.judge(zeros) == (360 - 1, 0.0)


def test_the_users_mistakes_are_the_shards_failure(make: Make) -> None:
    with pytest.raises(ShardFailure, match="ValueError: no luck") as caught:
        make("def net(): raise ValueError('no luck')")
    assert "work.py" in caught.value.evidence


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def net(): return 5", "the factory gave a int, not a torch.nn.Module"),
        ("net = 3", "has no function called 'net'"),
        ("import torch\ndef net(): return torch.nn.Linear(2, 2).double()", "a module of float32 on the CPU is needed"),
        ("import torch\ndef net(): return torch.nn.ReLU()", "every parameter must require a gradient"),
        (MLP + "def loss(outputs, y): return outputs\n", "must give a tensor with one number"),
    ],
)
def test_modules_that_cannot_be_trained(tmp_path: Path, digits: Data, source: str, said: str) -> None:
    pytest.importorskip("torch", reason="the torch extra is not installed")
    (tmp_path / "work.py").write_text(source)
    datafile.write(digits, tmp_path / "data")
    params, place = (
        TrainParams(model="code"),
        TrainerPlace(tmp_path / "data", tmp_path, code=tmp_path, entry="work.py:net"),
    )
    with pytest.raises(ValueError, match=said):
        torch_training.Trainer(**settings_of(params, digits.facts, place))._gradient(np.arange(4))


@pytest.mark.parametrize(("name", "parameters"), [("resnet18", 11_173_962), ("vgg16", 14_728_266)])
def test_ours_have_the_sizes_they_are_known_for(name: str, parameters: int) -> None:
    torch = pytest.importorskip("torch", reason="the torch extra is not installed")
    module = torch_training.BUILT_IN[name](shape=(3, 32, 32), classes=10)
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters
    assert module.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_a_loss_that_is_no_number_is_told_as_such(make: Make) -> None:
    learner = make(MLP + "def loss(outputs, labels):\n    return outputs.sum() * float('nan')\n")
    header = SynchronousRounds(learner.params, learner.start(), learner.model.stepped).header()
    assert learner.contribute(learner.start(), header, 0).tally.odd == 1
    assert learner.evaluate(learner.start()).loss == 0


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (MLP.replace("(64, 24)", "(63, 24)"), r"rows of shape \(8, 8\): RuntimeError: .*shapes cannot be multiplied"),
        (MLP + "def evaluate(outputs, labels):\n    return 'good'\n", "evaluate.* must give one number"),
        (MLP + "def augment(x):\n    return x[:3]\n", "Expected input batch_size"),
    ],
    ids=["shape", "evaluate", "augment"],
)
def test_what_does_not_fit_the_rows_is_refused_at_submit(tmp_path: Path, source: str, said: str) -> None:
    pytest.importorskip("torch", reason="the torch extra is not installed")
    (tmp_path / "work.py").write_text(source)
    (tmp_path / "job.yaml").write_text("name: a\nkind: train\ncode: work.py:net\nparams: {model: code}\n")
    with pytest.raises(JobFileError, match=said):
        plan_file(tmp_path / "job.yaml")
