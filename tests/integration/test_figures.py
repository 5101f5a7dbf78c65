"""What is measured of a job: by real machines, through restarts, without a coordinator, and beside a broken file."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.farm_root import figures_file, plans
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.errors import NotFoundError
from tests.support.farm import FarmHarness, arrays, running, until

ROWS = 4
SHARDS = 24
NAP = "import time\n\ndef nap(rows):\n    time.sleep(0.2)\n    return rows\n"


def submit(farm: FarmHarness, shards: int = SHARDS, **more: Any) -> str:
    return farm.submit(arrays(rows=shards * ROWS), shard_rows=ROWS, **more)


def report(farm: FarmHarness, *args: str) -> dict[str, Any]:
    said = farm.coordinator("report", *args, "--json")
    assert said.returncode == 0, said.stderr
    jobs: dict[str, Any] = json.loads(said.stdout)
    return jobs


def only(farm: FarmHarness, job: str) -> dict[str, Any]:
    (found,) = report(farm, job)["jobs"]
    assert isinstance(found, dict)
    return found


def told(farm: FarmHarness, job: str) -> tuple[Any, ...]:
    """Counts and bytes that are committed, which nothing may change."""
    found = only(farm, job)
    shards = found["shards"]
    return shards["committed"], shards["rows_committed"], found["bandwidth"]["committed_bytes"], found["state"]


def test_a_real_machine_tells_where_its_time_goes(tmp_path: Path) -> None:
    with running(tmp_path) as farm:
        farm.join("lab1", "--cpus", "2")
        until(lambda: farm.is_live("lab1"), "lab1 to join")
        job = submit(farm, work=NAP, kind="map", code="work.py:nap", name="naps")
        farm.wait(job)
        until(lambda: (only(farm, job)["fairness"]["machines"] or [{}])[0].get("busy"), "the machine's account")
        until(lambda: only(farm, job)["fairness"]["machines"][0]["committed"] == SHARDS, "its commits")
        found = until(lambda: (r := only(farm, job))["fairness"]["machines"][0]["busy"] > 4 and r, "all of its time")
        (machine,) = found["fairness"]["machines"]
        assert SHARDS * 0.2 * 0.9 <= machine["busy"] <= machine["offered"] * 1.001
        assert machine["cores"] == 2 and 0.9 <= found["fairness"]["jain"] <= 1
        shard = found["response"]["shard"]
        assert shard["count"] == SHARDS and 0.2 <= shard["p50"] <= 0.3 and shard["p95"] >= shard["p50"]
        assert found["response"]["makespan"] >= found["response"]["first_result"] >= found["response"]["queue"] >= 0
        assert found["memory"]["machines"][0]["peak"] > 1 << 20
        assert found["bandwidth"]["machines"][0]["way"] == "folder"
        assert found["effect"]["succeeded"] == 1


def test_a_killed_coordinator_changes_no_count(tmp_path: Path) -> None:
    with running(tmp_path) as farm:
        quiet = submit(farm)
        agent = farm.agent("one").go()
        farm.wait(quiet)
        peace = told(farm, quiet)
        agent.die()
        job = submit(farm)
        worker = farm.agent("two")
        worker.join()

        def some() -> bool:
            worker.step(0.05)
            return farm.status(job).totals.committed >= SHARDS // 3

        until(some, "a third of the job")
        worker.die()
        farm.restart()
        farm.agent("three").go()
        farm.wait(job)
        found = only(farm, job)
        assert told(farm, job) == peace
        assert found["restarts"] == 1 and found["away_seconds"] >= 0
        assert {event["what"] for event in found["events"]} >= {"restart", "state"}
        farm.stop()
        assert told(farm, job) == peace
        assert any("no coordinator" in note for note in only(farm, job)["notes"])


def test_a_jobs_figures_go_with_it(tmp_path: Path) -> None:
    with running(tmp_path) as farm:
        job = submit(farm)
        farm.agent("one").go()
        farm.wait(job)
        assert only(farm, job)["response"]["shard"]["count"] == SHARDS
        assert farm.coordinator("rm", job).returncode == 0
        farm.stop()
        assert figures_file.read(farm.root.figures, job) is None


def test_a_job_that_is_being_removed_is_none(tmp_path: Path) -> None:
    """Whatever of it is gone already: its rows, and then its folder."""
    with running(tmp_path) as farm:
        job = submit(farm)
        farm.agent("one").go()
        farm.wait(job)
        folder = farm.root.job(job)
        shutil.copytree(folder.path, tmp_path / "kept")
        assert farm.coordinator("rm", job).returncode == 0
        with pytest.raises(NotFoundError, match="was removed just now"):
            plans.load(folder)
        shutil.copytree(tmp_path / "kept", folder.path)
        said = farm.coordinator("report", job)
        assert said.returncode == 6 and said.stderr.startswith(f"error: there is no job {job}")
        assert "\nhint: " in said.stderr and "Traceback" not in said.stderr


def test_a_job_that_never_ran_has_a_report(tmp_path: Path) -> None:
    with running(tmp_path) as farm:
        job = submit(farm)
        found = only(farm, job)
        assert found["response"]["first_result"] is None and found["fairness"]["jain"] is None
        assert "no machine has worked on it yet" in farm.coordinator("report", job).stdout
        page = tmp_path / "never.html"
        assert farm.coordinator("report", job, "--html", str(page)).returncode == 0
        assert "nothing has run yet" in page.read_text()


def test_a_damaged_file_is_put_aside_and_harms_nobody(tmp_path: Path) -> None:
    farm = FarmHarness(tmp_path)
    try:
        root = roots.prepare(farm.root.path)
        root.figures.write_bytes(b"this is no database" * 1000)
        farm.start()
        job = submit(farm)
        farm.agent("one").go()
        farm.wait(job)
        until(lambda: only(farm, job)["response"]["shard"]["count"] == SHARDS, "its figures")
        farm.stop()
        assert figures_file.read(root.figures, job) is not None
        assert [path.name for path in root.path.glob("figures.sqlite.2*")], "the old one is kept"
    finally:
        farm.close()


def test_a_folder_in_the_files_place_harms_nobody(tmp_path: Path) -> None:
    farm = FarmHarness(tmp_path)
    try:
        root = roots.prepare(farm.root.path)
        root.figures.mkdir()
        farm.start()
        job = submit(farm)
        farm.agent("one").go()
        farm.wait(job)
        until(lambda: any("measurements are not written" in note for note in only(farm, job)["notes"]), "a note of it")
        assert only(farm, job)["response"]["shard"]["count"] == SHARDS
        farm.stop()
        said = farm.coordinator("report", job)
        assert said.returncode == 12 and "figures.sqlite" in said.stderr, said.stderr
    finally:
        farm.close()


def test_the_file_is_read_while_a_journal_is_left(tmp_path: Path) -> None:
    """As a kill -9 in the middle of a write leaves it."""
    with running(tmp_path) as farm:
        job = submit(farm)
        farm.agent("one").go()
        farm.wait(job)
        farm.stop()
        with sqlite3.connect(farm.root.figures) as db:
            before = db.execute("SELECT count(*) FROM jobs").fetchone()
        assert before == (1,)
        assert only(farm, job)["state"] == "complete"


def test_agents_shows_what_a_machine_is_at(tmp_path: Path) -> None:
    with running(tmp_path) as farm:
        farm.join("lab1", "--cpus", "1")
        until(lambda: farm.is_live("lab1"), "lab1 to join")
        job = submit(farm, shards=80, work=NAP, kind="map", code="work.py:nap", name="naps")

        def told() -> bool:
            found = farm.agent_status("lab1")
            return found is not None and bool(found.busy) and bool(found.memory_now) and found.out_rate is not None

        until(told, "its rates")
        (header, row, *_) = farm.coordinator("agents").stdout.splitlines()
        names = "AGENT STATE CPUS BUSY USED MEMORY DISK IN/S OUT/S RUNNING DONE SEEN VERSION"
        assert header.split() == names.split()
        assert row.startswith("lab1") and "in place" in row and "%" in row
        farm.wait(job)
