"""A whole Ray cluster as one machine of a farm: nodes die and come, see the source or not, are refused by name."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster.agent.pool import cleanup
from muster.coordinator.commands.submit import submit
from muster.jobs.common import launch
from muster.jobs.results.open_result import open_result
from tests.support import certificates, ray_cluster, ray_venv
from tests.support.farm import FarmHarness, arrays, running, until
from tests.support.processes import is_running
from tests.support.ray_cluster import RayCluster
from tests.support.without import environment_without

pytestmark = [pytest.mark.ray, pytest.mark.root]
ROOT = Path(__file__).parents[2]
SECONDS = 120.0
MOST_ON_A_SLOT = 8  # shards: a batch that runs and one ahead of it, of 0.3 s or more each
SOON_GIVEN_UP = {  # a node that does not answer: after half of Ray's minute
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "6",
}
WORK = """
import os, signal, subprocess, time
import numpy as np

def slow(rows, nap=0.0):
    time.sleep(nap if "RAY_JOB_ID" in os.environ or "MUSTER_SEAT" in os.environ else 0.0)
    return {"half": rows / 2, "total": rows.reshape(len(rows), -1).sum(axis=1)}

def device(paths):
    sizes = [len(path.read_bytes()) for path in paths]
    return {"length": sizes, "seen": np.full(len(paths), int(os.environ["CUDA_VISIBLE_DEVICES"]), "i4")}

def read(paths):
    time.sleep(0.2)
    return {"length": [len(path.read_bytes()) for path in paths]}

def deadly(rows):
    if "MUSTER_SEAT" in os.environ or "RAY_JOB_ID" in os.environ:
        if rows[0, 0] == 5:
            os.kill(os.getppid(), 9)
    return {"half": rows / 2}

def ends(rows, shard, stray):
    if "RAY_JOB_ID" in os.environ or "MUSTER_SEAT" in os.environ:
        if shard == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        elif shard == 3:
            os._exit(3)
        elif shard == 4:
            time.sleep(600)
        elif shard == 5 and not os.path.exists(stray):
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            with open(stray, "w") as file:
                file.write(str(child.pid))
            os.kill(os.getppid(), signal.SIGKILL)
    return {"half": rows / 2}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RayCluster]:
    (tmp_path / "cluster").mkdir()
    with ray_cluster.running(tmp_path / "cluster") as made:
        yield made


def join(farm: FarmHarness, cluster: RayCluster, *options: str) -> None:
    words = ("--ray", cluster.address, "--ray-token", str(cluster.token), *options)
    farm.join("cluster", *words, prefix=cluster.enter)
    until(lambda: farm.is_live("cluster"), f"the cluster to join: {said(farm)}")


def said(farm: FarmHarness) -> str:
    path = farm.folder / "agent-cluster.out"
    return path.read_text() if path.exists() else ""


def slow(farm: FarmHarness, rows: int = 60, nap: float = 0.2, seed: int = 0) -> str:
    """A job of a shard for each row, with a large enough input to be carried by Ray's store."""
    source = arrays(rows=rows, width=40_000, seed=seed)
    return farm.submit(source, 1, WORK, kind="map", code="work.py:slow", params={"args": {"nap": nap}})


def nodes(farm: FarmHarness) -> dict[str, int]:
    found = farm.agent_status("cluster")
    return {} if found is None else dict(found.places)


def committed(farm: FarmHarness, job: str) -> int:
    return farm.status(job).totals.committed


def test_a_cluster_computes_what_a_serial_run_does_while_nodes_die_and_come(
    farm: FarmHarness, cluster: RayCluster
) -> None:
    source = farm.folder / "job-1"  # of the first job
    source.mkdir()
    for unseen in ([], [source], [source]):
        cluster.add(hidden=unseen)
    join(farm, cluster, "--cpus", "4")
    job = slow(farm)
    until(lambda: sum(nodes(farm).values()) == 3, "a slot of each node", SECONDS)
    shown = farm.coordinator("agents").stdout
    assert f"{cluster.nodes[0].name}: 1 slot" in shown, shown
    named = re.compile(rf"{re.escape(job)} a \d+-\d+")
    until(lambda: any(map(named.fullmatch, cluster.nodes[0].calls())), "a call by its job, layer and shards", SECONDS)
    until(lambda: committed(farm, job) > 5, "some of it to be done", SECONDS)
    cluster.nodes[1].kill()
    cluster.add()
    farm.wait(job, seconds=SECONDS)
    farm.check_result(job)
    assert not farm.failures(job), "a node's death is nobody's failure"


