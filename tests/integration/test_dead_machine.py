"""A machine that dies for good near the end of a job: what it finished and did not hand in is computed elsewhere before
its lease is over, or as soon as somebody gives it up."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import psutil

from tests.support.farm import FarmHarness, arrays, running, until

SHARDS = 100
LEASE_SECONDS = 60.0  # of which a quarter has to go by
WORK = """
import os, time
from pathlib import Path

def slow(rows, shard, folder):
    machine = os.environ.get("MUSTER_TEST_MACHINE")
    if machine:
        while machine == "heir" and not Path(folder, "go").exists():
            time.sleep(0.05)
        time.sleep(0.05)
        fd = os.open(Path(folder, machine), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, b"%d\\n" % shard)
        os.close(fd)
    return rows * 2
"""


def ran(folder: Path, machine: str) -> Counter[int]:
    log = folder / machine
    return Counter(map(int, log.read_text().split())) if log.exists() else Counter()


def join(farm: FarmHarness, name: str) -> None:
    farm.env["MUSTER_TEST_MACHINE"] = name
    farm.join(name, "--cpus", "1")
    until(lambda: farm.is_live(name), f"{name} to be there")


def lose(farm: FarmHarness, name: str) -> None:
    """Everything of a machine, from the top, at once."""
    top = psutil.Process(farm.real[name].pid)
    for process in [top, *top.children(recursive=True)]:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    farm.real[name].wait()


def unsent(farm: FarmHarness, folder: Path) -> str:
    """A job of which a machine that is dead had finished shards and not handed them in; the other one may go on."""
    for name in ("heir", "victim"):
        join(farm, name)
    params = {"args": {"folder": str(folder)}}
    job = farm.submit(arrays(1, SHARDS, 64), 1, WORK, kind="map", code="work.py:slow", params=params)
    until(lambda: farm.status(job).totals.finished >= 10, "finished shards that are not handed in")
    lose(farm, "victim")
    assert farm.status(job).totals.committed + 10 <= ran(folder, "victim").total() < SHARDS
    (folder / "go").touch()
    return job


def check(farm: FarmHarness, job: str, folder: Path) -> None:
    """All is there, and nothing is counted twice."""
    totals = farm.status(job).totals
    assert (totals.committed, totals.shards) == (SHARDS, SHARDS)
    both = ran(folder, "heir") & ran(folder, "victim")
    assert len(both) >= 10 and set(ran(folder, "heir").values()) == {1}, "once each, what was lost with it too"
    farm.check_result(job)


def test_what_a_dead_machine_finished_is_computed_elsewhere_before_its_lease_is_over(tmp_path: Path) -> None:
    with running(tmp_path / "farm", lease=LEASE_SECONDS) as farm:
        job = unsent(farm, tmp_path)
        hint = "`coordinator drop victim` if it will not come back"
        until(lambda: any(hint in note for note in farm.status(job).notes), "status to name the command")
        assert hint in farm.coordinator("explain", job).stdout
        farm.wait(job, seconds=LEASE_SECONDS)
        assert farm.is_live("victim"), "its lease goes on"
        check(farm, job, tmp_path)


def test_a_machine_that_somebody_gives_up_is_not_waited_for(tmp_path: Path) -> None:
    with running(tmp_path / "farm", lease=3600.0) as farm:
        job = unsent(farm, tmp_path)
        until(lambda: "`coordinator drop victim`" in farm.coordinator("explain", "victim").stdout, "its link to end")
        dropped = farm.coordinator("drop", "victim")
        assert dropped.returncode == 0 and dropped.stdout.startswith("victim is given up: the "), dropped.stderr
        farm.wait(job)
        check(farm, job, tmp_path)
        refused, again = farm.coordinator("drop", "heir"), farm.coordinator("drop", "victim")
        assert (refused.returncode, again.returncode) == (7, 6) and "`coordinator drain heir`" in refused.stderr
        assert farm.coordinator("drop", "heir", "--force").returncode == 0
        until(lambda: farm.is_live("heir"), "it to join anew")
