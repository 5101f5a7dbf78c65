"""This version beside a real older one, made of the repository's history: agents and coordinators of either, whole jobs
of each way of working, and `deploy upgrade` from the older to this one in the middle of a job."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster import VERSION
from muster.coordinator.protocol.values import PROTOCOL
from tests.integration import test_train
from tests.integration.test_remote import MAP, rows
from tests.support import site as sites
from tests.support import sshd, versions
from tests.support.farm import FarmHarness, arrays, until
from tests.support.site import Site
from tests.support.sshd import HOST, Sshd
from tests.support.versions import OtherVersion

pytestmark = pytest.mark.ray

OLDER, OLDER_VERSION = "0ec7c8baa95acf284b691cfdd8f06cd1a5c1d74c", "0.0.9"
START_SECONDS = 90.0
NOTED = """
import os, time
def f(rows):
    time.sleep(0.2)
    fd = os.open(os.environ["MUSTER_TEST_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, b"%d\\n" % rows[0, 0])
    os.close(fd)
    return rows * 2
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> OtherVersion:
    return versions.of_revision(OLDER, tmp_path_factory.mktemp("older"), OLDER_VERSION)


def test_both_speak_the_same_number_of_the_protocol(older: OtherVersion) -> None:
    asked = "from muster.coordinator.protocol.values import PROTOCOL; print(PROTOCOL)"
    assert older.run("-c", asked) == str(PROTOCOL) == "1"


def join(farm: FarmHarness, server: Sshd, python: Path | None = None) -> None:
    """An agent over ssh, of this version or in that environment."""
    config = ["--ssh-config", str(server.ssh_config()), "--cpus", "1"]
    where = f"{HOST}:{farm.root.path}"
    if python is None:
        farm.join("far", *config, where=where)
    else:
        (farm.folder / "spools/far").mkdir(parents=True)
        spool = ["--name", "far", "--spool", str(farm.folder / "spools/far")]
        farm.real["far"] = farm.run([str(python), "-m", "muster.agent", "join", where, *spool, *config], "far.out")
    until(lambda: farm.is_live("far"), "the agent", START_SECONDS)


def work(farm: FarmHarness) -> None:
    """A job over arrays, one that runs users' code, one of commands, and a training in rounds."""
    jobs = [farm.submit(arrays(2, 64), 8), farm.submit(rows(40, 50), 4, **MAP)]
    (farm.folder / "lines").mkdir()
    for number in range(12):
        (farm.folder / "lines" / f"{number}.txt").write_text(f"{number}\n" * 3)
    source, params = {"files": f"{farm.folder}/lines/*.txt"}, {"run": "wc -l < {} > {out}"}
    jobs.append(farm.submit({}, kind="command", shard={"files": 4}, source=source, params=params))
    for job in jobs:
        farm.wait(job, seconds=90.0)
    for job in jobs[:2]:
        farm.check_result(job)
    test_train.check(farm, test_train.submit(farm, rounds=30))


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[FarmHarness]:
    sshd.require()
    made = FarmHarness(tmp_path / "farm")
    yield made
    made.close()


def test_an_older_agent_works_for_this_coordinator(farm: FarmHarness, server: Sshd, older: OtherVersion) -> None:
    farm.start()
    join(farm, server, older.python)
    found = farm.agent_status("far")
    assert found is not None and found.version == OLDER_VERSION
    work(farm)


def test_an_agent_of_this_version_works_for_an_older_coordinator(
    farm: FarmHarness, server: Sshd, older: OtherVersion
) -> None:
    serve = [str(older.python), "-m", "muster.coordinator", "serve", "--root", str(farm.root.path)]
    farm.daemon = farm.run(serve, "daemon.out")
    until(farm.root.socket.exists, "the older coordinator")
    join(farm, server)
    work(farm)


# --- deploy upgrade ---


def deploy(site: Site, python: Path, name: str, *args: str) -> subprocess.CompletedProcess[str]:
    """A command of `deploy` of the older version."""
    words = site.command(name, *args)
    command = [str(python), "-m", "muster.deploy", *words[words.index(name) :]]
    return subprocess.run(
        command, env=site.farm.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180,
        check=False, cwd="/",
    )  # fmt: skip


def test_a_farm_is_upgraded_in_the_middle_of_a_job_and_nothing_is_computed_twice(
    tmp_path: Path, older: OtherVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    stamp = older.run("-c", "from muster.deploy import wheel; print(wheel.stamp())")
    with sites.running(tmp_path, "lab3", "gpu1", env={"MUSTER_TEST_NOTES": str(notes)}) as site:
        monkeypatch.setenv("MUSTER_TEST_NOTES", os.devnull)  # of the serial run, which is here
        site.farm.stop()
        serve = [str(older.python), "-m", "muster.coordinator", "serve", "--root", str(site.farm.root.path)]
        site.farm.daemon = site.farm.run(serve, "older.out")
        until(site.farm.root.socket.exists, "the older coordinator")
        for name, target in site.targets.items():
            site.fields[name]["python"] = "auto"
            target.has_venv(OLDER_VERSION, older.python, stamp)
        site.write()
        done = deploy(site, older.python, "up")
        assert done.returncode == 0, done.stderr
        assert {one.version for one in site.farm.agents_now()} == {OLDER_VERSION}
        for target in site.targets.values():
            target.has_venv()

        shards = 200
        layer = {"x": rows(shards, 50)["x"]}
        layer["x"][:, 0] = range(shards)
        job = site.farm.submit(layer, 1, NOTED, kind="map", code="work.py:f")
        until(lambda: site.farm.status(job).totals.committed > shards // 5, "a fifth of the job")
        check = site.deploy("upgrade", "--check")
        assert check.returncode == 0 and "would change" in check.stdout, check.stderr
        assert {one.version for one in site.farm.agents_now()} == {OLDER_VERSION}
        done = site.deploy("upgrade")
        assert done.returncode == 0, done.stderr
        assert f"the coordinator runs {VERSION}" in done.stderr
        until(lambda: {one.version for one in site.farm.agents_now()} == {VERSION}, "both agents of this version")
        site.farm.wait(job, seconds=120.0)
        assert Counter(map(int, notes.read_text().split())) == Counter(range(shards))
        site.farm.check_result(job)
        assert json.loads(site.deploy("status", "--json").stdout)["machines"][0]["drift"] == []
        assert site.deploy("down").returncode == 0
        assert [target.left() for target in site.targets.values()] == [[], []]
