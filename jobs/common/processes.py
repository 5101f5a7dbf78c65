"""Processes of this machine: which one was meant, its tree, its end. Whoever asks decides which of them may live."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

CLOCK_SECONDS = 2.0  # start times shift this much when the wall clock is set; a pid is not used again that soon
LOOK_SECONDS = 0.005


class ProcessId(msgspec.Struct, frozen=True):
    """One process for good: a pid alone is used again."""

    pid: int
    started: float  # seconds since the epoch

    def process(self) -> psutil.Process | None:
        """The process that was meant, if it is still alive."""
        with suppress(psutil.Error):
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started) < CLOCK_SECONDS and is_alive(process):
                return process
        return None


def identify(pid: int | None = None) -> ProcessId:
    """Which process has this pid now; without one, which we are."""
    process = psutil.Process(pid)
    return ProcessId(process.pid, process.create_time())


def is_alive(process: psutil.Process) -> bool:
    """Whether the process still runs. A zombie is dead, whenever its parent may come to see to it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def await_end(processes: Iterable[psutil.Process], seconds: float, look_seconds: float = LOOK_SECONDS) -> bool:
    """Wait until none of the processes is alive; whether that came in time."""
    deadline = time.monotonic() + seconds
    for process in processes:
        while is_alive(process):
            if time.monotonic() >= deadline:
                return False
            time.sleep(look_seconds)
    return True


def trees(roots: Iterable[int]) -> dict[int, list[int]]:
    """Each root and all its descendants, found in one look at all processes."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found = {root: [root] for root in roots}
    for tree in found.values():
        for pid in tree:  # grows while it is walked
            tree += children.get(pid, [])
    return found


def signal_group(pgid: int, number: signal.Signals) -> None:
    """Send a signal to a whole process group, should there be one."""
    with suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        os.killpg(pgid, number)


def kill(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL, with the whole group where one leads its own. Does not wait for them to be gone."""
    for process in processes:
        with suppress(OSError, psutil.Error):
            if os.getpgid(process.pid) == process.pid != os.getpgrp():
                signal_group(process.pid, signal.SIGKILL)
            process.kill()  # psutil looks at the start time first


def kill_tree(root: ProcessId) -> None:
    """SIGKILL a process and its descendants; stopped first, so that it starts no more of them meanwhile."""
    process = root.process()
    if process is not None:
        with suppress(psutil.Error):
            process.suspend()
            kill([process, *process.children(recursive=True)])


def _parents() -> Iterable[tuple[int, int]]:
    """Every process with its parent."""
    if not Path("/proc/self/stat").exists():
        for process in psutil.process_iter(["ppid"]):
            yield process.pid, process.info["ppid"] or 0
        return
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):
                stat = Path(f"/proc/{name}/stat").read_bytes()
                yield int(name), int(stat.rpartition(b")")[2].split()[1])
