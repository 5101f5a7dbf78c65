"""The sweep kills what a record names, what names its folder, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import psutil
import pytest

from muster.agent.pool import cleanup
from muster.agent.pool.cleanup import PoolRecord
from muster.jobs.common.errors import RefusedError
from muster.jobs.common.processes import ProcessId, identify

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
LEADER = [
    sys.executable,
    "-c",
    "import subprocess, sys; child = subprocess.Popen(sys.argv[1:]); print(child.pid, flush=True); child.wait()",
    *SLEEP,
]
US = identify()
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts sleepers, which are reaped at the end in any case."""
    with ExitStack() as stack:

        def start_one(**options: object) -> subprocess.Popen[bytes]:
            process = stack.enter_context(subprocess.Popen(SLEEP, **options))  # type: ignore[call-overload]
            stack.callback(process.kill)
            return process

        yield start_one


@pytest.fixture
def temp() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp()) / "mst-0123abcd"
    folder.mkdir()
    yield folder
    if folder.exists():
        folder.rmdir()
    folder.parent.rmdir()


def write(folder: Path, temp: Path, *marks: ProcessId, owner: ProcessId = US) -> None:
    (folder / cleanup.RECORD).write_bytes(msgspec.json.encode(PoolRecord(owner, str(temp), marks)))


def is_alive(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is None


def test_no_record_is_nothing_to_do(tmp_path: Path) -> None:
    assert cleanup.sweep(tmp_path) == []


def test_a_recorded_process_and_its_group_are_killed(tmp_path: Path, temp: Path, start: Start) -> None:
    bystander = start()
    with subprocess.Popen(LEADER, stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        member = psutil.Process(int(leader.stdout.readline()))
        write(tmp_path, temp, identify(leader.pid))
        assert len(cleanup.sweep(tmp_path)) == 2
        leader.wait(10)
        assert leader.stdout.read() == b""  # its last writer, the member, is gone too
    assert not member.is_running() or member.status() == psutil.STATUS_ZOMBIE
    assert is_alive(bystander)
    assert not temp.exists()
    assert not list(tmp_path.iterdir())


def test_the_folder_of_an_agent_of_before_goes_with_all_that_is_in_it(tmp_path: Path, temp: Path) -> None:
    """Its token and socket lay among Ray's own, in a folder open to everybody."""
    temp.chmod(0o777)
    (temp / "session_1" / "sockets").mkdir(parents=True)
    (temp / "session_latest").symlink_to(temp / "session_1")
    for name in ("token", "lane", "session_1/sockets/raylet"):
        (temp / name).touch()
    write(tmp_path, temp)
    assert cleanup.sweep(tmp_path) == [f"folder {temp}"]
    assert not temp.exists()


def test_a_pid_used_again_is_left_alone(tmp_path: Path, temp: Path, start: Start) -> None:
    other = start()
    write(tmp_path, temp, ProcessId(other.pid, psutil.Process(other.pid).create_time() - 60))
    assert cleanup.sweep(tmp_path) == [f"folder {temp}"]
    assert is_alive(other)


def test_what_names_the_temp_folder_is_killed(tmp_path: Path, temp: Path, start: Start) -> None:
    by_environment = start(env={**os.environ, "MUSTER_SEAT": f"{temp.name}.1"})
    by_command = subprocess.Popen([*SLEEP, str(temp / "socket")])
    bystander = start(env={**os.environ, "MUSTER_SEAT": "mst-ffffffff.1"})
    write(tmp_path, temp)
    cleanup.sweep(tmp_path)
    by_environment.wait(10)
    by_command.wait(10)
    assert is_alive(bystander)


def test_a_pool_whose_owner_runs_is_refused(tmp_path: Path, temp: Path, start: Start) -> None:
    owner = start()
    write(tmp_path, temp, owner=identify(owner.pid))
    with pytest.raises(RefusedError, match=str(owner.pid)):
        cleanup.sweep(tmp_path)
    assert temp.exists()
    assert (tmp_path / cleanup.RECORD).exists()


@pytest.mark.parametrize("name", ["mst-xyz", "home", "mst-0123abcd.old"])
def test_a_folder_not_named_as_ours_is_not_removed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    write(tmp_path, tmp_path / name)
    assert cleanup.sweep(tmp_path) == []
    assert (tmp_path / name).is_dir()


def test_a_link_named_as_ours_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "mst-0123abcd").symlink_to(tmp_path / "kept")
    write(tmp_path, tmp_path / "mst-0123abcd")
    cleanup.sweep(tmp_path)
    assert (tmp_path / "kept").is_dir()


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"owner": 3', b"[]"])
def test_a_damaged_record_is_dropped(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / cleanup.RECORD).write_bytes(raw)
    assert cleanup.sweep(tmp_path) == []
    assert not list(tmp_path.iterdir())


def test_a_pools_folder_is_ours_alone_and_what_it_starts_in_empty(tmp_path: Path) -> None:
    temp = cleanup.make_temp(tmp_path)
    record = cleanup.read(tmp_path)
    assert record is not None and record.temp == str(temp)
    folder = cleanup.empty(temp)
    assert list(folder.iterdir()) == [] and all(one.stat().st_mode & 0o777 == 0o700 for one in (temp, folder))
    assert cleanup.sweep(tmp_path) == [f"folder {temp}"]


def test_the_record_has_the_pools_descendants_alone(tmp_path: Path, temp: Path, start: Start) -> None:
    ours = start(env={**os.environ, "MUSTER_SEAT": f"{temp.name}.1"})
    start()
    cleanup.record(tmp_path, temp)
    record = cleanup.read(tmp_path)
    assert record is not None
    assert record.owner.pid == os.getpid()
    assert [mark.pid for mark in record.processes] == [ours.pid]
