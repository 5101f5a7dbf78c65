"""Living with a farm, with two real agents: what it explains and logs, what is kicked, paused, and run elsewhere."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from muster.coordinator.farm_root import paths
from tests.support.farm import DEADLINE_SECONDS, FarmHarness, arrays, running, until

SAFE = "runs no code of others"
NAMES = ("left", "right")
WORK = """
import os, sys, time
from pathlib import Path

def loud(rows, shard):
    print("hello from", shard)
    print("and in red", file=sys.stderr)
    if shard == 5:
        print("y" * 100_000)
    return rows * 2

def stuck(rows, shard, flag):
    if shard == 3 and "MUSTER_TEST_LIVING" in os.environ:
        try:
            Path(flag).touch(exist_ok=False)
        except FileExistsError:
            return rows
        time.sleep(3600)
    return rows

def ticks(rows, shard, log):
    with open(log, "a") as file:
        print(shard, file=file)
    for _ in range(40):
        time.sleep(0.01)
    return rows

def device(rows, shard):
    print("devices:", os.environ.get("CUDA_VISIBLE_DEVICES", "as ever"), os.environ["OMP_NUM_THREADS"])
    return rows

def where(rows):
    try:
        import muster, jobs, coordinator, ray
    except ImportError:
        print(f"{sys.prefix}, and nothing of ours")
    return rows

def write(lines, out):
    for line in lines:
        (out / (line["x"] + ".txt")).write_text(line["x"] * 3)

def fails(rows, shard):
    print("before the end")
    if shard == 2:
        raise ValueError("not this one")
    return rows
"""


def bare_venv(folder: Path) -> Path:
    """The interpreter of an environment with numpy, and without our package or anything else of ours."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    installed = Path(np.__file__).parents[1]
    for path in installed.glob("numpy*"):  # it, its libraries and its metadata
        (packages / path.name).symlink_to(path)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_venv(tmp_path_factory.mktemp("venv") / "nlp")


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory, python: Path) -> Iterator[FarmHarness]:
    with running(tmp_path_factory.mktemp("farm")) as made:
        made.env["MUSTER_TEST_LIVING"] = "1"
        made.join("left", "--cpus", "1")
        made.join("right", "--cpus", "1", "--env", f"nlp={python}", "--gpus", "3,5")
        for name in NAMES:
            until(partial(made.is_live, name), f"{name} to be there")
        yield made


def mapped(farm: FarmHarness, function: str, rows: int = 8, args: dict[str, Any] | None = None, **fields: Any) -> str:
    """A job of one-row shards."""
    return farm.submit(
        arrays(1, rows, 16), 1, WORK, kind="map", code=f"work.py:{function}", params={"args": args or {}}, **fields
    )


def said(farm: FarmHarness, *args: str) -> str:
    done = farm.coordinator(*args)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- logs ---------------------------------------------------------------------------------------------------


def test_what_shards_print_is_in_the_logs(farm: FarmHarness) -> None:
    job = mapped(farm, "loud", name="loud")
    farm.wait(job)
    log = said(farm, "logs", job)
    assert all(f"hello from {number}\n" in log for number in range(8)) and "and in red" in log
    assert len(log) < 20_000 and "left out" in log
    one = said(farm, "logs", f"{job}/a/3")
    assert one.startswith(f"{job}/a/3 printed, on ") and "hello from 3" in one and "hello from 4" not in one
    printed = json.loads(said(farm, "logs", job, "--json"))["printed"]
    assert {line["number"] for line in printed} == set(range(8))


def test_logs_are_followed_until_the_job_ends(farm: FarmHarness) -> None:
    job = mapped(farm, "fails", name="followed", attempts=1)
    command = [*paths.command("logs", farm.root.path), job, "-f"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True)
    assert done.stdout.count(f"{job}/a/7 printed, on ") == 1
    assert "ValueError: not this one" in done.stdout and farm.status(job).state == "incomplete"


# --- trying -------------------------------------------------------------------------------------------------


def tried(farm: FarmHarness, function: str, *options: str, **fields: Any) -> subprocess.CompletedProcess[str]:
    code = f"work.py:{function}"
    file = farm.job_file(arrays(2, 16, 16), 4, WORK, kind="map", code=code, name="tried", **fields)
    return farm.coordinator("try", str(file), *options)


