"""A session of calls on a farm of real processes: what `concurrent.futures` promises, by folder and over ssh, while
runners, drivers, agents and the daemon are killed."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import BrokenExecutor, CancelledError, as_completed, wait
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import muster
from muster.coordinator.api.calls import CallsOpened, OpenCalls
from muster.coordinator.api.requests import Problem
from muster.coordinator.client import Farm
from muster.coordinator.client.calls.errors import CallFailed, FarTraceback, NoAgentError, RemoteError
from muster.coordinator.client.calls.executor import Executor
from muster.coordinator.client.calls.joblib_backend import FarmBackend
from muster.coordinator.farm_root import calls_line
from muster.coordinator.protocol.values import Decoder
from muster.jobs.common import launch
from muster.jobs.common.errors import NoDaemonError, UsageError
from tests.support import sshd
from tests.support.farm import FarmHarness, command_line, running, until
from tests.support.without import environment_without

SECONDS = 60.0
FACTOR = 3


def times(number: Any, by: int = 2) -> Any:
    return number * by


def tripled(number: int) -> int:
    return times(number, FACTOR)


def halved(number: int) -> float:
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number / 2


def logged(number: int, folder: str, gate: str = "") -> int:
    """Leaves a file for each time that it runs; waits until `gate` exists."""
    import os
    import time
    import uuid

    with open(f"{folder}/{number}-{uuid.uuid4().hex}", "w") as file:  # noqa: PTH123
        file.write(str(os.getpid()))
    while gate and not os.path.exists(gate):  # noqa: PTH110
        time.sleep(0.01)
    return number


def dying(number: int) -> int:
    import os

    if number == 3:
        os.kill(os.getpid(), 11)
    return number


def leaving(number: int) -> int:
    import sys

    if number == 2:
        sys.exit("enough")
    return number


def summed(array: Any, start: int) -> tuple[float, bool, str]:
    return float(array[start:].sum()), bool(array.flags.writeable), type(array.base).__name__


def nested(root: str) -> None:
    from muster import Farm

    Farm(root).executor()


class Own:
    """Of a module that no machine has."""

    def __init__(self, value: int) -> None:
        self.value = value


def owned(value: int) -> Own:
    return Own(value)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    with running(tmp_path_factory.mktemp("farm")) as farm:
        farm.join("one", "--cpus", "2")
        until(lambda: farm.is_live("one"), "the agent to join")
        yield farm


@pytest.fixture(scope="module")
def place(processes: FarmHarness) -> Farm:
    return Farm(processes.root.path)


@pytest.fixture(scope="module")
def text(place: Farm) -> Iterator[Executor]:
    with place.executor(name="text") as executor:
        yield executor


@pytest.fixture(scope="module")
def pickled(place: Farm) -> Iterator[Executor]:
    with place.executor(name="pickled", ship="pickle") as executor:
        yield executor


@pytest.fixture(params=["text", "pickled"])
def executor(request: pytest.FixtureRequest) -> Executor:
    found: Executor = request.getfixturevalue(request.param)
    return found


def ran(folder: Path) -> dict[int, int]:
    """How often each number ran."""
    found: dict[int, int] = {}
    for path in folder.iterdir():
        number = int(path.name.partition("-")[0])
        found[number] = found.get(number, 0) + 1
    return found


# --- what the standard library promises -----------------------------------------------------------------------


def test_calls_give_what_the_function_gives(text: Executor) -> None:
    future = text.submit(times, 3, by=4)
    assert future.result(SECONDS) == 12 and future.done() and not future.cancelled()
    assert list(text.map(tripled, range(500))) == [3 * number for number in range(500)]
    assert list(text.map(pow, [2, 3], [5, 2])) == [32, 9]
    assert list(text.map(times, range(10), chunksize=4)) == list(range(0, 20, 2))
    assert list(text.map(times, [])) == []
    assert text.slots == 2


def test_pickled_calls_may_be_of_closures_and_lambdas(pickled: Executor) -> None:
    factor = 7
    assert list(pickled.map(lambda number: number * factor, range(100))) == [7 * number for number in range(100)]
    found = pickled.submit(np.arange, 200_000).result(SECONDS)
    np.testing.assert_array_equal(found, np.arange(200_000))
    found[0] = 5  # it is the caller's own


def test_futures_are_the_standard_librarys_own(executor: Executor) -> None:
    made = [executor.submit(times, number) for number in range(20)]
    called: list[int] = []
    made[0].add_done_callback(lambda future: called.append(future.result()))
    assert sorted(future.result() for future in as_completed(made, SECONDS)) == list(range(0, 40, 2))
    assert wait(made, SECONDS).not_done == set()
    until(lambda: called == [0], "the callback")


def test_what_a_function_raises_is_raised_with_the_far_traceback(text: Executor, pickled: Executor) -> None:
    with pytest.raises(ValueError, match="3 is odd") as raised:
        pickled.submit(halved, 3).result(SECONDS)
    assert isinstance(raised.value.__cause__, FarTraceback) and "in halved" in str(raised.value.__cause__)
    with pytest.raises(RemoteError, match="ValueError: 3 is odd") as told:
        text.submit(halved, 3).result(SECONDS)
    assert told.value.type_name == "ValueError" and told.value.machine == "one"
    assert isinstance(told.value.__cause__, FarTraceback) and "in halved" in str(told.value.__cause__)
    results = text.map(halved, [4, 3, 2])
    assert next(results) == 2.0
    with pytest.raises(RemoteError):
        next(results)


def test_the_report_says_how_long_calls_took_from_submit_to_done(processes: FarmHarness, place: Farm) -> None:
    def done() -> Any:
        (report,) = json.loads(processes.coordinator("report", job, "--json").stdout)["jobs"]
        return report["response"]["done"] or {"count": 0}

    with place.executor(name="measured") as executor:
        job = executor.job
        assert len(list(executor.map(times, range(100)))) == 100
        with pytest.raises(RemoteError):
            executor.submit(halved, 3).result(SECONDS)
        until(lambda: done()["count"] == 101, "an idle session to tell of its calls")
        executor.submit(time.sleep, 0.5).result(SECONDS)
    assert done()["count"] == 102 and done()["max"] >= 0.45
    assert "a call, submit to done: p50 " in processes.coordinator("report", job).stdout


def test_calls_that_have_not_begun_are_cancelled(place: Farm, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    (tmp_path / "ran").mkdir()
    with place.executor(name="cancels") as executor:
        made = [executor.submit(logged, number, str(tmp_path / "ran"), str(gate)) for number in range(30)]
        until(lambda: ran(tmp_path / "ran"), "a call to begin")
        assert made[-1].cancel() and not made[0].cancel()
        threading.Timer(0.2, gate.touch).start()
        executor.shutdown(cancel_futures=True)
    assert all(future.done() for future in made)
    done = [number for number, future in enumerate(made) if not future.cancelled()]
    assert 0 in done and 29 not in done and sorted(ran(tmp_path / "ran")) == done
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(times, 1)
    assert place.job(executor.job).status().state == "complete"


def test_a_map_that_takes_too_long_says_so_and_takes_no_more_than_its_buffer(text: Executor, tmp_path: Path) -> None:
    taken: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = text.map(times, numbers(), buffersize=5)
    assert len(taken) == 5 and next(results) == 0 and next(results) == 2
    assert len(taken) == 7
    assert list(results) == list(range(4, 200, 2))
    gate = tmp_path / "gate"
    with pytest.raises(futures.TimeoutError):
        list(text.map(logged, [1], [str(tmp_path)], [str(gate)], timeout=0.3))
    gate.touch()


def test_what_nobody_waits_for_any_more_is_withdrawn(place: Farm, tmp_path: Path) -> None:
    with place.executor(name="withdrawn") as executor:
        endless = [executor.submit(logged, number, str(tmp_path), "/nowhere/at/all") for number in range(4)]
        until(lambda: len(ran(tmp_path)) >= 2, "two calls to run")
        executor.withdraw(endless)
        assert executor.submit(times, 4).result(SECONDS) == 8
        for future in endless:
            with pytest.raises(CancelledError):
                future.result(SECONDS)


def test_nothing_of_a_call_is_kept_once_its_result_was_taken(place: Farm) -> None:
    with place.executor(ship="pickle", results="any") as executor:
        for result in executor.map(owned, range(10)):
            found = weakref.ref(result)
            del result
            gc.collect()
            assert found() is None
        argument = Own(3)
        found = weakref.ref(argument)
        executor.submit(getattr, argument, "value").result(SECONDS)
        del argument
        gc.collect()
        assert found() is None


# --- what travels ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writes", [False, True])
def test_large_arrays_go_up_once_and_are_mapped_read_only(
    processes: FarmHarness, executor: Executor, writes: bool
) -> None:
    array = np.ones(300_000)
    made = [executor.submit(summed, array, start) for start in range(40)]
    if writes:
        array[:] = 5  # what was submitted is what it was
    found = [future.result(SECONDS) for future in made]
    assert [one[0] for one in found] == [300_000.0 - start for start in range(40)]
    assert not any(one[1] for one in found)
    assert list(processes.root.job(executor.job).rounds.glob("*.blob")) != []


def test_what_cannot_travel_is_refused_at_submit_or_fails_its_call(text: Executor, pickled: Executor) -> None:
    import sqlite3

    connection = sqlite3.connect(":memory:")
    with pytest.raises(TypeError, match=r"sqlite3\.Connection"):
        pickled.submit(lambda: connection.execute("select 1"))
    with pytest.raises(UsageError, match="lambda"):
        text.submit(lambda: connection.execute("select 1"))
    with pytest.raises(TypeError, match="a Own cannot travel as text"):
        text.submit(times, Own(1))
    with pytest.raises(CallFailed, match="a generator, cannot travel") as failed:
        pickled.submit(lambda: (number for number in range(3))).result(SECONDS)
    assert failed.value.code == "output"
    with pytest.raises(CallFailed, match="a list_iterator, cannot travel"):
        text.submit(iter, [1]).result(SECONDS)
    assert text.submit(set, [1, 2]).result(SECONDS) == {1, 2}


def test_results_of_other_classes_are_opened_by_explicit_wish_alone(place: Farm, pickled: Executor) -> None:
    with pytest.raises(CallFailed, match=r"a Own, cannot travel") as failed:
        pickled.submit(owned, 3).result(SECONDS)
    assert failed.value.code == "output" and "results='any'" in failed.value.hint
    with place.executor(ship="pickle", results="any") as trusting:
        found = trusting.submit(owned, 3).result(SECONDS)
        assert isinstance(found, Own) and found.value == 3


def test_files_that_functions_import_go_along(place: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "helper_of_mine.py").write_text("def f(x):\n    return x + 1\n")
    monkeypatch.chdir(tmp_path)
    with place.executor(include=["helper_of_mine.py"]) as executor:
        assert executor.submit(helped, 4).result(SECONDS) == 5


def helped(number: int) -> Any:
    import importlib

    return importlib.import_module("helper_of_mine").f(number)


# --- machines ---------------------------------------------------------------------------------------------------


def test_no_machine_that_suits_is_an_error_that_says_what_each_lacks(place: Farm) -> None:
    with pytest.raises(NoAgentError, match=r"one: .*no-such-package"):
        place.executor(packages=["no-such-package"], wait_for_agents=0.5)


def test_a_machine_that_cannot_open_the_pickles_takes_no_part_and_says_why(
    processes: FarmHarness, place: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, spool = environment_without("cloudpickle", tmp_path / "environment"), tmp_path / "spool"
    join = ["join", str(processes.root.path), "--name", "bare", "--spool", str(spool), "--cpus", "1"]
    bare = processes.run([python, *launch.python("muster.agent.cli", *join)[1:]], "bare.out")
    until(lambda: processes.is_live("bare"), "the other agent to join")
    with place.executor(name="apart", ship="pickle") as executor:
        assert executor.slots == 2, "of one machine alone"
        assert list(executor.map(times, range(20))) == list(range(0, 40, 2))
        said = processes.coordinator("agents").stdout
        assert f"bare: takes nothing of {executor.job}: " in said and "cloudpickle" in said.partition("bare: takes")[2]
        processes.real["one"].terminate()
        processes.real["one"].wait(SECONDS)
        until(lambda: executor.slots == 0, "the machine that suits to be missed")
        waiting = executor.submit(times, 4)
        with pytest.raises(NoAgentError, match=r"bare: .*cloudpickle"):
            place.executor(ship="pickle", wait_for_agents=0.5)
        with place.executor() as text:
            assert text.submit(times, 3).result(SECONDS) == 6, "as text it takes part"
        processes.join("one", "--cpus", "2")
        assert waiting.result(SECONDS) == 8
    bare.terminate()
    bare.wait(SECONDS)
    monkeypatch.setattr(platform, "python_version_tuple", lambda: ("3", "9", "1"))
    with pytest.raises(NoAgentError, match=r"one: .*python==3\.9"):
        place.executor(ship="pickle", wait_for_agents=0.5)


def test_a_call_opens_no_session(processes: FarmHarness, pickled: Executor) -> None:
    with pytest.raises(RemoteError, match="UsageError: a call opens a session"):
        pickled.submit(nested, str(processes.root.path)).result(SECONDS)


# --- deaths -------------------------------------------------------------------------------------------------


def test_a_call_that_kills_its_process_fails_alone(executor: Executor) -> None:
    made = [executor.submit(dying, number) for number in range(12)]
    for number, future in enumerate(made):
        if number == 3:
            with pytest.raises(CallFailed) as failed:
                future.result(SECONDS)
            assert failed.value.code == "signal" and failed.value.machine == "one"
        else:
            assert future.result(SECONDS) == number


def test_a_call_that_leaves_its_process_fails_alone(text: Executor) -> None:
    made = [text.submit(leaving, number) for number in range(4)]
    with pytest.raises(CallFailed, match="enough"):
        made[2].result(SECONDS)
    assert [made[number].result(SECONDS) for number in (0, 1, 3)] == [0, 1, 3]


class Kills:
    """What is killed while calls run, and how it comes back."""

    def __init__(self, farm: FarmHarness, executor: Executor) -> None:
        self._farm, self._executor = farm, executor

    def runner(self) -> None:
        for pid in self._farm.processes("runner/runner.py"):
            os.kill(pid, signal.SIGKILL)

    def driver(self) -> None:
        for pid in self._farm.processes("drivers.calls", self._executor.job):
            os.kill(pid, signal.SIGKILL)

    def daemon(self) -> None:
        self._farm.restart()

    def agent(self) -> None:
        self._farm.real["one"].kill()
        self._farm.real["one"].wait(SECONDS)
        self._farm.join("one", "--cpus", "2")


@pytest.mark.parametrize("victim", ["runner", "driver", "daemon", "agent"])
def test_calls_of_whatever_was_killed_are_sent_again_and_delivered_once(
    processes: FarmHarness, place: Farm, tmp_path: Path, victim: str
) -> None:
    delivered: list[int] = []
    with place.executor(name=victim) as executor:
        made = [executor.submit(paused, number, str(tmp_path)) for number in range(60)]
        for future in made:
            future.add_done_callback(lambda one: delivered.append(one.result()))
        until(lambda: len(delivered) >= 8, "some calls to end")
        getattr(Kills(processes, executor), victim)()
        assert [future.result(SECONDS) for future in made] == list(range(60))
    assert sorted(delivered) == list(range(60))
    assert set(ran(tmp_path)) == set(range(60))
    until(lambda: processes.is_live("one"), "the agent to be back")


def test_a_session_in_which_calls_failed_goes_on_after_a_restart(processes: FarmHarness, place: Farm) -> None:
    with place.executor(name="hurt") as executor:
        with pytest.raises(CallFailed):
            executor.submit(dying, 3).result(SECONDS)
        until(lambda: processes.failures(executor.job), "its failure to be stored")
        processes.restart()
        assert executor.submit(times, 2).result(SECONDS) == 4
        assert processes.status(executor.job).state == "running"
    until(lambda: processes.is_live("one"), "the agent to be back")


def paused(number: int, folder: str) -> int:
    import time

    time.sleep(0.02)
    return logged(number, folder)


def test_a_session_that_a_person_cancels_is_broken(place: Farm, tmp_path: Path) -> None:
    executor = place.executor(name="ended")
    future = executor.submit(logged, 1, str(tmp_path), "/nowhere/at/all")
    until(lambda: ran(tmp_path), "the call to run")
    place.job(executor.job).cancel()
    with pytest.raises(BrokenExecutor, match="is cancelled"):
        future.result(SECONDS)
    with pytest.raises(BrokenExecutor):
        executor.submit(times, 1)
    executor.shutdown()


def test_a_client_that_was_away_for_long_goes_on_in_another_job(
    processes: FarmHarness, place: Farm, tmp_path: Path
) -> None:
    with place.executor(name="slept", linger=1.0) as executor:
        first = executor.job
        assert executor.submit(times, 1).result(SECONDS) == 2
        session = executor._session
        with session._changed:  # nothing of it moves, as in a laptop that sleeps
            assert session._line is not None
            session._line.close()
            until(lambda: processes.status(first).state == "complete", "the job to end without its client")
        assert executor.submit(times, 2).result(SECONDS) == 4
        assert executor.job != first


def test_a_session_has_one_client(processes: FarmHarness, place: Farm, text: Executor) -> None:
    assert text.submit(times, 1).result(SECONDS) == 2  # by its driver, which may have been killed just now
    line = calls_line.of_socket(calls_line.connect(processes.root, text.job))
    line.say(OpenCalls("another", []))
    said = line.hear(Decoder(CallsOpened | Problem))
    assert isinstance(said, Problem) and "has a client" in said.message
    line.close()
    assert text.submit(times, 5).result(SECONDS) == 10


def test_a_client_that_is_killed_ends_its_job(processes: FarmHarness, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from muster import Farm\n"
        "import sys, pathlib, time\n"
        "executor = Farm(pathlib.Path(sys.argv[1])).executor(name='gone', linger=1.0)\n"
        "executor.submit(time.sleep, 1000)\n"
        "print(executor.job, flush=True)\n"
        "time.sleep(1000)\n"
    )
    command = [sys.executable, str(script), str(processes.root.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        job = process.stdout.readline().strip()
        process.kill()
    until(lambda: processes.status(job).state == "complete", "its job to end")


def test_without_a_farm_nothing_is_opened(tmp_path: Path) -> None:
    with pytest.raises(NoDaemonError):
        Farm(tmp_path).executor()


# --- from elsewhere -----------------------------------------------------------------------------------------


def test_a_session_over_ssh_goes_on_where_its_line_is_cut(
    processes: FarmHarness, server: sshd.Sshd, tmp_path: Path
) -> None:
    config = server.ssh_config(name="config")
    far = Farm(f"{sshd.HOST}:{processes.root.path}", ssh_config=config, cache=tmp_path / "cache")
    array = np.ones(300_000)
    with far.executor() as executor:
        assert list(executor.map(times, range(100))) == list(range(0, 200, 2))
        made = [executor.submit(paused, number, str(tmp_path)) for number in range(30)]
        sums = [executor.submit(summed, array, start) for start in range(5)]
        cut = [pid for pid in psutil.pids() if {"session", executor.job} <= set(command_line(pid).split())]
        assert cut, "the far end of the line"
        for pid in cut:
            os.kill(pid, signal.SIGKILL)
        assert [future.result(SECONDS) for future in made] == list(range(30))
        assert [future.result(SECONDS)[0] for future in sums] == [300_000.0 - start for start in range(5)]
    until(lambda: processes.status(executor.job).state == "complete", "its job to end")


def test_an_interpreter_that_ends_waits_for_its_calls(processes: FarmHarness, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from muster import Farm\n"
        "import sys, pathlib\n"
        "def f(x):\n"
        "    import time\n"
        "    time.sleep(0.3)\n"
        "    return x\n"
        "executor = Farm(pathlib.Path(sys.argv[1])).executor(name='script')\n"
        "executor.submit(f, 'done').add_done_callback(lambda one: print(one.result(), flush=True))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), str(processes.root.path)], capture_output=True, text=True, timeout=SECONDS,
        check=True,
    )  # fmt: skip
    assert done.stdout == "done\n"
    until(lambda: processes.status("script.1").state == "complete", "its job to end")


# --- farm.map, joblib -----------------------------------------------------------------------------------------


def test_map_takes_any_iterable_of_objects(processes: FarmHarness, place: Farm) -> None:
    results = place.map(times, range(300), by=3, name="objects")
    assert list(results) == list(range(0, 900, 3))
    assert list(place.map(times, (text for text in ("a", "b")))) == ["aa", "bb"]
    until(lambda: processes.status("objects.1").state == "complete", "its job to end")
    blocks = place.map_blocks(times, np.arange(8.0), progress=False)
    np.testing.assert_array_equal(blocks.result(progress=False).array(), 2 * np.arange(8.0))


def test_joblib_runs_on_the_farm_with_errors_generators_and_nested_calls(place: Farm) -> None:
    from joblib import Parallel, delayed

    with muster.joblib(place) as executor:
        assert Parallel()(delayed(times)(number) for number in range(50)) == list(range(0, 100, 2))
        assert list(Parallel(return_as="generator")(delayed(times)(number) for number in range(20)))[-1] == 38
        assert Parallel(n_jobs=2)(delayed(nesting)(number) for number in range(3)) == [0, 2, 4]
        with pytest.raises(ValueError, match="1 is odd") as raised:
            Parallel()(delayed(halved)(number) for number in range(4))
        assert isinstance(raised.value.__cause__, FarTraceback)
        with pytest.raises(multiprocessing.TimeoutError):
            Parallel(timeout=0.3)(delayed(time.sleep)(100) for _ in range(4))
        assert Parallel()(delayed(times)(number) for number in range(4)) == [0, 2, 4, 6], "after an abort"
        assert executor.slots == 2
        with pytest.raises(ValueError, match="n_jobs == 0"):
            Parallel(n_jobs=0)(delayed(times)(number) for number in range(2))
        with pytest.raises(UsageError, match="initializer"):
            Parallel(initializer=print)(delayed(times)(number) for number in range(2))
        assert Parallel(n_jobs=1)(delayed(os.getpid)() for _ in range(2)) == [os.getpid()] * 2
        assert os.getpid() not in Parallel(backend="muster")(delayed(os.getpid)() for _ in range(2))


def test_an_abort_is_of_one_parallel_alone(place: Farm, tmp_path: Path) -> None:
    from joblib import Parallel, delayed

    ran_by, gates, never = tmp_path / "ran", [tmp_path / "early", tmp_path / "late"], "/nowhere/at/all"
    ran_by.mkdir()
    with muster.joblib(place):
        first = Parallel(return_as="generator", batch_size=1, pre_dispatch=4)
        results = first(delayed(logged)(number, str(ran_by), str(gates[number > 1])) for number in range(8))
        second = Parallel(return_as="generator", batch_size=1)
        other = second(delayed(logged)(100 + number, str(ran_by), never) for number in range(4))
        gates[0].touch()
        until(lambda: first.n_dispatched_tasks == 6, "calls that follow, while the other is under way")
        with pytest.warns(UserWarning, match="cancelled"):
            other.close()
        assert second.n_dispatched_tasks == 4 and not second._backend._begun, "all of its own is withdrawn"
        gates[1].touch()
        assert list(results) == list(range(8))
        assert not first._backend._begun, "what has ended is not kept"


def test_threads_within_a_job_of_joblib_are_processors_that_it_has(processes: FarmHarness, place: Farm) -> None:
    from joblib import Parallel, delayed, parallel_config

    threads = delayed(os.getenv)("OMP_NUM_THREADS")
    with muster.joblib(str(processes.root.path), inner_max_num_threads=2) as executor:
        assert executor.slots == 1 and Parallel()([threads]) == ["2"]
    with parallel_config("muster", farm=place, inner_max_num_threads=2):
        assert Parallel()([threads]) == ["2"]
    assert Parallel(backend=FarmBackend(place))([threads]) == ["1"]
    with pytest.raises(UsageError, match="as many threads as processors"):
        muster.joblib(place, inner_max_num_threads=2, resources={"cpus": 1}).__enter__()


def test_a_session_of_joblib_by_name_is_kept_until_it_ends(processes: FarmHarness, place: Farm) -> None:
    from joblib import Parallel, delayed, parallel_config

    backends = [FarmBackend(place, name="kept") for _ in range(3)]
    assert Parallel(backend=backends[0])(delayed(times)(number) for number in range(3)) == [0, 2, 4]
    job = backends[0].executor.job
    assert backends[1].executor.job == job
    with parallel_config(backends[1]):
        assert FarmBackend().executor.job == job, "which joblib uses now"
    place.job(job).cancel()
    until(lambda: not backends[2].executor.is_open or backends[2].executor.job != job, "another session")
    assert Parallel(backend=backends[2])(delayed(times)(number) for number in range(3)) == [0, 2, 4]


def nesting(number: int) -> int:
    from joblib import Parallel, delayed

    return sum(Parallel(n_jobs=2)(delayed(abs)(one) for one in [number, number]))


def test_a_grid_search_finds_what_it_finds_alone(place: Farm) -> None:
    from sklearn.datasets import load_iris
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    x, y = load_iris(return_X_y=True)
    grid = {"C": [0.1, 1, 10]}
    with muster.joblib(place):
        ours = GridSearchCV(SVC(), grid, n_jobs=-1).fit(x, y)
    alone = GridSearchCV(SVC(), grid).fit(x, y)
    np.testing.assert_array_equal(ours.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"])
    assert ours.best_params_ == alone.best_params_
