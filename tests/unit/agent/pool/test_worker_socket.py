"""Lanes between the agent and its workers: whole frames however they are cut, ends, and calls in between."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.agent.pool.worker_socket import HEAD, WorkerSocket, WorkerSockets, call
from tests import stranger

FRAMES = [b"", b"a", b"x" * 100_000, b"end"]
DEADLINE_SECONDS = 30.0


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, WorkerSocket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, WorkerSocket(theirs)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 4096])
def test_frames_come_whole_however_they_are_cut(ends: tuple[socket.socket, WorkerSocket], size: int) -> None:
    ours, worker_socket = ends
    raw = b"".join(HEAD.pack(len(frame)) + frame for frame in FRAMES[:2] + FRAMES[3:])
    heard: list[bytes | None] = []
    for start in range(0, len(raw), size):
        ours.send(raw[start : start + size])
        heard += worker_socket.arrived()
    assert heard == FRAMES[:2] + FRAMES[3:]


def test_the_end_comes_after_the_last_frame_and_half_of_one_is_none(ends: tuple[socket.socket, WorkerSocket]) -> None:
    ours, worker_socket = ends
    ours.send(HEAD.pack(4) + b"last" + HEAD.pack(100) + b"half")
    ours.close()
    assert worker_socket.receive() == b"last"
    assert worker_socket.receive() is None
    assert list(worker_socket.arrived()) == [None]


def test_a_switchboard_hears_every_worker_and_answers_calls_on_its_thread(tmp_path: Path) -> None:
    board = WorkerSockets(tmp_path / "lane")
    heard: dict[str, list[bytes]] = {}
    done = threading.Semaphore(0)

    def hear(worker_socket: WorkerSocket, frame: bytes) -> None:
        worker_socket.name = worker_socket.name or frame.decode()
        heard.setdefault(worker_socket.name, []).append(frame)
        worker_socket.send(frame)

    thread = threading.Thread(target=board.run, args=(hear, lambda worker_socket: done.release()))
    thread.start()
    workers = [call(str(tmp_path / "lane")) for _ in range(2)]
    for number, worker in enumerate(workers):
        for frame in [b"%d" % number, *FRAMES]:
            worker.send(frame)
            assert worker.receive() == frame
    assert heard == {str(number): [b"%d" % number, *FRAMES] for number in range(2)}
    workers[0].close()
    assert done.acquire(timeout=DEADLINE_SECONDS)
    seen: list[threading.Thread] = []
    for _ in range(1000):
        board.put(lambda: seen.append(threading.current_thread()))
    board.put(None)
    thread.join(DEADLINE_SECONDS)
    assert seen == [thread] * 1000
    assert workers[1].receive() is None, "the board hung up"
    workers[1].close()
    board.put(None)


CALL = """
caller = socket.socket(socket.AF_UNIX)
caller.connect(sys.argv[2])
try:
    caller.sendall(bytes(7) + b"\\x05hello")
    print(caller.recv(100))
except (BrokenPipeError, ConnectionResetError):
    print(b"")
"""
LISTEN = """
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[2])
os.chmod(sys.argv[2], 0o777)
listener.listen()
print("listening", flush=True)
print(listener.accept()[0].recv(100), flush=True)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that everybody may use: nothing but the peers' own check keeps them apart."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="this system does not say who calls")
@stranger.as_root
def test_another_user_who_calls_is_hung_up_on_unheard(open_folder: Path) -> None:
    address = open_folder / "lane"
    board = WorkerSockets(address)
    address.chmod(0o777)
    heard: list[bytes] = []

    def hear(worker_socket: WorkerSocket, frame: bytes) -> None:
        heard.append(frame)
        worker_socket.send(frame)

    thread = threading.Thread(target=board.run, args=(hear, lambda worker_socket: None))
    thread.start()
    try:
        assert stranger.run(CALL, str(address)) == "b''\n"
        assert heard == []
        assert stranger.run(CALL, str(address), uid=os.getuid()) != "b''\n"
        assert heard == [b"hello"]
    finally:
        board.put(None)
        thread.join(DEADLINE_SECONDS)


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="this system does not say who calls")
@stranger.as_root
def test_a_worker_tells_nothing_to_another_users_socket(open_folder: Path) -> None:
    address = str(open_folder / "lane")
    with stranger.start(LISTEN, address) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "listening\n"
        with pytest.raises(PermissionError, match="another user's"):
            call(address)
        assert other.communicate(timeout=DEADLINE_SECONDS) == ("b''\n", None)
