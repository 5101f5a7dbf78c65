"""The known answers are right by other ways than the code they judge, and what is wrong by a little is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from muster.jobs.clustering import lloyd
from muster.jobs.kinds import known_answers as room
from muster.jobs.kinds import registry
from muster.jobs.workbench.admission import Unfit, admit, answers

BUILT_IN = ("cluster", "infer", "train")


@pytest.mark.parametrize("name", BUILT_IN)
def test_this_machine_is_admitted(name: str) -> None:
    assert registry.load(name).known_answers()
    admit(registry.load(name))


@pytest.mark.parametrize("name", ["map", "command"])
def test_of_users_code_nothing_is_known(name: str) -> None:
    assert registry.load(name).known_answers() == {}


def test_clusters_are_where_plain_iterations_lead() -> None:
    for row, counts, centers, inertia in zip(room.numbers(2, 24, 47).astype(float), *room.CLUSTER, strict=True):
        found = np.array([-1.03, -0.51, 0.55])
        for _ in range(20):
            cells = np.abs(row[:, None] - found).argmin(axis=1)
            found = np.array([row[cells == i].mean() for i in range(3)])
        assert np.bincount(cells).tolist() == counts and found == pytest.approx(centers, abs=1e-6)
        assert ((row - found[cells]) ** 2).sum() == pytest.approx(inertia, abs=1e-6)


def test_probabilities_are_those_of_float64() -> None:
    rows, first, bias, second = (
        room.numbers(*one).astype(float) for one in ((4, 6, 13), (6, 5, 7), (1, 5, 17), (5, 3, 11))
    )
    powers = np.exp(np.tanh(rows @ first + bias) @ second)
    assert np.allclose(powers / powers.sum(axis=1, keepdims=True), room.INFER, atol=1e-7)


def test_the_gradient_is_how_the_loss_changes() -> None:
    rows, weights = room.numbers(5, 3, 13).astype(float), room.numbers(1, 26, 29)[0].astype(float)

    def loss(flat: Any) -> float:
        hidden = np.maximum(rows @ flat[:12].reshape(3, 4) + flat[12:16], 0)
        logits = hidden @ flat[16:24].reshape(4, 2) + flat[24:]
        return float((np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(5), [0, 1, 1, 0, 1]]).sum())

    steps = np.eye(26) * 1e-6
    assert [(loss(weights + d) - loss(weights - d)) / 2e-6 for d in steps] == pytest.approx(room.TRAIN, abs=1e-5)
    assert loss(weights) == pytest.approx(room.TRAIN_LOSS, abs=1e-6)


@pytest.mark.parametrize(
    ("field", "off", "said"),
    [("centers", 1e-3, "centers of .* off by 0.001"), ("counts", 1, "counts of .* off by 1")],
)
def test_a_kernel_that_is_wrong_by_a_little_is_not_admitted(
    monkeypatch: pytest.MonkeyPatch, field: str, off: float, said: str
) -> None:
    right = lloyd.cluster

    def wrong(*args: Any, **more: Any) -> lloyd.Clusters:
        found = right(*args, **more)
        return replace(found, **{field: getattr(found, field) + off})

    monkeypatch.setattr(lloyd, "cluster", wrong)
    with pytest.raises(Unfit, match=said):
        admit(registry.load("cluster"))


def test_last_bits_may_differ_and_what_raises_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lloyd.cluster
    monkeypatch.setattr(lloyd, "cluster", lambda *a: replace(right(*a), centers=right(*a).centers * (1 + 1e-7)))
    admit(registry.load("cluster"))
    monkeypatch.setattr(lloyd, "cluster", lambda *a: 1 / 0)
    with pytest.raises(Unfit, match="ends with ZeroDivisionError"):
        admit(registry.load("cluster"))


def test_the_bits_of_an_answer_are_told_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    right, told = lloyd.cluster, answers(["cluster", "infer", "map", "nothing"])
    assert told.keys() == {"cluster", "infer"} and told == answers(["cluster", "infer"])

    def one_bit_off(*args: Any) -> lloyd.Clusters:
        found = right(*args)
        bits = found.centers.copy()
        bits.view(np.uint64)[0, 0] ^= 1
        return replace(found, centers=bits)

    monkeypatch.setattr(lloyd, "cluster", one_bit_off)
    (problem, bits), others = answers(["cluster"])["cluster"], told["cluster"]
    assert problem == others[0] and bits != others[1]
    monkeypatch.setattr(lloyd, "cluster", lambda *a: 1 / 0)
    assert answers(["cluster", "infer"]).keys() == {"infer"}
