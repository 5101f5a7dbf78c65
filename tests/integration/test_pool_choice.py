"""Which workers an agent has: those it was told to have, or such as can be had; how one sort hands over to the next."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from muster.jobs.common import launch
from tests.support.farm import DEADLINE_SECONDS, FarmHarness, arrays, until
from tests.support.without import environment_without

ROOT = Path(__file__).parents[2]
SAID = "works in plain processes: Ray cannot be imported by"
WHO = """
import os, time
from pathlib import Path
import psutil

def who(rows, shard, log, nap=0.01):
    worker = " ".join(psutil.Process().parent().cmdline())
    with open(log, "a") as out:
        print("ray" if "ray::" in worker else "process", file=out)
    while shard >= 20 and not Path(log + ".go").exists():
        time.sleep(0.01)
    time.sleep(nap)
    return rows * 2

def gpu(rows, shard, log):
    worker = " ".join(psutil.Process().parent().cmdline())
    taken = Path(log + ".gpu-" + os.environ["CUDA_VISIBLE_DEVICES"])
    with open(log, "a") as out:
        print("twice" if taken.exists() else "ray" if "ray::" in worker else "process", file=out)
    taken.touch()
    until = time.monotonic() + (0 if "ray::" in worker or shard < 4 else 60 if shard == 4 else 0.3)
    while time.monotonic() < until and not {"ray", "twice"} & set(open(log).read().split()):
        time.sleep(0.01)
    taken.unlink(missing_ok=True)
    return rows * 2
"""


@pytest.fixture
def by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents have the workers that a user has who says nothing of them."""
    monkeypatch.delenv("MUSTER_POOL", raising=False)


@pytest.fixture
def no_ray(farm: FarmHarness, tmp_path: Path) -> None:
    """A Ray that is not installed, as far as an import can tell."""
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "ray.py").write_text("raise ModuleNotFoundError(\"No module named 'ray'\")\n")
    farm.env["PYTHONPATH"] = str(planted)


def rays_processes(farm: FarmHarness) -> list[int]:
    return [*farm.processes("raylet"), *farm.processes("gcs_server"), *farm.processes("ray_host")]


def test_plain_processes_are_asked_for_and_nothing_of_ray_starts(farm: FarmHarness) -> None:
    farm.join("one", "--cpus", "2", "--pool", "processes")
    job = farm.submit(arrays(2))
    farm.wait(job)
    farm.check_result(job)
    assert rays_processes(farm) == []


@pytest.mark.usefixtures("by_default", "no_ray")
def test_without_ray_an_agent_works_in_plain_processes_and_says_so_in_one_line(farm: FarmHarness) -> None:
    agent = farm.join("one", "--cpus", "1")
    job = farm.submit(arrays(2))
    farm.wait(job)
    farm.check_result(job)
    out = farm.folder / "agent-one.out"
    until(lambda: SAID in out.read_text(), "the agent to say so")
    [line] = [line for line in out.read_text().splitlines() if "plain processes" in line]
    assert line.startswith("one: ") and line.endswith("No module named 'ray'")
    assert SAID in (farm.folder / "spools" / "one" / "agent.log").read_text()
    farm.wait(farm.submit(arrays(seed=1)))
    assert agent.poll() is None and rays_processes(farm) == []


@pytest.mark.usefixtures("no_ray")
def test_who_asks_for_ray_by_name_is_told_why_there_is_none(farm: FarmHarness) -> None:
    agent = farm.join("one", "--cpus", "1", "--pool", "ray")
    assert agent.wait(DEADLINE_SECONDS) != 0
    said = (farm.folder / "agent-one.out").read_text()
    assert all(word in said for word in ("Ray cannot be imported", "pip install"))
    assert not any(word in said for word in ("plain processes", "Traceback"))


