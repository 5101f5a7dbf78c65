"""The way that the server keeps open into a machine: the newest socket that leads somewhere, both ways."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.agent.links.way_in import newest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Short, as a socket's path is to be."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    yield Path("in")


def listener(path: Path, at: int) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    made.listen()
    os.utime(path, (at, at))
    return made


def test_the_newest_that_leads_somewhere_is_taken_and_others_go(folder: Path) -> None:
    with listener(folder / "old", 1) as old, listener(folder / "newer", 2):
        listener(folder / "dead", 3).close()
        (folder / "notes").write_text("no socket")
        with newest(folder) or pytest.fail("no way") as way:
            assert way.getpeername() == "in/newer"
        assert sorted(one.name for one in folder.iterdir()) == ["newer", "notes"]
        assert old.fileno() >= 0  # who came by it goes on


def test_no_way_is_said(folder: Path) -> None:
    assert newest(folder) is None and newest(folder / "none") is None
    done = subprocess.run(
        [sys.executable, "-m", "muster.agent.links.way_in", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "has not dialled in" in done.stderr


def test_bytes_go_both_ways_until_one_end_closes(folder: Path) -> None:
    with listener(folder / "way", 1) as server:
        heard: list[bytes] = []

        def answer() -> None:
            there, _ = server.accept()
            with there:
                while data := there.recv(1 << 16):
                    heard.append(data)
                there.sendall(b"b" * 3_000_000)

        thread = threading.Thread(target=answer)
        thread.start()
        command = [sys.executable, "-m", "muster.agent.links.way_in", str(folder)]
        done = subprocess.run(command, input=b"a" * 2_000_000, capture_output=True, timeout=60, check=False)
        thread.join()
        assert (done.returncode, len(done.stdout), len(b"".join(heard))) == (0, 3_000_000, 2_000_000)
