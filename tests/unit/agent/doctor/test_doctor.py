"""The doctor's sheet and what people read of it; what it makes of a disk; nothing is connected."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent import cli
from muster.agent.doctor import connection_checks, machine_checks, render
from muster.agent.doctor.checklist import Check, Checklist, Rung
from muster.agent.doctor.machine_checks import SpoolPlace
from muster.agent.links import Options
from muster.agent.spool import owner
from muster.agent.spool import paths as spools
from muster.jobs.common import filesystems
from muster.jobs.common.errors import AccessError, LinkError, MusterError, RefusedError
from muster.jobs.common.locations import Host
from tests.support import disks

LADDER = (Rung("a"), Rung("b", ("a",)), Rung("c", ("b",)), Rung("side", ("a",)), Rung("alone"))


def sheet(rungs: Sequence[Rung] = LADDER) -> tuple[Checklist, list[Check]]:
    told: list[Check] = []
    return Checklist(rungs, told.append), told


def shown(told: list[Check]) -> list[tuple[str, str]]:
    return [(check.name, check.outcome) for check in told]


# --- the sheet ---


def test_what_needs_a_failure_is_not_tried_and_the_rest_is() -> None:
    made, told = sheet()
    made.passed("a", "fine")
    made.failed("b", AccessError("no", "ask"))
    assert not made.may("c")
    assert made.may("side")
    made.passed("side", "fine")
    made.close()
    assert shown(told) == [("a", "pass"), ("b", "fail"), ("c", "not tried"), ("side", "pass"), ("alone", "not tried")]
    assert told[2].detail == "needs `b`"
    assert made.exit_code == AccessError.exit_code


def test_the_first_cause_is_named() -> None:
    made, told = sheet()
    made.failed("a", LinkError("no"))
    made.passed("alone", "fine")
    assert [check.detail for check in told[1:4]] == ["needs `a`"] * 3


def test_a_warning_stops_nothing_unless_it_says_so() -> None:
    made, _ = sheet()
    made.warned("a", "odd", "look")
    assert made.may("b")
    made.warned("b", "not there", "start it", stops=True)
    assert not made.may("c")
    made.close()
    assert made.exit_code == 0


def test_the_first_failure_gives_the_exit_code() -> None:
    made, _ = sheet()
    made.failed("a", LinkError("no"))
    made.failed("alone", MusterError("no"))
    assert made.exit_code == LinkError.exit_code


def test_the_first_outcome_stands() -> None:
    made, told = sheet()
    made.passed("a", "fine")
    made.passed("a", "again")
    assert [check.detail for check in told] == ["fine"]


def test_the_next_step_is_where_it_failed() -> None:
    made, _ = sheet()
    made.passed("a", "fine")
    assert made.next_of(["c", "b"]) == "b"
    assert made.next_of(["a", "nowhere"]) == "nowhere"


@given(st.lists(st.tuples(st.sampled_from([rung.name for rung in LADDER]), st.sampled_from(["pass", "fail"]))))
def test_each_is_told_once_and_in_order(settled: list[tuple[str, str]]) -> None:
    made, told = sheet()
    for name, outcome in settled:
        if outcome == "pass":
            made.passed(name, "")
        else:
            made.failed(name, LinkError("no"))
    made.close()
    assert [check.name for check in told] == [rung.name for rung in LADDER]
    assert made.checks == told


@pytest.mark.parametrize("ssh", ["paramiko", "openssh"])
@pytest.mark.parametrize("text", ["", "Host lab\n ProxyJump bastion\n"])
def test_every_rung_needs_earlier_ones_only(ssh: str, text: str, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(text)
    options = Options("openssh" if ssh == "openssh" else "paramiko", config=config)
    rungs = [*connection_checks.visit(Host("lab"), options, "").rungs(), *machine_checks.RUNGS]
    names = [rung.name for rung in rungs]
    assert len(set(names)) == len(names)
    assert ("jump" in names) == (ssh == "paramiko" and bool(text))
    for place, rung in enumerate(rungs):
        assert set(rung.needs) <= set(names[:place])


# --- what people and programs read ---


def test_one_line_each_and_the_fix_below() -> None:
    assert render.line(Check("port", "pass", "it\nanswers")) == "pass       port         it answers"
    failed = render.line(Check("host key", "fail", "it is new", "compare it", 14))
    assert failed.splitlines() == ["fail       host key     it is new", f"{'':24}fix: compare it"]
    names = [rung.name for rung in connection_checks.visit(Host("lab"), Options("openssh"), "").rungs()]
    assert all(len(name) <= render.NAME_WIDTH for name in [*names, *connection_checks.STEPS])


def test_the_last_line() -> None:
    good, odd, bad = Check("a", "pass", ""), Check("b", "warn", ""), Check("c", "fail", "")
    assert render.summary([good], "agent join lab") == "all is well: `agent join lab` will work"
    assert "`d` not tried" in render.summary([good, Check("d", "not tried", "")], "agent join lab")
    assert "look at `b` before" in render.summary([good, odd], "agent join lab")
    assert render.summary([good, odd, bad], "agent join lab") == "1 failed: put `c` right first"


def test_json() -> None:
    said = json.loads(render.as_json([Check("ray", "pass", "fine", figures={"seconds": 2.5})], "lab", 0))
    assert said["where"] == "lab"
    assert said["exit_code"] == 0
    assert said["checks"][0]["figures"] == {"seconds": 2.5}


# --- the disk ---


def disk(folder: Path, asked_for: bool = False) -> Check:
    made, told = sheet(machine_checks.RUNGS)
    machine_checks.try_disk(made, SpoolPlace(folder, asked_for, 0.5))
    return told[0]


def test_a_disk_with_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100 << 30))
    found = disk(tmp_path / "not" / "there yet")
    assert found.outcome == "pass"
    assert "100 GiB free, of which a join takes 50 GiB" in found.detail
    assert not list(tmp_path.iterdir())


def test_little_room_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100 << 20))
    assert disk(tmp_path).outcome == "warn"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_or_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", full)
    found = disk(tmp_path)
    assert found.outcome == "fail"
    assert found.exit_code == 8
    assert os.strerror(code) in found.detail
    assert "--spool" in found.fix


def test_room_is_not_taken_from_an_agent_or_from_what_it_would_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert disk(tmp_path).outcome == "fail"
    owner.sign(tmp_path, "lab3", "here")
    assert "agent lab3" in disk(tmp_path).detail and disk(tmp_path).outcome == "warn"
    (tmp_path / owner.RECORD).unlink()
    part = tmp_path / "done/farm/layer/1.part"
    part.parent.mkdir(parents=True)
    part.touch()
    assert disk(tmp_path).outcome != "fail"


def test_a_spool_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = disk(Path("/proc/spool"), asked_for=True)
    assert found.outcome == "fail"
    assert found.exit_code == 7


def test_what_join_refuses_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "done").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "spool"):
        found = disk(folder, asked_for=True)
        assert (found.outcome, found.exit_code) == ("fail", 7), folder
        with pytest.raises(RefusedError, match="cannot be used"):
            spools.Spool(folder).take("desk", "here")


def test_a_spool_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    assert "belongs to another user" in disk(tmp_path, asked_for=True).detail


@pytest.fixture
def dead(tmp_path: Path) -> Iterator[Path]:
    """A mount whose server is gone: what ENOTCONN is for."""
    disks.require("mount")
    folder = tmp_path / "dead"
    folder.mkdir()
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    mounted = libc.mount(b"dead", os.fsencode(folder), b"fuse", 0, options)
    os.close(device)
    assert mounted == 0, os.strerror(ctypes.get_errno())
    yield folder
    libc.umount2(os.fsencode(folder), 2)


@pytest.mark.root
def test_a_dead_mount_is_told_and_crashes_nothing(dead: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (dead, dead / "spool"):
        found = disk(folder, asked_for=True)
        assert (found.outcome, found.exit_code) == ("fail", 7)
        assert "not connected" in found.detail
    assert cli.main(["doctor", str(dead), "--spool", str(dead / "spool"), "--no-ray"]) == 7
    assert cli.main(["join", str(dead), "--spool", str(dead / "spool"), "--detach"]) == 7
    assert "not connected" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["fuse.rclone", "9p", "fuse.s3fs", "fuse.juicefs", "fuse.sshfs", "nfs4"])
def test_what_a_network_serves_is_a_network_file_system(tmp_path: Path, kind: str) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / {tmp_path} rw - {kind} far rw\n")
    assert filesystems.file_system(tmp_path, table) in filesystems.NETWORK_FILE_SYSTEMS


def test_a_python_without_ray_is_told_how_to_have_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It was told to look at its memory."""
    (tmp_path / "ray.py").write_text("raise ImportError('no ray here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    made, told = sheet((Rung("ray"),))
    machine_checks.try_ray(made)
    assert told[0].outcome == "warn" and told[0].detail.endswith("; agents here work in plain processes")
    assert "no ray here" in told[0].detail and "pip install" in told[0].fix


def test_a_python_that_does_not_start_is_not_short_of_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'the stdlib is gone' >&2; exit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    made, told = sheet(machine_checks.RUNGS[1:])
    machine_checks.try_workers(made)
    machine_checks.try_ray(made)
    assert [check.outcome for check in told] == ["fail", "warn"], "an agent wants the first"
    assert all("the stdlib is gone" in check.detail and "memory" not in check.fix for check in told)
    assert str(python) in told[1].fix


def test_workers_that_start_take_a_moment_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    made, told = sheet(machine_checks.RUNGS[1:2])
    machine_checks.try_workers(made)
    assert told[0].outcome == "pass" and told[0].figures["seconds"] > 0
    assert not list(tmp_path.iterdir())


def test_a_network_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystems, "file_system", lambda path: "nfs4")
    assert disk(tmp_path).outcome == "fail"
    assert disk(tmp_path, asked_for=True).outcome == "warn"
    assert "nfs4" in disk(tmp_path).detail


def test_a_spool_in_use(tmp_path: Path) -> None:
    spool = spools.Spool(tmp_path)
    spool.take("desk", "here")
    found = disk(tmp_path)
    assert found.outcome == "warn"
    assert "agent desk" in found.detail
    spool.release()
