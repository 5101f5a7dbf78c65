"""`verify --rerun` on a farm of two real agents: what is deterministic, what is not, a machine that is wrong."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from muster.coordinator.commands import rerun
from muster.coordinator.commands.submit import submit
from muster.coordinator.farm_root import paths, plans
from muster.jobs.common.errors import DifferenceError, IncompleteError, NotFoundError, RefusedError
from tests.support.farm import DEADLINE_SECONDS, FarmHarness, arrays, running, until

WORK = """
import os, random, time
from pathlib import Path

def twice(rows, shard, first_row):
    return rows * 2 + shard + first_row

def chance(rows, shard):
    return rows + (random.random() if shard % 2 else 0)

def faulty(rows, flag):
    wrong = "MUSTER_TEST_FAULTY" in os.environ and Path(flag).exists()
    return rows + (1 if wrong else 0)

def held(rows, flag):
    while Path(flag).exists():
        time.sleep(0.02)
    return rows

def copies(paths, out, first_row):
    for path in paths:
        (out / path).write_bytes(path.read_bytes() + str(first_row).encode())

def fails(rows, shard, flag):
    if Path(flag).exists() and shard == 3:
        raise ValueError("not this time")
    return rows
"""


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    with running(tmp_path_factory.mktemp("farm")) as made:
        made.join("well", "--cpus", "1")
        made.env["MUSTER_TEST_FAULTY"] = "1"
        made.join("faulty", "--cpus", "1")
        for name in ("well", "faulty"):
            until(partial(made.is_live, name), f"{name} to be there")
        yield made


def done(farm: FarmHarness, function: str, **fields: Any) -> str:
    """A complete job of 24 shards of two layers."""
    job = farm.submit(arrays(2, 24, 4), 2, WORK, kind="map", code=f"work.py:{function}", attempts=1, **fields)
    farm.wait(job)
    return job


def checked(farm: FarmHarness, job: str, *options: str, code: int = 0) -> str:
    """What `verify --rerun` says; nothing of it is left behind."""
    ran = farm.coordinator("verify", job, "--rerun", *options)
    assert ran.returncode == code, ran.stdout + ran.stderr
    if code not in {IncompleteError.exit_code}:
        assert not left(farm, job), "its job is still there"
    return ran.stdout + ran.stderr


def left(farm: FarmHarness, job: str) -> list[str]:
    """Jobs that check this one."""
    return [one.id for one in farm.jobs() if one.id.startswith(f"{job.replace('.', '-')}-check.")]


def test_what_is_deterministic_is_equal_shard_for_shard(farm: FarmHarness) -> None:
    job = done(farm, "twice", name="sure")
    said = checked(farm, job, "5", "--seed", "7")
    assert f"{job}: 5 of 5 equal: with 95% confidence under 42% of the shards differ (seed 7)" in said
    assert "24 of 24 equal: all shards were compared" in checked(farm, job, "300", "--on", "well")
    report = json.loads(checked(farm, job, "5", "--seed", "7", "--json"))
    assert (report["equal"], report["shards"], report["bound"]) == (5, 24, 10 / 24)


def test_the_job_that_is_kept_has_the_rows_of_its_shards_alone(farm: FarmHarness) -> None:
    job = done(farm, "twice", name="kept")
    ran = farm.coordinator("verify", job, "--rerun", "9", "--keep", "--seed", "1")
    [check] = left(farm, job)
    assert ran.returncode == 0 and check == "kept-1-check.1"
    assert farm.status(check).totals.shards == farm.status(check).totals.committed == 9
    for folder in farm.root.job(check).result.iterdir():
        numbers = np.load(folder / "shards.npy")["shard"]
        whole = np.load(farm.root.job(job).result / folder.name / "out.npy").reshape(12, 2, 4)
        assert np.array_equal(np.load(folder / "out.npy").reshape(-1, 2, 4), whole[numbers])
    assert farm.coordinator("verify", check, "--inputs").returncode == 0
    assert farm.coordinator("verify", check, "--rerun", "4").returncode == 0
    assert farm.coordinator("rm", check).returncode == 0


def test_shards_of_files_have_their_own_items_again(farm: FarmHarness, tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"f{number}").write_bytes(bytes([65 + number]))
    cut: dict[str, Any] = {"source": {"files": f"{tmp_path}/f*"}, "shard": {"files": 2}}
    job = submit(farm.root, farm.job_file({}, work=WORK, kind="map", name="files", code="work.py:copies", **cut))
    farm.wait(job)
    assert "3 of 3 equal" in checked(farm, job, "3", "--seed", "5", "--on", "well")


def test_chance_in_the_users_code_is_found(farm: FarmHarness) -> None:
    job = done(farm, "chance", name="dice")
    said = checked(farm, job, "24", code=DifferenceError.exit_code)
    assert "12 of 24 equal, of 24 shards" in said and "error: 12 shards of dice.1 came out otherwise" in said
    report = json.loads(farm.coordinator("verify", job, "--rerun", "24", "--json").stdout)
    assert report["bound"] is None and len(report["differing"]) == 12
    assert {pair["number"] % 2 for pair in report["differing"]} == {1}


def test_a_machine_that_computes_wrongly_is_named(farm: FarmHarness, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    job = done(farm, "faulty", name="machine", params={"args": {"flag": str(flag)}})
    flag.touch()
    said = checked(farm, job, "6", "--on", "faulty", "--seed", "3", code=DifferenceError.exit_code)
    assert "of what faulty computed now, 6 of 6 differ" in said and "now faulty (kernels 1)" in said
    assert "6 of 6 equal" in checked(farm, job, "6", "--on", "well", "--seed", "3")
    assert "no agent called nobody" in checked(farm, job, "6", "--on", "nobody", code=NotFoundError.exit_code)


def test_a_source_that_changed_cannot_be_compared(farm: FarmHarness) -> None:
    job = done(farm, "twice", name="edited")
    source = Path(farm.plan(job).layers[0].source.path)
    source.touch()
    said = checked(farm, job, "24", code=RefusedError.exit_code)
    assert "the input of edited.1 is not what it was" in said and "source of layer a changed" in said


def test_shards_that_fail_now_leave_their_evidence(farm: FarmHarness, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    job = done(farm, "fails", name="failing", params={"args": {"flag": str(flag)}})
    flag.touch()
    said = checked(farm, job, "24", code=IncompleteError.exit_code)
    [check] = left(farm, job)
    assert "came out once and does not now" in said and f"coordinator logs {check}" in said
    assert "not this time" in farm.coordinator("logs", check, "--failed").stdout
    assert farm.coordinator("rm", check).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_or_sigterm_leaves_nothing_behind(farm: FarmHarness, tmp_path: Path, number: int) -> None:
    flag = tmp_path / "flag"
    job = done(farm, "held", name=f"cut-{number}", params={"args": {"flag": str(flag)}})
    flag.touch()
    command = [*paths.command("verify", farm.root.path), job, "--rerun", "24"]
    process = farm.run(command, "verify.out")
    until(lambda: any(farm.status(check).totals.running for check in left(farm, job)), "the check to run")
    process.send_signal(number)
    assert process.wait(DEADLINE_SECONDS) == 130
    assert not left(farm, job)
    flag.unlink()
    assert "24 of 24 equal" in checked(farm, job, "24")


def test_the_one_machine_that_leaves_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one is there, and does not suit."""
    monkeypatch.setattr(rerun, "ALONE_SECONDS", 0.0)
    with running(tmp_path, lease=1.5, heartbeat=0.2) as farm:
        well, leaving = farm.agent("well"), farm.agent("leaving")
        well.go()
        job = farm.submit(arrays(1))
        farm.wait(job)
        leaving.paused.set()
        leaving.go()
        until(partial(farm.is_live, "leaving"), "it to be there")

        def die() -> None:
            until(lambda: any(farm.status(check).totals.running for check in left(farm, job)), "the check to run")
            leaving.die()

        dying = threading.Thread(target=die)
        dying.start()
        with pytest.raises(IncompleteError, match="stopped after 0 of 6 shards: leaving is gone"):
            rerun.run(farm.root, job, 24, "leaving", 0, False, True)
        dying.join()
        assert not left(farm, job)


