"""The Ray of this machine: `ray start --head --block` as a child, its flags, why it ended. Knows nothing of workers.

Run as a program it is that child: Ray's own command, which ends with whoever started it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from muster.agent.pool import ray_environment
from muster.jobs.common import launch, processes

STORE_BYTES = 80 << 20  # Ray's least is 75 MB; only touched pages count, and batches and outcomes hardly touch it
SERVERS = ("gcs_server", "raylet")
LOOK_SECONDS = 0.05  # between two looks at Ray's servers while it starts
WATCH_SECONDS = 0.25  # and afterwards
LAST_LINES = 20  # of what it printed, for the log where it fails
DEVICES = "CUDA_VISIBLE_DEVICES"
STARTED = "Ray runtime started"  # what it prints once it may be joined


class RayHead:
    """One `ray start`. It lives as long as its standard input is open; `ended` is told once, on a thread of ours."""

    def __init__(self, temp: Path, cpus: int, gpus: Sequence[str], memory: int, ended: Callable[[str], None]) -> None:
        """To be called on the main thread. `gpus`: labels of those that Ray may give to workers."""
        self._ended = ended
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._servers: dict[str, psutil.Process] = {}  # by name, once they were seen
        self._started = threading.Event()
        self._lock = threading.Lock()
        self._end = ""
        self.address = _free_address()
        self._child = subprocess.Popen(
            launch.python("muster.agent.pool.ray_head", *_flags(temp, self.address, cpus, gpus, memory)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, DEVICES: ",".join(gpus)} if gpus else None,
        )  # fmt: skip
        threading.Thread(target=self._read, name="ray start", daemon=True).start()
        threading.Thread(target=self._watch, name="ray servers", daemon=True).start()

    def wait(self) -> bool:
        """Until it may be joined; False where it ended before."""
        self._started.wait()
        return not self._end

    def _read(self) -> None:
        """What it prints; its end is Ray's."""
        assert self._child.stdout is not None
        for raw in self._child.stdout:
            line = raw.decode(errors="replace").strip()
            self._lines.append(line)
            if STARTED in line:
                self._started.set()
        status = self._child.wait()
        self._tell(f"`ray start` ended with exit status {status}")

    def _watch(self) -> None:
        """Its servers: the first to die is the end of Ray, which `ray start` itself sees much later."""
        while not self._end:
            if len(self._servers) < len(SERVERS):
                self._look()
            dead = next((name for name, process in self._servers.items() if not processes.is_alive(process)), "")
            if dead:
                self._tell(f"Ray's {dead} died{'' if self._started.is_set() else ' while Ray started'}")
            time.sleep(WATCH_SECONDS if self._started.is_set() else LOOK_SECONDS)

    def _look(self) -> None:
        with suppress(psutil.Error):
            for process in psutil.Process(self._child.pid).children():
                with suppress(psutil.Error):
                    if process.name() in SERVERS:
                        self._servers.setdefault(process.name(), process)

    def _tell(self, why: str) -> None:
        with self._lock:
            if self._end:
                return
            self._end = why
        if not self._started.is_set():
            sys.stderr.write("".join(f"ray start: {line}\n" for line in self._lines if line))
        self._started.set()
        self._ended(why)


def _free_address() -> str:
    """One that nobody listens at. Should somebody until Ray does, `ray start` ends, and the next one takes another."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _flags(temp: Path, address: str, cpus: int, gpus: Sequence[str], memory: int) -> list[str]:
    return [
        "start",
        "--head",
        "--block",
        f"--port={address.rpartition(':')[2]}",
        "--dashboard-agent-listen-port=0",  # else the same of every Ray on this machine
        "--include-dashboard=false",
        "--include-log-monitor=false",
        "--no-monitor",
        "--disable-usage-stats",
        f"--num-cpus={cpus}",
        f"--num-gpus={len(gpus)}",
        *([f"--memory={memory}"] if memory else []),
        f"--object-store-memory={STORE_BYTES}",
        f"--temp-dir={ray_environment.rays(temp)}",
    ]


def main() -> None:
    """Ray's command, until the one who started it is gone: then this ends at once, and Ray's processes with it."""
    threading.Thread(target=_await_hangup, daemon=True).start()
    sys.modules["grpc"] = None  # type: ignore[assignment]  # where there is one, Ray would serve its clients on port 10001
    from ray.scripts import scripts

    sys.argv = ["ray", *sys.argv[1:]]
    scripts.main()  # type: ignore[no-untyped-call]


def _await_hangup() -> None:
    while os.read(sys.stdin.fileno(), 1):
        continue
    os.kill(os.getpid(), signal.SIGKILL)
