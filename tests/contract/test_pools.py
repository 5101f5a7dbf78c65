"""What holds of every pool: batches, deaths of every sort, who may get at it, and nothing left behind."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from muster.agent.core.events import SlotGone, WorkerDied
from muster.agent.pool import cleanup
from muster.agent.pool.worker import SILENT_DEATH
from muster.jobs.common.processes import is_alive
from tests import stranger, traps
from tests.support.farm import until
from tests.support.pools import DEADLINE_SECONDS, Rig, cluster_for, is_loopback
from tests.support.processes import is_running

ROOT = Path(__file__).parents[2]
MARKS: dict[str, list[pytest.MarkDecorator]] = {
    "processes": [],
    "ray": [pytest.mark.ray],
    "cluster": [pytest.mark.ray, pytest.mark.root],
}
PARAMS = [pytest.param(kind, marks=MARKS[kind]) for kind in MARKS]


@pytest.fixture(scope="module", params=PARAMS)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    planted = traps.plant(tmp_path_factory.mktemp("here") / "planted")
    with cluster_for(request.param, tmp_path_factory.mktemp("cluster")) as cluster:
        rig = Rig(request.param, tmp_path_factory.mktemp("pool"), cluster=cluster)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(ROOT))  # workers look for the stand-in nowhere else
            patch.chdir(planted)
            rig.start()
            yield rig
            tree = rig.below()
            rig.pool.stop()
        assert not [process for process in tree if is_alive(process)]
        if cluster is not None:
            until(lambda: not cluster.nodes[0].workers(), "the end of the workers on its nodes", DEADLINE_SECONDS)
    assert not list(rig.folder.iterdir())
    assert traps.sprung(planted) == [], "modules of the folder that somebody stood in"


@pytest.fixture
def rig(shared: Rig) -> Iterator[Rig]:
    yield shared
    assert shared.events.empty()
    assert shared.pid(0) and shared.pid(1)


@pytest.fixture
def here(rig: Rig) -> Rig:
    """One whose workers are on this machine."""
    if rig.cluster is not None:
        pytest.skip("its workers are on other machines")
    return rig


def test_batches_run_in_order_on_their_slot(rig: Rig, tmp_path: Path) -> None:
    tickets = {slot: [rig.submit(slot, "nothing", tmp_path) for _ in range(10)] for slot in (0, 1)}
    events = [rig.done() for _ in range(20)]
    for slot in (0, 1):
        of_slot = [event for event in events if event.ticket in tickets[slot]]
        assert [event.ticket for event in of_slot] == tickets[slot]
        assert {event.outcome.peak for event in of_slot} == {rig.pid(slot)}


def test_a_segfault_names_its_signal_and_the_batches(rig: Rig, tmp_path: Path) -> None:
    before = rig.pid(0)
    done = rig.submit(0, "nothing", tmp_path)
    tickets = tuple(rig.submit(0, what, tmp_path) for what in ("segfault", "second"))
    assert rig.done().ticket == done
    reason = "died of SIGSEGV" if rig.cluster is None else SILENT_DEATH
    assert rig.died() == WorkerDied(0, tickets, reason, ours=False)
    assert rig.up() == rig.is_up(0)
    assert not (tmp_path / "ran-second").exists()
    rig.submit(0, "nothing", tmp_path)
    assert rig.done().outcome.peak == rig.pid(0) != before


def test_what_was_submitted_before_a_death_was_heard_of_waits_for_the_next_worker(here: Rig, tmp_path: Path) -> None:
    rig = here
    rig.pool.kill(0)
    assert rig.died() == WorkerDied(0, (), "killed by the agent", ours=True)
    tickets = [rig.submit(0, "nothing", tmp_path) for _ in range(3)]
    assert rig.up().slot == 0, "a slot whose worker is not there runs nothing"
    assert [rig.done().ticket for _ in range(3)] == tickets


def test_what_is_submitted_to_a_worker_that_has_to_be_asked_for_is_given_back(rig: Rig, tmp_path: Path) -> None:
    """It may wait for room without end."""
    if rig.cluster is None:
        pytest.skip("another worker comes by itself")
    rig.pool.kill(0)
    assert rig.died() == WorkerDied(0, (), "killed by the agent", ours=True)
    ticket = rig.submit(0, "nothing", tmp_path)
    assert rig.next() == SlotGone(0, "its worker has to be asked for again", (ticket,))
    assert rig.up() == rig.is_up(0), "it was asked for before, and still is"


def runner_of(rig: Rig) -> str:
    """One that the pool has to end; on another machine nobody of ours does, and it ends as real ones do."""
    return "runner" if rig.cluster is None else "tied-runner"


def test_a_kill_from_outside_takes_the_runner_along(rig: Rig, tmp_path: Path) -> None:
    pid, ticket = rig.pid(1), rig.submit(1, runner_of(rig), tmp_path)
    until((tmp_path / "runner").exists, "the runner to be there", DEADLINE_SECONDS)
    runner = int((tmp_path / "runner").read_text())
    os.kill(pid, signal.SIGKILL)
    death = rig.died()
    assert (death.slot, death.tickets, death.ours) == (1, (ticket,), False)
    assert "ended without a word" in death.reason
    until(lambda: not is_running(runner), "the end of the runner", DEADLINE_SECONDS)
    rig.up()


def test_a_death_that_we_see_before_ray_has_its_own_reason(rig: Rig, tmp_path: Path) -> None:
    if rig.kind != "ray":
        pytest.skip("nobody else watches its workers")
    pid, ticket = rig.pid(1), rig.submit(1, "wait", tmp_path)
    until((tmp_path / "ran-wait").exists, "the batch to begin", DEADLINE_SECONDS)
    (raylet,) = (process for process in rig.below() if process.name() == "raylet")
    raylet.suspend()
    try:
        watched = watching()
        os.kill(pid, signal.SIGKILL)
        until(lambda: watching() == watched - 1, "that we see its end", DEADLINE_SECONDS)
        with pytest.raises(queue.Empty):  # Ray has not
            rig.events.get(timeout=1.0)
    finally:
        raylet.resume()
    assert rig.died() == WorkerDied(1, (ticket,), SILENT_DEATH, ours=False)
    rig.up()


def watching() -> int:
    """Of how many workers the end is waited for."""
    return sum(thread.name == "pool watch" for thread in threading.enumerate())


def test_our_kill_takes_the_runner_along(rig: Rig, tmp_path: Path) -> None:
    tickets = (rig.submit(1, runner_of(rig), tmp_path), rig.submit(1, "second", tmp_path))
    until((tmp_path / "runner").exists, "the runner to be there", DEADLINE_SECONDS)
    runner = int((tmp_path / "runner").read_text())
    rig.pool.kill(1)
    assert rig.died() == WorkerDied(1, tickets, "killed by the agent", ours=True)
    until(lambda: not is_running(runner), "the end of the runner", DEADLINE_SECONDS)
    assert not (tmp_path / "ran-second").exists()
    rig.up()


def test_a_runner_that_is_gone_takes_no_worker_along(rig: Rig, tmp_path: Path) -> None:
    before = rig.pid(1)
    ticket = rig.submit(1, "waits-for-runner", tmp_path)
    until((tmp_path / "runner").exists, "the runner to be there", DEADLINE_SECONDS)
    os.kill(int((tmp_path / "runner").read_text()), signal.SIGKILL)
    assert rig.done().ticket == ticket
    assert rig.pid(1) == before


def test_the_death_of_an_idle_worker_is_noticed(rig: Rig) -> None:
    before = rig.pid(1)
    os.kill(before, signal.SIGKILL)
    assert rig.died().tickets == ()
    assert rig.up().slot == 1 and rig.pid(1) != before


def test_an_exit_in_a_batch_is_the_workers_death(rig: Rig, tmp_path: Path) -> None:
    ticket = rig.submit(0, "exit", tmp_path)
    death = rig.died()
    assert (death.tickets, death.ours) == ((ticket,), False) and death.reason
    rig.up()


def test_an_exception_of_the_bench_replaces_the_worker(rig: Rig, tmp_path: Path) -> None:
    before = rig.pid(0)
    tickets = (rig.submit(0, "raise", tmp_path), rig.submit(0, "second", tmp_path))
    assert rig.died() == WorkerDied(0, tickets, "ValueError: the bench broke", ours=False)
    assert rig.up().slot == 0 and rig.pid(0) != before
    assert not (tmp_path / "ran-second").exists()
    until(lambda: not is_running(before), "the end of the worker", DEADLINE_SECONDS)
    if rig.cluster is None:  # else it is in the log of a worker of Ray's, on its node
        said = rig.log.read_text()
        assert "Traceback" in said and "and this is the second line" in said


def test_the_record_follows_the_workers(here: Rig) -> None:
    rig = here
    rig.pool.kill(0)
    rig.died()
    rig.up()
    pid = rig.pid(0)

    def recorded() -> bool:
        record = cleanup.read(rig.folder)
        return record is not None and pid in {mark.pid for mark in record.processes}

    until(recorded, "the worker to be in the record", DEADLINE_SECONDS)


def test_nothing_listens_beyond_loopback(here: Rig) -> None:
    """Drivers of a cluster are called by its nodes."""
    rig = here
    listening = rig.listening()
    assert all(is_loopback(ip) for ip in listening), listening
    assert (len(listening) >= 4) == (rig.kind == "ray")


def test_workers_compute_on_one_thread_of_an_empty_folder(rig: Rig) -> None:
    worker = psutil.Process(rig.pid(0))
    assert worker.environ()["OMP_NUM_THREADS"] == "1"
    if rig.cluster is None:  # there Ray says where
        assert worker.cwd() == str(cleanup.empty(rig.temp))


# What one may do who gets into a pool's folder: all of it would make him the agent's user.
BREAK_IN = """
folder = sys.argv[2]
tries = {
    "look": lambda: os.listdir(folder),
    "plant": lambda: os.close(os.open(folder + "/empty/jobs.py", os.O_CREAT)),
}
for what, act in tries.items():
    try:
        act()
        print(what, "done")
    except PermissionError:
        print(what, "denied")