def test_an_environment_without_ray_runs_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_POOL", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    python = environment_without("ray", tmp_path / "env")
    missing = subprocess.run([python, "-c", "import ray"], capture_output=True, text=True, check=False)
    assert "No module named 'ray'" in missing.stderr
    done = subprocess.run(
        [python, "docs/examples/demo.py", str(tmp_path / "demo")],
        cwd=ROOT, capture_output=True, text=True, timeout=3 * DEADLINE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert SAID in (tmp_path / "demo" / "spool-left" / "agent.log").read_text()


@pytest.mark.ray
@pytest.mark.usefixtures("by_default")
def test_the_first_shards_run_in_plain_processes_and_the_others_on_ray(farm: FarmHarness) -> None:
    """Each once. Every slot goes over in the middle of the job, with what was submitted to it."""
    log = farm.folder / "who.log"
    more: dict[str, Any] = {"kind": "map", "code": "work.py:who", "params": {"args": {"log": str(log)}}}
    job = farm.submit(arrays(rows=600), shard_rows=2, work=WHO, **more)
    farm.join("one", "--cpus", "2")
    until(lambda: len(farm.processes("ray::RayWorker")) == 2, "Ray's workers to be there", 120)
    assert set(log.read_text().split()) == {"process"}
    log.with_name("who.log.go").touch()
    farm.wait(job)
    said = log.read_text().split()
    assert len(said) == 300 and said[0] == "process" and said[-1] == "ray"
    assert farm.processes("muster.agent.pool.worker") == [], "who handed over ends"


@pytest.mark.ray
@pytest.mark.usefixtures("by_default")
def test_no_gpu_is_given_to_two_shards_at_a_time_while_ray_starts(farm: FarmHarness) -> None:
    """Ray does not know of one that a process has. So where GPUs are lent there are no processes before Ray."""
    log = farm.folder / "gpus.log"
    more: dict[str, Any] = {"kind": "map", "code": "work.py:gpu", "params": {"args": {"log": str(log)}}}
    job = farm.submit(arrays(rows=80), 1, WHO, resources={"gpus": 1}, **more)
    farm.join("one", "--cpus", "2", "--gpus", "0,1")
    farm.wait(job, seconds=120)
    assert set(log.read_text().split()) == {"ray"}


@pytest.mark.ray
@pytest.mark.usefixtures("by_default")
def test_an_agent_leaves_in_the_middle_of_a_handover(farm: FarmHarness) -> None:
    """What was started of either sort is gone, and what was finished counts."""
    log = farm.folder / "who.log"
    log.with_name("who.log.go").touch()
    more: dict[str, Any] = {"kind": "map", "code": "work.py:who", "params": {"args": {"log": str(log), "nap": 0.1}}}
    job = farm.submit(arrays(rows=400), shard_rows=2, work=WHO, **more)
    for name, there in (("one", "gcs_server"), ("two", "raylet"), ("three", "ray::RayWorker")):
        agent = farm.join(name, "--cpus", "2")
        until(lambda there=there: farm.processes(there), f"Ray's {there}")  # type: ignore[misc]
        assert farm.processes("muster.agent.pool.worker"), "others are at work meanwhile"
        agent.terminate()
        assert agent.wait(DEADLINE_SECONDS) == 0
        assert rays_processes(farm) == [] == farm.processes("muster.agent.pool.worker")
    farm.join("four", "--cpus", "2", "--pool", "processes")
    farm.wait(job)
    farm.check_result(job)


def test_muster_pool_is_the_default_and_the_option_counts_more(farm: FarmHarness) -> None:
    farm.env["MUSTER_POOL"] = "neither"
    where = str(farm.root.path)
    said = farm.agent_command("join", where)
    assert said.returncode == 2 and "neither" in said.stderr and "MUSTER_POOL" in said.stderr
    spool = str(farm.folder / "spools" / "one")
    command = launch.python("muster.agent.cli", "join", where, "--name", "one", "--spool", spool)
    farm.real["one"] = farm.run([*command, "--pool", "processes"], "agent-one.out")
    until(lambda: farm.is_live("one"), "the agent to work")


def test_a_pool_is_not_to_be_named_beside_a_cluster_but_may_be_the_default_of_all_joins(farm: FarmHarness) -> None:
    """MUSTER_POOL is of a profile or a service; whoever types both is to know that one of them is without effect."""
    words = ("join", str(farm.root.path), "--spool", str(farm.folder / "spool"), "--ray", "127.0.0.1:1")
    for kind in ("processes", "ray"):
        said = farm.agent_command(*words, "--pool", kind)
        assert said.returncode == 2
        what = "error: --pool is of this machine, and with --ray it runs nothing"
        assert said.stderr.splitlines() == [what, "hint: leave --pool out"]
    for kind in ("processes", "ray"):
        farm.env["MUSTER_POOL"] = kind
        said = farm.agent_command(*words)
        assert "no Ray at 127.0.0.1:1" in said.stderr and "--pool" not in said.stderr
