"""The parent's side of a runner: starting it, asking it, and telling how it died. Runs no user code in this process."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from muster.jobs.common import cgroups
from muster.jobs.contract.failure_codes import DataCode, ShardCode, shard_code
from muster.jobs.contract.kind import RunnerLost, ShardFailure
from muster.jobs.contract.text_limits import EVIDENCE_CHARS, LINE_CHARS
from muster.jobs.user_code.environments import variables
from muster.jobs.user_code.pipes import Array, Garbled, Gone, Late, Pipes, widen
from muster.jobs.user_code.reaper import FROZEN, TOKEN, kill_group, kill_marked, record, sweep
from muster.jobs.user_code.runner import runner

__all__ = ["Sandbox", "sweep"]

START_SECONDS = 600.0  # for the user's imports, which the timeout of a shard does not cover
END_SECONDS = 1.0  # for the user's atexit handlers
DEATH_SECONDS = 5.0
WHERE_SECONDS = 0.5  # for a hanging runner to print where it is
MARGIN = 200  # characters of the evidence, for headings and marks
CWD = "cwd"  # in the scratch folder, emptied before each call
THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
_NO_PROGRAM = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR)  # anything else is the machine's trouble
_PLAIN = {code: "?" for code in range(32) if chr(code) not in "\n\t"} | {127: "?"}


class Reply(NamedTuple):
    """What a runner answered."""

    header: dict[str, Any]
    arrays: dict[str, Array]


class CannotStart(ShardFailure):
    """There is no function to run: no interpreter, a bug in the user's file. No input is to blame."""