def test_a_few_shards_are_tried_here_and_nothing_is_started(farm: FarmHarness) -> None:
    before = [job.id for job in farm.jobs()]
    done = tried(farm, "loud", "--shards", "3")
    assert done.returncode == 0, done.stderr
    for words in ("a/0: 4 rows, 256 B in, 256 B out", "b/0: ", "a/1: ", "<f4 (4, 16)", "| hello from 1", "peak "):
        assert words in done.stdout, done.stdout
    assert "as the 2 shards tried here went" in done.stdout and "one slot of this machine" in done.stdout
    assert [job.id for job in farm.jobs()] == before


def test_a_trial_that_fails_shows_why_and_ends_with_11(farm: FarmHarness) -> None:
    done = tried(farm, "fails", "--shards", "9")
    assert done.returncode == 11 and "error: a/2 failed" in done.stderr
    assert "ValueError: not this one" in done.stdout and "before the end" in done.stdout


def test_a_trial_wants_to_know_where_the_environment_is_here(farm: FarmHarness, python: Path) -> None:
    refused = tried(farm, "where", env="nlp")
    assert refused.returncode == 2 and "--env nlp=PYTHON" in refused.stderr
    done = tried(farm, "where", "--env", f"nlp={python}", "--json", env="nlp", packages=["numpy"])
    assert all("/nlp, and nothing of ours" in one["printed"] for one in json.loads(done.stdout)["shards"])
    lacks = tried(farm, "where", "--env", f"nlp={python}", env="nlp", packages=["torch"])
    assert lacks.returncode == 7 and "has no torch" in lacks.stderr
    assert f"{python} -m pip install 'torch'" in lacks.stderr


# --- environments -------------------------------------------------------------------------------------------


def test_a_job_runs_in_the_environment_it_names_and_only_where_that_is(farm: FarmHarness) -> None:
    job = mapped(farm, "where", name="env", env="nlp", packages=["numpy>=1.20"])
    farm.wait(job)
    log = said(farm, "logs", job)
    assert log.count("/nlp, and nothing of ours") == 8
    assert {agent.name for agent in farm.status(job).agents if agent.shards} == {"right"}
    assert farm.status(job).failures == 0
    assert "has the environments nlp (Python 3." in said(farm, "explain", "right")
    (computed_on,) = json.loads(said(farm, "verify", job, "--json"))["fingerprints"]
    assert ", nlp python 3." in computed_on and ", nlp numpy " in computed_on


def test_a_machine_that_lacks_a_package_takes_no_part_and_says_how_to(farm: FarmHarness) -> None:
    job = mapped(farm, "where", name="lacks", env="nlp", packages=["torch>=2"])
    until(lambda: "has no torch>=2" in said(farm, "status", job), "both to be refused")
    page = said(farm, "explain", job)
    assert "left takes nothing of it: has no environment nlp: leave, and join it with `--env nlp=PYTHON`" in page
    assert "right takes nothing of it: has no torch>=2: in its environment nlp `python -m pip install" in page
    assert f"takes nothing of {job}" in said(farm, "agents")
    assert farm.status(job).failures == 0 and said(farm, "cancel", job)


@pytest.mark.parametrize(("env", "words"), [("nlp=/no/such", "there is no program"), ("nlp=/bin/sh", "is no Python")])
def test_an_environment_that_is_none_is_refused_at_join(
    farm: FarmHarness, tmp_path: Path, env: str, words: str
) -> None:
    done = farm.agent_command(
        "join", str(farm.root.path), "--name", "odd", "--spool", str(tmp_path / "s"), "--env", env
    )
    assert done.returncode in (2, 7) and words in done.stderr and "hint: " in done.stderr


# --- resources ----------------------------------------------------------------------------------------------


def test_a_gpu_is_a_workers_own_and_others_see_none(farm: FarmHarness) -> None:
    job = mapped(farm, "device", name="gpu", resources={"gpus": 1, "threads": 2})
    farm.wait(job)
    printed = json.loads(said(farm, "logs", job, "--json"))["printed"]
    assert {(one["agent"], one["text"]) for one in printed} <= {
        ("right", "devices: 3 2\n"),
        ("right", "devices: 5 2\n"),
    }
    plain = mapped(farm, "device", rows=30, name="nogpu", env="nlp")
    wide = mapped(farm, "device", name="wide", resources={"gpus": 3})
    until(lambda: "lends 0 gpus, a shard wants 3" in said(farm, "explain", wide), "left to be refused")
    assert "lends 2 gpus, a shard wants 3" in said(farm, "explain", f"{wide}/a/0") and said(farm, "cancel", wide)
    farm.wait(plain)
    assert "devices:  1\n" in said(farm, "logs", plain)


