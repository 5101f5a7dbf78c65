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
from muster.jobs.kinds import registry
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


def test_jobs_stand_side_by_side_within_a_screen(root: roots.Root, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(root, capsys, "one", "four.1")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == ["one.1", "four.1"] and lines[1].split() == ["state", "unknown", "unknown"]
    at = next(i for i, line in enumerate(lines) if line.startswith("mode"))
    assert lines[at - 1].split() == ["one.1", "four.1"] and max(map(len, lines)) <= 80
    assert [line[line.rindex("  ") :].strip() for line in lines[at : at + 11]] == [
        "sync", "4", "-", "32", "40", "8.0 s", "5", "0.0250", "0.8500", "0.8500", "8.0 s",
    ]  # fmt: skip


def test_the_same_as_json(root: roots.Root, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(root, capsys, "one", "--json", "--target", "0.5")
    (job,) = json.loads(out)["jobs"]
    said = job["effect"]["of_kind"]
    assert (said["seconds_to_target"], said["iterations_to_target"], said["target"]) == (10.0, 20, 0.5)
    _, out, _ = run(root, capsys, "one", "--json", "--target", "0.99")
    assert json.loads(out)["jobs"][0]["effect"]["of_kind"]["seconds_to_target"] is None


@pytest.mark.parametrize("kind", sorted(registry.names()))
def test_of_every_kind_the_five_measures_are_there(
    root: roots.Root, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root.job("any.1").path.mkdir()
    keep_plan(root, "any.1", kind)
    code, out, err = run(root, capsys, "any", "--json")
    assert code == 0, err
    (job,) = json.loads(out)["jobs"]
    assert job["kind"] == kind and job["effect"]["succeeded"] is None
    assert job["response"].keys() >= {"makespan", "first_result", "done"} and "p95" in job["response"]["shard"]
    assert job["memory"]["machines"] == job["bandwidth"]["machines"] == job["fairness"]["machines"] == []


def test_pictures_and_their_numbers(root: roots.Root, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(root, capsys, "one", "four", "--plots", tmp_path / "plots")
    assert (tmp_path / "plots" / "speed-up.csv").read_text().splitlines()[2].startswith("sync,4,8,40,2.5,2.5,1")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        assert code == 6 and "only the CSV files" in err
    else:
        assert code == 0 and len(list((tmp_path / "plots").glob("*.png"))) == 4


@pytest.mark.parametrize("job", ["other", "map"])
def test_jobs_of_which_nothing_is_known_say_so(root: roots.Root, job: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(root, capsys, job)
    assert code == 0 and "nothing was measured of it" in out and "no machine has worked on it yet" in out


@pytest.mark.parametrize("args", [("gone",), ("other", "--target", "0.5"), ("other", "--plots", "out")])
def test_what_there_is_not_is_an_error(
    root: roots.Root, args: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(root, capsys, *args)
    assert code == 6
    assert err.startswith("error: ") and "\nhint: " in err


@pytest.mark.parametrize("args", [("--target", "0.5"), ("--plots", "out"), ("--curves", "--json")])
def test_what_a_kind_does_not_have_is_not_left_out_without_a_word(
    root: roots.Root, tmp_path: Path, args: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "map.html"
    code, _, err = run(root, capsys, "map", *args, *([] if "--json" in args else ["--html", page]))
    assert code == 2 and "kind map" in err and "\nhint: " in err
    assert not page.exists() and not Path("out").exists()


def test_a_page_goes_where_a_file_can_be(root: roots.Root, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(root, capsys, "one", "--html", tmp_path)[0] == 2
    assert run(root, capsys, "one", "--html", tmp_path / "no" / "such.html")[0] == 2
    assert run(root, capsys, "one", "--timeline")[0] == 2
    page = tmp_path / "one.html"
    assert run(root, capsys, "one", "four", "--html", page)[0] == 0
    text = page.read_text()
    assert "Speed-up to the target" in text and text.count("<svg") > 4
    code, out, _ = run(root, capsys, "one", "--html", "-")
    assert code == 0 and out.startswith("<!doctype html>")


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
