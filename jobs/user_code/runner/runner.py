"""The subprocess that runs a user's function: standard library and numpy, Python 3.8 or later. Imports nothing of ours.

Started by the sandbox as `python runner.py COMMANDS REPLIES LIFELINE`, three inherited pipes; stdout and stderr are
the user's. A frame is a length (8 bytes), that many bytes of JSON, then the bytes of the arrays which the JSON lists.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # before any other import: our folder has a code.py, and may come to have others
    _OURS = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != _OURS]

import faulthandler
import fcntl
import inspect
import json
import re
import resource
import shutil
import signal
import struct
import threading
import time
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Dict, NoReturn  # noqa: UP035

import numpy as np

# By its path: a user's module may have the same name
loading = ModuleType("loading")
loading.__file__ = str(Path(__file__).with_name("loading.py"))
SourceFileLoader("loading", loading.__file__).exec_module(loading)

LENGTH = struct.Struct("<Q")
HEADER_LIMIT = 1 << 20  # bytes of JSON in one frame
PIPE_BYTES = 1 << 20
READ_BYTES = 1 << 16  # at most, before it is known what they belong to
WRITE_BUFFERS = 64  # in one call
TRACE_LIMIT = 7_000  # characters
SHORT_SECONDS = 0.002
PEAK_SECONDS = 0.02
LINE_LIMIT = 400
FACTS = ("first_row", "shard", "out")  # what a function gets by the name of a parameter
LENGTHS = ":lengths"  # behind the name of a ragged output: how many values each row has
WHERE_SIGNAL = signal.SIGUSR1  # asks a hanging runner to print where it is

Arrays = Dict[str, Any]  # noqa: UP006 (3.8)   name → numpy array
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}", re.ASCII)
_WHERE = "the function returns an array with one entry per row, or a dict of such arrays by name"


class Refusal(Exception):
    """The user's code, or what it returned, is not what it must be; `code` is the failure's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


# --- frames -----------------------------------------------------------------------------------------------


def flat(array: Any) -> memoryview:
    """A contiguous array's own bytes, to read from or to fill."""
    return memoryview(array.reshape(-1).view(np.uint8))


def pack(header: dict[str, Any], arrays: Arrays) -> list[memoryview]:
    """A frame as buffers to be written one after the other."""
    listed = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    raw = json.dumps(dict(header, arrays=listed)).encode()
    return [memoryview(LENGTH.pack(len(raw)) + raw)] + [flat(array) for array in arrays.values() if array.size]


def unpack(raw: bytes) -> tuple[dict[str, Any], Arrays]:
    """A frame's JSON, and its arrays, still to be filled."""
    header = json.loads(raw)
    return header, {name: np.empty(shape, dtype) for name, dtype, shape in header["arrays"]}


def skip(buffers: list[memoryview], count: int) -> None:
    """Take the first `count` bytes off."""
    while buffers and count >= len(buffers[0]):
        count -= len(buffers.pop(0))
    if count:
        buffers[0] = buffers[0][count:]


def _write(fd: int, buffers: list[memoryview]) -> None:
    while buffers:
        skip(buffers, os.writev(fd, buffers[:WRITE_BUFFERS]))


class Inlet:
    """Frames as they come: a small one takes one read. `read` puts at least a byte into a buffer, or raises."""

    def __init__(self, read: Callable[[memoryview], int]) -> None:
        self._read = read
        self._room = memoryview(bytearray(READ_BYTES))
        self._kept = self._room[:0]  # read, and not yet taken

    def frame(self, limit: int) -> tuple[dict[str, Any], Arrays]:
        """The next one; a ValueError where its JSON is longer than `limit`, or none."""
        head = bytearray(LENGTH.size)
        self._fill(memoryview(head))
        size = LENGTH.unpack(head)[0]
        if size > limit:
            raise ValueError(f"a header of {size} bytes")
        raw = bytearray(size)
        self._fill(memoryview(raw))
        header, arrays = unpack(bytes(raw))
        for array in arrays.values():
            self._fill(flat(array))
        return header, arrays

    def _fill(self, view: memoryview) -> None:
        while len(view):
            if len(self._kept):
                count = min(len(view), len(self._kept))
                view[:count] = self._kept[:count]
                self._kept = self._kept[count:]
            elif len(view) >= READ_BYTES:
                count = self._read(view)
            else:
                count, self._kept = 0, self._room[: self._read(self._room)]
            view = view[count:]


