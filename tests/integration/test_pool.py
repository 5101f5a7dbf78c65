"""What is Ray's alone of a pool: its token, its folders and sockets, its death. What all pools have in common is in
tests/contract/test_pools.py."""

from __future__ import annotations

import os
import queue
import stat
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import msgspec
import psutil
import pytest

from muster.agent.core.events import BatchEnded, Needs, PoolEvent, PoolFellBack, SlotUp, WorkerDied
from muster.agent.pool import authentication, cleanup, ray_environment
from muster.agent.pool.pool import Pool
from muster.agent.pool.processes import Processes
from muster.agent.pool.ray_local import LocalRay
from tests import stranger
from tests.contract.test_pools import start_agent
from tests.support.farm import until
from tests.support.pools import DEADLINE_SECONDS, STAND, Rig
from tests.support.standin import batch

pytestmark = pytest.mark.ray
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig("ray", tmp_path_factory.mktemp("pool"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        made.start()
    yield made
    made.pool.stop()


def test_ray_answers_nobody_without_the_token(rig: Rig) -> None:
    tree = psutil.Process().children(recursive=True)
    words = [word for process in tree if process.name() == "raylet" for word in process.cmdline()]
    [address] = [word.partition("=")[2] for word in words if word.startswith("--gcs-address=")]
    assert authentication.answers(address, ray_environment.TOKEN)
    assert not authentication.answers(address)
    assert not authentication.answers(address, "0" * len(ray_environment.TOKEN))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
def test_a_batch_of_many_shards_goes_with_its_call_and_not_by_rays_store(rig: Rig, tmp_path: Path) -> None:
    rig.pool.submit(0, 900, msgspec.structs.replace(batch("nothing", tmp_path), tmp="x" * 500_000), Needs())
    assert rig.done().ticket == 900
    status = Path(f"/proc/{rig.pid(0)}/status").read_text()
    [shared] = [line.split()[1] for line in status.splitlines() if line.startswith("RssShmem")]
    assert shared == "0", "kB of it that the worker has mapped"


def test_batches_of_rounds_go_by_a_socket_and_those_after_them_by_calls_again(rig: Rig, tmp_path: Path) -> None:
    before = rig.pool.worker_pid(0)
    for ticket, in_rounds in enumerate([False, True, True, True, False, False, True, False], 1000):
        rig.pool.submit(0, ticket, batch("nothing", tmp_path, in_rounds), Needs())
        done = rig.done()
        assert (done.ticket, done.outcome.peak) == (ticket, before)
        until(lambda lanes=int(in_rounds): rig.lanes() == lanes, f"{in_rounds:d} lanes", DEADLINE_SECONDS)  # type: ignore[misc]


def test_a_worker_that_dies_in_a_round_is_told_after_its_last_word(rig: Rig, tmp_path: Path) -> None:
    rig.pool.submit(0, 2000, batch("nothing", tmp_path, in_rounds=True), Needs())
    rig.pool.submit(0, 2001, batch("segfault", tmp_path, in_rounds=True), Needs())
    assert rig.done().ticket == 2000
    assert rig.died() == WorkerDied(0, (2001,), "died of SIGSEGV", ours=False)
    rig.up()
    rig.pool.submit(0, 2002, batch("nothing", tmp_path, in_rounds=True), Needs())
    assert rig.done().ticket == 2002


def test_workers_have_what_their_batches_need_and_the_gpus_that_ray_gives_them(tmp_path: Path) -> None:
    """Two GPUs for two slots: one batch with both, then one with each; an idle worker gives its own back."""
    (tmp_path / "pool").mkdir()
    rig = Rig("ray", tmp_path / "pool", gpus=("4", "7"))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(ROOT))
            rig.start()
        seen = []
        for ticket, (slot, gpus) in enumerate([(0, 2), (1, 1), (0, 1), (1, 0), (1, 1)]):
            rig.pool.submit(slot, ticket, batch("gpus", tmp_path, gpus=()), Needs(1, gpus))
            events = [rig.next()]
            while not isinstance(events[-1], BatchEnded):
                events.append(rig.next())
            assert all(isinstance(event, SlotUp | BatchEnded) for event in events), events
            seen.append(set(events[-1].outcome.change.split(",")) - {""})
        assert [len(gpus) for gpus in seen] == [2, 1, 1, 0, 1]
        assert seen[0] == {"4", "7"} and all(gpus <= {"4", "7"} for gpus in seen)
    finally:
        rig.pool.stop()


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
    assert agent.communicate(timeout=DEADLINE_SECONDS) == ("WorkerDied\nPoolLost\nBatchEnded\n", "")


def test_plain_processes_take_over_from_a_ray_that_hangs_at_its_start(tmp_path: Path) -> None:
    """Whoever starts it is stopped, and says nothing more."""
    events: queue.SimpleQueue[PoolEvent] = queue.SimpleQueue()
    seconds = 2.0
    pool = Pool(tmp_path, 1, events.put, LocalRay(1, None, STAND, seconds), Processes(None, STAND))
    others = set(psutil.Process().children())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        pool.start()
    try:
        ours = set(psutil.Process().children()) - others
        [host] = [one for one in ours if "ray_host" in " ".join(one.cmdline())]
        host.suspend()
        assert events.get(timeout=DEADLINE_SECONDS) == SlotUp(0)
        assert events.get(timeout=DEADLINE_SECONDS) == PoolFellBack(f"Ray was not ready within {seconds:.0f} s")
        until(lambda: not host.is_running(), "the end of that Ray", DEADLINE_SECONDS)
        pool.submit(0, 1, batch("nothing", tmp_path.parent), Needs())
        done = events.get(timeout=DEADLINE_SECONDS)
        assert isinstance(done, BatchEnded) and done.outcome.peak == pool.worker_pid(0)
    finally:
        pool.stop()


def test_a_ray_that_asks_for_no_token_is_not_used(tmp_path: Path) -> None:
    agent = start_agent("ray", "open", tmp_path)
    said = f"Ray {version('ray')} obeys every user of this machine: it asks for no token\n"
    assert agent.communicate(timeout=DEADLINE_SECONDS) == (said, "")
    assert agent.returncode == 1
    assert not list(tmp_path.iterdir())
