"""Studies: a line is kept of each point, pages are made of lines alone, and their arithmetic is right."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.studies import clustering, infer, pages, replay, training
from benchmarks.studies.points import Figures, Kept, Line, Point, Study
from benchmarks.studies.replay import Costs
from muster.jobs.common.errors import DamagedError
from muster.jobs.training.data.dataset import load
from muster.jobs.training.params import TrainParams, settled

ROOT = Path(__file__).parents[3]


def line(point: Point, figures: Figures) -> Line:
    return Line(point.name, point.settings, figures, "2026-01-01", "a machine", 1.5, 0.25)


def figures_of(study: str, point: Point) -> Figures:
    """Such as `measure` gives; round ones."""
    what = point.name.split("/")[0]
    if study == "infer":
        rates = [90.0 * point.settings["machines"], 110.0 * point.settings["machines"]]
        return {"rates": rates, "processor": 0.5, "one row ms": 7.0, "succeeded": 1.0, "peak MB/s": 100.0}
    if study == "clustering":
        return {"rates": [50.0, 100.0], "bytes a value": 4.0, "processor seconds a row": 0.01}
    if what == "costs":
        return {"compute ms": 10.0, "beside ms": 5.0, "spread": [1.0]}
    if what == "server":
        return {"server ms": 1.0, "rounds/s": 5.0}
    if what == "bytes":
        mb = {"h1-32bits": 800.0, "h8-8bits": 10.0}.get(point.name.removeprefix("bytes/"), 8.0)
        return {"seconds": [1.0], "rows": [1000], "MB": [mb], "accuracy": [0.975]}
    machines = point.settings["machines"]
    points = [[i, 10.0 * i / machines, 1.0, 100, machines] for i in (1, 2)]
    marks = [[i, 10.0 * i / machines, 0.3 * i, 1.0] for i in (1, 2)]
    return {"iterations/s": 0.1 * machines, "best": 0.6, "points": points, "marks": marks}


def lines_of(study: Study) -> dict[str, Line]:
    return {point.name: line(point, figures_of(study.name, point)) for point in study.points(False)}


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each table, its header first."""
    found: list[list[list[str]]] = []
    for row in text.splitlines():
        if not row.startswith("|"):
            found += [[]] if not found or found[-1] else []
            continue
        found[-1].append([cell.strip() for cell in row.strip("|").split("|")])
    return [one for one in found if one]


def written(study: Study, lines: Mapping[str, Line], folder: Path) -> str:
    return pages.write(folder, study, study.points(False), lines).read_text()


STUDIES = (infer.STUDY, training.STUDY, clustering.STUDY)


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_a_page_is_made_of_its_lines_alone_whatever_is_missing(study: Study, tmp_path: Path) -> None:
    lines = lines_of(study)
    whole = written(study, lines, tmp_path)
    assert "Not complete" not in whole
    for one in (lines, {}, dict(list(lines.items())[::3]), dict(list(lines.items())[-2:])):
        text = written(study, one, tmp_path)
        for table in tables(text):
            assert {len(row) for row in table} == {len(table[0])}, table[0]
        for name in study.page(one).pictures:
            assert f"({name}.svg)" in text
            assert (tmp_path / f"{name}.svg").read_text().startswith("<svg ")
        missing = [name for name in lines if name not in one]
        assert all(f"`{name}`" in text for name in missing) and ("Not complete" in text) == bool(missing)


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
@pytest.mark.parametrize("short", [False, True])
def test_points_have_a_name_each_and_settings_that_a_file_can_keep(study: Study, short: bool) -> None:
    points = study.points(short)
    assert len({point.name for point in points}) == len(points)
    assert msgspec.json.decode(msgspec.json.encode(points), type=list[Point]) == points


def test_a_study_goes_on_where_it_stopped(tmp_path: Path) -> None:
    points = [Point("a", {"n": 1}), Point("b", {"n": 1})]
    kept = Kept(tmp_path / "made" / "x.jsonl")
    kept.keep(line(points[0], {"rate": 2.0}))
    again = Kept(tmp_path / "made" / "x.jsonl")
    assert again.of(points) == {"a": line(points[0], {"rate": 2.0})}
    assert again.of([Point("a", {"n": 2})]) == {}, "at other settings it is another point"
    again.keep(line(points[1], {}))
    again.keep(line(points[0], {"rate": 3.0}))
    assert Kept(tmp_path / "made" / "x.jsonl").lines["a"].figures == {"rate": 3.0}
    with (tmp_path / "made" / "x.jsonl").open("ab") as file:
        file.write(b'{"name": "c", "sett')
    with pytest.raises(DamagedError, match="line 3 is none of a study's") as caught:
        Kept(tmp_path / "made" / "x.jsonl")
    assert "measured again" in caught.value.hint