# --- kick and explain ---------------------------------------------------------------------------------------


def test_a_kicked_shard_runs_elsewhere_at_no_attempts_cost(farm: FarmHarness, tmp_path: Path) -> None:
    job = mapped(farm, "stuck", args={"flag": str(tmp_path / "flag")}, name="kicked", attempts=1)
    until((tmp_path / "flag").exists, "the shard to hang")
    shard = f"{job}/a/3"
    where = until(lambda: next((name for name in NAMES if f"on {name}" in said(farm, "explain", shard)), ""), "a place")
    assert f"is taken from {where}" in said(farm, "kick", shard)
    farm.wait(job)
    other = NAMES[1 - NAMES.index(where)]
    story = said(farm, "explain", shard)
    events = [
        f"granted to {where}",
        "  kicked\n",
        f"taken from {where}",
        f"granted to {other}",
        "committed, computed by ",
    ]
    places = [story.index(event) for event in events]
    assert places == sorted(places) and f"was computed by {other}" in story, story
    assert farm.status(job).failures == 0
    farm.check_result(job)


def test_what_runs_nowhere_is_not_kicked(farm: FarmHarness) -> None:
    job = mapped(farm, "loud", rows=2, name="still")
    farm.wait(job)
    refused = farm.coordinator("kick", f"{job}/a/1")
    assert refused.returncode == 7 and "is on no machine now" in refused.stderr and "explain" in refused.stderr
    assert farm.coordinator("kick", f"{job}/b/0").returncode == 6


def test_a_failures_story_has_its_evidence(farm: FarmHarness) -> None:
    job = mapped(farm, "fails", name="story", attempts=2)
    farm.wait(job, "incomplete")
    story = said(farm, "explain", f"{job}/a/2")
    assert "is given up" in story and story.count("failed on ") == 2 and "ValueError: not this one" in story
    assert "before the end" in story
    lines = said(farm, "explain", job)
    assert "is incomplete: 1 shard given up" in lines and f"coordinator retry {job}" in lines


def test_an_idle_machine_and_a_job_that_cannot_run_say_why(farm: FarmHarness) -> None:
    job = mapped(farm, "loud", name="vast", resources={"cpus": 99})
    until(lambda: "99" in said(farm, "explain", "left"), "the job to be refused")
    for page in (said(farm, "explain", "left"), said(farm, "explain", job), said(farm, "explain", f"{job}/a/0")):
        assert "has 1 cpu, a shard wants 99" in page
    assert re.search("is live, lends 1 cpu, .* of memory and .* of disk,", said(farm, "explain"))
    assert said(farm, "cancel", job)
    until(lambda: "no job is running" in said(farm, "explain", "right"), "it to have nothing to do")
    assert "`coordinator retry" in said(farm, "explain", job)
    assert farm.coordinator("explain", "nobody").returncode == 6


# --- courtesy -----------------------------------------------------------------------------------------------


def agent(farm: FarmHarness, name: str, *args: str) -> str:
    command, *rest = args
    done = farm.agent_command(command, *rest, "--spool", str(farm.folder / "spools" / name))
    assert done.returncode == 0, done.stderr
    return done.stdout


def runners(farm: FarmHarness, name: str) -> list[psutil.Process]:
    """Living processes of users' code on an agent."""
    found = []
    for path in (farm.folder / "spools" / name / "run").glob("slot-*/runner-*.json"):
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            found.append(psutil.Process(json.loads(path.read_text())["pid"]))
    return found


def is_stopped(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.status() == psutil.STATUS_STOPPED)
    return False