def _reader(fd: int) -> Callable[[memoryview], int]:
    """Of a pipe that blocks; an EOFError at its end."""

    def read(view: memoryview) -> int:
        count = os.readv(fd, [view])
        if count == 0:
            raise EOFError
        return count

    return read


# --- the user's function ----------------------------------------------------------------------------------


class User:
    """The user's function, loaded, and the empty folder each of its calls starts in."""

    def __init__(
        self,
        folder: str,
        entry: str,
        args: dict[str, Any],
        cwd: str,
        model: dict[str, Any] | None = None,
        forms: dict[str, str] | None = None,
    ) -> None:
        self.cwd = cwd
        self._forms = forms or {}
        self._plain = model is not None
        self._enter()
        name = entry.rpartition(":")[2]
        try:
            _, function = loading.named(folder, entry, "class" if model else "function")
        except loading.NoFunctionError as error:
            raise Refusal("exception", str(error)) from None
        if model is not None:
            function, args = Model(_made(function, name, model, args), model["batch"], model["pad"]), {}
        self._function: Callable[..., Any] = function
        self._args = args
        self._wanted = _wanted(function, name, args)

    def run(self, rows: Any, facts: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
        """The outputs for some rows or items: what the arrays are, and they. `facts` has what the function may ask for
        by the name of a parameter."""
        self._enter()
        if rows is None:
            rows = _items(facts["given"])
        count = len(rows)
        asked = {name: facts[name] for name in self._wanted}
        writes = "out" in asked
        if writes:
            asked["out"] = _folder_for(rows, facts["out"])
        value = self._function(rows, **self._args, **asked)
        if self._plain:
            return {}, outputs_of(value, count)
        return formed({} if writes and value is None else value, count, self._forms, writes)

    def _enter(self) -> None:
        try:
            os.chdir(self.cwd)
        except FileNotFoundError:
            os.makedirs(self.cwd)  # noqa: PTH103
            os.chdir(self.cwd)
        for name in os.listdir():
            _remove(Path(self.cwd, name))


def _items(given: dict[str, Any]) -> list[Any]:
    """The lines of a table, or paths of files in a folder that becomes the current one."""
    if "lines" in given:
        lines: list[Any] = given["lines"]
        return lines
    os.chdir(given["cwd"])
    return [Path(name) for name in given["names"]]


def _folder_for(items: list[Any], folder: str) -> Path:
    """Where a function may write, with the folders that its items lie in."""
    out = Path(folder)
    for parent in {path.parent for path in items if isinstance(path, Path)}:
        (out / parent).mkdir(parents=True, exist_ok=True)
    return out


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    except OSError:
        pass


def _wanted(function: Callable[..., Any], name: str, args: dict[str, Any]) -> list[str]:
    """Which of FACTS the function has a parameter for; a Refusal where it cannot be called."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C: we find out by calling it
        return []
    named = list(signature.parameters)[1:]  # the first gets the rows, whatever it is called
    wanted: list[str] = [fact for fact in FACTS if fact in named and fact not in args]
    try:
        signature.bind(None, **args, **dict.fromkeys(wanted))
    except TypeError as error:
        raise Refusal("exception", f"{name}{signature} cannot be called as {name}(rows, **args): {error}") from None
    return wanted


# --- a model --------------------------------------------------------------------------------------------


def _made(cls: Callable[..., Any], name: str, model: dict[str, Any], args: dict[str, Any]) -> Callable[..., Any]:
    """The user's model, opened; a Refusal where that cannot be called."""
    try:
        inspect.signature(cls).bind(model["path"], model["device"], **args)
    except TypeError as error:
        raise Refusal("exception", f"{name} cannot be made as {name}(path, device, **args): {error}") from None
    except ValueError:  # written in C: we find out by calling it
        pass
    made = cls(model["path"], model["device"], **args)
    if not callable(made):
        raise Refusal("exception", f"{name} has no __call__(self, batch)")
    return made  # type: ignore[no-any-return]


class Model:
    """Takes rows `batch` at a time, from the first on. What the first batch gave, all later ones must give.

    `pad`: the last batch is filled up with zeros, so that every call sees as many rows."""

    def __init__(self, call: Callable[[Any], Any], batch: int, pad: bool) -> None:
        self._call = call
        self._batch = batch
        self._pad = pad
        self._fixed: dict[str, Any] = {}  # name → dtype and shape of one row

    def __call__(self, rows: Any, first_row: int) -> Arrays:
        """Every output for all of these rows."""
        whole: Arrays = {}
        for start in range(0, len(rows), self._batch):
            stop = min(start + self._batch, len(rows))
            for name, array in self._outputs(rows[start:stop], first_row + start).items():
                if start == 0:
                    whole[name] = np.empty((len(rows), *array.shape[1:]), array.dtype)
                whole[name][start:stop] = array
        return whole

    def _outputs(self, rows: Any, first_row: int) -> Arrays:
        """Those of one batch, as they were fixed by the first."""
        count, given = len(rows), rows
        if self._pad and count < self._batch:
            given = np.zeros((self._batch, *rows.shape[1:]), rows.dtype)
            given[:count] = rows
        where = f"rows {first_row} to {first_row + count - 1}"
        try:
            found = outputs_of(self._call(given), len(given))
        except Refusal as refusal:
            raise Refusal(refusal.code, f"{where}: {refusal}") from None
        fixed = {name: (array.dtype, array.shape[1:]) for name, array in found.items()}
        if not self._fixed:
            self._fixed = fixed
        if fixed != self._fixed:
            raise Refusal("output", f"{where}: gave {_told(fixed)}, the first batch {_told(self._fixed)}")
        return {name: array[:count] for name, array in found.items()}


def _told(fixed: dict[str, Any]) -> str:
    return ", ".join(f"{name} {dtype} of shape {shape}" for name, (dtype, shape) in fixed.items())


# --- what it returned -------------------------------------------------------------------------------------


def outputs_of(value: Any, rows: int) -> Arrays:
    """The outputs by name, sorted so that the order of a dict never shows; a Refusal says what is wrong."""
    given = value if isinstance(value, dict) else {"out": value}
    if not given:
        raise Refusal("output", f"returned an empty dict; {_WHERE}")
    _check_names(given)
    return {name: _as_rows(name, given[name], rows) for name in sorted(given)}


def _check_names(given: dict[Any, Any]) -> None:
    for name in given:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise Refusal("output", f"output name {name!r} is not allowed; use 1 to 64 letters, digits and `_`")


def formed(value: Any, rows: int, forms: dict[str, str], writes: bool) -> tuple[dict[str, Any], Arrays]:
    """The outputs in the forms they were declared in, or have: a tuple is values and offsets."""
    given = value if isinstance(value, dict) else {"out": value}
    apart = {name: one for name, one in given.items() if isinstance(one, tuple) or forms.get(name) in ("ragged", "sum")}
    plain = {name: one for name, one in given.items() if name not in apart}
    arrays = outputs_of(plain, rows) if plain or not (apart or writes) else {}
    _check_names(apart)
    ragged = sorted(name for name in apart if forms.get(name, "ragged") == "ragged")
    for name in sorted(apart):
        if name in ragged:
            arrays[name], arrays[name + LENGTHS] = _as_ragged(name, apart[name], rows)
        else:
            arrays[name] = _as_numbers(name, apart[name])
    return {"ragged": ragged, "writes": writes}, arrays


def _as_ragged(name: str, value: Any, rows: int) -> tuple[Any, Any]:
    """Values, and how many each row has: of values and offsets, or of an array for each row."""
    if isinstance(value, tuple):
        wanted = f"output {name!r} is a tuple; of values and offsets, with {rows + 1} offsets from 0 to their number"
        if len(value) != 2:
            raise Refusal("output", wanted)
        values, offsets = (_as_numbers(name, one) for one in value)
        good = values.ndim and offsets.dtype.kind in "iu" and offsets.shape == (rows + 1,)
        lengths = np.diff(offsets.astype(np.int64)) if good else None
        if lengths is None or offsets[0] != 0 or offsets[-1] != len(values) or (lengths < 0).any():
            raise Refusal("output", wanted)
        return values, lengths
    parts = [_as_numbers(name, one) for one in value] if isinstance(value, list) else []
    if len(parts) != rows or any(part.ndim == 0 for part in parts):
        raise Refusal("output", f"output {name!r} is ragged: an array for each of {rows} rows, or (values, offsets)")
    lengths = np.array([len(part) for part in parts], np.int64)
    filled = [part for part in parts if len(part)] or parts[:1]
    try:
        return np.concatenate(filled), lengths
    except ValueError as error:
        raise Refusal("output", f"output {name!r}: its rows do not go together: {_line(error)}") from None


def _as_rows(name: str, value: Any, rows: int) -> Any:
    array = _as_numbers(name, value)
    if array.ndim == 0 or len(array) != rows:
        raise Refusal(
            "output", f"output {name!r} has shape {array.shape} for {rows} rows; its first axis must be {rows}"
        )
    return array


def _as_numbers(name: str, value: Any) -> Any:
    """A contiguous array of numbers, in native byte order."""
    if value is None:
        raise Refusal("output", f"output {name!r} is None; {_WHERE}")
    if isinstance(value, (tuple, np.ma.MaskedArray)):
        raise Refusal("output", f"output {name!r} is a {type(value).__name__}; {_WHERE}")
    try:
        array = np.asarray(value)
    except Exception as error:
        raise Refusal(
            "output", f"output {name!r}, a {type(value).__name__}, does not become an array: {_line(error)}"
        ) from None
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise Refusal(
            "output",
            f"output {name!r} has dtype {array.dtype}; numbers only: bool, integers, float16, float32, float64",
        )
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")).reshape(array.shape)


# --- failures ---------------------------------------------------------------------------------------------


def failure_of(error: BaseException) -> dict[str, Any]:
    """A failed call as a frame's JSON."""
    if isinstance(error, Refusal):
        return {"failure": error.code, "message": str(error)[:LINE_LIMIT], "trace": ""}
    if isinstance(error, SystemExit):
        return {"failure": "exit", "message": f"called sys.exit({error.code!r})"[:LINE_LIMIT], "trace": _trace(error)}
    code = "memory" if isinstance(error, MemoryError) else "exception"
    return {"failure": code, "message": _line(error), "trace": _trace(error)}


def _line(error: BaseException) -> str:
    try:
        said = " ".join(str(error).split())
    except Exception:  # a user's __str__
        said = "(its text cannot be shown)"
    name = type(error).__name__
    return (f"{name}: {said}" if said else name)[:LINE_LIMIT]


def _trace(error: BaseException) -> str:
    """The traceback from the user's first frame on, its middle cut out where it is long."""
    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, frames))
    except Exception:
        text = _line(error)
    return clip(text, TRACE_LIMIT)


