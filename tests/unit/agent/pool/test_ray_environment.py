"""What Ray finds around it when it starts, without starting it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.agent.pool import ray_environment


@pytest.fixture
def temp(tmp_path: Path) -> Path:
    (tmp_path / "pool").mkdir()
    ray_environment.furnish(tmp_path / "pool")
    return tmp_path / "pool"


@pytest.mark.parametrize(("given", "wanted"), [("src::/opt/x", "{}/src:/opt/x"), (":", "")])
def test_workers_find_what_was_found_by_a_relative_path(
    temp: Path, monkeypatch: pytest.MonkeyPatch, given: str, wanted: str
) -> None:
    monkeypatch.chdir(temp.parent)
    monkeypatch.setenv("PYTHONPATH", given)
    with ray_environment.environment(temp):
        assert os.environ["PYTHONPATH"] == wanted.format(temp.parent)
    assert os.environ["PYTHONPATH"] == given
