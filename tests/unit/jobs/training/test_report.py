"""Pictures and tables of trainings: numbers that add up, files that can be opened."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

from muster.jobs.common.errors import NotFoundError
from muster.jobs.contract.pictures import Curves
from muster.jobs.training import checkpoint, plots, report
from muster.jobs.training.aggregation.synchronous import SynchronousRounds
from muster.jobs.training.params import TrainParams, settled
from muster.jobs.training.progress import BestMark, Point, TrainingCourse
from muster.jobs.training.report import TrainingRun, speedups, tables


def run(workers: int, seconds: float, iterations: int, mode: str = "sync") -> TrainingRun:
    """One that is right about half of the rows half way, and about nine of ten at the end."""
    points = [Point(i, seconds * i / iterations, 1 / i, 100) for i in range(1, iterations + 1)]
    marks = [BestMark(iterations // 2, seconds / 2, 0.5, 1.0), BestMark(iterations, seconds, 0.9, 0.3)]
    return TrainingRun(mode, workers, points, marks)


RUNS = [run(1, 80.0, 400), run(4, 10.0, 200), run(1, 80.0, 400, "async"), run(10, 4.0, 400, "async")]


def test_speed_up_is_throughput_times_steps() -> None:
    found = speedups(RUNS, 0.8)
    assert [(one.run.mode, one.run.workers, one.ratio) for one in found] == [
        ("sync", 1, 1.0),
        ("sync", 4, 8.0),
        ("async", 1, 1.0),
        ("async", 10, 20.0),
    ]
    for one in found:
        assert one.ratio == pytest.approx(one.throughput * one.steps)
    assert (found[1].throughput, found[1].steps) == (4.0, 2.0)


def test_pushes_of_several_workers_at_once_count_by_their_rows() -> None:
    points = [Point(i, 2.0 * i, 1.0, 400) for i in range(1, 101)]
    grouped = TrainingRun("async", 2, points, [BestMark(100, 200.0, 0.9, 0.3)])
    (_, one) = speedups([run(1, 400.0, 400, "async"), grouped], 0.8)
    assert (one.ratio, one.throughput, one.steps) == (2.0, 2.0, 1.0)


def test_who_never_gets_there_has_none() -> None:
    assert speedups(RUNS, 0.95) == []
    assert [one.run.workers for one in speedups([*RUNS[:2], run(2, 1.0, 10)][:2], 0.8)] == [1, 4]
    assert speedups(RUNS[:1], 0.8) == []
    assert [table.name for table in tables(RUNS[:1], 0.8)] == [
        report.ACCURACY_BY_ITERATION,
        report.ACCURACY_BY_TIME,
        report.ITERATIONS_BY_TIME,
    ]


def test_long_runs_are_thinned_and_end_where_they_ended() -> None:
    long = run(1, 10.0, 1801)
    thin = long.thinned()
    assert len(thin) <= report.POINTS_MOST and thin[-1] == long.points[-1]
    assert list(run(1, 1.0, 20).thinned()) == list(run(1, 1.0, 20).points)


def test_labels_say_which_run_it_was() -> None:
    assert run(1, 1.0, 2).label == "sync, 1 worker"
    assert TrainingRun("async", 20, [], [], "big").label == "big: async, 20 workers"


def test_a_csv_beside_every_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the report extra is not installed")
    written = plots.write(tmp_path / "plots", RUNS, 0.8)
    names = sorted(path.name for path in written)
    assert names == sorted(f"{table.name}.{ending}" for table in tables(RUNS, 0.8) for ending in ("csv", "png"))
    for path in written:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000
    with (tmp_path / "plots" / "speed-up.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["mode"], row["workers"], row["speedup"]) for row in rows][1] == ("sync", "4", "8")


def test_without_matplotlib_the_numbers_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    with pytest.raises(NotFoundError, match="only the CSV files") as refused:
        plots.write(tmp_path, RUNS, 0.8)
    assert refused.value.hint == f"{sys.executable} -m pip install matplotlib"
    assert len(list(tmp_path.glob("*.csv"))) == 4


def test_a_training_that_never_began_has_pictures_too(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the report extra is not installed")
    assert len(plots.write(tmp_path, [TrainingRun("sync", 1, [], [])], None)) == 6


def test_many_runs_have_a_panel_for_each_mode_and_a_colour_for_each_number_of_workers(tmp_path: Path) -> None:
    few = [run(count, 80.0 / count, 40) for count in (1, 2)]
    many = [TrainingRun(mode, n, *curve(n)) for mode in ("sync", "async") for n in (1, 2, 5, 10)]
    (alone,) = plots._panels(few)
    assert [label for _, label, _ in alone.runs] == ["sync, 1 worker", "sync, 2 workers"]
    panels = plots._panels(many)
    assert [panel.title for panel in panels] == ["sync", "async"]
    assert [label for _, label, _ in panels[0].runs] == ["1 worker", "2 workers", "5 workers", "10 workers"]
    colours = [[look["color"] for _, _, look in panel.runs] for panel in panels]
    assert colours[0] == colours[1] and len(set(colours[0])) == 4
    pytest.importorskip("matplotlib", reason="the report extra is not installed")
    assert len(plots.write(tmp_path, many, 0.8)) == 8


def curve(workers: int) -> tuple[list[Point], list[BestMark]]:
    whole = run(workers, 80.0 / workers, 40)
    return list(whole.points), list(whole.marks)


def test_runs_that_were_the_same_are_one_line() -> None:
    (panel,) = plots._panels([run(1, 80.0, 40), run(2, 40.0, 40), run(4, 20.0, 20)])
    assert [labels for labels, _ in plots._lines(panel, "iteration").values()] == [
        ["sync, 1 worker", "sync, 2 workers"],
        ["sync, 4 workers"],
    ]
    assert len(plots._lines(panel, "seconds")) == 3
    assert panel.iterations == "rounds"


def test_a_speed_up_is_by_machines_where_they_were_counted(tmp_path: Path) -> None:
    """Virtual workers may share a machine."""
    for job, machines, seconds in (("one.1", 1, 20.0), ("two.1", 2, 12.0)):
        params = settled(TrainParams(workers=8, target=0.8, rounds=100))
        outer, course = SynchronousRounds(params, np.zeros(9, np.float32), 9), TrainingCourse(params)
        outer.round = 40
        course.record.points = [Point(i, seconds * i / 40, 1 / i, 64, machines) for i in range(1, 41)]
        course.record.marks = [BestMark(40, seconds, 0.85, 0.4)]
        checkpoint.write(tmp_path / job, outer, course)
    found = report.side_by_side({job: tmp_path / job for job in ("one.1", "two.1")}, None)
    assert [cells[:3] for cells in found.rows] == [("sync", "8", "1"), ("sync", "8", "2")]
    (gain,) = [picture for picture in found.pictures if picture.title == "Speed-up to the target"]
    assert isinstance(gain, Curves) and gain.x == "machines"
    assert gain.curves[0] == ("sync", [(1.0, 1.0), (2.0, 20 / 12)])
