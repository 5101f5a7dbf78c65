"""Trained weights go where other kinds read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from jobs import mlp
from jobs.train.data import load
from jobs.train.models import open_model
from jobs.train.params import TrainParams


def test_infer_reads_what_train_gives(tmp_path: Path) -> None:
    data = load("digits", tmp_path)
    model = open_model(TrainParams(layers=(24, 16)), data.facts)
    weights = model.start(4)
    save_file(model.arrays(weights), tmp_path / "weights.safetensors")
    x = data.test_x * np.float32(data.unit)
    found = mlp.load(tmp_path / "weights.safetensors", "safetensors", "relu", "argmax")
    right, _ = model.judge(weights, x, data.test_y)
    assert int((found.finished(found.batch(x)) == data.test_y).sum()) == right
