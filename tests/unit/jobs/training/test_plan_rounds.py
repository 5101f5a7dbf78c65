"""How many local steps `auto` takes."""

from __future__ import annotations

import pytest

from muster.jobs.training.params import TrainParams
from muster.jobs.training.plan_rounds import WAITING_SHARE, assumed_exchange, planned_steps, smallest_steps


@pytest.mark.parametrize(("step", "exchange"), [(0.001, 0.05), (0.02, 0.05), (0.3, 0.05), (5.0, 0.05)])
def test_the_fewest_steps_that_keep_waiting_short(step: float, exchange: float) -> None:
    steps = smallest_steps(step, exchange)
    assert exchange / (exchange + steps * step) <= WAITING_SHARE
    assert steps == 1 or exchange / (exchange + (steps - 1) * step) > WAITING_SHARE


def test_fewer_bits_need_fewer_steps() -> None:
    exchanges = [assumed_exchange(TrainParams(bits=bits), 425_130) for bits in (8, 16, 32)]
    assert exchanges == sorted(exchanges)
    steps = [planned_steps(TrainParams(bits=bits), 425_130, 0.001) for bits in (8, 16, 32)]
    assert steps == sorted(steps)


def test_what_was_not_measured_means_one_step() -> None:
    assert smallest_steps(0.0, 1.0) == 1
