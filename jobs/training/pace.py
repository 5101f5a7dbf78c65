"""How many local steps a round should have, so that machines compute and do not wait. Measures nothing by itself."""

from __future__ import annotations

import math

from muster.jobs.training.params import TrainParams

WAITING_SHARE = 0.15  # of a round
STEPS_MOST = 10_000
ASSUMED_MACHINES = 4
ASSUMED_RATE = 117e6  # bytes a second: what a link of 1 Gbit/s carries
ASSUMED_OVERHEAD = 0.025  # seconds a round, beside the bytes
COMPRESSED = 0.13  # of 8-bit values, once packed


def smallest_steps(step_seconds: float, exchange_seconds: float) -> int:
    """The fewest steps of which a round's exchange is at most WAITING_SHARE."""
    if not (step_seconds > 0 and exchange_seconds > 0):
        return 1
    wanted = exchange_seconds * (1 - WAITING_SHARE) / WAITING_SHARE / step_seconds
    return max(1, min(math.ceil(wanted), STEPS_MOST))


def assumed_exchange(params: TrainParams, dim: int) -> float:
    """Seconds a round spends moving its values up and its update down, over a link of 1 Gbit/s."""
    share = COMPRESSED if params.bits == 8 else params.bits / 32
    return ASSUMED_OVERHEAD + 2 * 4 * dim * share / ASSUMED_RATE


def planned_steps(params: TrainParams, dim: int, step_seconds: float) -> int:
    """For `local_steps: auto`, where all that is known is how long one virtual worker's step takes here."""
    workers = math.ceil(params.workers / ASSUMED_MACHINES)
    return smallest_steps(step_seconds * workers, assumed_exchange(params, dim))
