"""Real runners: every way a user's function can end, and that nothing of it is left."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster.agent.core.reports import Reports
from muster.coordinator.protocol.control import Failure
from muster.jobs.contract.kind import RunnerLost, ShardFailure
from muster.jobs.contract.text_limits import EVIDENCE_CHARS, RUNNER_BYTES
from muster.jobs.user_code import reaper
from muster.jobs.user_code.runner import runner, spawner
from muster.jobs.user_code.sandbox import Sandbox, sweep
from tests.support.farm import until
from tests.support.processes import is_running

DEADLINE_SECONDS = 20.0
PYTHON = os.environ.get("MUSTER_TEST_RUNNER", sys.executable)  # another one, to test old versions
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)

Make = Callable[..., Sandbox]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """A sandbox for some source text; `f` is its function."""
    made: list[Sandbox] = []

    def make_one(source: str, file: str = "work.py", **options: object) -> Sandbox:
        path = tmp_path / f"code{len(made)}" / file
        path.parent.mkdir(parents=True)
        path.write_text(textwrap.dedent(source))
        sandbox = Sandbox(
            str(options.pop("python", PYTHON)),
            tmp_path / f"code{len(made)}",
            f"{file}:f",
            tmp_path / "scratch",
            **options,  # type: ignore[arg-type]
        )
        made.append(sandbox)
        return sandbox

    yield make_one
    for sandbox in made:
        sandbox.close()


def call(sandbox: Sandbox, timeout: float | None = DEADLINE_SECONDS, rows: np.ndarray = ROWS) -> dict[str, np.ndarray]:
    return sandbox.call(7, 28, rows, timeout)


def failure(sandbox: Sandbox, timeout: float | None = DEADLINE_SECONDS) -> ShardFailure:
    with pytest.raises(ShardFailure) as caught:
        call(sandbox, timeout)
    assert "\n" not in caught.value.message
    assert len(caught.value.evidence) <= EVIDENCE_CHARS
    return caught.value


# --- what works -------------------------------------------------------------------------------------------


def test_array_is_called_out_and_dict_keeps_its_names_sorted(make: Make) -> None:
    assert call(make("def f(rows): return rows.sum(axis=1)"))["out"].tolist() == [3.0, 12.0, 21.0, 30.0]
    two = call(make("def f(rows): return {'b': rows[:, 0] > 3, 'a': [1, 2, 3, 4]}"))
    assert [(name, value.dtype.kind, value.shape) for name, value in two.items()] == [
        ("a", "i", (4,)),
        ("b", "b", (4,)),
    ]


@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8", "|u1", ">i8", "|b1", "<u2"])
def test_any_dtype_arrives_native_and_writable_and_comes_back(make: Make, dtype: str) -> None:
    sandbox = make(
        "import numpy as np\ndef f(rows):\n assert rows.dtype.isnative\n rows += np.ones((), rows.dtype)\n return rows"
    )
    rows = np.zeros((5, 2, 3), dtype)
    out = call(sandbox, rows=rows)["out"]
    assert (out == 1).all()
    assert out.shape == rows.shape
    assert not rows.any()


def test_empty_and_strided_and_large_arrays(make: Make) -> None:
    sandbox = make("def f(rows): return {'back': rows[::-1], 'none': rows[:, :0]}")
    for rows in (np.empty((3, 0)), ROWS[:, ::2], np.arange(1 << 20).reshape(-1, 8)):
        out = call(sandbox, rows=rows)
        assert np.array_equal(out["back"], rows[::-1])
        assert out["none"].shape == (len(rows), 0)


def test_args_and_facts_are_passed_by_name(make: Make) -> None:
    source = """
    import numpy as np
    def f(shard, scale, first_row=None): return np.full(len(shard), scale * first_row)
    """
    assert call(make(source, args={"scale": 2}))["out"].tolist() == [56] * 4
    assert call(make("def f(rows, *, shard): return [shard] * 4"))["out"].tolist() == [7] * 4


@pytest.mark.parametrize(
    "file", ["agent.py", "jobs.py", "coordinator.py", "runner.py", "json.py", "code.py", "random.py"]
)
def test_module_may_be_called_like_ours_or_pythons(make: Make, file: str) -> None:
    sandbox = make(f"def f(rows): return [__name__ == {file[:-3]!r}] * 4", file)
    assert call(sandbox)["out"].all()


def test_imports_beside_the_entry_and_within_a_package(make: Make, tmp_path: Path) -> None:
    sandbox = make("from .helper import g\nimport parts\ndef f(rows): return g(rows) * parts.TWO", "pkg/work.py")
    (tmp_path / "code0" / "pkg" / "__init__.py").touch()
    (tmp_path / "code0" / "pkg" / "helper.py").write_text("def g(rows): return rows")
    (tmp_path / "code0" / "parts.py").write_text("TWO = 2")
    assert np.array_equal(call(sandbox)["out"], ROWS * 2)


def test_nothing_of_ours_is_in_its_path_or_its_environment(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "somewhere")
    source = """
    import os, sys
    def f(rows):
        import code
        print(code.__file__, sys.path, "RAY_ADDRESS" in os.environ, os.environ["OMP_NUM_THREADS"], os.environ["MORE"])
        assert sys.stdin.read() == ""
        return rows
    """
    sandbox = make(source, threads=3, env={"MORE": "more"})
    call(sandbox)
    assert str(Path(runner.__file__).parent) not in sandbox.printed
    assert sandbox.printed.endswith("False 3 more\n")


def test_each_call_starts_in_an_empty_folder(make: Make, tmp_path: Path) -> None:
    source = """
    import os
    def f(rows):
        assert os.listdir() == []
        os.makedirs("a/b"); open("c", "w").close(); os.symlink("/", "root"); os.chdir("/")
        return rows
    """
    sandbox = make(source)
    call(sandbox)
    call(sandbox)
    sandbox.close()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_peak_is_of_the_call(make: Make) -> None:
    sandbox = make("import numpy as np\ndef f(rows):\n np.ones(int(rows[0]) << 17)\n return rows")
    call(sandbox, rows=np.array([200]))
    large = sandbox.peak
    call(sandbox, rows=np.array([0]))
    assert large > 200 << 20 > sandbox.peak > 5 << 20


def test_short_calls_that_share_a_look_never_see_the_peak_of_a_long_one(make: Make) -> None:
    sandbox = make("import numpy as np\ndef f(rows):\n np.ones(int(rows[0]) << 17)\n return rows")
    for _ in range(2):
        for _ in range(20):
            call(sandbox, rows=np.array([1]))
            assert 5 << 20 < sandbox.peak < 200 << 20
        call(sandbox, rows=np.array([200]))
        assert sandbox.peak > 200 << 20


def test_calls_open_no_files(make: Make) -> None:
    """Each costs as much as an empty shard; what has to be looked at is looked at now and then."""
    sandbox, opened = make("def f(rows): return rows"), []
    watching = [False]
    sys.addaudithook(lambda event, args: opened.append(args[0]) if watching[0] and event == "open" else None)
    call(sandbox)
    watching[0] = True
    for _ in range(500):
        call(sandbox)
    watching[0] = False
    assert len(opened) < 50, opened[:5]


OOM_SCORE = Path("/proc/self/oom_score_adj")


@pytest.mark.skipif(not OOM_SCORE.exists(), reason="no such score here")
def test_where_memory_runs_out_the_users_code_is_taken_first(make: Make) -> None:
    source = "def f(rows):\n return rows * 0 + int(open('/proc/self/oom_score_adj').read())"
    assert call(make(source), rows=np.array([1, 2]))["out"].tolist() == [1000, 1000]
    assert int(OOM_SCORE.read_text()) < 1000


@pytest.mark.skipif(not OOM_SCORE.exists(), reason="no such score here")
def test_so_are_the_commands_of_a_user(make: Make) -> None:
    sandbox = make("", program=Path(spawner.__file__))
    commands = [["/bin/grep", "-qx", "1000", str(OOM_SCORE)]]
    facts: dict[str, Any] = {
        "cwd": "/",
        "variables": {},
        "commands": commands,
        "first": 0,
        "timeout": None,
        "stop": True,
        "capture": None,
        "tries": 1,
    }
    assert sandbox.run(facts, None, DEADLINE_SECONDS).arrays["exit"].tolist() == [0]


def test_peak_counts_children(make: Make) -> None:
    source = """
    import subprocess, sys
    code = "import sys; kept = b'1' * (200 << 20); print(1, flush=True); sys.stdin.read()"
    def f(rows):
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdout.readline()
        return rows
    """
    sandbox = make(source)
    call(sandbox)
    assert sandbox.peak > 200 << 20


def test_runner_file_is_python_3_8() -> None:
    ast.parse(Path(runner.__file__).read_text(), feature_version=(3, 8))


# --- what fails, the runner living on ---------------------------------------------------------------------


def test_exception_shows_the_users_frames_alone(make: Make, tmp_path: Path) -> None:
    sandbox = make("import os\ndef g(): raise ValueError('no\\x1b luck\\nat all')\ndef f(rows):\n print('on'); g()")
    failed = failure(sandbox)
    pid = sandbox.pid
    assert (failed.code, failed.message) == ("exception", "ValueError: no? luck at all")
    assert failed.evidence.startswith('Traceback (most recent call last):\n  File "work.py", line 4, in f')
    assert failed.evidence.endswith("--- printed:\non")
    assert "runner.py" not in failed.evidence and "\x1b" not in failed.evidence
    assert failure(sandbox).code == "exception"
    assert sandbox.pid == pid


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("None", "is None"),
        ("rows[:3]", "shape (3, 3) for 4 rows"),
        ("1.5", "shape () for 4 rows"),
        ("['a'] * 4", "dtype <U1"),
        ("rows * 1j", "dtype complex64"),
        ("[object()] * 4", "dtype object"),
        ("[[1], [1, 2], [1], [1]]", "does not become an array"),
        ("(rows, rows)", "is a tuple"),
        ("{}", "empty dict"),
        ("{'../x': rows}", "'../x' is not allowed"),
        ("{3: rows}", "3 is not allowed"),
        ("{'x': rows, 'y': None}", "'y' is None"),
    ],
)
def test_wrong_output(make: Make, returned: str, text: str) -> None:
    failed = failure(make(f"def f(rows): return {returned}"))
    assert failed.code == "output"
    assert text in failed.message


def test_sys_exit_is_an_exit(make: Make) -> None:
    failed = failure(make("import sys\ndef f(rows): sys.exit(3)"))
    assert (failed.code, failed.message) == ("exit", "called sys.exit(3)")


def test_odd_exceptions_are_failures(make: Make) -> None:
    source = """
    class Odd(BaseException):
        def __str__(self): raise RuntimeError
    def f(rows): raise {0: Odd(), 1: KeyboardInterrupt(), 2: MemoryError("\\udc80")}[int(rows[0])]
    """
    sandbox = make(source)
    for i, name in enumerate(["Odd", "KeyboardInterrupt", "MemoryError"]):
        with pytest.raises(ShardFailure, match=name) as caught:
            call(sandbox, rows=np.array([i]))
        assert caught.value.message.encode() and caught.value.evidence.encode()


def test_printing_much_neither_blocks_nor_fills(make: Make) -> None:
    source = """
    import os
    def f(rows):
        print("first words")
        for _ in range(200): os.write(1, b"x" * (1 << 20))
        os.write(2, b"last words")
        return rows
    """
    sandbox = make(source)
    call(sandbox)
    assert sandbox.printed.startswith("first words") and sandbox.printed.endswith("last words")
    assert len(sandbox.printed) < 3 * RUNNER_BYTES
    assert f"{(200 << 20) + 22 - 2 * RUNNER_BYTES} bytes left out" in sandbox.printed


def test_the_traceback_of_who_printed_much_is_reported_whole(make: Make) -> None:
    failed = failure(make("def f(rows):\n print('word ' * 10_000)\n raise ValueError('no luck')"))
    reports = Reports()
    reports.fail(Failure("job", "layer", 0, 1, 1, failed.code, failed.message, failed.evidence, 0.0, 0))
    (told,) = reports.post().failures
    assert told.evidence.startswith('Traceback (most recent call last):\n  File "work.py", line 3, in f')
    assert "--- printed:\nword " in told.evidence and told.evidence.endswith("word ")


def test_closing_stdout_and_stderr_is_allowed(make: Make) -> None:
    source = """
    import os, sys
    def f(rows):
        sys.stdout.close(); sys.stderr.close(); os.closerange(1, 3)
        return rows
    """
    assert np.array_equal(call(make(source))["out"], ROWS)


def test_a_thread_left_printing_does_not_hold_the_next_call(make: Make) -> None:
    source = """
    import os, threading
    def chatter():
        while True: os.write(1, b"x" * 4096)
    def f(rows):
        threading.Thread(target=chatter, daemon=True).start()
        return rows
    """
    sandbox = make(source)
    for _ in range(3):
        call(sandbox)


def test_fork_that_comes_back_answers_once(make: Make) -> None:
    sandbox = make("import os\ndef f(rows):\n pid = os.fork()\n return rows + (1 if pid == 0 else 0)")
    for _ in range(3):
        assert np.array_equal(call(sandbox)["out"], ROWS)


# --- what kills the runner --------------------------------------------------------------------------------


def test_os_exit_is_an_exit_and_the_next_call_has_a_new_runner(make: Make) -> None:
    sandbox = make("import os\ndef f(rows):\n if rows[0]: print('so long'); os._exit(3)\n return rows")
    for _ in range(2):
        with pytest.raises(ShardFailure) as caught:
            call(sandbox, rows=np.array([1]))
        assert caught.value.code == "exit"
        assert caught.value.message == "the function ended the process with status 3: so long"
        assert call(sandbox, rows=np.array([0]))["out"].tolist() == [0]


def test_os_exit_0_is_no_success(make: Make) -> None:
    assert "status 0" in failure(make("import os\ndef f(rows): os._exit(0)")).message


def test_segfault_is_a_signal_and_says_where(make: Make) -> None:
    failed = failure(make("import ctypes\ndef f(rows):\n ctypes.string_at(0)"))
    assert (failed.code, failed.message) == ("signal", "the function died of SIGSEGV")
    assert 'File "work.py", line 3 in f' in failed.evidence


def test_hanging_is_a_timeout_and_says_where(make: Make) -> None:
    sandbox = make("import time\ndef f(rows):\n time.sleep(1000)")
    sandbox.start()
    pid = sandbox.pid
    failed = failure(sandbox, timeout=0.2)
    assert (failed.code, failed.message) == ("timeout", "the function took longer than 0.2 s")
    assert 'File "work.py", line 3 in f' in failed.evidence
    assert pid and not is_running(pid)


def test_not_reading_its_input_is_a_timeout_too(make: Make) -> None:
    sandbox = make("def f(rows): return rows")
    sandbox.start()
    assert sandbox.pid
    os.kill(sandbox.pid, signal.SIGSTOP)
    with pytest.raises(ShardFailure, match="longer"):
        call(sandbox, timeout=0.2, rows=np.zeros(1 << 20))


def test_while_its_agent_keeps_it_stopped_no_time_goes_by(make: Make, tmp_path: Path) -> None:
    begun, out = tmp_path / "begun", []
    sandbox = make(f"import time\ndef f(rows):\n open({str(begun)!r}, 'w').close()\n time.sleep(0.1)\n return rows")
    sandbox.start()
    caller = threading.Thread(target=lambda: out.append(call(sandbox, timeout=0.6)))
    caller.start()
    until(begun.exists, "the function to run")
    scratch = sandbox._scratch
    reaper.freeze(scratch)
    over = time.monotonic() + 1.0  # longer than its timeout
    until(lambda: time.monotonic() > over, "its timeout to be over")
    assert not out
    reaper.thaw(scratch)
    caller.join()
    assert out and not (scratch / reaper.FROZEN).exists()


def test_sigkill_from_outside_is_a_loss(make: Make, tmp_path: Path) -> None:
    sandbox = make(f"import time\ndef f(rows):\n open({str(tmp_path / 'runs')!r}, 'w').close()\n time.sleep(1000)")
    sandbox.start()
    pid = sandbox.pid
    assert pid

    def kill() -> None:
        until((tmp_path / "runs").exists, "the function to run")
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(RunnerLost):
        call(sandbox)
    killer.join()
    assert list((tmp_path / "scratch").glob("runner-*")) == []


def test_dead_between_calls_is_nobodys_fault(make: Make) -> None:
    sandbox = make("def f(rows): return rows")
    call(sandbox)
    first = sandbox.pid
    assert first
    os.kill(first, signal.SIGKILL)
    until(lambda: os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None, "its end")
    call(sandbox)
    assert sandbox.pid != first


def test_closing_our_pipes_is_a_failure(make: Make) -> None:
    failed = failure(make("import os\ndef f(rows):\n os.closerange(3, 100)\n return rows"))
    assert failed.code == "exit"


# --- starting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import nowhere\ndef f(rows): pass", "ModuleNotFoundError: No module named 'nowhere'"),
        ("def f(rows:\n", "SyntaxError: "),
        ("def g(rows): pass", "work.py has no function called 'f'"),
        ("f = 3", "work.py has no function called 'f'"),
        ("def f(rows, must): pass", "missing a required argument: 'must'"),
        ("raise SystemExit(2)", "called sys.exit(2)"),
        ("import os; os._exit(4)", "importing work.py:f ended the process with status 4"),
    ],
)
def test_code_that_cannot_start_is_an_exception(make: Make, source: str, message: str) -> None:
    sandbox = make(source)
    failed = failure(sandbox)
    assert failed.code == "exception"
    assert message in failed.message
    assert "importlib" not in failed.evidence and "runner.py" not in failed.evidence
    assert sandbox.pid is None


def test_missing_and_wrong_interpreters(make: Make, tmp_path: Path) -> None:
    failed = failure(make("", python=tmp_path / "none"))
    assert failed.code == "exception" and "No such file" in failed.message
    no_numpy = tmp_path / "python"
    no_numpy.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    no_numpy.chmod(0o755)
    failed = failure(make("", python=no_numpy))
    assert failed.code == "exception" and "No module named 'numpy'" in failed.message


# --- what is left -----------------------------------------------------------------------------------------

FORKER = """
import os, subprocess, sys, time
def f(rows):
    code = "import time; time.sleep(1000)"
    same = subprocess.Popen([sys.executable, "-c", code])
    apart = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, close_fds=False)
    return [same.pid, apart.pid] + [0] * (len(rows) - 2)
