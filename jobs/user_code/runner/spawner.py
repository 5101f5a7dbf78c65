"""The subprocess that runs a job's commands, one after the other: standard library, Python 3.8 or later. Judges none.

Started by the sandbox as the runner is, with the same frames. It stays small, so that a process is started in
half a millisecond: no numpy, no fork of a large worker. Each command leads a process group, which ends with it.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # before any other import: our folder has a code.py, and may come to have others
    _OURS = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != _OURS]

import errno
import json
import resource
import signal
import struct
import threading
import time
from array import array
from typing import Any, NoReturn

LENGTH = struct.Struct("<Q")
GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL
WATCH_SECONDS = 0.1  # between two looks at how much a command has printed
KEPT_LIMIT = 256 << 20  # bytes kept of all commands of a shard
TOO_LONG = -signal.SIGXFSZ  # the exit code of one that printed too much, as if by `ulimit -f`
LATE = 124  # as timeout(1) has it
NOT_FOUND, NOT_STARTED = 127, 126  # as a shell has it
SHELL = "/bin/sh"
RSS_UNIT = 1 if sys.platform == "darwin" else 1024
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGUSR1)  # by Python or by us: commands have them as they were
_ORDER = "<" if sys.byteorder == "little" else ">"


class Prints:
    """What each command of a shard prints, on stdout and on stderr, up to `limit` bytes of either: files while it
    runs, so that nothing waits for a reader; then their bytes."""

    names = ("stdout", "stderr")

    def __init__(self, folder: str, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._fds: list[int] = []
        self.lengths = [array("q") for _ in self.names]
        self.values = [bytearray() for _ in self.names]

    def begin(self) -> list[int]:
        """New files for the command at hand: what an earlier one left running prints into none of them."""
        self._close()
        for name in self.names:
            path = f"{self._folder}/{name}"
            self._fds.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600))
            os.unlink(path)  # noqa: PTH108
        return self._fds

    @property
    def is_too_long(self) -> bool:
        return any(os.fstat(fd).st_size > self._room for fd in self._fds)

    def end(self) -> None:
        """Keep what the command at hand has printed."""
        room = self._room
        for fd, lengths, values in zip(self._fds, self.lengths, self.values):
            before = len(values)
            while piece := os.pread(fd, room - (len(values) - before), len(values) - before):
                values += piece
            lengths.append(len(values) - before)
        self._close()

    @property
    def _room(self) -> int:
        return max(0, min(self._limit, KEPT_LIMIT - sum(map(len, self.values))))

    def _close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


class Spawner:
    """Runs one command at a time."""

    def __init__(self) -> None:
        self.pid = 0  # of the command that runs, which is its group's; never one that was waited for
        self.peak = 0  # bytes: the most that any took
        self._late = False
        self._due: float | None = None  # when it is asked to end, and then made to
        self._prints: Prints | None = None
        signal.signal(signal.SIGALRM, self._alarm)

    def run(self, command: list[str], timeout: float | None, prints: Prints | None = None) -> int:
        """Its exit code, or less than 0 for a signal."""
        streams = prints.begin() if prints is not None else []
        try:
            pid = _spawn(command, streams)
        except OSError as error:
            said = f"{command[0][:200]}: {os.strerror(error.errno or 0)}\n"
            os.write(streams[1] if streams else 2, said.encode(errors="replace"))
            return NOT_FOUND if error.errno in (errno.ENOENT, errno.ENOTDIR) else NOT_STARTED
        self.pid, self._late, self._prints = pid, False, prints
        self._due = None if timeout is None else time.monotonic() + timeout
        steps = [*([timeout] if timeout is not None else []), *([WATCH_SECONDS] if prints is not None else [])]
        if steps:
            signal.setitimer(signal.ITIMER_REAL, max(min(steps), 1e-6), WATCH_SECONDS)
        if hasattr(os, "waitid"):  # its number stays its own until it was waited for
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            self._ended()
        _, status, used = os.wait4(pid, 0)
        if self.pid:
            self._ended()
        self.peak = max(self.peak, used.ru_maxrss * RSS_UNIT)
        if prints is not None and prints.is_too_long:
            return TOO_LONG
        return LATE if self._late else _code(status)

    def _ended(self) -> None:
        """No timer any more, and nothing of what it started and left behind."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.end()
        self.pid = 0

    def end(self) -> None:
        """Kill all of the group; its leader is not waited for yet, so its number is nobody else's."""
        _kill(self.pid, signal.SIGKILL)

    def _alarm(self, number: int, frame: Any) -> None:
        """Whether the command prints too much, or is late: then it is asked to end first, then made to."""
        if not self.pid:
            return
        if self._prints is not None and self._prints.is_too_long:
            self.end()
        elif self._due is not None and time.monotonic() >= self._due:
            _kill(self.pid, signal.SIGKILL if self._late else signal.SIGTERM)
            self._late, self._due = True, time.monotonic() + GRACE_SECONDS