class Sandbox:
    """One runner for one function, started when first asked, and again after its death. For one thread."""

    def __init__(
        self,
        python: str,
        folder: Path,
        entry: str,
        scratch: Path,
        env: Mapping[str, str] | None = None,
        threads: int = 1,
        args: Mapping[str, Any] | None = None,
        model: Mapping[str, Any] | None = None,
        forms: Mapping[str, str] | None = None,
        program: Path | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`model`: the entry is a class; what `runner.Model` wants to know of it. `forms`: of outputs declared.
        `program`: another than the runner, which speaks as that does. `check`: called before each start."""
        self._python = python
        self._folder = folder.resolve()
        self._entry = entry
        self._scratch = scratch.resolve()
        self._token = secrets.token_hex(16)
        self._env = _environment(python, env or {}, threads, self._token)
        self._args = dict(args or {})
        self._model = dict(model) if model is not None else None
        self._forms = dict(forms or {})
        self._program = str(program or runner.__file__)
        self._check = check
        self._process: subprocess.Popen[bytes] | None = None
        self._pipes: Pipes | None = None
        self._lifeline = -1
        self._record: Path | None = None
        self._oom_kills = cgroups.OomKills()
        self.peak = 0  # bytes: of the runner and its descendants, during the last call
        self.printed = ""  # what the last call printed, its middle left out

    @property
    def pid(self) -> int | None:
        """The runner's, which is its group's too; None while there is none."""
        return self._process.pid if self._process else None

    def start(self, seconds: float = START_SECONDS) -> None:
        """A fresh runner with the function loaded. A ShardFailure says why there cannot be one."""
        self.close()
        self._check()
        self.peak = 0
        cwd = self._scratch / CWD
        cwd.mkdir(parents=True, exist_ok=True)
        self._spawn(cwd)
        opened: dict[str, Any] = {
            "folder": str(self._folder),
            "entry": self._entry,
            "args": self._args,
            "cwd": str(cwd),
        }
        if self._model is not None:
            opened["model"] = self._model
        if self._forms:
            opened["forms"] = self._forms
        try:
            self._ask({"open": opened}, {}, seconds, f"importing {self._entry}")
        except ShardFailure as failure:
            self.close()
            code: ShardCode | DataCode = "exception" if failure.code == "exit" else failure.code
            raise CannotStart(code, failure.message, failure.evidence) from None

    def call(self, number: int, first_row: int, rows: Array, timeout: float | None) -> dict[str, Array]:
        """The outputs for these rows, by name. ShardFailure: its own fault; RunnerLost: killed from outside."""
        return self.run({"shard": number, "first_row": first_row}, rows, timeout).arrays

    def run(self, facts: Mapping[str, Any], rows: Array | None, timeout: float | None) -> Reply:
        """The same with more that the function may ask for; without rows, `facts` says what is given instead."""
        if self._process is None or self._process.poll() is not None:
            self.start()
        self.peak = 0
        native = {} if rows is None else {"rows": np.ascontiguousarray(rows, dtype=rows.dtype.newbyteorder("="))}
        return self._ask({"run": facts}, native, timeout, "the function")

    def close(self) -> None:
        """End the runner and all it started. May be called again; a later call starts another."""
        if self._process is None or self._pipes is None:
            return
        self._pipes.finish()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self._put_down()
        shutil.rmtree(self._scratch / CWD, ignore_errors=True)

    def _spawn(self, cwd: Path) -> None:
        (commands_in, commands), (replies, replies_in), (printed, printed_in) = os.pipe(), os.pipe(), os.pipe()
        lifeline_in, lifeline = os.pipe()
        theirs = (commands_in, replies_in, lifeline_in)
        widen(commands, replies)
        try:
            self._process = subprocess.Popen(
                [self._python, self._program, *map(str, theirs)],
                stdin=subprocess.DEVNULL,
                stdout=printed_in,
                stderr=printed_in,
                cwd=cwd,
                env=self._env,
                pass_fds=theirs,
                start_new_session=True,
            )
        except OSError as error:
            _close(commands, replies, printed, lifeline)
            text = f"cannot start {self._python}: {error.strerror}"
            raise (CannotStart("exception", text) if error.errno in _NO_PROGRAM else RunnerLost(text)) from None
        finally:
            _close(*theirs, printed_in)
        self._lifeline = lifeline
        self._pipes = Pipes(commands, replies, printed, self._look, self._is_stopped)

    def _look(self) -> bool:
        """Whether the runner lives; its memory is noted, since nothing tells of it after a death."""
        assert self._process is not None
        self.peak = max(self.peak, runner.peak_of_tree(self._process.pid))
        return self._process.poll() is None

    def _is_stopped(self) -> bool:
        """Whether our agent has stopped it: somebody wants its processor for a while."""
        assert self._process is not None
        if not (self._scratch / FROZEN).exists():
            return False
        try:
            return Path(f"/proc/{self._process.pid}/stat").read_bytes().rpartition(b") ")[2][:1] == b"T"
        except OSError:
            return False

    def _ask(self, header: dict[str, Any], arrays: dict[str, Array], seconds: float | None, what: str) -> Reply:
        assert self._pipes is not None and self._process is not None
        self._pipes.forget()
        self._oom_kills.look()
        try:
            if self._record is None:
                self._record = record(self._scratch, self._process.pid, self._token)
            answer, outputs = self._pipes.ask(header, arrays, seconds)
        except Late:
            self._timed_out(f"{what} took longer than {seconds:g} s")
        except Gone:
            self._died(what)
        except Garbled as error:
            self._put_down()
            raise ShardFailure("output", f"{what} gave no valid reply: {error}", self.evidence("")) from None
        except BaseException:  # half a frame may be on its way: this runner is of no more use
            self._put_down()
            raise
        self.printed = self._pipes.printed.text()
        self.peak = max(self.peak, int(answer["peak"]))
        if "failure" in answer:
            code, message = shard_code(answer["failure"]), _one_line(answer["message"])
            raise ShardFailure(code, message, self.evidence(answer["trace"]))
        return Reply(answer, outputs)

    def _timed_out(self, message: str) -> NoReturn:
        assert self._process is not None and self._pipes is not None
        self._look()
        if self._process.poll() is None:
            self._process.send_signal(runner.WHERE_SIGNAL)
            self._pipes.drain_for(WHERE_SECONDS)
        self._put_down()
        raise ShardFailure("timeout", message, self.evidence(""))

    def _died(self, what: str) -> NoReturn:
        assert self._process is not None and self._pipes is not None
        try:
            status = self._process.wait(DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            self._put_down()
            raise ShardFailure("exit", f"{what} closed the runner's own pipes", self.evidence("")) from None
        self._pipes.drain()
        self._put_down()
        if status == -signal.SIGKILL:
            taken = self._oom_kills.said(self.peak)
            if taken and cgroups.memory_limit() is not None:
                raise ShardFailure("memory", f"{what}: {taken}", self.evidence(""))
            raise RunnerLost(f"{what}: {taken}" if taken else f"the process of {what} was killed from outside")
        if status < 0:
            raise ShardFailure("signal", f"{what} died of {signal_name(-status)}", self.evidence(""))
        last = next((line for line in reversed(self.printed.splitlines()) if line.strip()), "")
        said = f": {last.strip()}" if last and status else ""
        raise ShardFailure("exit", _one_line(f"{what} ended the process with status {status}{said}"), self.evidence(""))

    def _put_down(self) -> None:
        """Kill what is left of the runner, and forget it."""
        assert self._process is not None and self._pipes is not None
        kill_group(self._process.pid)
        with suppress(subprocess.TimeoutExpired):  # the kernel may hold it: a disk that does not answer
            self._process.wait(DEATH_SECONDS)
        kill_marked({self._token})
        self.printed = self._pipes.printed.text()
        self._pipes.close()
        _close(self._lifeline)
        if self._record:
            self._record.unlink(missing_ok=True)
        self._process = self._pipes = self._record = None

    def evidence(self, trace: str) -> str:
        """The traceback and what was printed, as far as a report has room. The user's files by their own names."""
        trace, printed = (text.replace(f"{self._folder}{os.sep}", "").strip("\n") for text in (trace, self.printed))
        printed = runner.clip(printed, EVIDENCE_CHARS - len(trace) - MARGIN)
        return _shown("\n".join(part for part in (trace, printed and f"--- printed:\n{printed}") if part))


def _environment(python: str, more: Mapping[str, str], threads: int, token: str) -> dict[str, str]:
    """The interpreter's, then the threads, then the job's own."""
    return variables(python) | dict.fromkeys(THREADS, str(threads)) | dict(more) | {TOKEN: token}


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a realtime signal
        return f"signal {number}"


def _shown(text: str) -> str:
    """Without what would steer a terminal, or not encode."""
    return text.encode(errors="replace").decode().translate(_PLAIN)


def _one_line(text: str) -> str:
    return _shown(" ".join(text.split()))[:LINE_CHARS]