def test_a_cluster_without_room_is_asked_and_waited_for(farm: FarmHarness, cluster: RayCluster) -> None:
    join(farm, cluster, "--cpus", "2")
    job = slow(farm, rows=8)
    until(
        lambda: "asked for" in (status.note if (status := farm.agent_status("cluster")) else ""),
        "it to say so",
        SECONDS,
    )
    spool = str(farm.folder / "spools" / "cluster")
    assert farm.agent_command("set", "cpus=64", "--spool", spool).stdout == "cluster lends 64 cpus\n"
    refused = farm.agent_command("set", "nice=19", "--spool", spool)
    assert (refused.returncode, refused.stderr.splitlines()[1]) == (2, "hint: leave nice out")
    node = cluster.add()
    until(lambda: committed(farm, job) > 0, "the node to be used", SECONDS)
    node.kill()
    cluster.add(cpus=2)
    farm.wait(job, seconds=SECONDS)
    farm.check_result(job)


class Pool:
    """The workers that an agent has on a cluster, as there is work for them; idle ones end after a second."""

    def __init__(self, cluster: RayCluster, folder: Path) -> None:
        self._spool, self._said = folder / "spool", folder / "said"
        script = ["-m", "tests.support.clusterlike", cluster.address, str(cluster.token), str(self._spool), "1"]
        with self._said.open("wb") as file:
            self._process = subprocess.Popen(
                [*cluster.enter, sys.executable, *script],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=file,
                text=True,
                start_new_session=True,
            )

    def work_for(self, workers: int) -> None:
        assert self._process.poll() is None and self._process.stdin
        self._process.stdin.write(f"{workers}\n")
        self._process.stdin.flush()

    def heard(self, line: str) -> int:
        """How often, or of lines that begin so."""
        return sum(one.startswith(line) for one in self._said.read_text().splitlines())

    def leave(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        assert self._process.wait(SECONDS) == 0
        assert not self.heard("WorkerDied")

    def close(self) -> None:
        assert self._process.stdin
        self._process.kill()
        self._process.stdin.close()
        self._process.wait()
        cleanup.sweep(self._spool / "run")


@pytest.fixture
def pool(cluster: RayCluster, tmp_path: Path) -> Iterator[Pool]:
    made = Pool(cluster, tmp_path)
    yield made
    made.close()


def test_workers_without_work_end_and_come_again_with_it(cluster: RayCluster, pool: Pool) -> None:
    """So that a cluster can shrink: nobody holds anything of the node meanwhile, and it may be gone by then."""
    node = cluster.add(cpus=2)
    pool.work_for(2)
    until(lambda: pool.heard(f"SlotUp {node.name}") == 2, "both to be up", SECONDS)
    assert len(node.workers()) == 2
    pool.work_for(0)
    until(lambda: not node.workers(), "their end", SECONDS)
    until(lambda: pool.heard("SlotGone there is no work for it") == 2, "that to be told", SECONDS)
    node.kill()
    other = cluster.add()
    pool.work_for(1)
    until(lambda: pool.heard(f"SlotUp {other.name}") == 1, "one to be there again", SECONDS)
    assert not pool.heard("WorkerDied")
    pool.close()
    until(lambda: not other.workers(), "the end of the workers of an agent that was killed", SECONDS)


@pytest.mark.skipif("MUSTER_LONG" not in os.environ, reason="takes minutes: MUSTER_LONG=1")
def test_a_cluster_that_scales_itself_grows_shrinks_to_nothing_and_grows_again(
    farm: FarmHarness, tmp_path: Path
) -> None:
    """By Ray's own autoscaler, with nodes that are raylets of this machine. (`AutoscalingCluster` of ray.cluster_utils
    does the same by a file that Ray's wheel does not have, and ends every other Ray of the machine first.)"""
    (tmp_path / "cluster").mkdir()
    with ray_cluster.running(tmp_path / "cluster", most=2) as cluster:
        join(farm, cluster, "--cpus", "2")
        for seed in (1, 2):
            assert cluster.grown() == 0
            job = slow(farm, rows=40, nap=1.0, seed=seed)
            until(lambda: sum(nodes(farm).values()) == 2, "a worker on each of two nodes", SECONDS)
            assert cluster.grown() == 2
            farm.wait(job, seconds=SECONDS)
            farm.check_result(job)
            until(lambda: cluster.grown() == 0, "the nodes to be given back, after a minute without work", 2 * SECONDS)
            until(lambda: not nodes(farm), "their slots to be gone")


def test_a_shard_that_kills_its_worker_is_given_up_and_the_others_are_done(
    farm: FarmHarness, cluster: RayCluster
) -> None:
    cluster.add()
    join(farm, cluster, "--cpus", "1")
    rows = np.repeat(np.arange(12, dtype="f4")[:, None], 4, axis=1)
    options: dict[str, Any] = {"kind": "map", "code": "work.py:deadly", "max_failures": 2}
    job = farm.submit({"a": rows}, 1, WORK, **options)
    farm.wait(job, "incomplete", seconds=SECONDS)
    totals = farm.status(job).totals
    assert (totals.committed, totals.quarantined) == (11, 1)
    assert "lost 5 times while running" in farm.coordinator("logs", job).stdout


def test_how_users_code_ends_is_told_as_on_this_machine_and_nothing_of_it_stays(
    farm: FarmHarness, cluster: RayCluster
) -> None:
    cluster.add()
    join(farm, cluster, "--cpus", "1")
    stray = farm.folder / "stray"
    options: dict[str, Any] = {"kind": "map", "code": "work.py:ends", "timeout": 2.0, "max_failures": 4, "attempts": 1}
    job = farm.submit(arrays(rows=6), 1, WORK, params={"args": {"stray": str(stray)}}, **options)
    farm.wait(job, "incomplete", seconds=SECONDS)
    assert {one.number: one.code for one in farm.failures(job)} == {2: "signal", 3: "exit", 4: "timeout"}
    assert farm.status(job).totals.committed == 3, "a worker's death is no failure"
    assert not is_running(int(stray.read_text()))


def test_work_goes_on_once_the_head_is_back(farm: FarmHarness, cluster: RayCluster) -> None:
    cluster.add()
    join(farm, cluster, "--cpus", "1")
    job = slow(farm, rows=30)
    until(lambda: committed(farm, job) > 2, "some of it to be done", SECONDS)
    cluster.kill()
    until(lambda: "is gone" in said(farm) or "no Ray at" in said(farm), "the agent to say so", SECONDS)
    assert farm.is_live("cluster")
    cluster.restart()
    cluster.add()
    farm.wait(job, seconds=SECONDS)
    farm.check_result(job)
    assert not farm.failures(job)


def test_files_are_brought_to_a_node_that_does_not_see_them_and_gpus_are_those_of_the_node(
    farm: FarmHarness, cluster: RayCluster, tmp_path: Path
) -> None:
    there, hidden = (tmp_path / name for name in ("there", "hidden"))
    for folder in (there, hidden):
        folder.mkdir()
        for number in range(6):
            (folder / f"{number}.txt").write_bytes(b"x" * 1000 * number)
    cluster.add(cpus=2, gpus=[4, 7], hidden=[hidden])
    join(farm, cluster)
    fields: dict[str, Any] = {"kind": "map", "code": "work.py:device", "resources": {"gpus": 1}, "shard": {"files": 1}}
    for folder in (there, hidden):
        job = farm.submit({}, 1, WORK, source={"files": f"{folder}/*"}, **fields)
        farm.wait(job, seconds=SECONDS)
        found = dict(open_result(farm.root.job(job).result / "items").outputs)
        assert found["length"].tolist() == [1000 * number for number in range(6)]
        assert set(found["seen"].tolist()) <= {4, 7}, "the agent's own labels are 0 and 1"
        assert bool(cluster.sent()) == (folder == hidden)


def test_a_source_is_read_where_a_node_sees_it_as_it_was_planned_and_else_sent(
    farm: FarmHarness, cluster: RayCluster, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    node = cluster.add(hidden=[tmp_path / "other"])
    join(farm, cluster, "--cpus", "1")
    file = farm.job_file(arrays(rows=8), 2)
    farm.wait(job := submit(farm.root, file), seconds=SECONDS)
    farm.check_result(job)
    assert cluster.sent() == []
    np.save(file.parent / "arrays" / "a.npy", arrays(rows=8, seed=1)["a"])
    node.hide(file.parent)
    farm.wait(job := submit(farm.root, file), seconds=SECONDS)
    farm.check_result(job)
    before = cluster.sent()
    assert before, "under the same path there is another file now"
    goes = slow(farm, rows=20)
    until(lambda: committed(farm, goes), "some of it to be done", SECONDS)
    assert cluster.sent() == before
    node.hide(farm.folder / "job-2")
    farm.wait(goes, seconds=SECONDS)
    farm.check_result(goes)
    assert not farm.failures(goes), "what a node sees no more is nobody's failure"


def test_files_that_a_node_sees_no_more_are_brought_to_it_whatever_it_was_called_for_by_then(
    farm: FarmHarness, cluster: RayCluster, tmp_path: Path
) -> None:
    for name in ("there", "other"):
        (tmp_path / name).mkdir()
    for number in range(24):
        (tmp_path / "there" / f"{number:02}.txt").write_bytes(b"x" * number)
    node = cluster.add(hidden=[tmp_path / "other"])
    join(farm, cluster, "--cpus", "1")
    job = farm.submit({}, 1, WORK, kind="map", code="work.py:read", source={"files": f"{tmp_path}/there/*"},
                      shard={"files": 1})  # fmt: skip
    until(lambda: committed(farm, job), "some of it to be done", SECONDS)
    node.hide(tmp_path / "there")
    farm.wait(job, seconds=SECONDS)
    found = dict(open_result(farm.root.job(job).result / "items").outputs)
    assert found["length"].tolist() == list(range(24))
    assert cluster.sent() and not farm.failures(job)


def test_a_node_that_lacks_a_package_or_has_another_one_is_refused_by_name(
    farm: FarmHarness, cluster: RayCluster, tmp_path: Path
) -> None:
    about = tmp_path / "packages" / "scipy-0.0.1.dist-info" / "METADATA"
    about.parent.mkdir(parents=True)
    about.write_text("Metadata-Version: 2.1\nName: scipy\nVersion: 0.0.1\n")
    lacks = cluster.add(python=environment_without("numpy", tmp_path / "without"))
    other = cluster.add(packages=tmp_path / "packages")
    join(farm, cluster, "--cpus", "1")
    job = slow(farm, rows=4)
    without = f"node {lacks.name}: its Python {platform.python_version()} has no numpy"
    apart = f"node {other.name}: other numerics: scipy {version('scipy')} here, scipy 0.0.1 there"
    for line in (without, apart):
        until(lambda line=line: line in said(farm), f"it to say {line!r}", SECONDS)  # type: ignore[misc]
        until(lambda line=line: line in farm.coordinator("agents").stdout, "others to hear of it", SECONDS)  # type: ignore[misc]
    cluster.add()
    farm.wait(job, seconds=SECONDS)
    farm.check_result(job)


def test_a_node_that_goes_silent_holds_up_what_it_has_alone_until_ray_gives_it_up(
    farm: FarmHarness, tmp_path: Path
) -> None:
    """Its processes stand still, and their connections stay open: only Ray's own questions tell, after a minute if the
    cluster's owner says nothing else. When they go on again, nobody listens."""
    (tmp_path / "cluster").mkdir()
    with ray_cluster.running(tmp_path / "cluster", 0, **SOON_GIVEN_UP) as cluster:
        works, silent = cluster.add(cpus=2), cluster.add(cpus=2)
        join(farm, cluster, "--cpus", "2")
        job = slow(farm, rows=60, nap=0.3)
        until(
            lambda: nodes(farm) == {works.name: 1, silent.name: 1},
            "a slot of each, though one has room for both",
            SECONDS,
        )
        until(lambda: committed(farm, job), "some of it to be done", SECONDS)
        silent.stop()
        until(lambda: committed(farm, job) >= 60 - MOST_ON_A_SLOT, "the other node to do all it can", SECONDS)
        assert committed(farm, job) < 60 and silent.name in nodes(farm), "nobody knows better yet"
        until(lambda: silent.name not in nodes(farm), "its slot to be gone", SECONDS)
        silent.go_on()
        farm.wait(job, seconds=SECONDS)
        farm.check_result(job)
        assert not farm.failures(job), "it is nobody's failure"
        assert set(nodes(farm)) == {works.name}


def test_what_cannot_be_joined_is_an_error_that_says_what_to_do_and_the_doctor_says_the_same(
    cluster: RayCluster, tmp_path: Path
) -> None:
    with running(tmp_path / "farm") as farm:
        open_token, wrong = tmp_path / "open", tmp_path / "wrong"
        for path, mode in ((open_token, 0o644), (wrong, 0o600)):
            path.write_text("0" * 64)
            path.chmod(mode)
        for options, code, words in (
            (["--ray", "ray://127.0.0.2:10001"], 2, "Ray's client server"),
            (["--ray", "127.0.0.2:1"], 9, "no Ray at 127.0.0.2:1"),
            (["--ray", cluster.address], 14, "wants a token"),
            (["--ray", cluster.address, "--ray-token", str(open_token)], 2, "others may read it"),
            (["--ray", cluster.address, "--ray-token", str(wrong)], 14, "does not take this token"),
        ):
            agent = farm.join("cluster", *options, prefix=cluster.enter)
            assert agent.wait(60) == code, said(farm)
            assert words in said(farm)
            asked = doctor(farm, cluster, *options)
            assert asked.returncode == code and words in asked.stdout, asked.stdout


def doctor(farm: FarmHarness, cluster: RayCluster, *options: str) -> subprocess.CompletedProcess[str]:
    words = ["doctor", str(farm.root.path), "--spool", str(farm.folder / "asked"), *options]
    command = [*cluster.enter, *launch.python("muster.agent.cli", *words)]
    return subprocess.run(command, env=farm.environment(), capture_output=True, text=True, timeout=SECONDS, check=False)


def test_the_doctor_compares_a_clusters_versions_and_counts_its_nodes(farm: FarmHarness, cluster: RayCluster) -> None:
    cluster.add(cpus=3, gpus=[0, 1])
    asked = doctor(farm, cluster, "--ray", cluster.address, "--ray-token", str(cluster.token))
    [line] = [line for line in asked.stdout.splitlines() if f"the cluster at {cluster.address}" in line]
    assert asked.returncode == 0 and line.startswith("pass")
    assert f"has Ray {version('ray')} as we do, and now 2 nodes with 3 cpus and 2 gpus" in line
    assert not list(farm.temp.iterdir()), "it leaves nothing behind"


def test_a_cluster_with_tls_is_used_with_its_certificates_and_else_refused_for_that(
    farm: FarmHarness, tmp_path: Path
) -> None:
    tls, others = (certificates.rays(tmp_path / name) for name in ("theirs", "others"))
    (tmp_path / "cluster").mkdir()
    with ray_cluster.running(tmp_path / "cluster", 0, **tls) as cluster:
        cluster.add()
        options = ["--ray", cluster.address, "--ray-token", str(cluster.token)]
        for given, code, words in (
            ({}, 14, "wants TLS"),
            (others, 14, "no TLS with the Ray at"),
            ({**tls, "RAY_TLS_CA_CERT": ""}, 2, "RAY_TLS_CA_CERT is not"),
        ):
            farm.env = given
            asked = doctor(farm, cluster, *options)
            assert asked.returncode == code and words in asked.stdout, asked.stdout
        farm.env = tls
        join(farm, cluster, "--cpus", "1")
        farm.wait(job := slow(farm, rows=4), seconds=SECONDS)
        farm.check_result(job)
        cluster.head.kill()
        until(lambda: "is gone" in said(farm), "the agent to miss the head")


@pytest.mark.skipif("MUSTER_LONG" not in os.environ, reason="fetches another Ray: MUSTER_LONG=1")
@pytest.mark.parametrize(("python", "ray"), [("3.12", version("ray")), (f"3.{sys.version_info[1]}", "2.59.0")])
def test_a_cluster_of_another_python_or_ray_is_refused_with_both_versions(
    farm: FarmHarness, tmp_path: Path, python: str, ray: str
) -> None:
    other = ray_venv.made(ray_venv.python_of(python), ray, tmp_path / "venv")
    (tmp_path / "cluster").mkdir()
    with ray_cluster.running(tmp_path / "cluster", python=other) as cluster:
        options = ["--ray", cluster.address, "--ray-token", str(cluster.token)]
        agent = farm.join("cluster", *options, prefix=cluster.enter)
        assert agent.wait(60) == 7, said(farm)
        has, hint = said(farm).splitlines()[-2:]
        assert f"has Ray {ray} and Python {python}." in has and f"here are Ray {version('ray')} and Python" in has
        assert hint == f"hint: join from an environment with Ray {ray} and Python {python}"
        asked = doctor(farm, cluster, *options)
        assert asked.returncode == 7 and f"has Ray {ray} and Python {python}." in asked.stdout
