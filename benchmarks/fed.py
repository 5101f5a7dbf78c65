"""A kernel fed over ssh, for comparison: per core one process and one `ssh cat` of its share of the files.

Each reads the next shard while it computes one, so that the cores and the connection are busy together.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from benchmarks.measure import CORES
from muster.agent.links.far_command import CIPHERS
from muster.jobs.contract.kind import Bench, Runner, Shard
from muster.jobs.kinds.cluster import Cluster
from tests.support.sshd import HOST, Sshd

AHEAD = 2  # shards in memory per process: one that is computed, one that comes


@dataclass(frozen=True)
class Feed:
    """What one process computes: whole files, cut as ours are."""

    ssh: tuple[str, ...]
    files: tuple[Path, ...]
    header_bytes: int
    rows: int  # of a file
    shard_rows: int
    values: int


class Fed:
    """A pool of such processes."""

    def __init__(
        self, server: Sshd, files: Sequence[Path], rows: int, shard_rows: int, values: int, make: Callable[[], Runner]
    ) -> None:
        ssh = ("ssh", "-F", str(server.ssh_config(name="fed_config")), "-c", CIPHERS[0], HOST)
        header = np.load(files[0], mmap_mode="r").offset
        self.feeds = [Feed(ssh, tuple(files[i::CORES]), header, rows, shard_rows, values) for i in range(CORES)]
        self.pool = ProcessPoolExecutor(CORES, initializer=open_kernel, initargs=(make,))
        self._run([Feed(ssh, (files[0],), header, rows, shard_rows, values)] * CORES)

    def rate(self) -> float:
        """Rows per second."""
        began = time.monotonic()
        return self._run(self.feeds) / (time.monotonic() - began)

    def _run(self, feeds: Sequence[Feed]) -> int:
        return sum(self.pool.map(compute, feeds))

    def processor_seconds(self) -> float:
        """Of the `ssh` processes that have ended so far."""
        return sum(self.pool.map(_of_children, [0.1] * CORES))


_runner: Any = None


def clustering(clusters: int) -> Runner:
    """The kernel of a job of kind `cluster`."""
    kind = Cluster()
    return kind.open(Bench(kind.Params(n_clusters=clusters), cpus=1, timeout=None, scratch=Path(os.devnull)))


def open_kernel(make: Callable[[], Runner]) -> None:
    """Once per process of a pool."""
    global _runner  # noqa: PLW0603
    _runner = make()


def kernel(rows: Any) -> Any:
    """Its outputs for these rows."""
    return _runner.run(Shard("bench", 0, 0, rows))


def compute(feed: Feed) -> int:
    """The rows that were fed and computed."""
    command = [*feed.ssh, "cat", *map(str, feed.files)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout is not None
    buffers = [np.empty((feed.shard_rows, feed.values), "<f4") for _ in range(AHEAD)]
    free: SimpleQueue[Any] = SimpleQueue()
    full: SimpleQueue[Any] = SimpleQueue()
    for buffer in buffers:
        free.put(buffer)
    reader = threading.Thread(target=_read, args=(feed, process.stdout, free, full))
    reader.start()
    done = 0
    while (item := full.get()) is not None:
        buffer, count = item
        kernel(buffer[:count])
        free.put(buffer)
        done += count
    reader.join()
    if process.wait() or done != feed.rows * len(feed.files):
        raise SystemExit(f"ssh ended with {process.returncode} after {done} rows")
    return done


def _read(feed: Feed, stream: Any, free: SimpleQueue[Any], full: SimpleQueue[Any]) -> None:
    header = bytearray(feed.header_bytes)
    try:
        for _ in feed.files:
            _fill(stream, memoryview(header))
            for first, end in _cuts(feed):
                buffer = free.get()
                _fill(stream, memoryview(buffer[: end - first]).cast("B"))
                full.put((buffer, end - first))
    finally:
        full.put(None)


def _cuts(feed: Feed) -> Iterator[tuple[int, int]]:
    return pairwise([*range(0, feed.rows, feed.shard_rows), feed.rows])


def _fill(stream: Any, target: memoryview) -> None:
    while target:
        count = stream.readinto(target)
        if not count:
            raise EOFError("ssh ended early")
        target = target[count:]


def _of_children(pause: float) -> float:
    time.sleep(pause)  # so that no process answers twice
    spent = os.times()
    return spent.children_user + spent.children_system
