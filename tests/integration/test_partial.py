"""`coordinator result --partial`: what there is of a job, whoever serves the root, and whatever dies meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster.coordinator.api.requests import Cancel
from muster.coordinator.api.requests import Done as Answered
from muster.coordinator.client import Farm
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root import plans
from muster.coordinator.protocol import transfer
from muster.coordinator.result_downloads import partial
from muster.jobs.common.errors import IncompleteError, RefusedError, SpaceError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.parts.manifest import Partial
from muster.jobs.results.open_result import RaggedRows, WrittenFiles, open_result
from tests.plugin.muster_chain import DEATHS
from tests.support.farm import Array, FarmHarness, arrays, running, strace_obstacle, until
from tests.support.needs import skip_for
from tests.support.simulated import SimulatedAgent

PLUGIN = Path(__file__).parent.parent / "plugin"
ROWS, SHARDS = 8, 6
FIRST_ROWS = {number: range(number * ROWS, (number + 1) * ROWS) for number in range(SHARDS)}


def submit(farm: FarmHarness, layers: int = 1, **more: Any) -> str:
    return farm.submit(arrays(layers, SHARDS * ROWS), ROWS, **more)


def commit(farm: FarmHarness, agent: SimulatedAgent, count: int) -> None:
    """Run and push so many more shards, a part each."""
    done = len(agent.computed) + count
    while len(agent.computed) < done:
        agent.sync(wait=0.05)
        agent.compute(1)
    agent.sync(hungry=False)
    for part in list(agent.parts):
        assert isinstance(agent.push(part), transfer.Settled)


def begun(farm: FarmHarness, count: int = 2, layers: int = 1) -> tuple[str, SimulatedAgent]:
    """A job with so many shards of its layers committed."""
    job, agent = submit(farm, layers), farm.agent()
    agent.join()
    commit(farm, agent, count)
    return job, agent


def asked(farm: FarmHarness, job: str, *args: str) -> dict[str, Any]:
    done = farm.coordinator("result", job, "--partial", "--json", *args)
    assert (done.returncode, done.stderr) == (0, ""), done
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def ok_rows(folder: Path) -> list[int]:
    return [int(row) for row in np.flatnonzero(np.load(folder / "ok.npy"))]


def committed_rows(farm: FarmHarness, job: str, layer: str = "a") -> list[int]:
    [digest] = [one.digest for one in farm.plan(job).layers if one.name == layer]
    [stored] = [one for one in farm.stored()[job].layers if one.digest == digest]
    return [row for number in stored.committed for row in FIRST_ROWS[number]]


def check(farm: FarmHarness, job: str, folder: Path, layer: str = "a") -> list[int]:
    """Every row that is there is the serial run's, every other is blank; which are there."""
    serial = farm.serial(job, layer)[layer]
    found = open_result(folder / layer, partial=True)
    there = ok_rows(folder / layer)
    for name in ("centers", "counts", "inertia", "iterations"):
        path = farm.folder / "serial.npy"
        path.write_bytes(serial[f"{name}.npy"])
        whole, part = np.load(path), np.array(found.outputs[name])
        assert part.shape == whole.shape and part[there].tobytes() == whole[there].tobytes()
        holes = np.delete(part, there, axis=0)
        assert np.isnan(holes).all() if part.dtype.kind == "f" else not holes.any()
    assert isinstance(found.manifest, Partial)
    gone = RangeSet(found.manifest.missing_rows)
    assert sorted([*there, *gone]) == list(range(SHARDS * ROWS))
    return there


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def leftovers(farm: FarmHarness) -> list[str]:
    return [path.name for path in farm.root.tmp.iterdir() if not path.name.isdecimal()]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    with running(tmp_path_factory.mktemp("partial")) as farm:
        yield farm


@pytest.fixture
def farm(shared: FarmHarness) -> Iterator[FarmHarness]:
    """The shared farm, served, with no agent and no unfinished job in it."""
    if shared.daemon is None or shared.daemon.poll() is not None:
        shared.start()
    for job in shared.jobs():
        if job.state in {"running", "halted", "paused"}:
            shared.ask(Cancel(job.id), Answered)
    yield shared
    for agent in shared.agents:
        agent.die()
    shared.agents.clear()


# --- with a daemon and without ------------------------------------------------------------------------------


