"""A small problem of each built-in kind, solved by what solves its shards, and the known answer. Judges nothing.

The answers do not come from that code: tests/unit/jobs/kinds/test_known_answers.py finds them by other ways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from muster.jobs.contract.kind import Answers

Array = np.ndarray[Any, Any]

CLUSTER = (
    [[6, 8, 10], [8, 9, 7]],
    [[-1.4266667, -0.275, 1.3], [-1.475, 0.0266667, 1.4171429]],
    [3.5627333, 3.1881429],
)
INFER = [
    [0.7003031, 0.0587486, 0.2409483],
    [0.1237223, 0.7874347, 0.0888430],
    [0.0510092, 0.7483623, 0.2006285],
    [0.9138738, 0.0300477, 0.0560785],
]
TRAIN_LOSS = 20.3703049
TRAIN = [
    -3.500912, -3.726946, 0.561187, -3.529018, -2.745017, -3.558739, 2.020274, -3.487503, -1.989123, -3.390532,
    3.479360, 0.916883, 1.453644, 0.323475, 2.805936, 0.079836, -10.470189, 10.470189, -2.650583, 2.650583, 0.673425,
    -0.673425, -0.262866, 0.262866, 0.652107, -0.652107,
]  # fmt: skip


def numbers(rows: int, columns: int, step: int) -> Array:
    """Made by integers alone: the same everywhere."""
    return ((np.arange(rows * columns) * step % 101 - 50) / 25).astype("<f4").reshape(rows, columns)


def cluster() -> Answers:
    """No value is near the middle of two centers on the way, so that rounding decides nothing."""
    from muster.jobs.clustering import lloyd

    settings = lloyd.LloydSettings(3, init=np.array([-1.03, -0.51, 0.55]))
    found = lloyd.cluster(numbers(2, 24, 47), settings)
    counts, centers, inertia = CLUSTER
    return {
        "counts": (found.counts, counts),
        "centers": (found.centers, centers),
        "inertia": (found.inertia, inertia),
    }


def infer() -> Answers:
    from muster.jobs.inference.mlp import Mlp

    model = Mlp([(numbers(6, 5, 7), numbers(1, 5, 17)[0]), (numbers(5, 3, 11), None)], "tanh", "softmax")
    return {"probabilities": (model.finished(model.batch(numbers(4, 6, 13))), INFER)}


def train() -> Answers:
    from muster.jobs.training.steps.models import InNumpy
    from muster.jobs.user_code.runner import networks

    model = InNumpy(networks.TrainableMlp([3, 4, 2]))
    gradient = np.zeros(model.dim, np.float32)
    loss = model.gradient(numbers(1, model.dim, 29)[0], numbers(5, 3, 13), np.array([0, 1, 1, 0, 1]), gradient)
    return {"gradient": (gradient, TRAIN), "loss": (np.array(loss), TRAIN_LOSS)}
