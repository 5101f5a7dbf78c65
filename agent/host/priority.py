"""How processes behave towards others on this machine: stopping, going on, nice and ionice. Decides none of it."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

import psutil

from muster.jobs.common import processes

log = logging.getLogger("muster.pool")


def be_kind(pid: int, nice: int | None, ionice: str | None) -> None:
    """Set what a process and its descendants take of processors and disks, as far as the system lets us.

    Looks again until there is no new one: what is started meanwhile may have inherited what was before.
    """
    done: set[int] = set()
    while fresh := set(processes.trees([pid])[pid]) - done:
        for one in fresh:
            _set(one, nice, ionice)
        done |= fresh


def _set(pid: int, nice: int | None, ionice: str | None) -> None:
    if nice is not None:
        _renice(pid, nice)
    if ionice is not None and hasattr(psutil.Process, "ionice"):
        with suppress(psutil.Error, OSError):
            psutil.Process(pid).ionice(psutil.IOPRIO_CLASS_IDLE if ionice == "idle" else psutil.IOPRIO_CLASS_NONE)


def _renice(pid: int, nice: int) -> None:
    """Each of its threads has its own."""
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")] if Path("/proc/self/task").is_dir() else [pid]
        for thread in threads:
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, thread, nice)
    except PermissionError:
        log.warning("process %d keeps its priority: only root may raise one", pid)
    except OSError:
        return
