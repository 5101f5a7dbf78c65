"""Promise 9 with real agents: a full spool, a spent budget and a full root wait, say so, and go on by themselves."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from muster.agent.commands.status import state_of
from muster.jobs.common import launch
from tests.support import disks
from tests.support.disks import Ballast
from tests.support.farm import Array, FarmHarness, running, until

MEGABYTE = 1 << 20
ROWS, ROW_BYTES = 64, MEGABYTE // 4
WORK = """
import numpy as np
def wide(rows):
    return np.repeat(rows, 1 << 16, axis=1)
"""
SLOWLY = WORK.replace(
    "    return", "    import time; time.sleep(0.1)\n    return"
)  # so that the job is still under way later
OUTPUTS = {"out": {"dtype": "float32", "shape": [1 << 16]}}


def narrow() -> dict[str, Array]:
    """Some bytes that become 16 MB."""
    return {"a": np.arange(ROWS, dtype="f4").reshape(ROWS, 1)}


def submit(farm: FarmHarness, work: str = WORK) -> str:
    params = {"outputs": OUTPUTS}
    return farm.submit(narrow(), 2, work, kind="map", code="work.py:wide", params=params)


def parts_bytes(farm: FarmHarness) -> int:
    return sum(path.stat().st_size for path in (farm.folder / "spools" / "one" / "done").rglob("*.part"))


@pytest.fixture
def full_spool(tmp_path: Path) -> Iterator[FarmHarness]:
    """A farm whose agent's spool is on a disk of 12 MB: of one shard in four it has room for the result."""
    disks.require("mount")
    with disks.small(tmp_path / "spools" / "one", 12), running(tmp_path) as farm:
        yield farm


def test_a_spool_too_small_for_all_results_waits_for_pushes(full_spool: FarmHarness) -> None:
    """The coordinator stands still for a while, so that nothing is pushed while the work goes on."""
    full_spool.join("one", "--cpus", "1")
    job = submit(full_spool)
    until(lambda: full_spool.status(job).totals.committed, "a shard to be committed")
    full_spool.kill(signal.SIGSTOP)
    try:
        until(lambda: parts_bytes(full_spool), "parts that wait to be pushed")
    finally:
        full_spool.kill(signal.SIGCONT)
    full_spool.wait(job)
    assert full_spool.status(job).failures == 0
    full_spool.check_result(job)


def test_a_full_spool_says_so_and_goes_on_once_there_is_room(full_spool: FarmHarness) -> None:
    spool = full_spool.folder / "spools" / "one"
    full_spool.join("one", "--cpus", "1")
    until(lambda: (state := state_of(spool)) and state.ready, "the workers")
    ballast = Ballast(spool)
    ballast.fill()
    job = submit(full_spool)
    said = until(lambda: said_of(full_spool, job, "disk", "spool"), "a reason")
    assert full_spool.status(job).totals.committed == 0, said
    ballast.drop()
    full_spool.wait(job)
    assert full_spool.status(job).failures == 0
    full_spool.check_result(job)


def test_a_disk_budget_is_kept(tmp_path: Path) -> None:
    with running(tmp_path) as farm:
        farm.join("one", "--cpus", "1", "--disk", "2MiB")
        job = submit(farm)
        most = 0

        def done() -> bool:
            nonlocal most
            most = max(most, parts_bytes(farm))
            return farm.status(job).state == "complete"

        until(done, "the job to be complete")
        assert 0 < most <= 2 * MEGABYTE
        farm.check_result(job)


def test_a_budget_too_small_for_one_shard_says_so(tmp_path: Path) -> None:
    with running(tmp_path) as farm:
        farm.join("one", "--cpus", "1", "--disk", "100KiB")
        job = submit(farm)
        until(lambda: said_of(farm, job, "of disk"), "a reason")
        assert farm.status(job).state == "running"


def test_a_full_root_waits_says_so_and_goes_on(tmp_path: Path) -> None:
    disks.require("mount")
    with disks.small(tmp_path / "root", 100) as disk, running(tmp_path) as farm:
        farm.join("one", "--cpus", "1")
        job = submit(farm, SLOWLY)
        until(lambda: farm.status(job).totals.committed, "a shard to be committed")
        ballast = Ballast(disk)
        ballast.fill()
        until(lambda: said_of(farm, job, "full", "No space", "are left"), "somebody to say that the root is full")
        ballast.drop()
        farm.wait(job)
        assert farm.status(job).failures == 0
        farm.check_result(job)


def test_whoever_follows_a_run_is_told_that_what_is_finished_finds_no_room(tmp_path: Path) -> None:
    disks.require("mount")
    with disks.small(tmp_path / "root", 80) as disk, running(tmp_path) as farm:
        farm.join("one", "--cpus", "1")
        line = ["--root", str(farm.root.path), "-j1", "-k", "sleep 0.01; head -c 1000000 /dev/zero; exit {}"]
        command = launch.python("muster.__main__", "run", *line, ":::", *["0"] * 60)
        out, err = tmp_path / "out", tmp_path / "err"
        with out.open("wb") as prints, err.open("wb") as words:
            run = subprocess.Popen(
                command, env=farm.environment(), stdin=subprocess.DEVNULL, stdout=prints, stderr=words
            )
        until(lambda: "are left" in err.read_text(), "it to be said")
        assert run.poll() is None
        disks.grow(disk, 800)
        assert run.wait(60) == 0
        assert out.stat().st_size == 60_000_000


def said_of(farm: FarmHarness, job: str, *words: str) -> str:
    """What `status` and `agents` show once any of the words is in it."""
    said = farm.coordinator("status", job).stdout + farm.coordinator("agents").stdout
    return said if any(word in said for word in words) else ""


@pytest.mark.parametrize("what", ["bytes", "inodes"])
def test_an_agent_that_starts_on_a_full_disk_says_what_to_free(tmp_path: Path, what: str) -> None:
    disks.require("mount")
    with disks.small(tmp_path / "disk", megabytes=1, inodes=40) as disk, running(tmp_path) as farm:
        Ballast(disk, what).fill()
        done = farm.agent_command("join", str(farm.root.path), "--name", "one", "--spool", str(disk / "one"))
    assert done.returncode == 8, done.stderr
    assert f"error: {disk / 'one'}: No space left on device" in done.stderr
    assert "make room" in done.stderr


def test_a_report_without_room_leaves_the_one_before(tmp_path: Path) -> None:
    disks.require("mount")
    with disks.small(tmp_path / "small", 1) as disk, running(tmp_path / "farm") as farm:
        job, page, ballast = submit(farm), disk / "one.html", Ballast(disk)
        assert farm.coordinator("report", job, "--html", str(page)).returncode == 0
        before = page.read_text()
        ballast.fill()
        said = farm.coordinator("report", job, "--html", str(page))
        assert said.returncode == 8 and f"{page} does not fit on its disk" in said.stderr
        ballast.drop()
        assert page.read_text() == before and list(disk.iterdir()) == [page]
