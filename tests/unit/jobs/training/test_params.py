"""What a job file may say about training, and what it may not."""

from __future__ import annotations

from typing import Any

import pytest

from muster.jobs.common.errors import JobFileError
from muster.jobs.common.validation import FieldError, convert
from muster.jobs.training.aggregation.optimizers import rate_at
from muster.jobs.training.params import LIMITS, TrainParams, check, settled


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workers": 0}, "params.workers: "),
        ({"lr": 0}, "params.lr: "),
        ({"lr": -1}, "params.lr: "),
        ({"lr": float("nan")}, "params.lr: "),
        ({"lr": "fast"}, "params.lr: "),
        ({"local_steps": 0}, "params.local_steps: "),
        ({"local_steps": "some"}, "params.local_steps: "),
        ({"bits": 12}, "params.bits: "),
        ({"momentum": 1.0}, "params.momentum: "),
        ({"staleness": "nothing"}, "params.staleness: "),
        ({"target": 2}, "params.target: "),
        ({"model": "resnet"}, "params.model: expected one of .* did you mean `resnet18`?"),
        ({"microbatches": 5}, "params.microbatches: .*microbatch"),
        ({"data": {"x": "x.npy"}}, "params.data.y: missing"),
        ({"layers": [10, 0]}, r"params.layers\[1\]"),
    ],
)
def test_values_that_cannot_be(given: dict[str, Any], said: str) -> None:
    with pytest.raises((FieldError, JobFileError), match=said):
        check(convert(given, TrainParams, "params", strict=False))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"local_steps": 4}, "params.local_steps: sync takes one step"),
        ({"mode": "async", "local_steps": "auto"}, "params.local_steps: async"),
        ({"mode": "async", "momentum": 0.9}, "params.momentum: async"),
        ({"damped": False}, "params.damped: nothing is stale in sync"),
        ({"staleness": "none"}, "params.staleness: nothing is stale in sync"),
        ({"mode": "local", "staleness": "none"}, "params.staleness: nothing is stale in local"),
        ({"mode": "async", "local_steps": 2, "outer_momentum": 0.9}, "params.outer_momentum: async"),
        ({"mode": "async", "optimizer": "adamw"}, "params.optimizer: async"),
        ({"bits": 8, "workers": 64}, "params.bits: 8 bits have no room for the sum of 64 workers"),
        ({"nesterov": True}, "params.nesterov: "),
        ({"nesterov": True, "momentum": 0.9, "optimizer": "adamw"}, "params.nesterov: "),
        ({"warmup": 10, "rounds": 10}, "params.warmup: "),
        ({"target": 0.9, "rounds": 10}, "params.eval_every: "),
        ({"data": {"x": "x", "y": "y", "test_x": "z"}}, "params.data.test_y: missing"),
    ],
)
def test_values_that_cannot_go_together(given: dict[str, Any], said: str) -> None:
    params = convert(given, TrainParams, "params")
    with pytest.raises(JobFileError, match=said):
        check(params)


@pytest.mark.parametrize(
    ("given", "steps"),
    [({}, 1), ({"mode": "local"}, "auto"), ({"mode": "local", "local_steps": 7}, 7), ({"mode": "async"}, 1)],
)
def test_what_is_not_said_about_steps(given: dict[str, Any], steps: object) -> None:
    params = convert(given, TrainParams, "params")
    check(params)
    assert settled(params).local_steps == steps


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("workers", [1, 7, 12, 60])
def test_the_sum_of_all_workers_has_as_many_bits(bits: Any, workers: int) -> None:
    params = TrainParams(bits=bits, workers=workers)
    assert params.limit * workers <= LIMITS[bits] < (params.limit + 1) * workers


def test_schedules() -> None:
    def rates(**given: Any) -> list[float]:
        params = TrainParams(lr=1.0, rounds=10, **given)
        return [rate_at(params, round_) for round_ in range(10)]

    assert rates() == [1.0] * 10
    assert rates(schedule="linear") == pytest.approx([1 - i / 10 for i in range(10)])
    assert rates(warmup=4)[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    cosine = rates(schedule="cosine", warmup=2)
    assert cosine[2] == 1.0 and cosine[6] == pytest.approx(0.5) and cosine == sorted(cosine[:3]) + cosine[3:]
    assert all(rate > 0 for rate in cosine)


def test_what_a_submit_fills_in_is_not_offered() -> None:
    with pytest.raises(FieldError) as caught:
        convert({"factz": 1}, TrainParams, "params", strict=False)
    assert "facts" not in f"{caught.value}{caught.value.hint}" and "rounds" in str(caught.value.hint)