def started(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def test_a_pause_stops_at_once_and_loses_nothing(farm: FarmHarness, tmp_path: Path) -> None:
    log = tmp_path / "log"
    job = mapped(farm, "ticks", rows=6, args={"log": str(log)}, name="paused", timeout="1s")
    until(lambda: len(started(log)) >= 2, "two to run")
    try:
        for name in NAMES:
            assert f"{name} is paused, " in agent(farm, name, "pause")
        stopped = [process for name in NAMES for process in runners(farm, name) if is_stopped(process)]
        assert stopped
        begun, deadline = started(log), time.monotonic() + 1.5  # longer than the timeout
        until(lambda: time.monotonic() > deadline, "the timeout to be over")
        assert started(log) == begun and all(map(is_stopped, stopped))
        assert "left is paused; `agent resume` goes on" in said(farm, "status", job)
        assert "says: paused" in said(farm, "explain", "left")
    finally:
        answers = [agent(farm, name, "resume") for name in NAMES]
    assert answers == [f"{name} goes on with 1 cpu\n" for name in NAMES]
    farm.wait(job)
    again = len(started(log)) - len(set(started(log)))  # a copy of what the other one, still paused, had
    assert set(started(log)) == set(range(6)) and again <= 2 and farm.status(job).failures == 0
    farm.check_result(job)


def test_what_a_paused_machine_has_is_done_elsewhere(farm: FarmHarness, tmp_path: Path) -> None:
    log = tmp_path / "log"
    job = mapped(farm, "ticks", rows=6, args={"log": str(log)}, name="elsewhere")
    until(lambda: {one.name for one in farm.status(job).agents if one.running} == set(NAMES), "both to be at work")
    agent(farm, "left", "pause")
    try:
        farm.wait(job)
    finally:
        agent(farm, "left", "resume")
    farm.check_result(job)


def test_processors_and_kindness_are_set_while_it_runs(farm: FarmHarness, tmp_path: Path) -> None:
    log = tmp_path / "log"
    agent(farm, "left", "pause")
    try:
        assert "right lends 2 cpus" in agent(farm, "right", "set", "cpus=2", "nice=5")
        job = mapped(farm, "ticks", rows=12, args={"log": str(log)}, name="set")
        until(lambda: sum(not is_stopped(one) for one in runners(farm, "right")) == 2, "two at once")
        until(lambda: {one.nice() for one in runners(farm, "right")} == {5}, "them to be kind")
        assert "right lends 1 cpu" in agent(farm, "right", "set", "cpus=1")
        until(lambda: any(map(is_stopped, runners(farm, "right"))) or farm.status(job).state == "complete", "one")
        agent(farm, "right", "set", "cpus=")
        farm.wait(job)
        assert sorted(started(log)) == list(range(12))
    finally:
        agent(farm, "left", "resume")


def test_outside_its_hours_it_is_paused(farm: FarmHarness) -> None:
    hour = time.localtime().tm_hour
    span = f"{(hour + 2) % 24:02d}:00-{(hour + 4) % 24:02d}:00"
    assert f"left: paused: it works from {span}" in agent(farm, "left", "set", f"hours={span}")
    until(lambda: "works from" in said(farm, "agents"), "the coordinator to know")
    assert "left lends 1 cpu" in agent(farm, "left", "set", "hours=")
    refused = farm.agent_command("set", "hours=8-20", "--spool", str(farm.folder / "spools" / "left"))
    assert refused.returncode == 2 and "expected something like 20:00-08:00" in refused.stderr


# --- the same again, with other parameters ------------------------------------------------------------------


def inodes(farm: FarmHarness, job: str, layer: str) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in (farm.root.job(job).result / layer).iterdir()}


def test_layers_that_stay_the_same_are_taken_over(farm: FarmHarness) -> None:
    first = farm.submit(arrays(3, 24, 32), 4, name="quant")
    farm.wait(first)
    options = ("--from", first, "--layers", "b*", "--set", "n_clusters=8")
    shown = said(farm, "plan", *options)
    assert "a      reused    the same as in quant.1" in shown and "n_clusters 4 → 8" in shown and "1 layer" in shown
    done = farm.coordinator("submit", *options)
    assert "b: computed: n_clusters 4 → 8" in done.stderr and "c: reused: " in done.stderr
    second = done.stdout.strip()
    farm.wait(second)
    for layer, same in (("a", True), ("b", False), ("c", True)):
        old, new = inodes(farm, first, layer), inodes(farm, second, layer)
        assert (old["centers.npy"] == new["centers.npy"]) is same
    farm.check_result(second)
    assert "layers    3/3 merged" in said(farm, "status", second)
    assert said(farm, "verify", second, "--inputs")
    differ = said(farm, "diff", first, second)
    assert "a: the same; the same bytes" in differ and "b: n_clusters 4 → 8; other bytes in" in differ
    assert said(farm, "rm", first)
    farm.check_result(second)
    assert said(farm, "explain", f"{second}/a/0")
    third = said(farm, "submit", "--from", second).strip()
    farm.wait(third)
    assert said(farm, "diff", second, third).count("the same; the same bytes") == 3
    farm.restart()
    until(lambda: farm.is_live("left"), "an agent to be back")
    assert farm.status(third).state == "complete"
    said(farm, "retry", third, "--layers", "a")
    farm.wait(third)
    farm.check_result(third)
    farm.check_result(second)


