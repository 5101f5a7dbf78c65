"""What tests ask of processes by their number."""

from __future__ import annotations

from pathlib import Path

import psutil


def is_running(pid: int) -> bool:
    """Whether a process of that number runs. One that has ended and was not waited for does not, nor does a thread of
    another process, which may have the number of one that has ended."""
    try:
        return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def peak_bytes(pid: int) -> int:
    """The most memory that a process ever had."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024