"""


@stranger.as_root
def test_another_user_gets_nothing_of_a_pool(rig: Rig) -> None:
    assert {line.rpartition(" ")[2] for line in stranger.run(BREAK_IN, str(rig.temp)).splitlines()} == {"denied"}
    assert {line.rpartition(" ")[2] for line in stranger.run(BREAK_IN, str(rig.temp), uid=0).splitlines()} == {"done"}
    (cleanup.empty(rig.temp) / "jobs.py").unlink()


def test_our_environment_is_put_back(rig: Rig) -> None:
    assert not [name for name in os.environ if name.startswith("RAY_") or name == "OMP_NUM_THREADS"]


# --- with an agent around it ---

kinds = pytest.mark.parametrize("kind", PARAMS[:2])


def start_agent(kind: str, what: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.agentlike", kind, what, str(folder)]
    pipe = subprocess.PIPE
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


@kinds
def test_an_agent_prints_nothing_of_a_pools_and_keeps_its_workers_at_ctrl_c(kind: str, tmp_path: Path) -> None:
    agent = start_agent(kind, "calm", tmp_path)
    until(lambda: (tmp_path / "ran-until-told").exists() or agent.poll() is not None, "a batch", DEADLINE_SECONDS)
    os.killpg(agent.pid, signal.SIGINT)
    (tmp_path / "go").touch()
    assert agent.communicate(timeout=DEADLINE_SECONDS) == ("WorkerDied\nSlotUp\nBatchEnded\n", "")
    assert agent.returncode == 0
    assert not (tmp_path / cleanup.RECORD).exists()


@kinds
def test_a_killed_agent_leaves_nothing_after_a_sweep(kind: str, tmp_path: Path) -> None:
    agent = start_agent(kind, "wait", tmp_path)
    until(lambda: (tmp_path / "runner").exists() or agent.poll() is not None, "the runner", DEADLINE_SECONDS)
    left = psutil.Process(agent.pid).children(recursive=True)
    left.append(psutil.Process(int((tmp_path / "runner").read_text())))
    record = cleanup.read(tmp_path)
    assert record is not None
    assert Path(record.temp).is_dir()
    agent.kill()
    agent.communicate(timeout=DEADLINE_SECONDS)
    assert cleanup.sweep(tmp_path)
    until(lambda: not any(map(is_alive, left)), "their end", DEADLINE_SECONDS)
    assert not list(cleanup.naming(Path(record.temp).name))
    assert not Path(record.temp).exists()
    assert cleanup.sweep(tmp_path) == []


def test_plain_processes_end_with_a_killed_agent_whatever_they_run(tmp_path: Path) -> None:
    agent = start_agent("processes", "wait", tmp_path)
    until(lambda: (tmp_path / "runner").exists() or agent.poll() is not None, "the runner", DEADLINE_SECONDS)
    left = psutil.Process(agent.pid).children(recursive=True)
    assert len(left) == 2 and psutil.Process(int((tmp_path / "runner").read_text())) in left
    agent.kill()
    agent.communicate(timeout=DEADLINE_SECONDS)
    until(lambda: not any(map(is_alive, left)), "their end without a sweep", DEADLINE_SECONDS)
    cleanup.sweep(tmp_path)


@kinds
def test_an_agent_that_crashes_takes_its_pool_along(kind: str, tmp_path: Path) -> None:
    agent = start_agent(kind, "crash", tmp_path)
    _, errors = agent.communicate(timeout=DEADLINE_SECONDS)
    assert errors.startswith("Traceback")
    assert errors.endswith("RuntimeError: a bug of the agent\n")
    assert not (tmp_path / cleanup.RECORD).exists()


@kinds
def test_workers_that_cannot_start_are_an_error_with_the_reason(kind: str, tmp_path: Path) -> None:
    agent = start_agent(kind, "unborn", tmp_path)
    assert agent.communicate(timeout=DEADLINE_SECONDS) == ("workers do not start: RuntimeError: no bench here\n", "")
    assert agent.returncode == 1
    assert not list(tmp_path.iterdir())
