"""Studies: a line is kept of each point, pages are made of lines alone, and their arithmetic is right."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.measure import give_up
from benchmarks.studies import __main__ as program
from benchmarks.studies import clustering, infer, pages, training, tune
from benchmarks.studies.points import Figures, Kept, Line, Page, Point, Study, basis, in_order, waves
from benchmarks.studies.training import replay
from benchmarks.studies.training.replay import Costs
from muster.jobs.common.errors import DamagedError
from muster.jobs.training.data.dataset import load
from muster.jobs.training.params import TrainParams, settled
from tests.support.farm import until

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
        way = {"rates": [50.0, 100.0], "bytes a value": 4.0}
        return {"ways": dict.fromkeys(clustering.EXPORT_LABELS, way)} if what == "export" else {"rates": way["rates"]}
    if study == "tune":
        seconds = 10.0 if point.settings["side"] == "first" else 50.0
        counts = {"reached": [8, 12], "iterations": 400, "test accuracy": 0.95}
        return {"seconds": seconds, "beside": 0.25, "target": 9.0, **counts}
    if what == "costs":
        return {"compute ms": 10.0, "beside ms": 5.0, "spread": [1.0]}
    if what == "server":
        return {"server ms": 1.0, "rounds/s": 5.0}
    if what == "course":
        return {"scores": [[1, 1.0, 0.3], [2, 1.0, 0.6]] if point.name.endswith("alone") else [[4, 1.0, 0.6]]}
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
    return pages.write(folder, study, study.points(False), lines, {}).read_text()


STUDIES = (infer.STUDY, training.STUDY, clustering.STUDY, tune.STUDY)


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
    assert Kept(tmp_path / "made" / "x.jsonl").of(points)["a"].figures == {"rate": 3.0}
    with (tmp_path / "made" / "x.jsonl").open("ab") as file:
        file.write(b'{"name": "c", "sett')
    with pytest.raises(DamagedError, match="line 3 is none of a study's") as caught:
        Kept(tmp_path / "made" / "x.jsonl")
    assert "measured again" in caught.value.hint


def test_what_is_reckoned_from_other_figures_is_due_again(tmp_path: Path) -> None:
    points = [Point("cost", {"n": 1}), Point("curve", {}, by=("cost",), timed=False)]
    kept = Kept(tmp_path / "x.jsonl")
    assert basis(points[1], {}) is None and kept.of(points) == {}
    kept.keep(line(points[0], {"ms": 2.0}))
    kept.keep(msgspec.structs.replace(line(points[1], {"s": 9.0}), by=basis(points[1], kept.of(points))))
    assert [*kept.of(points)] == ["cost", "curve"]
    other = [Point("cost", {"n": 2}), points[1]]
    assert kept.of(other) == {}, "what it goes by was measured at other settings"
    kept.keep(line(points[0], {"ms": 3.0}))
    assert [*kept.of(points)] == ["cost"]
    kept.keep(line(points[0], {"ms": 2.0}))
    assert [*kept.of(points)] == ["cost", "curve"], "measured again, to the same figures"


def test_what_was_never_measured_comes_before_what_was_disturbed_and_that_before_what_failed(tmp_path: Path) -> None:
    points = [Point(name, {}) for name in ("failed", "loaded", "quiet", "new")]
    points += [Point("of loaded", {}, by=("loaded",), timed=False), Point("of quiet", {}, by=("quiet",), timed=False)]
    kept = Kept(tmp_path / "x.jsonl")
    kept.keep(msgspec.structs.replace(line(points[0], {}), failed="no disk"))
    kept.keep(msgspec.structs.replace(line(points[1], {"ms": 1.0}), others=1.0))
    kept.keep(line(points[2], {"ms": 1.0}))
    assert [*kept.of(points)] == ["loaded", "quiet"] and kept.failed(points) == {"failed": "no disk"}
    names = [point.name for point in in_order(points, kept)]
    assert names == ["quiet", "new", "of quiet", "loaded", "of loaded", "failed"]


def test_what_is_timed_is_alone_and_what_is_reckoned_at_once_goes_by_none_of_these() -> None:
    steps = [("a", True), ("b", False), ("c", False), ("d", False), ("e", True)]
    points = [Point(name, {}, by=("b",) if name == "d" else (), timed=timed) for name, timed in steps]
    assert [[point.name for point in wave] for wave in waves(points)] == [["a"], ["b", "c"], ["d"], ["e"]]


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
@pytest.mark.parametrize("short", [False, True])
def test_points_go_by_earlier_points_alone(study: Study, short: bool) -> None:
    seen: set[str] = set()
    for point in study.points(short):
        assert seen.issuperset(point.by), point
        seen.add(point.name)


def asked(_: bool) -> list[Point]:
    """Of a study that times nothing."""
    found = [Point(name, {}) for name in ("breaks", "cannot", "cost")]
    return [*found, Point("curve", {}, by=("cost",), timed=False), Point("of none", {}, by=("breaks",), timed=False)]


def counted(point: Point, scratch: Path, lines: Mapping[str, Line]) -> Figures:
    """How often it was asked for; in a file, as processes of others do it, too."""
    assert [*lines] == [*point.by] and scratch.is_dir()
    if point.name == "breaks":
        until(lambda: None, "what never comes", 0.0)
    if point.name == "cannot":
        give_up("there is no torch")
    if point.name == os.environ.get("KILLED"):
        os.kill(os.getpid(), signal.SIGKILL)
    if point.name == os.environ.get("INTERRUPTED"):
        os.kill(os.getppid(), signal.SIGINT)
        until(lambda: None, "the end of this process", 60.0)
    file = Path(os.environ["COUNTED"]) / point.name
    file.write_text(f"{file.read_text() if file.exists() else ''}x")
    return {"times": len(file.read_text()), "of": [one.figures["times"] for one in lines.values()]}


def named(lines: Mapping[str, Line]) -> Page:
    return Page("A fake", [f"has {', '.join(lines)}", ""], {})


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """What calls the program with a study of that kind."""
    fake = Study("fake", asked, counted, named)
    monkeypatch.setattr(program, "STUDIES", {"fake": fake})
    monkeypatch.setenv("COUNTED", str(tmp_path))
    return lambda *words: program.main([*words, "--short", "--to", str(tmp_path / "to")])


def figures(folder: Path) -> dict[str, Figures]:
    return {name: one.figures for name, one in Kept(folder / "to" / "fake.jsonl").of(asked(True)).items()}


def test_a_point_that_breaks_ends_no_study_and_the_page_says_why(
    study: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert study() == 1
    assert figures(tmp_path) == {"cost": {"times": 1, "of": []}, "curve": {"times": 1, "of": [1]}}
    page = (tmp_path / "to" / "fake.md").read_text()
    assert "3 of 5 points are not measured yet" in page and "- `cannot`: there is no torch\n" in page
    assert "- `breaks`: AssertionError: waited 0 s in vain for what never comes; last: None\n" in page
    assert "- `of none`\n" in page
    assert "of none waits for breaks" in capfd.readouterr().out
    assert study() == 1 and figures(tmp_path)["cost"]["times"] == 1, "what failed is tried again, and that alone"
    assert capfd.readouterr().out.count("there is no torch") == 2


def test_costs_that_are_measured_again_bring_their_curve_along(study: Callable[..., int], tmp_path: Path) -> None:
    study()
    study("--again", "cost")
    assert figures(tmp_path) == {"cost": {"times": 2, "of": []}}, "the curve is of figures that are no more"
    study()
    assert figures(tmp_path)["curve"] == {"times": 2, "of": [2]}


def test_a_process_that_is_killed_leaves_what_was_measured(
    study: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KILLED", "curve")
    assert study() == 1
    said = capsys.readouterr().err
    assert "error: a process that measured was killed\nhint: the same command goes on" in said
    assert [*figures(tmp_path)] == ["cost"] and "has cost" in (tmp_path / "to" / "fake.md").read_text()
    monkeypatch.delenv("KILLED")
    study()
    assert [*figures(tmp_path)] == ["cost", "curve"]


def test_ctrl_c_ends_what_is_computed_at_once(
    study: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTERRUPTED", "curve")
    assert study() == 130 and "the same command goes on" in capsys.readouterr().err
    assert multiprocessing.active_children() == []
    assert [*figures(tmp_path)] == ["cost"] and "has cost" in (tmp_path / "to" / "fake.md").read_text()


def test_what_others_disturbed_is_measured_again_unless_it_is_to_be_kept(
    study: Callable[..., int], tmp_path: Path
) -> None:
    study()
    kept = Kept(tmp_path / "to" / "fake.jsonl")
    kept.keep(msgspec.structs.replace(kept.of(asked(True))["cost"], others=2.0))
    assert study("--page") == 0 and "**Not undisturbed**: 1 of 5" in (tmp_path / "to" / "fake.md").read_text()
    study("--loaded")
    assert figures(tmp_path)["cost"]["times"] == 1
    study()
    assert figures(tmp_path)["cost"]["times"] == 2 and figures(tmp_path)["curve"]["of"] == [2]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--only", "nothing/*"], "no point is called 'nothing/*'"),
        (["--to", str(program.DOCS)], "its figures are none of docs/study's"),
        (["nonsense"], "there is no study 'nonsense'"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(
    words: list[str], told: str, study: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main([*words, "--short", *([] if "--to" in words else ["--to", str(tmp_path / "to")])])
    assert ended.value.code == 2 and told in capsys.readouterr().err
    assert not (tmp_path / "to").exists()


def test_minutes_are_of_all_studies_together(study: Callable[..., int], tmp_path: Path) -> None:
    assert study("--minutes", "0") == 0
    assert figures(tmp_path) == {} and "5 of 5 points" in (tmp_path / "to" / "fake.md").read_text()


def test_the_clustering_study_multiplies_rightly() -> None:
    """8·10⁶ rows of 65,536 float32; 2 GB a second of them computed, 100 MiB/s over the link."""
    assert clustering.BYTES == 8_000_000 * 65_536 * 4 == 2_097_152_000_000
    assert clustering.job_seconds(1, 8000.0, 100.0) == 1000.0
    assert clustering.job_seconds(4, 8000.0, 100.0) == clustering.link_seconds(100.0) == 20_000.0
    assert clustering.job_seconds(16, 8.0, 100.0) == 62_500.0, "with so much to compute, the link waits"


def test_the_second_machines_gain_is_beside_what_it_cost_there(tmp_path: Path) -> None:
    text = written(infer.STUDY, lines_of(infer.STUDY), tmp_path)
    (gains,) = [table for table in tables(text) if table[0][0] == "a second machine"]
    assert [row[4] for row in gains[2:]] == ["0.97", *["2"] * 10]
    assert [row[:2] for row in gains[3:6]] == [
        ["10 actors, 10 rows a call, behind its link", "100,000"],
        ["10 actors, 10 rows a call, with a copy of the source", "100,000"],
        ["our own settings, behind its link", "100,000"],
    ]


def test_where_ours_is_worse_is_read_off_the_lines(tmp_path: Path) -> None:
    """And off no others: what is not measured is not told."""
    lines = lines_of(infer.STUDY)
    assert "Ray here has" not in written(infer.STUDY, lines, tmp_path)
    ray, alone = lines["ray/100000/ten"], lines["ours/1000000/own"]
    lines["ray/100000/ten"] = msgspec.structs.replace(ray, figures={**ray.figures, "rates": [300.0]})
    lines["ours/1000000/own"] = msgspec.structs.replace(alone, figures={**alone.figures, "rates": [400.0]})
    text = written(infer.STUDY, lines, tmp_path)
    assert "- 10 actors, 10 rows a call, 100,000 rows: Ray here has 3 times our rows/s." in text
    assert "1,000,000 rows: a second machine behind its link gains nothing (0.50)." in text
    training_lines = lines_of(training.STUDY)
    assert "with 10 machines is" not in written(training.STUDY, training_lines, tmp_path)
    for name in ("replayed/weak/sync/1", "replayed/weak/sync/10"):
        one = training_lines[name]
        marks = [[1, 1.0, 0.3, 1.0], [2, 2.0 if name.endswith("/1") else 1.0, 0.6, 1.0]]
        training_lines[name] = msgspec.structs.replace(one, figures={**one.figures, "marks": marks})
    text = written(training.STUDY, training_lines, tmp_path)
    assert "- sync with 10 machines is 2 times as fast as one, there 4." in text
    assert "One machine alone needs 2 rounds with a learning rate of 0.1, and 4 with the 0.05" in text
    assert "Nothing that is measured says so yet." in written(training.STUDY, {}, tmp_path)


def test_a_search_is_beside_ray_tunes_and_what_its_goal_saves(tmp_path: Path) -> None:
    lines = lines_of(tune.STUDY)
    text = written(tune.STUDY, lines, tmp_path)
    runs, saved, _ = tables(text)
    assert [row[2] for row in runs[2:6]] == ["there", "Muster", "Muster, `goal: first`", "Ray Tune"]
    assert [row[-1] for row in runs[2:6]] == ["4.58", "1.5", "-", "1.5"]
    assert [row[-1] for row in saved[2:]] == ["80%"] * 3
    assert "is up to 0.25 s a trial" in text and "Ray Tune ends" not in text and "times as long" not in text
    for name, seconds in (("10x1/ray", 40.0), ("16x2/ours", 75.0)):
        figures = {**lines[name].figures, "seconds": seconds}
        lines[name] = msgspec.structs.replace(lines[name], figures=figures)
    text = written(tune.STUDY, lines, tmp_path)
    assert "- 10 samples, 1 cpus a trial: Ray Tune ends after 40 s, ours after 50." in text
    assert "- 16 samples: with 2 cpus a trial a search takes 1.5 times as long as with 1." in text
    assert "Nothing that is measured says so yet." in written(tune.STUDY, {}, tmp_path)


def test_a_search_of_another_target_or_on_other_cores_is_another(tmp_path: Path) -> None:
    kept, (point, *_) = Kept(tmp_path / "tune.jsonl"), tune.STUDY.points(False)
    kept.keep(line(point, figures_of("tune", point)))
    assert [*kept.of([point])] == [point.name]
    for other in ({"target": 0.5}, {"cores": 99}):
        assert not kept.of([msgspec.structs.replace(point, settings={**point.settings, **other})])


def test_the_speed_up_is_of_time_and_the_bytes_are_of_medians(tmp_path: Path) -> None:
    text = written(training.STUDY, lines_of(training.STUDY), tmp_path)
    table = next(table for table in tables(text) if "there" in table[0])
    rows = {tuple(row[:3]): row for row in table[2:]}
    assert rows["sync", "10", "replayed"][5:7] == ["10", "4"]
    assert rows["async", "2", "real"][5:7] == ["2", "-"]
    (fewer,) = [table for table in tables(text) if "times fewer" in table[0]]
    assert [row[4] for row in fewer[2:]] == ["1", "80", "100", "100"]


def small(**ways: Any) -> TrainParams:
    return settled(TrainParams(model="conv1", filters=2, microbatch=5, rounds=6, eval_every=2, **ways))


COSTS = Costs(compute=1.0, spread=[1.0], beside=0.5, server=0.25)


@pytest.mark.parametrize(("machines", "round_seconds"), [(1, 4.75), (2, 3.0), (4, 2.5), (8, 2.5)])
def test_replayed_rounds_take_what_machines_and_the_server_take(machines: int, round_seconds: float) -> None:
    """Four contributions, shared: the largest share, what is beside, and the server, one machine after the other."""
    params, scores = small(workers=4), [(2, 2.5, 0.1), (4, 2.0, 0.2), (5, 1.5, 0.3)]
    record = replay.in_rounds(params, scores, machines, COSTS, 1e9)
    assert [point.seconds for point in record.points] == [round_seconds * i for i in (2, 4, 5)]
    assert [point.samples for point in record.points] == [40, 40, 20]
    assert [(mark.iteration, mark.accuracy) for mark in record.marks] == [(2, 0.1), (4, 0.2), (5, 0.3)]
    assert len(replay.in_rounds(params, scores, machines, COSTS, 4 * round_seconds).points) == 2


def test_replayed_machines_hand_in_one_after_the_other_and_wait_for_evaluations() -> None:
    data = load("digits", Path())
    params = msgspec.structs.replace(small(mode="async", workers=4, lr=0.01, staleness="none"), facts=data.facts)
    record = replay.asynchronously(params, data, 4, COSTS, 1e9)
    redone = 24 - len(record.points)
    assert redone == 0, "the first scale of 32 bits is fine enough"
    ends = [point.seconds for point in record.points]
    assert ends[:8] == [1.75, 2.0, 2.25, 2.5, 3.5, 3.75, 4.0, 4.25]
    assert ends[8:11] == [5.25, 5.5, 5.75], "of those that had begun when the first weights were due"
    assert ends[11] == ends[10] + 1.75, "and then all begin anew"
    assert [point.samples for point in record.points] == [5] * 24
    assert [mark.iteration for mark in record.marks] == [8, 16, 24]


def test_replayed_work_waits_for_machines_as_it_was_issued(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six workers' contributions at the same weights for one machine: each comes in order, and is issued anew."""
    data = load("digits", Path())
    params = msgspec.structs.replace(small(mode="async", workers=6, lr=0.01), facts=data.facts)
    run = replay.Replay(params, data, 1, COSTS)
    stale: list[int] = []
    take = run._take

    def noted(order: replay.Order) -> None:
        stale.append(run._pushes.version - order.header.round)
        take(order)

    monkeypatch.setattr(run, "_take", noted)
    run.run(1e9)
    assert stale[:12] == [0, 1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5], "which is two rounds' worth, and due to be evaluated"
    assert stale[12:23] == [5, 5, 5, 5, 5, 0, 1, 2, 3, 4, 5], "of those that were out, and then all begin anew"


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
    assert done.returncode == 1, done.stderr
    assert "cifar10: there is no npm here; let npm reach" in done.stdout
    page = (tmp_path / "training.md").read_text()
    assert "- `costs/weak/sync`: params.data.name: cifar10: there is no npm here; let npm reach a registry" in page