def test_what_is_committed_of_a_running_job_and_more_the_next_time(farm: FarmHarness) -> None:
    job, agent = begun(farm)
    said, place = asked(farm, job), farm.root.job(job)
    assert said["path"] == str(place.partial) and said["layers"] == ["a"] and said["missing"] == []
    part = {"layer": "a", "shards": 2, "missing_shards": 4, "rows": 48, "missing_rows": 32}
    assert said["parts"] == [part] and said["damaged"] == []
    assert check(farm, job, place.partial) == committed_rows(farm, job) and snapshot(place.result) == {}
    commit(farm, agent, 2)
    assert asked(farm, job)["parts"][0]["missing_rows"] == 16
    assert len(check(farm, job, place.partial)) == 32 and leftovers(farm) == []
    agent.work(lambda: farm.status(job).state == "complete")
    farm.check_result(job)
    assert farm.coordinator("verify", job).returncode == 0


def test_nobody_need_hold_the_root(farm: FarmHarness) -> None:
    job, _ = begun(farm, 3)
    farm.kill()
    before = snapshot(farm.root.job(job).bundles)
    store = farm.root.store.read_bytes()
    asked(farm, job)
    assert len(check(farm, job, farm.root.job(job).partial)) == 24
    assert snapshot(farm.root.job(job).bundles) == before and farm.root.store.read_bytes() == store


def test_a_cancelled_job_has_what_it_had(farm: FarmHarness) -> None:
    job, _ = begun(farm)
    farm.ask(Cancel(job), Answered)
    asked(farm, job)
    assert len(check(farm, job, farm.root.job(job).partial)) == 16


def test_whole_layers_are_there_as_they_are_and_empty_ones_are_named(farm: FarmHarness) -> None:
    job, agent = begun(farm, SHARDS + 2, layers=3)
    until(lambda: farm.status(job).layers_merged, "the first layer to be merged")
    merged, [empty] = farm.merged(job), asked(farm, job)["missing"]
    place, said = farm.root.job(job), asked(farm, job)
    [whole] = merged
    assert sorted([whole, empty, said["parts"][0]["layer"]]) == ["a", "b", "c"] and len(said["parts"]) == 1
    kept = snapshot(place.result)
    assert snapshot(place.partial / whole) == snapshot(place.result / whole) and not (place.partial / empty).exists()
    shown = farm.coordinator("result", job, "--partial")
    assert shown.stdout.strip() == str(place.partial) and f"nothing is there of {empty}" in shown.stderr
    assert "lacks 4 of 6 shards, 32 of its 48 rows" in shown.stderr
    verified = farm.coordinator("verify", job)
    assert verified.returncode == 11 and "1 of 3 layers merged" in verified.stdout
    assert snapshot(place.result) == kept
    agent.work(lambda: farm.status(job).state == "complete")
    farm.check_result(job)


def test_nothing_committed_is_said_as_for_any_result(farm: FarmHarness) -> None:
    job = submit(farm)
    done = farm.coordinator("result", job, "--partial")
    assert done.returncode == 11 and f"nothing of {job} is committed" in done.stderr and "hint: " in done.stderr
    assert not farm.root.job(job).partial.exists() and leftovers(farm) == []


def test_a_training_says_what_there_is_instead(farm: FarmHarness) -> None:
    job = farm.submit({}, kind="train", params={"data": "digits", "rounds": 5})
    done = farm.coordinator("result", job, "--partial")
    assert done.returncode == 7 and "computes in rounds" in done.stderr and "coordinator report" in done.stderr


# --- where it goes ------------------------------------------------------------------------------------------


def test_a_folder_elsewhere_is_replaced_if_it_is_ours_and_refused_if_not(farm: FarmHarness, tmp_path: Path) -> None:
    job, agent = begun(farm)
    target = tmp_path / "out" / "here"
    assert asked(farm, job, "--to", str(target))["path"] == str(target)
    assert len(check(farm, job, target)) == 16
    commit(farm, agent, 1)
    (target.parent / ".here.part-dead").mkdir()
    asked(farm, job, "--to", str(target))
    assert len(check(farm, job, target)) == 24 and [path.name for path in target.parent.iterdir()] == ["here"]
    assert not farm.root.job(job).partial.exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    for wrong, why in ((tmp_path / "other", "has something else in it"), (farm.root.path / "x", "inside the farm's")):
        done = farm.coordinator("result", job, "--partial", "--to", str(wrong))
        assert done.returncode == 7 and why in done.stderr and len(done.stderr.splitlines()) == 2
    assert (tmp_path / "other" / "thesis.tex").exists()


def test_room_is_looked_for_before_anything_is_written(farm: FarmHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = begun(farm)
    usage = shutil.disk_usage(farm.root.path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100))
    with pytest.raises(SpaceError, match=r"what there is of job\.\d+ needs .* are left"):
        partial.make(farm.root, job)
    assert not farm.root.job(job).partial.exists() and leftovers(farm) == []


# --- what happens meanwhile ---------------------------------------------------------------------------------