def clip(text: str, limit: int) -> str:
    """`text`, its middle cut out where it is longer than `limit`: ends say more than beginnings."""
    if len(text) <= limit:
        return text
    head, tail = limit // 4, limit // 4 * 3
    return f"{text[:head]}\n[... {len(text) - head - tail} characters left out ...]\n{text[-tail:]}"


def _is_ours(filename: str) -> bool:
    ours = filename in (__file__, loading.__file__)
    return ours or filename.startswith("<frozen importlib") or os.sep + "importlib" + os.sep in filename


# --- memory -----------------------------------------------------------------------------------------------


def peak_of_tree(pid: int) -> int:
    """The peaks of a process and of its living descendants, added up, in bytes; 0 where the system does not say."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if pid == os.getpid() else 0
    try:
        children = [int(child) for task in os.listdir(f"/proc/{pid}/task") for child in _children(pid, task)]
        return _peak(pid) + sum(map(peak_of_tree, children))
    except OSError:
        return 0


def _children(pid: int, task: str) -> list[str]:
    try:
        with open(f"/proc/{pid}/task/{task}/children") as file:  # noqa: PTH123
            return file.read().split()
    except OSError:  # that thread has ended
        return []


def _peak(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:  # noqa: PTH123
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:")), 0)


def _forget_peak() -> None:
    """Start this process's peak afresh, so that it is the shard's and not its predecessors'."""
    try:
        with open("/proc/self/clear_refs", "w") as file:  # noqa: PTH123
            file.write("5")
    except OSError:
        pass


