"""Folders of submitters: nobody loses one while it lives, whenever a sweep comes."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from muster.coordinator.farm_root.submission_folders import locked_folder, sweep


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "7").mkdir()
    return tmp_path / "7"


def test_a_locked_folder_stays_and_another_goes(tmp_path: Path, target: Path) -> None:
    with locked_folder(tmp_path) as mine:
        other = tmp_path / "submit-0123456789abcdef"
        other.mkdir()
        (other / "job.yaml").touch()
        assert sweep(tmp_path, target) == [target / other.name]
        assert mine.is_dir() and (target / other.name / "job.yaml").exists()
    assert sweep(tmp_path, target) == [target / mine.name]


def test_what_the_daemon_is_taking_over_stays(tmp_path: Path, target: Path) -> None:
    (tmp_path / "submit-0123456789abcdef").mkdir()
    (tmp_path / "submit-not-a-folder").touch()
    assert sweep(tmp_path, target, {"submit-0123456789abcdef"}) == []


@pytest.mark.parametrize("moment", ["open", "flock"])
def test_a_sweep_between_making_and_locking_costs_the_maker_nothing(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    module = os if moment == "open" else fcntl
    real, swept = getattr(module, moment), []

    def late(*args: object, **more: object) -> object:
        monkeypatch.undo()
        swept.extend(sweep(tmp_path, target))
        return real(*args, **more)

    monkeypatch.setattr(module, moment, late)
    with locked_folder(tmp_path) as mine:
        assert len(swept) == 1 and mine.is_dir() and mine.name != swept[0].name
        assert sweep(tmp_path, target) == []