def test_the_clustering_study_multiplies_rightly() -> None:
    """8·10⁶ rows of 65,536 float32; 2 GB a second of them computed, 100 MiB/s over the link."""
    assert clustering.BYTES == 8_000_000 * 65_536 * 4 == 2_097_152_000_000
    assert clustering.job_seconds(1, 8000.0, 100.0) == 1000.0
    assert clustering.job_seconds(4, 8000.0, 100.0) == clustering.link_seconds(100.0) == 20_000.0
    assert clustering.job_seconds(16, 8.0, 100.0) == 62_500.0, "with so much to compute, the link waits"


def test_the_second_machines_gain_is_beside_what_it_cost_there(tmp_path: Path) -> None:
    text = written(infer.STUDY, lines_of(infer.STUDY), tmp_path)
    (gains,) = [table for table in tables(text) if table[0][0] == "a second machine"]
    assert [row[3] for row in gains[2:]] == ["0.97", "2", "2", "2"]


def test_the_speed_up_is_of_time_and_the_bytes_are_of_medians(tmp_path: Path) -> None:
    text = written(training.STUDY, lines_of(training.STUDY), tmp_path)
    table = next(table for table in tables(text) if "there" in table[0])
    rows = {tuple(row[:3]): row for row in table[2:]}
    assert rows["sync", "10", "replayed"][5:7] == ["10", "4"]
    assert rows["async", "2", "real"][5:7] == ["2", "-"]
    (fewer,) = [table for table in tables(text) if "times fewer" in table[0]]
    assert [row[3] for row in fewer[2:]] == ["1", "80", "100", "100"]


def small(**ways: Any) -> TrainParams:
    return settled(TrainParams(model="conv1", filters=2, microbatch=5, rounds=6, eval_every=2, **ways))


COSTS = Costs(compute=1.0, spread=[1.0], beside=0.5, server=0.25)


@pytest.mark.parametrize(("machines", "round_seconds"), [(1, 4.75), (2, 3.0), (4, 2.5), (8, 2.5)])
def test_replayed_rounds_take_what_machines_and_the_server_take(machines: int, round_seconds: float) -> None:
    """Four contributions, shared: the largest share, what is beside, and the server, one machine after the other."""
    data, params = load("digits", Path()), small(workers=4)
    params = msgspec.structs.replace(params, facts=data.facts)
    curve = replay.in_rounds(params, data, machines, COSTS, 1e9)
    assert [point.seconds for point in curve.points] == [round_seconds * i for i in range(1, 7)]
    assert [mark.iteration for mark in curve.marks] == [2, 4, 6]
    assert len(replay.in_rounds(params, data, machines, COSTS, 2 * round_seconds).points) == 3


def test_replayed_machines_hand_in_one_after_the_other() -> None:
    data = load("digits", Path())
    params = msgspec.structs.replace(small(mode="async", workers=4, lr=0.01, staleness="none"), facts=data.facts)
    curve = replay.asynchronously(params, data, 4, COSTS, 1e9)
    redone = 24 - len(curve.points)
    assert redone == 0, "the first scale of 32 bits is fine enough"
    assert [point.seconds for point in curve.points[:6]] == [1.75, 2.0, 2.25, 2.5, 3.5, 3.75]
    assert [point.samples for point in curve.points] == [5] * 24
    assert [mark.iteration for mark in curve.marks] == [8, 16, 24]


def test_a_data_set_that_cannot_be_had_leaves_a_page_that_says_so(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": str(tmp_path), "MUSTER_DATA": str(tmp_path / "sets")}
    command = [
        sys.executable,
        "-m",
        "benchmarks.studies",
        "training",
        "--only",
        "costs/weak/sync",
        "--to",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 77, done.stderr
    assert "not measured: cifar10: there is no npm here" in done.stdout and "let npm reach" in done.stdout
    assert "**Not complete**" in (tmp_path / "training.md").read_text() and not (tmp_path / "training.jsonl").exists()