class Peaks:
    """The peak of memory during each call, of this process and its descendants. Looking costs as much as a small call
    does, so short calls that follow one another share a look; whatever they took, it shows in the next one."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._began = 0.0
        self._looked = True  # since the peak was started afresh
        self._short = 0  # what was seen after a short call
        self._until = 0.0  # that this is told of others

    def begin(self) -> None:
        self._began = time.monotonic()
        if self._looked:
            _forget_peak()
            self._looked = False

    def end(self) -> int:
        now = time.monotonic()
        is_short = now < self._began + SHORT_SECONDS
        if is_short and now < self._until:
            return self._short
        peak = peak_of_tree(self._pid)
        self._looked = True
        if is_short:
            self._short, self._until = peak, now + PEAK_SECONDS
        return peak


# --- the process ------------------------------------------------------------------------------------------


def _die_with_parent(lifeline: int) -> None:
    """Kill our whole group once the other end of `lifeline` is closed, whatever the user's function is doing."""
    threading.Thread(target=_await_end, args=(lifeline,), daemon=True).start()
    if hasattr(fcntl, "F_SETSIG"):  # Linux: the kernel does it, even while a C function keeps the interpreter's lock
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _await_end(lifeline: int) -> None:
    try:
        os.read(lifeline, 1)
    except OSError:  # the user's code closed it: the end of the commands must do
        return
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _prepare(commands: int, replies: int, lifeline: int) -> None:
    for fd in (commands, replies, lifeline):
        os.set_inheritable(fd, False)
    os.register_at_fork(after_in_child=lambda: _close(commands, replies))
    _die_with_parent(lifeline)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _end_first()
    stderr = os.dup(2)  # the user may close 2
    faulthandler.enable(stderr)
    faulthandler.register(WHERE_SIGNAL, stderr, all_threads=True)
    for stream in (sys.stdout, sys.stderr):  # whatever was printed before a crash is evidence
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]


