"""`coordinator report`: what a training's newest checkpoint says, for people, as JSON, as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster.coordinator import cli
from muster.coordinator.commands.result import nothing_merged
from muster.coordinator.farm_root import paths as roots
from muster.jobs.contract.plan import FORMAT, Plan, Work, encode_plan
from muster.jobs.training import checkpoint
from muster.jobs.training.aggregation.synchronous import SynchronousRounds
from muster.jobs.training.params import TrainParams, settled
from muster.jobs.training.progress import BestMark, Point, TrainingCourse


@pytest.fixture
def root(tmp_path: Path) -> roots.Root:
    """A farm with the newest checkpoints of two trainings."""
    found = roots.prepare(tmp_path / "root")
    for job, workers, seconds in (("one.1", 1, 20.0), ("four.1", 4, 8.0)):
        params = settled(TrainParams(workers=workers, target=0.8, rounds=100))
        outer, course = SynchronousRounds(params, np.zeros(9, np.float32), 9), TrainingCourse(params)
        outer.round = 40
        course.record.points = [Point(i, seconds * i / 40, 1 / i, 64) for i in range(1, 41)]
        course.best = BestMark(40, seconds, 0.85, 0.4)
        course.record.marks = [BestMark(20, seconds / 2, 0.6, 0.9), course.best]
        checkpoint.write(found.job(job).checkpoints, outer, course)
        keep_plan(found, job, "train")
    for job, kind in (("other.1", "train"), ("map.1", "map"), ("bare.1", None)):
        found.job(job).path.mkdir()
        keep_plan(found, job, kind)
    return found


def keep_plan(root: roots.Root, job: str, kind: str | None) -> None:
    """Nothing in it is read but the kind."""
    if kind is not None:
        work = Work(kind, 1, {}, None, None, None, 1, None, None)
        root.job(job).plan.write_bytes(encode_plan(Plan(FORMAT, job, work, (), 3, 20, 1, None)))


def run(root: roots.Root, capsys: pytest.CaptureFixture[str], *args: Any) -> tuple[int, str, str]:
    code = cli.main(["report", *map(str, args), "--root", str(root.path)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_line_a_job(root: roots.Root, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(root, capsys, "one", "four.1")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["job", "one.1", "four.1"]
    assert " ".join(out.splitlines()[2].split()[1:]) == "sync 4 32 40 8.0 s 5 0.0250 0.8500 0.8500 8.0 s"


def test_the_same_as_json(root: roots.Root, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(root, capsys, "one", "--json", "--target", "0.5")
    (said,) = json.loads(out)["jobs"]
    assert (said["seconds_to_target"], said["iterations_to_target"], said["target"]) == (10.0, 20, 0.5)
    _, out, _ = run(root, capsys, "one", "--json", "--target", "0.99")
    assert json.loads(out)["jobs"][0]["seconds_to_target"] is None


def test_pictures_and_their_numbers(root: roots.Root, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(root, capsys, "one", "four", "--plots", tmp_path / "plots")
    assert (tmp_path / "plots" / "speed-up.csv").read_text().splitlines()[2].startswith("sync,4,False,8,40,2.5,2.5,1")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        assert code == 6 and "only the CSV files" in err
    else:
        assert code == 0 and len(list((tmp_path / "plots").glob("*.png"))) == 4


@pytest.mark.parametrize("job", ["other", "gone", "map"])
def test_jobs_that_have_none(root: roots.Root, job: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(root, capsys, job)
    assert code == 6
    assert err.startswith("error: ") and "\nhint: " in err


@pytest.mark.parametrize("jobs, code", [(("one", "map"), 2), (("bare",), 12)])
def test_jobs_that_do_not_stand_side_by_side(
    root: roots.Root, jobs: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found, _, err = run(root, capsys, *jobs)
    assert found == code and err.startswith("error: ") and "\nhint: " in err


def test_without_a_result_one_is_told_of_the_checkpoints(root: roots.Root) -> None:
    error = nothing_merged("one.1", root.job("one.1"))
    assert str(root.job("one.1").checkpoints) in error.hint
    assert "coordinator status other.1" in nothing_merged("other.1", root.job("other.1")).hint
