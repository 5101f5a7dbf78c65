"""The studies in short: all of them run, go on where they were stopped, and leave pages whose tables are filled."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.studies.__main__ import STUDIES
from benchmarks.studies.points import Kept
from tests.support.farm import until

ROOT = Path(__file__).parents[2]
SECONDS = 180.0


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.studies", *words, "--short", "--to", str(folder)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("name", [name for name in STUDIES if name != "infer"])
def test_a_short_study_is_whole(name: str, tmp_path: Path) -> None:
    study = started(tmp_path, name)
    said, _ = study.communicate(timeout=SECONDS)
    assert study.returncode == 0, said
    assert [*Kept(tmp_path / f"{name}.jsonl").lines] == [point.name for point in STUDIES[name].points(True)]
    assert "Not complete" not in (tmp_path / f"{name}.md").read_text()


def test_a_study_that_was_stopped_goes_on(tmp_path: Path) -> None:
    file, points = tmp_path / "infer.jsonl", STUDIES["infer"].points(True)
    first = started(tmp_path, "infer")
    until(lambda: file.exists() or first.poll() is not None, "its first line", SECONDS)
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=SECONDS)
    assert first.returncode == 130 and "the same command goes on" in said and "Traceback" not in said
    (line,) = Kept(file).lines.values()
    again = started(tmp_path, "infer")
    said, _ = again.communicate(timeout=SECONDS)
    assert again.returncode == 0, said
    assert Kept(file).of(points)[points[0].name] == line and len(Kept(file).of(points)) == len(points)
    assert "Not complete" not in (tmp_path / "infer.md").read_text()
