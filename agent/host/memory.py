"""How much memory a process tree takes of its own. Looks; decides nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from muster.jobs.common import processes

_PAGE = os.sysconf("SC_PAGE_SIZE")


def trees(roots: Iterable[int]) -> dict[int, int]:
    """Bytes by root process. Pages of files, which the system can take back, do not count where it tells them apart."""
    return {root: sum(map(_own_bytes, pids)) for root, pids in processes.trees(roots).items()}


def total() -> int:
    """Bytes of memory this machine, or the group of processes we are confined to, has."""
    limits = [psutil.virtual_memory().total]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            limits.append(int(Path(path).read_text()))
    return min(limits)


def _own_bytes(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/statm").read_bytes().split()
        return (int(fields[1]) - int(fields[2])) * _PAGE
    with suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0
