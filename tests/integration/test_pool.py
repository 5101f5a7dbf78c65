"""The pool with a real Ray: batches, deaths of every sort, and nothing left behind."""

from __future__ import annotations

import ipaddress
import os
import queue
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

from muster.agent.pool import authentication, cleanup, ray_environment
from muster.agent.pool.interface import BatchDone, PoolEvent, WorkerDied
from muster.agent.pool.ray_local import Pool
from tests import stranger
from tests.support.farm import until
from tests.support.processes import is_running
from tests.support.standin import batch

pytestmark = pytest.mark.ray
DEADLINE_SECONDS = 60.0
ROOT = Path(__file__).parents[2]


class Rig:
    """The shared pool and its events."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: queue.SimpleQueue[PoolEvent] = queue.SimpleQueue()
        self.log = folder.with_name(f"{folder.name}.log")
        self.pool = Pool(folder, 2, self.events.put, self.log, worker="tests.support.standin:Stand")

    def next(self) -> PoolEvent:
        return self.events.get(timeout=DEADLINE_SECONDS)

    def done(self) -> BatchDone:
        event = self.next()
        assert isinstance(event, BatchDone), event
        return event

    def died(self) -> WorkerDied:
        event = self.next()
        assert isinstance(event, WorkerDied), event
        return event

    def pid(self, slot: int) -> int:
        return until(lambda: self.pool.worker_pid(slot), "the worker to be there", DEADLINE_SECONDS)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = Rig(tmp_path_factory.mktemp("pool"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # workers look for the stand-in nowhere else
        rig.pool.start()
    yield rig
    tree = psutil.Process().children(recursive=True)
    rig.pool.stop()
    assert not [process for process in tree if is_running(process.pid)]
    assert not list(rig.folder.iterdir())


@pytest.fixture
def rig(shared: Rig) -> Rig:
    shared.pid(0)
    shared.pid(1)
    assert shared.events.empty()
    return shared


def test_batches_run_in_order_on_their_slot(rig: Rig, tmp_path: Path) -> None:
    tickets = {slot: [rig.pool.submit(slot, batch("nothing", tmp_path)) for _ in range(10)] for slot in (0, 1)}
    events = [rig.done() for _ in range(20)]
    for slot in (0, 1):
        assert [event.ticket for event in events if event.slot == slot] == tickets[slot]
        assert {event.outcome.peak for event in events if event.slot == slot} == {rig.pool.worker_pid(slot)}


def test_a_segfault_names_its_signal_and_the_batches(rig: Rig, tmp_path: Path) -> None:
    before = rig.pid(0)
    done = rig.pool.submit(0, batch("nothing", tmp_path))
    tickets = tuple(rig.pool.submit(0, batch(what, tmp_path)) for what in ("segfault", "second"))
    assert rig.done().ticket == done
    assert rig.died() == WorkerDied(0, tickets, "died of SIGSEGV", killed_by_us=False)
    assert not (tmp_path / "ran-second").exists()
    rig.pool.submit(0, batch("nothing", tmp_path))
    assert rig.done().outcome.peak == rig.pool.worker_pid(0) != before


def test_what_is_submitted_while_a_worker_starts_is_run(rig: Rig, tmp_path: Path) -> None:
    rig.pool.kill(0)
    assert rig.died() == WorkerDied(0, (), "killed by the agent", killed_by_us=True)
    tickets = [rig.pool.submit(0, batch("nothing", tmp_path)) for _ in range(3)]
    assert [rig.done().ticket for _ in range(3)] == tickets


def test_a_kill_from_outside_takes_the_runner_along(rig: Rig, tmp_path: Path) -> None:
    ticket = rig.pool.submit(1, batch("runner", tmp_path))
    until((tmp_path / "runner").exists, "the runner to be there", DEADLINE_SECONDS)
    runner = int((tmp_path / "runner").read_text())
    os.kill(rig.pid(1), signal.SIGKILL)
    death = rig.died()
    assert (death.slot, death.tickets, death.killed_by_us) == (1, (ticket,), False)
    assert "ended without a word" in death.reason
    until(lambda: not is_running(runner), "the end of the runner", DEADLINE_SECONDS)


def test_our_kill_takes_the_runner_along(rig: Rig, tmp_path: Path) -> None:
    tickets = (rig.pool.submit(1, batch("runner", tmp_path)), rig.pool.submit(1, batch("second", tmp_path)))
    until((tmp_path / "runner").exists, "the runner to be there", DEADLINE_SECONDS)
    runner = int((tmp_path / "runner").read_text())
    rig.pool.kill(1)
    assert rig.died() == WorkerDied(1, tickets, "killed by the agent", killed_by_us=True)
    until(lambda: not is_running(runner), "the end of the runner", DEADLINE_SECONDS)
    assert not (tmp_path / "ran-second").exists()


def test_the_death_of_an_idle_worker_is_noticed(rig: Rig) -> None:
    before = rig.pid(1)
    os.kill(before, signal.SIGKILL)
    assert rig.died().tickets == ()
    assert rig.pid(1) != before


def test_an_exception_of_the_bench_replaces_the_worker(rig: Rig, tmp_path: Path) -> None:
    before = rig.pid(0)
    tickets = (rig.pool.submit(0, batch("raise", tmp_path)), rig.pool.submit(0, batch("second", tmp_path)))
    assert rig.died() == WorkerDied(0, tickets, "ValueError: the bench broke", killed_by_us=False)
    assert not (tmp_path / "ran-second").exists()
    assert rig.pid(0) != before
    until(lambda: not is_running(before), "the end of the worker", DEADLINE_SECONDS)
    said = rig.log.read_text()
    assert "Traceback" in said and "and this is the second line" in said, "it went with Ray's folder"


def test_the_record_follows_the_workers(rig: Rig) -> None:
    rig.pool.kill(0)
    rig.died()
    pid = rig.pid(0)

    def recorded() -> bool:
        record = cleanup.read(rig.folder)
        return record is not None and pid in {mark.pid for mark in record.processes}

    until(recorded, "the worker to be in the record", DEADLINE_SECONDS)


def test_nothing_listens_beyond_loopback(rig: Rig) -> None:
    us = psutil.Process()
    listening = [
        connection.laddr.ip
        for process in [us, *us.children(recursive=True)]
        if is_running(process.pid)
        for connection in process.net_connections("inet")
        if connection.status in {psutil.CONN_LISTEN, psutil.CONN_NONE}
    ]
    assert len(listening) >= 4
    assert all(_is_loopback(ip) for ip in listening), listening


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
    "look": lambda: os.listdir(folder),
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
    temp = temp_of(rig)
    assert stat.S_IMODE(temp.stat().st_mode) == 0o700
    assert stat.S_IMODE((temp / "token").stat().st_mode) == 0o600
    assert (temp / "r" / "session_latest").is_dir()
    assert not list(temp.glob("session*"))


@stranger.as_root
def test_another_user_gets_nothing_of_a_pool(rig: Rig) -> None:
    temp = str(temp_of(rig))
    assert {line.rpartition(" ")[2] for line in stranger.run(BREAK_IN, temp).splitlines()} == {"denied"}
    assert {line.rpartition(" ")[2] for line in stranger.run(BREAK_IN, temp, uid=0).splitlines()} == {"done"}


def test_rays_sockets_fit_below_the_longest_folder_for_temporary_files(rig: Rig) -> None:
    temp = temp_of(rig)
    below = [len(str(path.relative_to(temp.parent))) for path in temp.rglob("*") if path.is_socket()]
    assert len(below) >= 3
    digits = len(str(os.getpid()))  # Ray puts it into the path, and it has up to seven
    assert ray_environment.TEMP_ROOT_LENGTH + 1 + max(below) + 7 - digits <= 103  # macOS's limit; Linux's is 107


def temp_of(rig: Rig) -> Path:
    record = cleanup.read(rig.folder)
    assert record is not None
    return Path(record.temp)


def _is_loopback(text: str) -> bool:
    ip = ipaddress.ip_address(text)
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool((mapped or ip).is_loopback)


def test_our_environment_is_put_back(rig: Rig) -> None:
    assert not [name for name in os.environ if name.startswith("RAY_") or name == "OMP_NUM_THREADS"]


def start_agent(what: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.agentlike", what, str(folder)]
    pipe = subprocess.PIPE
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def test_an_agent_prints_nothing_of_rays_and_keeps_its_workers_at_ctrl_c(tmp_path: Path) -> None:
    agent = start_agent("calm", tmp_path)
    until(lambda: (tmp_path / "ran-until-told").exists() or agent.poll() is not None, "a batch", DEADLINE_SECONDS)
    os.killpg(agent.pid, signal.SIGINT)
    (tmp_path / "go").touch()
    assert agent.communicate(timeout=DEADLINE_SECONDS) == ("WorkerDied\nBatchDone\n", "")
    assert agent.returncode == 0
    assert not (tmp_path / cleanup.RECORD).exists()


def test_a_killed_agent_leaves_nothing_after_a_sweep(tmp_path: Path) -> None:
    agent = start_agent("wait", tmp_path)
    until(lambda: (tmp_path / "runner").exists() or agent.poll() is not None, "the runner", DEADLINE_SECONDS)
    pids = [process.pid for process in psutil.Process(agent.pid).children(recursive=True)]
    pids.append(int((tmp_path / "runner").read_text()))
    record = cleanup.read(tmp_path)
    assert record is not None
    assert Path(record.temp).is_dir()
    agent.kill()
    agent.communicate(timeout=DEADLINE_SECONDS)
    assert cleanup.sweep(tmp_path)
    until(lambda: not any(map(is_running, pids)), "their end", DEADLINE_SECONDS)
    assert not list(cleanup.naming(Path(record.temp).name))
    assert not Path(record.temp).exists()
    assert cleanup.sweep(tmp_path) == []


def test_an_agent_that_crashes_takes_its_pool_along(tmp_path: Path) -> None:
    agent = start_agent("crash", tmp_path)
    _, errors = agent.communicate(timeout=DEADLINE_SECONDS)
    assert errors.startswith("Traceback")
    assert errors.endswith("RuntimeError: a bug of the agent\n")
    assert not (tmp_path / cleanup.RECORD).exists()


def test_a_dead_ray_is_said_and_started_again(tmp_path: Path) -> None:
    agent = start_agent("lose", tmp_path)
    until(lambda: (tmp_path / "ran-wait").exists() or agent.poll() is not None, "a batch", DEADLINE_SECONDS)
    for process in psutil.Process(agent.pid).children(recursive=True):
        if process.name() == "raylet":
            process.kill()
    assert agent.communicate(timeout=DEADLINE_SECONDS) == ("WorkerDied\nPoolLost\nBatchDone\n", "")


def test_workers_that_cannot_start_are_an_error_with_the_reason(tmp_path: Path) -> None:
    agent = start_agent("unborn", tmp_path)
    assert agent.communicate(timeout=DEADLINE_SECONDS) == ("workers do not start: RuntimeError: no bench here\n", "")
    assert agent.returncode == 1
    assert not list(tmp_path.iterdir())


def test_a_ray_that_asks_for_no_token_is_not_used(tmp_path: Path) -> None:
    agent = start_agent("open", tmp_path)
    said = f"Ray {version('ray')} obeys every user of this machine: it asks for no token\n"
    assert agent.communicate(timeout=DEADLINE_SECONDS) == (said, "")
    assert agent.returncode == 1
    assert not list(tmp_path.iterdir())
