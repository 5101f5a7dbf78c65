"""Async training: nothing is ever too stale, the journal gives the same bits again, what is not out does not count."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster.jobs.training.aggregation.asynchronous import AsynchronousPushes
from muster.jobs.training.aggregation.contribution import ContributionSum, RoundHeader
from muster.jobs.training.aggregation.synchronous import Redo, Stepped
from muster.jobs.training.data.dataset import Data, load
from muster.jobs.training.params import TrainParams, check, settled
from muster.jobs.training.serial import replay
from muster.jobs.training.steps.learner import Learner

Array = np.ndarray[Any, Any]
Out = tuple[RoundHeader, tuple[int, ...], Array, int]  # and the weights, and what they had seen


@pytest.fixture(scope="module")
def digits() -> Data:
    return load("digits", Path())


def small(**ways: Any) -> TrainParams:
    params = settled(TrainParams(mode="async", layers=(24, 16), rounds=8, microbatch=8, eval_every=8, **ways))
    check(params)
    return params


class Machines:
    """Machines of every speed: whatever is out arrives in any order, and some never does."""

    def __init__(self, params: TrainParams, learner: Learner, seed: int) -> None:
        self.params, self.learner, self.luck = params, learner, random.Random(seed)
        self.pushes = AsynchronousPushes(params, learner.start(), learner.model.stepped)
        self.out: list[Out] = []
        self.stalest = 0
        self.redone = 0

    def run(self) -> None:
        while not self.pushes.is_over:
            if self.luck.random() < 0.7 or not self.out:
                self.issue()
            else:
                self.arrive()

    def issue(self) -> None:
        given = self.pushes.issue(self.luck.randint(1, 5))
        if given is not None:
            self.out.append((*given, self.pushes.weights, self.pushes.pushed))
        else:
            assert self.out, "work may only wait for work"
            self.arrive()

    def arrive(self) -> None:
        header, workers, weights, pushed = self.out.pop(self.luck.randrange(len(self.out)))
        if self.luck.random() < 0.05:
            return self.pushes.withdraw(workers)
        total = ContributionSum(self.pushes.dim, self.params.bits)
        for v in workers:
            total.add(self.learner.contribute(weights, header, v))
        self.stalest = max(self.stalest, (self.pushes.pushed - pushed) // self.params.workers)
        got = self.pushes.arrive(header, workers, total)
        assert isinstance(got, Stepped | Redo)
        self.redone += isinstance(got, Redo)
        return None


WAYS: list[dict[str, Any]] = [
    {},
    {"bits": 8},
    {"bits": 16, "local_steps": 3},
    {"staleness": 0},
    {"staleness": "none", "damped": False},
]


@pytest.mark.parametrize("ways", WAYS, ids=str)
def test_its_journal_gives_the_same_bits(digits: Data, ways: dict[str, Any]) -> None:
    params = small(**ways)
    farm = Machines(params, Learner(params, digits), 5)
    farm.run()
    assert farm.stalest <= params.stalest
    assert farm.redone or params.bits == 32, "the first scale is a guess, too coarse for few bits"
    assert replay(params, digits, farm.pushes.journal) == farm.pushes.digest


def test_resumed_it_goes_on_with_its_journal(digits: Data) -> None:
    params = small()
    farm = Machines(params, Learner(params, digits), 6)
    while farm.pushes.round < 4:
        farm.issue() if farm.luck.random() < 0.7 else farm.arrive() if farm.out else None
    farm.pushes = AsynchronousPushes.resume(params, farm.pushes.stepped, *farm.pushes.state_dict())
    farm.out.clear()
    farm.run()
    assert replay(params, digits, farm.pushes.journal) == farm.pushes.digest


def test_the_fast_wait_for_the_slow(digits: Data) -> None:
    """One worker never answers: the others get work for `staleness` rounds and then none."""
    params = small(staleness=1)
    learner = Learner(params, digits)
    pushes = AsynchronousPushes(params, learner.start(), learner.model.stepped)
    slow = pushes.issue(1)
    assert slow is not None
    counted = 0
    while (given := pushes.issue(1)) is not None:
        header, workers = given
        total = ContributionSum(pushes.dim, params.bits)
        total.add(learner.contribute(pushes.weights, header, workers[0]))
        counted += isinstance(pushes.arrive(header, workers, total), Stepped)
    assert counted == 2 * params.workers - 1
    pushes.withdraw(slow[1])
    assert pushes.issue(1) is not None


def test_without_a_bound_nobody_waits(digits: Data) -> None:
    """One worker does not answer for six rounds' worth, and then counts: in full, or as stale as it is."""
    moved = []
    for damped in (False, True):
        params = small(staleness="none", damped=damped)
        learner = Learner(params, digits)
        pushes = AsynchronousPushes(params, learner.start(), learner.model.stepped)

        def push(given: tuple[RoundHeader, tuple[int, ...]] | None, weights: Array) -> float:
            """How far it moves the weights."""
            assert given is not None
            total, before = ContributionSum(pushes.dim, params.bits), pushes.weights  # noqa: B023
            total.add(learner.contribute(weights, given[0], given[1][0]))  # noqa: B023
            assert isinstance(pushes.arrive(*given, total), Stepped)  # noqa: B023
            return float(np.abs(pushes.weights - before).max())  # noqa: B023

        stale, old = pushes.issue(1), pushes.weights
        while pushes.pushed < 6 * params.workers:
            push(pushes.issue(1), pushes.weights)
        moved.append(push(stale, old))
    assert moved[0] > 6 * moved[1] > 0


def test_what_is_not_out_does_not_count(digits: Data) -> None:
    params = small()
    learner = Learner(params, digits)
    pushes = AsynchronousPushes(params, learner.start(), learner.model.stepped)
    given = pushes.issue(2)
    assert given is not None
    header, workers = given
    total = ContributionSum(pushes.dim, params.bits)
    for v in workers:
        total.add(learner.contribute(pushes.weights, header, v))
    pushes.withdraw(workers[:1])
    assert pushes.arrive(header, workers, total) is None
    assert pushes.arrive(header, (), total) is None
    assert (pushes.version, pushes.journal) == (0, [])
