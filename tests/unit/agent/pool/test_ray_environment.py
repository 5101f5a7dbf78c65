"""What Ray finds around it when it starts, without starting it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.agent.pool import ray_environment


@pytest.fixture
def temp(tmp_path: Path) -> Path:
    ray_environment.furnish(tmp_path / "pool")
    return tmp_path / "pool"


def test_ray_starts_in_an_empty_folder_and_we_go_on_where_we_were(temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(temp.parent)
    with pytest.raises(KeyError), ray_environment.nowhere(temp):
        assert Path.cwd().parent == temp
        assert list(Path.cwd().iterdir()) == []
        raise KeyError
    assert Path.cwd() == temp.parent


def test_a_folder_that_was_deleted_meanwhile_is_no_obstacle(temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = temp.parent / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with ray_environment.nowhere(temp):
        assert Path.cwd().parent == temp
    with pytest.raises(FileNotFoundError):
        os.getcwd()
    os.chdir("/")


@pytest.mark.parametrize(("given", "wanted"), [("src::/opt/x", "{}/src:/opt/x"), (":", "")])
def test_workers_find_what_was_found_by_a_relative_path(
    temp: Path, monkeypatch: pytest.MonkeyPatch, given: str, wanted: str
) -> None:
    monkeypatch.chdir(temp.parent)
    monkeypatch.setenv("PYTHONPATH", given)
    with ray_environment.environment(temp):
        assert os.environ["PYTHONPATH"] == wanted.format(temp.parent)
    assert os.environ["PYTHONPATH"] == given