def test_what_cannot_be_run_again_is_refused_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path) as farm:
        farm.agent("well").go()
        job = farm.submit(arrays(1))
        farm.wait(job)
        assert "6 of 6 equal: all shards were compared" in checked(farm, job, "300")
        farm.agent("old", kinds={"cluster": 99}).go()
        until(partial(farm.is_live, "old"), "it to be there")
        said = checked(farm, job, "3", "--on", "old", code=RefusedError.exit_code)
        assert "no machine suits: has version 99 of kind cluster" in said
        assert "are for --rerun" in farm.coordinator("verify", job, "--on", "old").stderr
        driven = msgspec.structs.replace(farm.plan(job), driver="train")
        monkeypatch.setattr(plans, "load", lambda _: driven)
        with pytest.raises(RefusedError, match="follow from the results of others"):
            rerun.run(farm.root, job, 3, "", 0, False, True)


def test_nothing_is_compared_of_a_job_without_a_result(farm: FarmHarness, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    job = farm.submit(
        arrays(1, 8, 4), 2, WORK, kind="map", code="work.py:held", params={"args": {"flag": str(flag)}}, name="early"
    )
    ran = farm.coordinator("verify", job, "--rerun", "2")
    assert ran.returncode == IncompleteError.exit_code and "no layer of early.1 is merged yet" in ran.stderr
    flag.unlink()
    farm.wait(job)
