"""What is Ray's alone of a pool: its token, its folders and sockets, its death. What all pools have in common is in
tests/contract/test_pools.py."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

from muster.agent.pool import authentication, cleanup, ray_environment
from tests import stranger
from tests.contract.test_pools import start_agent
from tests.support.farm import until
from tests.support.pools import DEADLINE_SECONDS, Rig

pytestmark = pytest.mark.ray
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig("ray", tmp_path_factory.mktemp("pool"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        made.pool.start()
        made.up()
        made.up()
    yield made
    made.pool.stop()


def test_ray_answers_nobody_without_the_token(rig: Rig) -> None:
    tree = psutil.Process().children(recursive=True)
    words = [word for process in tree if process.name() == "raylet" for word in process.cmdline()]
    [address] = [word.partition("=")[2] for word in words if word.startswith("--gcs-address=")]
    assert authentication.answers(address, ray_environment.TOKEN)
    assert not authentication.answers(address)
    assert not authentication.answers(address, "0" * len(ray_environment.TOKEN))


# What one may do who gets into a pool's folder: all of it would make him the agent's user.
BREAK_IN = """
folder = sys.argv[2]
tries = {
    "look at Ray's": lambda: os.listdir(folder + "/r/session_latest/sockets"),
    "plant": lambda: os.close(os.open(folder + "/r/planted", os.O_CREAT)),
    "read the token": lambda: open(folder + "/token").read(),
    "call": lambda: socket.socket(socket.AF_UNIX).connect(folder + "/lane"),
}
for what, act in tries.items():
    try:
        act()
        print(what, "done")
    except PermissionError:
        print(what, "denied")
"""


def test_the_folder_is_ours_alone_while_ray_runs(rig: Rig) -> None:
    assert stat.S_IMODE(rig.temp.stat().st_mode) == 0o700
    assert stat.S_IMODE((rig.temp / "token").stat().st_mode) == 0o600
    assert (rig.temp / "r" / "session_latest").is_dir()
    assert not list(rig.temp.glob("session*"))


@stranger.as_root
def test_another_user_gets_nothing_of_rays(rig: Rig) -> None:
    assert {line.rpartition(" ")[2] for line in stranger.run(BREAK_IN, str(rig.temp)).splitlines()} == {"denied"}
    assert {line.rpartition(" ")[2] for line in stranger.run(BREAK_IN, str(rig.temp), uid=0).splitlines()} == {"done"}


def test_rays_sockets_fit_below_the_longest_folder_for_temporary_files(rig: Rig) -> None:
    below = [len(str(path.relative_to(rig.temp.parent))) for path in rig.temp.rglob("*") if path.is_socket()]
    assert len(below) >= 3
    digits = len(str(os.getpid()))  # Ray puts it into the path, and it has up to seven
    assert cleanup.TEMP_ROOT_LENGTH + 1 + max(below) + 7 - digits <= 103  # macOS's limit; Linux's is 107


def test_a_dead_ray_is_said_and_started_again(tmp_path: Path) -> None:
    agent = start_agent("ray", "lose", tmp_path)
    until(lambda: (tmp_path / "ran-wait").exists() or agent.poll() is not None, "a batch", DEADLINE_SECONDS)
    for process in psutil.Process(agent.pid).children(recursive=True):
        if process.name() == "raylet":
            process.kill()
    assert agent.communicate(timeout=DEADLINE_SECONDS) == ("WorkerDied\nPoolLost\nBatchDone\n", "")


def test_a_ray_that_asks_for_no_token_is_not_used(tmp_path: Path) -> None:
    agent = start_agent("ray", "open", tmp_path)
    said = f"Ray {version('ray')} obeys every user of this machine: it asks for no token\n"
    assert agent.communicate(timeout=DEADLINE_SECONDS) == (said, "")
    assert agent.returncode == 1
    assert not list(tmp_path.iterdir())
