"""Rounds of training as they are merged: any grouping gives the same bits, scales that are wrong cost a round."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster.jobs.common.errors import TrainingError
from muster.jobs.training.aggregation.contribution import (
    NOTHING,
    Contribution,
    ContributionSum,
    added,
    packed,
    unpacked,
)
from muster.jobs.training.aggregation.synchronous import Redo, Stepped, SynchronousRounds
from muster.jobs.training.aggregation.weights_delta import apply
from muster.jobs.training.data.dataset import Data, load
from muster.jobs.training.params import TrainParams, check, settled
from muster.jobs.training.serial import run_serially
from muster.jobs.training.steps.learner import Learner, digest_of

WAYS: list[dict[str, Any]] = [
    {},
    {"bits": 16, "momentum": 0.9, "nesterov": True, "lr": 0.02},
    {"bits": 8},
    {"optimizer": "adamw", "lr": 0.002},
    {"mode": "local", "local_steps": 3, "outer_momentum": 0.5},
    {"mode": "local", "local_steps": 3, "bits": 8, "optimizer": "adamw", "lr": 0.002},
]


@pytest.fixture(scope="module")
def digits() -> Data:
    return load("digits", Path())


def small(rounds: int = 12, **ways: Any) -> TrainParams:
    params = settled(TrainParams(layers=(24, 16), rounds=rounds, microbatch=8, eval_every=rounds, **ways))
    check(params)
    return params


def merged_in_groups(learner: Learner, outer: SynchronousRounds, luck: random.Random) -> Stepped | Redo:
    """A round whose workers are dealt to one to four agents in any order, over the wire."""
    params, header = outer.params, outer.header()
    agents = [ContributionSum(outer.dim, params.bits) for _ in range(luck.randint(1, 4))]
    for v in luck.sample(range(params.workers), params.workers):
        luck.choice(agents).add(learner.contribute(outer.weights, header, v))
    sent = [unpacked(packed(agent), params, outer.dim, agent.tally.workers) for agent in agents if agent.tally.workers]
    luck.shuffle(sent)
    return outer.merge(added(sent, outer.dim, params.bits))


@pytest.mark.parametrize("ways", WAYS, ids=str)
def test_any_grouping_gives_the_same_bits(digits: Data, ways: dict[str, Any]) -> None:
    params = small(**ways)
    learner, luck = Learner(params, digits), random.Random(7)
    outer = SynchronousRounds(params, learner.start(), learner.model.stepped)
    far = outer.weights
    while not outer.is_over:
        merged = merged_in_groups(learner, outer, luck)
        if isinstance(merged, Stepped):
            far = apply(merged.update, far, outer.stepped)
            assert digest_of(far) == outer.digest
    assert outer.digest == run_serially(params, digits).digest


@pytest.mark.parametrize("ways", WAYS, ids=str)
def test_resumed_anywhere_it_ends_the_same(digits: Data, ways: dict[str, Any]) -> None:
    params = small(rounds=6, **ways)
    learner, luck = Learner(params, digits), random.Random(3)
    outer = SynchronousRounds(params, learner.start(), learner.model.stepped)
    while not outer.is_over:
        arrays, values = outer.state_dict()
        merged_in_groups(learner, outer, luck)  # and the driver is killed
        outer = SynchronousRounds.resume(params, learner.model.stepped, arrays, values)
        merged_in_groups(learner, outer, luck)
    assert outer.digest == run_serially(params, digits).digest


def test_a_saturated_round_is_done_again_with_room(digits: Data) -> None:
    params = small(bits=16)
    learner = Learner(params, digits)
    outer = SynchronousRounds(params, learner.start(), learner.model.stepped)
    outer._master.scales[0].value = 1e6
    weights = outer.weights.copy()
    first = [learner.contribute(outer.weights, outer.header(), v) for v in range(params.workers)]
    again = outer.merge(added(first, outer.dim, params.bits))
    assert isinstance(again, Redo) and "beyond the scale" in again.why
    assert (outer.round, outer.redo) == (0, 1)
    np.testing.assert_array_equal(outer.weights, weights)
    assert isinstance(merged_in_groups(learner, outer, random.Random(1)), Stepped)
    assert (outer.round, outer.redo) == (1, 0)


@pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")
def test_a_loss_that_is_no_number_stops_and_names_the_round(digits: Data) -> None:
    params = small(lr=1000.0, rounds=100, momentum=0.9, weight_decay=1000.0)
    with pytest.raises(TrainingError, match=r"round \d+ (is|are) not"):
        run_serially(params, digits)


def test_it_learns(digits: Data) -> None:
    found = run_serially(small(rounds=150, lr=0.2), digits)
    assert found.losses[-1] < found.losses[0] / 3
    assert found.accuracies[-1][1] > 0.85


def test_no_partial_sum_saturates(digits: Data) -> None:
    """Each worker at its share of the range: the sum of all is still a number of as many bits."""
    params = small(bits=8)
    one = Contribution(np.full(5, params.limit, np.int8), NOTHING)
    total = added([one] * params.workers, 5, 8)
    assert total.values.tolist() == [params.limit * params.workers] * 5
