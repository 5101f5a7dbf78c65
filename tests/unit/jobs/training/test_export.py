"""Trained weights go where other kinds read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from muster.jobs.inference import mlp
from muster.jobs.inference.network import BadWeights
from muster.jobs.training.data.dataset import load
from muster.jobs.training.params import TrainParams
from muster.jobs.training.steps.models import open_model


def test_infer_reads_what_train_gives(tmp_path: Path) -> None:
    data = load("digits", tmp_path)
    model = open_model(TrainParams(layers=(24, 16)), data.facts)
    weights = model.start(4)
    save_file(model.arrays(weights), tmp_path / "weights.safetensors")
    x = data.test_x * np.float32(data.unit)
    found = mlp.load(tmp_path / "weights.safetensors", "safetensors", "relu", "argmax")
    right, _ = model.judge(weights, x, data.test_y)
    labels = found.finished(found.batch(x)).copy()
    assert int((labels == data.test_y).sum()) == right
    save_file(model.arrays(weights), tmp_path / "told.safetensors", {"unit": repr(data.unit)})
    told = mlp.load(tmp_path / "told.safetensors", "safetensors", "relu", "argmax")
    assert data.test_x.dtype == np.uint8
    for rows in (data.test_x, x):  # as the data is, and as the training had it
        assert np.array_equal(told.finished(told.batch(rows)), labels)
    save_file(model.arrays(weights), tmp_path / "odd.safetensors", {"unit": "much"})
    with pytest.raises(BadWeights, match="unit is 'much'"):
        mlp.load(tmp_path / "odd.safetensors", "safetensors", "relu", "argmax")