"""


def test_children_end_with_their_runner(make: Make) -> None:
    sandbox = make(FORKER)
    pids = call(sandbox)["out"][:2].tolist()
    assert all(map(is_running, pids))
    sandbox.close()
    until(lambda: not any(map(is_running, pids)), "their end")


def test_children_end_with_a_crash(make: Make) -> None:
    sandbox = make(FORKER.replace("    return", "    print(same.pid, apart.pid); os._exit(1)\n    return"))
    failed = failure(sandbox)
    pids = [int(pid) for pid in failed.evidence.split()[-2:]]
    until(lambda: not any(map(is_running, pids)), "their end")


PARENT = """
import sys, time
from pathlib import Path
import numpy as np
from muster.jobs.user_code.sandbox import Sandbox
sandbox = Sandbox(sys.executable, Path(sys.argv[1]), "work.py:f", Path(sys.argv[2]))
sandbox.call(0, 0, np.zeros(2), None)
"""


def parent_of(source: str, tmp_path: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """A process with a sandbox that runs `f`, killed once `f` is really running; and the scratch folder."""
    code, scratch, runs = tmp_path / "code", tmp_path / "scratch", tmp_path / "runs"
    code.mkdir()
    (code / "work.py").write_text(source.replace("RUNS", repr(str(runs))))
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(code), str(scratch)])
    until(runs.exists, "the function to run")
    parent.kill()
    parent.wait()
    return parent, scratch


@pytest.mark.parametrize("doing", ["time.sleep(1000)", "sum(range(10**13))"])
def test_parents_kill_9_leaves_no_runner(tmp_path: Path, doing: str) -> None:
    """Not even one whose function keeps the interpreter's lock."""
    source = f"import time\ndef f(rows):\n open(RUNS, 'w').close()\n {doing}\n"
    _, scratch = parent_of(source, tmp_path)
    [path] = scratch.glob("runner-*.json")
    until(lambda: not is_running(json.loads(path.read_bytes())["pid"]), "its end")
    assert sweep(scratch) == 0
    assert list(scratch.glob("runner-*.json")) == []


