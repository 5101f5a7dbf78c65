"""figures.sqlite: what is written of a job is read again, and a file that cannot be used is told apart."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from muster.coordinator.api.figures import JobFiguresKept, JobLine, MachineFigures
from muster.coordinator.farm_root import figures_file
from muster.coordinator.farm_root.figures_file import FiguresFile, OtherLayout
from muster.jobs.common.errors import DamagedError

JOB = "weights.1"


def write(path: Path, *machines: str, job: str = JOB) -> None:
    kept = figures_file.encoded(figures_file.new_job(job, "map", "0", 1.0, "running"))
    rows = [(name, figures_file.encoded(MachineFigures(name, cpus=4))) for name in machines]
    with closing(FiguresFile(path)) as file:
        file.write([(kept, job, rows)])


def test_jobs_are_read_as_they_were_written_until_they_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "odd name?#%20" / "figures.sqlite"
    path.parent.mkdir()
    assert figures_file.read(path, JOB) is None
    write(path, "lab2", "lab1")
    write(path, "lab3")
    write(path, "lab1", job="other.1")
    found = figures_file.read(path, JOB)
    assert found is not None
    assert (found[0].job, [one.agent for one in found[1]]) == (JOB, ["lab1", "lab2", "lab3"])
    with closing(FiguresFile(path)) as file:
        file.forget(JOB)
    assert figures_file.read(path, JOB) is None and figures_file.read(path, "other.1") is not None


def test_of_any_number_of_jobs_the_newest_are_read_without_what_a_line_does_not_show(tmp_path: Path) -> None:
    path = tmp_path / "figures.sqlite"
    assert figures_file.newest(path, 3) is None
    jobs = [figures_file.new_job(f"j.{i}", "map", "0", float(i), "running") for i in range(1, 8)]
    with closing(FiguresFile(path)) as file:
        file.write([(figures_file.encoded(job), job.job, []) for job in jobs])
    found = figures_file.newest(path, 3)
    assert found is not None
    assert ([one.job for one in found[0]], found[1]) == (["j.7", "j.6", "j.5"], 4)
    shown, kept = JobLine.__struct_fields__, JobFiguresKept.__struct_fields__
    assert set(shown) < set(kept)


def test_another_layout_and_what_is_no_database_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "figures.sqlite"
    write(path, "lab1")
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(OtherLayout, match="99"):
        FiguresFile(path)
    with pytest.raises(DamagedError, match=r"figures\.sqlite"):
        figures_file.read(path, JOB)
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(sqlite3.DatabaseError):
        FiguresFile(path)
    with pytest.raises(DamagedError):
        figures_file.read(path, JOB)
