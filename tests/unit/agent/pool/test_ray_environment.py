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
    assert ray_environment.of_this_machine(temp)["PYTHONPATH"] == wanted.format(temp.parent)
    assert os.environ["PYTHONPATH"] == given


def test_the_users_own_settings_of_ray_are_out_of_sight(temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("RAY_USE_TLS", "1")
    here, there = ray_environment.of_this_machine(temp), ray_environment.of_cluster(temp / "token")
    assert "RAY_ADDRESS" not in here and "RAY_ADDRESS" not in there
    assert "RAY_USE_TLS" not in here and there["RAY_USE_TLS"] == "1"
    assert (there["RAY_AUTH_MODE"], there["RAY_AUTH_TOKEN_PATH"]) == ("token", str(temp / "token"))
    assert ray_environment.of_cluster(None)["RAY_AUTH_MODE"] == "disabled"
