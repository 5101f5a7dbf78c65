"""How much memory a process tree takes of its own, and what it used of the processors. Looks; decides nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from muster.jobs.common import cgroups, processes

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


class TreeUsage(NamedTuple):
    """What one root process and all below it take."""

    nbytes: int  # of memory
    processor_seconds: float  # since they began, with those of their ended children that were waited for


def trees(roots: Iterable[int]) -> dict[int, TreeUsage]:
    """By root process. Pages of files, which the system can take back, do not count where it tells them apart."""
    return {
        root: TreeUsage(sum(map(_own_bytes, pids)), sum(map(_processor_seconds, pids)))
        for root, pids in processes.trees(roots).items()
    }


def total() -> int:
    """Bytes of memory this machine has, or as much of it as we are confined to."""
    there = int(psutil.virtual_memory().total)
    limit = cgroups.memory_limit()
    return there if limit is None else min(there, limit)


def of_unit(lent: int) -> int:
    """Bytes for all of an agent that lends so many to shards: the agent and its pool are beside them."""
    return lent + lent // 4 + (2 << 30)


def _processor_seconds(pid: int) -> float:
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS
    with suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return 0.0


def _own_bytes(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/statm").read_bytes().split()
        return (int(fields[1]) - int(fields[2])) * _PAGE
    with suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0
