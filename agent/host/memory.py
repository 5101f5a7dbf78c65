"""How much memory a process tree takes of its own. Looks; decides nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from muster.jobs.common import cgroups, processes

_PAGE = os.sysconf("SC_PAGE_SIZE")


def trees(roots: Iterable[int]) -> dict[int, int]:
    """Bytes by root process. Pages of files, which the system can take back, do not count where it tells them apart."""
    return {root: sum(map(_own_bytes, pids)) for root, pids in processes.trees(roots).items()}


def total() -> int:
    """Bytes of memory this machine has, or as much of it as we are confined to."""
    there = int(psutil.virtual_memory().total)
    limit = cgroups.memory_limit()
    return there if limit is None else min(there, limit)


def of_unit(lent: int) -> int:
    """Bytes for all of an agent that lends so many to shards: the agent and its pool are beside them."""
    return lent + lent // 4 + (2 << 30)


def _own_bytes(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/statm").read_bytes().split()
        return (int(fields[1]) - int(fields[2])) * _PAGE
    with suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0