def test_written_files_are_taken_over_too(farm: FarmHarness) -> None:
    table = {"t.csv": b"x\nten\ntwenty\n"}
    more = {"name": "files", "kind": "map", "code": "work.py:write", "source": {"table": "t.csv"}}
    file = farm.job_file({}, 1, WORK, table, **more)
    first = said(farm, "submit", str(file)).strip()
    farm.wait(first)
    second = said(farm, "submit", "--from", first).strip()
    farm.wait(second)
    assert said(farm, "rm", first)
    written = farm.root.job(second).result / "items" / "files"
    assert (written / "ten.txt").read_text() == "tententen" and said(farm, "verify", second)
    assert "is rows 1 to 1 of 2" in said(farm, "explain", f"{second}/items/1")


def test_what_changed_is_computed_again_and_said(farm: FarmHarness) -> None:
    file = farm.job_file(arrays(2, 8, 16), 2, WORK, kind="map", code="work.py:loud", name="edited")
    first = said(farm, "submit", str(file)).strip()
    farm.wait(first)
    np.save(file.parent / "arrays" / "b.npy", np.ones((8, 16), "f4"))
    (file.parent / "work.py").write_text(WORK.replace("rows * 2", "rows * 3"))
    again = farm.coordinator("plan", "--from", first)
    assert "a      reused" in again.stdout and "b      computed  its source changed" in again.stdout
    new = farm.coordinator("submit", str(file), "--from", first)
    assert new.stderr.count("the code changed") == 2
    farm.wait(new.stdout.strip())
    differ = said(farm, "diff", first, new.stdout.strip())
    assert "-    return rows * 2" in differ and "+    return rows * 3" in differ and "its source changed" in differ
    assert farm.coordinator("submit", "--set", "x=1").returncode == 2
    wrong = farm.coordinator("submit", "--from", first, "--layers", "nope", "--set", "args={}")
    assert wrong.returncode == 3 and "no layer is called nope" in wrong.stderr


# --- being told ---------------------------------------------------------------------------------------------


def test_who_wants_to_know_of_its_end_is_told(farm: FarmHarness, tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = f"cat >> {told}; echo $PWD >> {told}; echo it said hello"
    good = mapped(farm, "loud", rows=2, name="told", notify={"command": command})
    bad = mapped(farm, "fails", rows=3, name="sad", attempts=1, max_failures=1, notify={"command": "./missing.sh"})
    farm.wait(good)
    until(lambda: told.exists() and told.read_text().count("\n") == 2, "word of it")
    event, folder = told.read_text().splitlines()
    found = json.loads(event)
    assert (found["event"], found["job"], found["left"], found["quarantined"]) == ("complete", good, 0, 0)
    assert (Path(folder) / "job.yaml").exists() and Path(found["result"]).is_dir()
    log = farm.root.job(good).path / "notify.log"
    assert "it said hello" in until(lambda: log.exists() and log.read_text(), "what it said")
    farm.wait(bad, "halted", "incomplete")
    log = farm.root.job(bad).path / "notify.log"
    assert "exit code 127" in until(lambda: log.exists() and log.read_text(), "what went wrong")


# --- what a machine does not take ---------------------------------------------------------------------------


def test_a_machine_without_others_code_says_so_and_takes_the_rest(tmp_path: Path) -> None:
    with running(tmp_path) as farm:
        farm.join("safe", "--cpus", "1", "--no-code", "--kinds", "cluster,map")
        until(lambda: farm.agent_status("safe"), "the agent")
        assert f"takes cluster, map alone; {SAFE}" in farm.coordinator("agents").stdout
        spool = str(tmp_path / "spools" / "safe")
        status = partial(subprocess.run, [sys.executable, "-m", "muster.agent", "status", "--spool", spool])
        until(lambda: SAFE in status(capture_output=True, text=True, check=True).stdout, "its own word")
        refused = farm.submit(arrays(), 8, kind="map", params={}, work="def f(rows): return rows", code="work.py:f")
        taken = farm.submit(arrays(), 8)
        farm.wait(taken)
        assert f"takes nothing of {refused}: {SAFE}" in farm.coordinator("explain", "safe").stdout
        assert f"safe {SAFE}" in farm.coordinator("status", refused).stdout
        assert not farm.failures(refused)