def _end_first() -> None:
    """Where memory runs out, the kernel takes the user's code, and neither our worker nor the agent above it."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
            file.write("1000")
    except OSError:  # no Linux, or no such file in this container
        pass


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # the user closed or replaced it
            pass


class Server:
    """Answers one command after the other: the first opens the user's function, each later one runs it."""

    def __init__(self, commands: int, replies: int) -> None:
        self._inlet = Inlet(_reader(commands))
        self._replies = replies
        self._pid = os.getpid()
        self._peaks = Peaks()
        self._user: User | None = None

    def step(self) -> None:
        """One command; an EOFError when there are no more. Nothing of it is kept while the next one is read."""
        header, arrays = self._inlet.frame(sys.maxsize)
        self._peaks.begin()
        made: Arrays = {}
        answer: dict[str, Any] = {}
        try:
            answer, made = self._act(header, arrays)
        except BaseException as error:
            answer = failure_of(error)
        if os.getpid() != self._pid:  # the user's function forked, and both came back
            os._exit(0)
        _flush()
        answer["peak"] = self._peaks.end()
        _write(self._replies, pack(answer, made))

    def _act(self, header: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        if self._user is None:
            self._user = User(**header["open"])
            return {}, {}
        return self._user.run(arrays.pop("rows", None), header["run"])


def main(argv: list[str]) -> NoReturn:
    commands, replies, lifeline = map(int, argv)
    _prepare(commands, replies, lifeline)
    server = Server(commands, replies)
    try:
        while True:
            server.step()
    except EOFError:
        sys.exit()


if __name__ == "__main__":
    main(sys.argv[1:])