def test_sweep_kills_what_escaped_and_nothing_else(tmp_path: Path, make: Make) -> None:
    source = FORKER.replace("    return", "    open(RUNS, 'w').write(str(apart.pid)); time.sleep(1000)\n    return")
    _, scratch = parent_of(source, tmp_path)
    until(lambda: (tmp_path / "runs").read_text() != "", "the number of what escaped")
    escaped = int((tmp_path / "runs").read_text())
    assert is_running(escaped)
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
    (scratch / "runner-1.json").write_text(
        json.dumps({"pid": bystander.pid, "started": 1.0, "pgid": bystander.pid, "token": "other"})
    )
    (scratch / "runner-2.json").write_text("{torn")
    try:
        assert sweep(tmp_path) == 1
        assert not is_running(escaped)
        assert bystander.poll() is None
        assert list(scratch.glob("runner-*.json")) == []
    finally:
        bystander.kill()
        bystander.wait()


def test_sweep_kills_a_live_group_by_its_record(tmp_path: Path, make: Make) -> None:
    sandbox = make("def f(rows): return rows")
    call(sandbox)
    pid = sandbox.pid
    assert pid and json.loads((tmp_path / "scratch" / f"runner-{pid}.json").read_bytes())["pid"] == pid
    assert sweep(tmp_path / "scratch") == 1
    assert not is_running(pid)


def test_interrupted_parent_keeps_no_half_asked_runner(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = make("def f(rows): return rows")
    sandbox.start()
    first = sandbox.pid

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("muster.jobs.user_code.pipes.Pipes._wait", interrupted)
        call(sandbox)
    assert first and not is_running(first)
    assert np.array_equal(call(sandbox)["out"], ROWS)


def test_close_leaves_no_descriptor(make: Make) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for source in ("def f(rows): return rows", "import os\ndef f(rows): os._exit(1)", "1/0"):
        sandbox = make(source)
        try:
            call(sandbox)
        except ShardFailure:
            pass
        sandbox.close()
        sandbox.close()
    with pytest.raises(ShardFailure):
        call(make("", python="/nowhere/python"))
    assert before in (0, len(os.listdir("/proc/self/fd")))