def _spawn(command: list[str], streams: list[int]) -> int:
    """`streams`: its stdout and stderr; none: ours."""
    put = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(streams, 1)]
    try:
        return os.posix_spawnp(command[0], command, os.environ, file_actions=put, setpgroup=0, setsigdef=_IGNORED)
    except OSError as error:
        if error.errno != errno.ENOEXEC:  # a script that does not name its interpreter: the shell's
            raise
    return os.posix_spawn(SHELL, [SHELL, *command], os.environ, file_actions=put, setpgroup=0, setsigdef=_IGNORED)


def _kill(pgid: int, number: int) -> None:
    try:
        if pgid > 0:
            os.killpg(pgid, number)
    except OSError:  # nothing of it is left; or, says macOS, zombies alone
        pass


def _code(status: int) -> int:
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


# --- the process ------------------------------------------------------------------------------------------


def _read(fd: int, count: int) -> bytes:
    held = b""
    while len(held) < count:
        piece = os.read(fd, count - len(held))
        if not piece:
            sys.exit()
        held += piece
    return held


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _await_end(lifeline: int, spawner: Spawner) -> None:
    """The parent is gone: so is all that it started."""
    try:
        os.read(lifeline, 1)
    except OSError:
        return
    spawner.end()
    os.killpg(os.getpgrp(), signal.SIGKILL)


def run_all(spawner: Spawner, told: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    """Every command of a shard, up to the first that fails where that ends it: the reply's header, its arrays."""
    os.chdir(told["cwd"])
    os.environ.update(told["variables"])
    codes, seconds = array("i"), array("d")
    prints = Prints(told["prints"], told["capture"]) if told["capture"] is not None else None
    spawner.peak = 0
    for number, command in enumerate(told["commands"], told["first"]):
        os.environ["MUSTER_ITEM"] = str(number)
        begun = time.perf_counter()
        for _ in range(told["tries"]):
            code = spawner.run(command, told["timeout"], prints)
            if not code:
                break
        codes.append(code)
        seconds.append(time.perf_counter() - begun)
        if prints is not None:
            prints.end()
        if code and told["stop"]:
            break
    listed = [["exit", f"{_ORDER}i{codes.itemsize}", [len(codes)]], ["seconds", f"{_ORDER}f8", [len(seconds)]]]
    raw = [codes.tobytes(), seconds.tobytes()]
    if prints is not None:
        for name, lengths, values in zip(prints.names, prints.lengths, prints.values):
            listed += [[f"{name} lengths", f"{_ORDER}i8", [len(lengths)]], [name, "|u1", [len(values)]]]
            raw += [lengths.tobytes(), bytes(values)]
    return {"peak": spawner.peak, "arrays": listed}, raw


def _end_first() -> None:
    """Where memory runs out, the kernel takes the user's commands, and neither our worker nor the agent above it."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
            file.write("1000")
    except OSError:  # no Linux, or no such file in this container
        pass


def main(argv: list[str]) -> NoReturn:
    commands, replies, lifeline = map(int, argv)
    for fd in (commands, replies, lifeline):
        os.set_inheritable(fd, False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _end_first()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # asks a runner where it is
    spawner = Spawner()
    threading.Thread(target=_await_end, args=(lifeline, spawner), daemon=True).start()
    while True:
        told = json.loads(_read(commands, LENGTH.unpack(_read(commands, LENGTH.size))[0]))
        header, arrays = run_all(spawner, told["run"]) if "run" in told else ({"peak": 0, "arrays": []}, [])
        raw = json.dumps(header).encode()
        _write(replies, b"".join([LENGTH.pack(len(raw)), raw, *arrays]))


if __name__ == "__main__":
    main(sys.argv[1:])
