"""Checkpoints and the course they keep: the same bits from any of them, damage and other models refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from muster.jobs.common.errors import DamagedError, RefusedError
from muster.jobs.training import checkpoint
from muster.jobs.training.aggregation.asynchronous import AsynchronousPushes
from muster.jobs.training.aggregation.contribution import ContributionSum
from muster.jobs.training.aggregation.synchronous import Stepped, SynchronousRounds
from muster.jobs.training.data.dataset import Data, load
from muster.jobs.training.params import TrainParams, settled
from muster.jobs.training.progress import TrainingCourse
from muster.jobs.training.serial import run_serially
from muster.jobs.training.steps.learner import Learner, Score


@pytest.fixture(scope="module")
def digits() -> Data:
    return load("digits", Path())


@pytest.fixture(scope="module")
def params(digits: Data) -> TrainParams:
    known = {"layers": (24,), "rounds": 30, "microbatch": 8, "eval_every": 10, "checkpoint_rounds": 5}
    return settled(TrainParams(momentum=0.9, lr=0.02, facts=digits.facts, **known))  # type: ignore[arg-type]


class Driver:
    """A driver that may be killed after any round."""

    def __init__(self, params: TrainParams, digits: Data, folder: Path) -> None:
        self.folder, self.params, self.learner = folder, params, Learner(params, digits)
        model = self.learner.model
        found, self.refused = checkpoint.latest(folder, params, model.stepped, model.dim)
        self.outer = found.outer if found else SynchronousRounds(params, self.learner.start(), model.stepped)
        self.course = found.course if found else TrainingCourse(params)

    def run(self, until: int) -> None:
        outer, course = self.outer, self.course
        assert isinstance(outer, SynchronousRounds)
        while outer.round < until and not course.at_target:
            total, header = ContributionSum(outer.dim, self.params.bits), outer.header()
            for v in range(self.params.workers):
                total.add(self.learner.contribute(outer.weights, header, v))
            merged = outer.merge(total)
            if isinstance(merged, Stepped):
                course.stepped(outer, merged, outer.round / 10)
                self.save()

    def save(self) -> None:
        if checkpoint.is_due(self.params, self.course.record, self.outer.round, self.outer.round / 10):
            self.course.saved(self.outer.round, self.outer.round / 10)
            checkpoint.write(self.folder, self.outer, self.course)

    def score(self) -> None:
        for iteration, (_, weights) in sorted(self.course.waiting.items()):
            if self.course.scored(iteration, self.learner.evaluate(weights)):
                checkpoint.write_best(self.folder, self.course, self.params)


def test_killed_anywhere_it_ends_the_same(tmp_path: Path, params: TrainParams, digits: Data) -> None:
    for until in (3, 7, 13, 22, 30):
        driver = Driver(params, digits, tmp_path)
        driver.run(until)
        if until > 20:
            driver.score()
    serial = run_serially(params, digits)
    assert driver.outer.digest == serial.digest
    marks = [(mark.iteration, mark.accuracy) for mark in driver.course.record.marks]
    assert marks == serial.accuracies
    assert [point.loss for point in driver.course.record.points] == serial.losses


def test_the_last_few_and_the_best_are_kept(tmp_path: Path, params: TrainParams, digits: Data) -> None:
    driver = Driver(params, digits, tmp_path)
    driver.run(25)
    driver.score()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["best.safetensors", *(checkpoint.name_of(round_) for round_ in (15, 20, 25))]
    best = checkpoint.read_best(tmp_path)
    assert best is not None and driver.course.best is not None
    assert driver.learner.evaluate(best).accuracy == driver.course.best.accuracy


def test_a_damaged_one_is_named_and_the_one_before_taken(tmp_path: Path, params: TrainParams, digits: Data) -> None:
    Driver(params, digits, tmp_path).run(10)
    newest = tmp_path / checkpoint.name_of(10)
    raw = bytearray(newest.read_bytes())
    raw[-100] ^= 1
    newest.write_bytes(raw)
    driver = Driver(params, digits, tmp_path)
    assert driver.outer.round == 5
    assert driver.refused == [f"{newest.name}: its bytes are not those that were written"]
    newest.write_bytes(raw[:5000])
    with pytest.raises(DamagedError, match=newest.name):
        checkpoint.read(newest, params, driver.outer.stepped, driver.outer.dim)


@pytest.mark.parametrize(
    ("changes", "said"), [({"layers": (25,)}, "another model"), ({"lr": 0.3}, "a job with other parameters")]
)
def test_another_models_is_refused(
    tmp_path: Path, params: TrainParams, digits: Data, changes: dict[str, Any], said: str
) -> None:
    Driver(params, digits, tmp_path).run(5)
    other = msgspec.structs.replace(params, **changes)
    with pytest.raises(RefusedError, match=f"{checkpoint.name_of(5)}: of {said}"):
        Driver(other, digits, tmp_path)


def test_pushes_have_them_too(tmp_path: Path, params: TrainParams, digits: Data) -> None:
    asynchronous = msgspec.structs.replace(params, mode="async", momentum=0.0)
    learner = Learner(asynchronous, digits)
    pushes, course = (
        AsynchronousPushes(asynchronous, learner.start(), learner.model.stepped),
        TrainingCourse(asynchronous),
    )
    while pushes.round < 2:
        given = pushes.issue(6)
        assert given is not None
        total = ContributionSum(pushes.dim, 32)
        for v in given[1]:
            total.add(learner.contribute(pushes.weights, given[0], v))
        step = pushes.arrive(*given, total)
        if isinstance(step, Stepped):
            course.stepped(pushes, step, 1.0)
    path = checkpoint.write(tmp_path, pushes, course)
    again = checkpoint.read(path, asynchronous, pushes.stepped, pushes.dim).outer
    assert isinstance(again, AsynchronousPushes)
    assert (again.digest, again.journal, again.version) == (pushes.digest, pushes.journal, pushes.version)


def test_the_first_to_reach_the_target_ends_it(params: TrainParams) -> None:
    """Whenever its score becomes known."""
    course = TrainingCourse(msgspec.structs.replace(params, target=0.9))
    course.waiting = {10: (1.0, np.zeros(1)), 20: (2.0, np.ones(1))}
    course.scored(20, Score(95, 100, 0))
    assert not course.at_target
    course.scored(10, Score(91, 100, 0))
    assert course.at_target and course.reached is not None
    assert course.reached.iteration == 10
    assert course.best is not None and course.best.iteration == 20


def test_a_checkpoint_is_due_by_rounds_or_by_time(params: TrainParams) -> None:
    course = TrainingCourse(params)
    assert not checkpoint.is_due(params, course.record, 4, 1.0)
    assert checkpoint.is_due(params, course.record, 5, 1.0)
    assert checkpoint.is_due(params, course.record, 1, 10.0)
    course.saved(1, 10.0)
    assert not checkpoint.is_due(params, course.record, 1, 30.0)
