"""The studies in short: all of them run, go on where they were stopped, and leave pages whose tables are filled."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.lockstep import slow_machines
from benchmarks.studies.__main__ import STUDIES
from benchmarks.studies.pages import NOTHING
from benchmarks.studies.points import Kept, Line
from benchmarks.studies.training import measuring
from benchmarks.studies.training.settings import Setting, params_of
from tests.support import netns, sshd
from tests.support.farm import until

ROOT = Path(__file__).parents[2]
SECONDS = 400.0
WITHOUT_TORCH = set() if importlib.util.find_spec("torch") else {"resnet18/1"}


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.studies", *words, "--short", "--to", str(folder)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def whole(name: str, folder: Path) -> dict[str, Line]:
    """The lines of a short study that ran to its end, and left no empty table."""
    netns.require()
    sshd.require()
    study = started(folder, name)
    said, _ = study.communicate(timeout=SECONDS)
    points, kept = STUDIES[name].points(True), Kept(folder / f"{name}.jsonl")
    missing = {point.name for point in points} & WITHOUT_TORCH
    assert study.returncode == (1 if missing else 0), said
    lines = kept.of(points)
    assert lines.keys() == {point.name for point in points} - missing and kept.failed(points).keys() == missing
    page = (folder / f"{name}.md").read_text()
    assert ("Not complete" in page) == (NOTHING in page) == bool(missing)
    return lines


def test_a_short_clustering_study_is_whole(tmp_path: Path) -> None:
    whole("clustering", tmp_path)


def test_a_short_training_study_is_whole_and_real_rounds_are_those_that_are_replayed(tmp_path: Path) -> None:
    lines = whole("training", tmp_path)
    scores = [accuracy for _, _, accuracy in lines["course/weak/sync/1"].figures["scores"]]
    assert [mark[2] for mark in lines["real/weak/sync/1"].figures["marks"]] == scores, "to the bit"


@pytest.mark.ray
def test_a_study_that_was_stopped_goes_on(tmp_path: Path) -> None:
    file, points = tmp_path / "infer.jsonl", STUDIES["infer"].points(True)
    first = started(tmp_path, "infer")
    until(lambda: file.exists() or first.poll() is not None, "its first line", SECONDS)
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=SECONDS)
    assert first.returncode == 130 and "the same command goes on" in said and "Traceback" not in said
    (line,) = Kept(file).of(points).values()
    assert whole("infer", tmp_path)[points[0].name] == line


def test_a_curve_of_real_machines_ends_when_its_time_is_over(tmp_path: Path) -> None:
    setting = Setting(data="digits", rate=0.2, rounds=20_000, every=50, checkpoint_rounds=50, most_seconds=0.5)
    found = measuring.real(setting, tmp_path)
    assert 50 <= found["points"][-1][0] < 20_000 and found["marks"]


def test_a_slow_machine_hands_in_each_contribution_by_itself(tmp_path: Path) -> None:
    setting = Setting("async", machines=3, data="digits", rounds=4, every=4)
    with slow_machines(tmp_path / "farm", 1, 0.0) as farm:
        record, _ = measuring.trained(farm, params_of(setting) | {"microbatch": 2})
    assert [point.samples for point in record.points] == [2] * 12
