"""How each system of the arena is set up, as its own documentation has it: its processes, its program, the way back.

Every system has four slots: Muster, Ray and Dask as two machines with two each, GNU Parallel and joblib as one with
four. docs/arena.md says of each which page of its documentation this follows.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import numpy as np
import psutil

from muster import VERSION
from tests.arena import item
from tests.arena.programs import RETRIES, SLOTS, missing, path_of
from tests.support.farm import FarmHarness, until

ROOT = Path(__file__).parents[2]
MACHINES = ("left", "right")
START_SECONDS = 90.0
AGAIN = "started the program again"
WORK = f"""
import numpy as np
{Path(item.__file__).read_text()}

def blocks(rows):
    return np.stack([np.frombuffer(work(int(row[0])), "u1") for row in rows])
"""


class System(ABC):
    """One system in a folder of its own, and what a person does with it. The harness starts and ends its processes."""

    name: ClassVar[str]
    module: ClassVar[str]  # that must be there
    is_cluster: ClassVar[bool] = True  # of machines that may be lost one by one

    def __init__(self, folder: Path, items: int) -> None:
        self.folder, self.items = folder, items
        self.farm = FarmHarness(folder, lease=60.0, heartbeat=5.0, tick=1.0)  # as served by default
        self.farm.env[item.RECORD] = str(self.record)
        self.machines: list[subprocess.Popen[bytes]] = []
        self.head: subprocess.Popen[bytes] | None = None

    @classmethod
    def obstacle(cls) -> str:
        """Why there can be none here, or ""."""
        return "" if importlib.util.find_spec(cls.module) else f"{cls.module} is not installed"

    @classmethod
    def version(cls) -> str:
        return version(cls.module)

    @property
    def record(self) -> Path:
        return self.folder / "record"

    @property
    def results(self) -> Path:
        """Where results are written, which may be a disk of its own."""
        return self.folder / "results"

    @abstractmethod
    def start(self) -> None:
        """All its processes, until they could take work."""

    @abstractmethod
    def submit(self) -> None:
        """Give it the work, as a person does; and again, after it ended without success."""

    @abstractmethod
    def has_ended(self) -> bool:
        """Whether it says that there is no more to come."""

    @abstractmethod
    def has_succeeded(self) -> bool:
        """Whether it says so of all items, once it has ended."""

    @abstractmethod
    def come_back(self) -> str:
        """Do what its documentation says for when its head is gone; say what that was."""

    @abstractmethod
    def written(self) -> list[Path]:
        """Files of results that lie there, the work being under way."""

    @abstractmethod
    def blocks(self) -> dict[int, bytes]:
        """The result."""

    def objection(self) -> str:
        """What it has to say against its own result, asked as its documentation has it; most have no such command."""
        return ""

    def kill_machine(self) -> None:
        kill_tree(self.machines.pop())

    def kill_head(self) -> None:
        assert self.head is not None
        kill_tree(self.head)

    def close(self) -> None:
        self.farm.close()


class Muster(System):
    """A coordinator and two agents by folder; a `map` with an item a shard."""

    name, module = "Muster", "muster"

    def __init__(self, folder: Path, items: int) -> None:
        super().__init__(folder, items)
        self.job = ""

    @classmethod
    def version(cls) -> str:
        return VERSION

    @property
    def results(self) -> Path:
        return self.farm.root.path

    def start(self) -> None:
        self.farm.start()
        self.head = self.farm.daemon
        self.machines = [self.farm.join(name, "--cpus", str(SLOTS // len(MACHINES))) for name in MACHINES]
        until(lambda: all(self.farm.is_live(name) for name in MACHINES), "the agents to join", START_SECONDS)
        until(lambda: len(self.farm.processes("ray::RayWorker")) >= SLOTS, "the agents' workers", START_SECONDS)

    def submit(self) -> None:
        if self.job:
            self.farm.coordinator("retry", self.job)
        else:
            rows = np.arange(self.items, dtype="i4")[:, None]
            self.job = self.farm.submit({"items": rows}, 1, WORK, kind="map", code="work.py:blocks", name="arena")

    def has_ended(self) -> bool:
        return self.farm.status(self.job).state != "running"

    def has_succeeded(self) -> bool:
        return self.farm.status(self.job).state == "complete"

    def come_back(self) -> str:
        self.farm.start()
        self.head = self.farm.daemon
        return "started `coordinator serve` again"

    def written(self) -> list[Path]:
        return sorted(self.farm.root.job(self.job).bundles.glob("*.part"))

    def blocks(self) -> dict[int, bytes]:
        path = self.farm.root.job(self.job).result / "items" / "out.npy"
        return {number: block.tobytes() for number, block in enumerate(np.load(path))} if path.exists() else {}

    def objection(self) -> str:
        done = self.farm.coordinator("verify", self.job)
        return "" if done.returncode == 0 else (done.stderr or done.stdout).strip()[:300]


class Peer(System):
    """A program that a person starts, and starts again; it may ask a cluster, that has come up when `ready` is said."""

    ready: ClassVar[str]
    logs: ClassVar[tuple[str, ...]] = ("head.out", *(f"{name}.out" for name in MACHINES))

    def __init__(self, folder: Path, items: int) -> None:
        super().__init__(folder, items)
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.farm.env |= {"PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1", "PARALLEL_HOME": str(folder)}
        self.farm.cwd = folder
        self.program: subprocess.Popen[bytes] | None = None
        self.address = ""

    def command(self) -> Sequence[str]:
        """The person's program."""
        program = [sys.executable, "-m", "tests.arena.programs", self.name.lower()]
        return [*program, self.address, str(self.results), str(self.items)]

    def start(self) -> None:
        self.results.mkdir(exist_ok=True)

    def submit(self) -> None:
        self.program = self.farm.run(self.command(), "program.out")
        if not self.is_cluster:
            self.head = self.program

    def has_ended(self) -> bool:
        return self.program is not None and self.program.poll() is not None

    def has_succeeded(self) -> bool:
        return self.program is not None and self.program.returncode == 0

    def come_back(self) -> str:
        if self.is_cluster:
            self.close()
            self.start()
        self.submit()
        return f"started head and machines again, {AGAIN}" if self.is_cluster else AGAIN

    def written(self) -> list[Path]:
        return sorted(self.results.glob("*.bin"))

    def blocks(self) -> dict[int, bytes]:
        there = sorted(set(range(self.items)) - set(missing(self.results, self.items)))
        return {number: path_of(self.results, number).read_bytes() for number in there}

    def close(self) -> None:
        super().close()
        for process in [self.head, self.program, *self.machines]:
            if process is not None:
                process.wait(START_SECONDS)

    def _cluster(self, head: Sequence[str], machines: Sequence[Sequence[str]]) -> None:
        """A head and its machines, each a process with all that lives below it; one after the other, as two of Ray's
        may fail when they start on one machine at the same time."""
        self.head, *self.machines = [
            self._started(one, log) for one, log in zip([head, *machines], self.logs, strict=True)
        ]

    def _started(self, command: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        (self.folder / log).unlink(missing_ok=True)
        process = self.farm.run(command, log)
        until(lambda: self._said(log), f"{self.name}: {log}", START_SECONDS)
        return process

    def _said(self, log: str) -> bool:
        return self.ready in (self.folder / log).read_text(errors="replace")


class Ray(Peer):
    """A head without slots, as its documentation has it for clusters, and two machines by `ray start`."""

    name, module, ready = "Ray", "ray", "Ray runtime started"

    def start(self) -> None:
        super().start()
        token = self.folder / "token"
        token.write_text(secrets.token_hex(32))
        self.farm.env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        self.address = f"127.0.0.1:{free_port()}"
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        store = ["--object-store-memory", str(256 << 20), "--min-worker-port=0", "--max-worker-port=0"]
        head = ["--head", "--node-ip-address=127.0.0.1", f"--port={self.address.split(':')[1]}", "--num-cpus=0"]
        quiet = ["--include-dashboard=false", f"--temp-dir={self.folder}/ray"]
        machine = [f"--address={self.address}", "--node-ip-address=127.0.0.1", f"--num-cpus={SLOTS // len(MACHINES)}"]
        head, *machines = [
            [*ray, *of_node, *store, f"--dashboard-agent-listen-port={free_port()}"]
            for of_node in ([*head, *quiet], machine, machine)
        ]
        self._cluster(head, machines)


class Dask(Peer):
    """A scheduler and two `dask worker` of two processes each, which a nanny starts again."""

    name, module, ready = "Dask", "distributed", "egistered to:"

    def start(self) -> None:
        super().start()
        port = free_port()
        self.address = f"tcp://127.0.0.1:{port}"
        dask = [sys.executable, "-m", "dask"]
        head = [*dask, "scheduler", "--host=127.0.0.1", f"--port={port}", "--no-dashboard"]
        slots = [f"--nworkers={SLOTS // len(MACHINES)}", "--nthreads=1"]
        machine = [*dask, "worker", self.address, *slots, "--host=127.0.0.1", "--no-dashboard"]
        self._cluster(head, [[*machine, f"--name={name}"] for name in MACHINES])

    def _said(self, log: str) -> bool:
        text = (self.folder / log).read_text(errors="replace")
        return "Scheduler at:" in text if log == self.logs[0] else text.count(self.ready) >= SLOTS // len(MACHINES)


class Joblib(Peer):
    """loky's processes, below the program, which is the head; what was computed is in a cache on the disk."""

    name, module, is_cluster = "joblib", "joblib", False

    def written(self) -> list[Path]:
        return sorted(self.results.rglob("output.pkl"))


class Parallel(Peer):
    """GNU Parallel with its log of jobs; the head is the program itself."""

    name, module, is_cluster = "GNU Parallel", "parallel", False

    @classmethod
    def obstacle(cls) -> str:
        return "" if shutil.which("parallel") else "GNU Parallel is not installed"

    @classmethod
    def version(cls) -> str:
        said = subprocess.run(["parallel", "--version"], capture_output=True, text=True, check=True).stdout
        return said.split("\n", 1)[0].split()[-1]

    def command(self) -> Sequence[str]:
        log = ["--joblog", f"{self.results}/joblog", "--resume-failed", "--retries", str(RETRIES)]
        each = f"{sys.executable} -IS {item.__file__} {{}} > {self.results}/{{}}.part"
        kept = f"mv {self.results}/{{}}.part {self.results}/{{}}.bin"
        numbers = [str(number) for number in range(self.items)]
        return ["parallel", "--will-cite", "-j", str(SLOTS), *log, f"{each} && {kept}", ":::", *numbers]


SYSTEMS: tuple[type[System], ...] = (Muster, Ray, Dask, Parallel, Joblib)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """A process and all that lives below it, from the top, so that none starts another again."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(process.pid)
        for one in [root, *root.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
    process.wait(START_SECONDS)
