"""How much memory a process tree takes of its own. Looks; decides nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def trees(roots: Iterable[int]) -> dict[int, int]:
    """Bytes by root process. Pages of files, which the system can take back, do not count where it tells them apart."""
    wanted = list(roots)
    if not wanted:
        return {}
    children = _children()
    return {root: sum(_own_bytes(pid) for pid in _tree(root, children)) for root in wanted}


def total() -> int:
    """Bytes of memory this machine, or the group of processes we are confined to, has."""
    limits = [psutil.virtual_memory().total]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            limits.append(int(Path(path).read_text()))
    return min(limits)


def _tree(root: int, children: dict[int, list[int]]) -> list[int]:
    found = [root]
    for pid in found:  # grows while it is walked
        found += children.get(pid, [])
    return found


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for pid, parent in _parents():
        found.setdefault(parent, []).append(pid)
    return found


def _parents() -> Iterable[tuple[int, int]]:
    if not (_PROC / "self" / "stat").exists():
        for process in psutil.process_iter(["ppid"]):
            yield process.pid, process.info["ppid"] or 0
        return
    for name in os.listdir(_PROC):
        if name.isdecimal():
            with suppress(OSError):
                stat = Path(f"/proc/{name}/stat").read_bytes()
                yield int(name), int(stat.rpartition(b")")[2].split()[1])


def _own_bytes(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/statm").read_bytes().split()
        return (int(fields[1]) - int(fields[2])) * _PAGE
    with suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0
