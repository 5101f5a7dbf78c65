"""What every benchmark shares: the last line, runs in turn, the machine it ran on. Measures nothing itself."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import psutil

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

CANNOT = 77  # exit code of a benchmark that lacks something here


def alternate(runs: int, **sides: Callable[[], float]) -> dict[str, list[float]]:
    """Each side's rates, run in turn so that a slow spell of the machine meets all of them."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(runs):
        for name, side in sides.items():
            rates[name].append(side())
            print(f"  run {number + 1}: {name} {rates[name][-1]:,.1f}", flush=True)
    return rates


def report(ours: float, peer: float | None, parts: dict[str, Any], cpu: float | None = None) -> None:
    """The last line of a benchmark: JSON, `ratio` so that more is better. Without a peer, `peer` and `ratio` are null.

    `cpu`: processor seconds of the daemon and the agents for one of what `ours` counts, where a benchmark takes them.
    """
    values: dict[str, Any] = {"ours": round(ours, 3), "peer": None, "ratio": None, "parts": parts}
    if peer is not None:
        values |= {"peer": round(peer, 3), "ratio": round(ours / peer, 3)}
    if cpu is not None:
        values["cpu"] = float(f"{cpu:.4g}")
    print(json.dumps(values), flush=True)


def add_no_peer(options: argparse.ArgumentParser) -> None:
    """`--no-peer`, in the same words for every benchmark that has it."""
    options.add_argument("--no-peer", action="store_true", help="ours only: `peer` and `ratio` are null")


class Cannot(SystemExit):
    """This benchmark cannot run here: `make bench` goes on, and says so."""

    def __init__(self, why: str) -> None:
        super().__init__(CANNOT)
        self.why = why


def give_up(why: str) -> NoReturn:
    print(f"cannot run here: {why}", flush=True)
    raise Cannot(why)


def tree_seconds(pid: int) -> float:
    """Processor time of a process, of all that live below it, and of all that were waited for there."""
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                spent = process.cpu_times()
                total += spent.user + spent.system + spent.children_user + spent.children_system
    return total


def memory_of(processes: Iterable[psutil.Process]) -> int:
    """Bytes (PSS) of all of them: what they share counts once."""
    total = 0
    for process in processes:
        with suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total


def machine() -> str:
    """One line on the machine, without its name."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{CORES} cores ({_processor()}), {memory:.0f} GiB, Python {platform.python_version()}, numpy {np.__version__}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