def test_a_damaged_bundle_is_left_out_and_named(farm: FarmHarness) -> None:
    job, _ = begun(farm, 3)
    farm.kill()
    place = farm.root.job(job)
    first, second, third = sorted(place.bundles.iterdir())
    raw = bytearray(first.read_bytes())
    raw[3] ^= 1
    first.write_bytes(raw)
    second.write_bytes(second.read_bytes()[:-1])
    said = asked(farm, job)
    assert said["parts"][0]["missing_shards"] == 5 and len(said["damaged"]) == 2
    assert len(check(farm, job, place.partial)) == 8
    third.unlink()
    done = farm.coordinator("result", job, "--partial")
    assert done.returncode == 11 and "No such file" in done.stderr
    assert len(check(farm, job, place.partial)) == 8, "what was there before stays"


def test_a_layer_that_is_merged_meanwhile_is_had_whole(farm: FarmHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    job, agent = begun(farm, 5)
    before = plans.bundles

    def merged_after(*args: Any) -> dict[str, list[str]]:
        found = before(*args)
        agent.work(lambda: farm.status(job).state == "complete")
        until(lambda: not list(farm.root.job(job).bundles.iterdir()), "the bundles to go")
        return found

    monkeypatch.setattr(plans, "bundles", merged_after)
    said = partial.make(farm.root, job)
    assert (said.layers, said.parts) == (["a"], [])
    assert snapshot(farm.root.job(job).partial / "a") == snapshot(farm.root.job(job).result / "a")


STEPS = {
    "the first bundle is linked": "link,linkat:signal=SIGKILL:when=1",
    "the second bundle is linked": "link,linkat:signal=SIGKILL:when=2",
    "the first file is synced": "fsync:signal=SIGKILL:when=1",
    "the table is synced": "fsync:signal=SIGKILL:when=6",
    "the layer's manifest is renamed": "rename:signal=SIGKILL:when=1",
    "the layer's folder is synced": "fsync:signal=SIGKILL:when=9",
    "the mark is renamed": "rename:signal=SIGKILL:when=2",
    "all is synced": "syncfs:signal=SIGKILL:when=1",
    "it gets its name": "renameat2:signal=SIGKILL:when=1",
    "the name is synced": "fsync:signal=SIGKILL:when=12",
    "what is left over goes": "unlink,unlinkat:signal=SIGKILL:when=2",
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("again", [False, True], ids=["the first", "the second"])
def test_killed_at_any_step_it_leaves_the_old_one_or_the_new_one(farm: FarmHarness, step: str, again: bool) -> None:
    skip_for(strace_obstacle())
    job, agent = begun(farm)
    place = farm.root.job(job)
    if again:
        asked(farm, job)
        commit(farm, agent, 1)
    call = STEPS[step] if again or "renameat2" not in STEPS[step] else "rename:signal=SIGKILL:when=3"
    tracer = ["strace", "-f", "-o", "/dev/null", "-e", f"trace={call.split(':')[0]}", "-e", f"inject={call}"]
    command = [*tracer, *roots.command("result", farm.root.path), job, "--partial"]
    assert farm.run(command, "killed.out").wait(60) == -signal.SIGKILL, farm.said()
    if place.partial.exists():
        assert len(check(farm, job, place.partial)) in ((16, 24) if again else (16,))
    else:
        assert not again, "the old one is gone, and the new one is not there"
    assert farm.status(job).state == "running"
    asked(farm, job)
    assert len(check(farm, job, place.partial)) == (24 if again else 16)
    until(lambda: leftovers(farm) == [], "what the dead left to be swept")
    agent.work(lambda: farm.status(job).state == "complete")
    farm.check_result(job)


@pytest.mark.parametrize("call", ["link,linkat", "fsync", "rename", "renameat2"])
def test_a_disk_that_fills_up_leaves_the_old_one_and_nothing_else(farm: FarmHarness, call: str) -> None:
    skip_for(strace_obstacle())
    job, agent = begun(farm)
    asked(farm, job)
    commit(farm, agent, 1)
    tracer = ["strace", "-f", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:error=ENOSPC:when=1+"]
    command = [*tracer, *roots.command("result", farm.root.path), job, "--partial"]
    assert farm.run(command, "full.out").wait(60) == 8, (farm.folder / "full.out").read_text()
    assert len(check(farm, job, farm.root.job(job).partial)) == 16 and leftovers(farm) == []


# --- every kind of output, and Python -----------------------------------------------------------------------

WORDS = """
import numpy as np
def describe(paths, out):
    if any(path.name == "3.txt" for path in paths):
        raise ValueError("three")
    for path in paths:
        (out / path).write_text(path.read_text().upper())
"""
LISTS = """
def lists(rows):
    if (rows == 13).any():
        raise ValueError("thirteen")
    return {"words": [row[: int(row[0])] for row in rows], "twice": rows * 2}
"""


def test_every_kind_of_output_on_a_real_farm_with_a_shard_that_fails_for_good(tmp_path: Path) -> None:
    with running(tmp_path) as farm:
        farm.join("one", "--cpus", "1")
        rows = arrays(1)
        rows["a"][9, 4] = np.nan
        clusters = farm.submit(rows, ROWS)
        numbers = (np.arange(12, dtype="i4")[:, None] + np.arange(6, dtype="i4")) % 5
        numbers[5, 1] = 13
        ragged = farm.submit({"a": numbers}, 2, LISTS, kind="map", code="work.py:lists", attempts=1,
                             params={"outputs": {"words": {"dtype": "int32", "form": "ragged"},
                                                 "twice": {"dtype": "int32", "shape": [6]}}})  # fmt: skip
        texts = {f"texts/{number}.txt": f"text {number}".encode() for number in range(8)}
        file = farm.job_file({}, files=texts, work=WORDS, kind="map", code="work.py:describe", attempts=1,
                             source={"files": "texts/*.txt"}, shard={"files": 2})  # fmt: skip
        written = farm.coordinator("submit", str(file)).stdout.strip()
        for job in (clusters, ragged, written):
            assert farm.wait(job, "incomplete", seconds=120).totals.quarantined == 1
        check_clusters(farm, clusters)
        found = Farm(farm.root.path).job(ragged).result(partial=True)
        assert np.flatnonzero(~np.array(found["a"]["ok"])).tolist() == [4, 5] and found.partial
        twice, words = found.array("twice"), found["a"]["words"]
        assert twice[[4, 5]].tolist() == [[0] * 6] * 2 and isinstance(words, RaggedRows)
        assert [words[row].tolist() for row in range(12)] == [
            [] if row in (4, 5) else numbers[row, : numbers[row, 0]].tolist() for row in range(12)
        ]
        assert twice[[0, 11]].tolist() == (numbers[[0, 11]] * 2).tolist()
        items = Farm(farm.root.path).job(written).result(partial=True)["items"]
        assert np.flatnonzero(~np.array(items["ok"])).tolist() == [2, 3]
        files = items["files"]
        assert isinstance(files, WrittenFiles)
        assert {name: path.read_text() for name, path in files.items()} == {
            f"{number}.txt": f"TEXT {number}" for number in (0, 1, 4, 5, 6, 7)
        }


def check_clusters(farm: FarmHarness, job: str) -> None:
    """One row has no answer: nothing of its shard is there, and all else is what it would be without it."""
    result = Farm(farm.root.path).job(job).result(partial=True)
    assert np.flatnonzero(~np.array(result["a"]["ok"])).tolist() == list(FIRST_ROWS[1])
    good: dict[str, Array] = arrays(1)
    whole = farm.submit(good, ROWS)
    farm.wait(whole)
    expected = np.load(farm.root.job(whole).result / "a" / "centers.npy")
    there = np.array(result["a"]["ok"])
    assert np.array(result["a"]["centers"])[there].tobytes() == expected[there].tobytes()
    with pytest.raises(IncompleteError):
        Farm(farm.root.path).job(job).result()
    [failure] = farm.failures(job)
    assert (failure.code, failure.number) == ("data", 1) and "row 9 of layer a" in failure.message


def test_a_layer_made_by_a_driver_has_what_was_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PLUGIN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])]))
    (tmp_path / "deaths").mkdir()
    monkeypatch.setenv(DEATHS, str(tmp_path / "deaths"))
    with running(tmp_path) as farm:
        job, agent = farm.submit({}, kind="chain", params={"length": 5}), farm.agent()
        agent.join()

        def three() -> bool:
            agent.sync(wait=0.05)
            if len(agent.computed) < 3:
                agent.compute(1)
            for part in list(agent.parts):
                agent.push(part)
            return len(agent.computed) == 3

        until(three, "three links of the chain")
        said = asked(farm, job)
        assert (said["parts"][0]["rows"], said["parts"][0]["missing_rows"]) == (3, 0)
        agent.work(lambda: farm.status(job).state == "complete")
        whole = np.load(farm.root.job(job).result / "made" / "value.npy")
        assert np.load(farm.root.job(job).partial / "made" / "value.npy").tolist() == whole[:3].tolist()


def test_a_bundle_that_comes_and_goes_is_not_waited_for_without_end(
    farm: FarmHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = begun(farm)
    names = iter(range(10_000))
    monkeypatch.setattr(plans, "bundles", lambda *_: {"a": [f"{next(names)}.part"]})
    with pytest.raises(RefusedError, match="come and go"):
        partial.make(farm.root, job)
    assert leftovers(farm) == []
