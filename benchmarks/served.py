"""How a measured farm is served and waited for. Measures nothing itself."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import CORES, tree_seconds
from tests.support.farm import FarmHarness, running, until

TIMING = {"heartbeat": 5.0, "lease": 60.0, "tick": 1.0}  # as served by default
ASK_SECONDS = 0.1  # each answer takes processor time from what is measured


@contextmanager
def served(folder: Path) -> Iterator[FarmHarness]:
    """A farm served as by default. Its agents have one kind of workers from their start: left to themselves they go
    over to Ray in the middle of what is measured, and a start of Ray takes three processor seconds."""
    with running(folder, **TIMING, pool=os.environ.get("MUSTER_POOL", "ray")) as farm:
        yield farm


def finish(farm: FarmHarness, job: str) -> None:
    """Until the job is complete."""
    while farm.status(job).state == "running":
        time.sleep(ASK_SECONDS)
    farm.wait(job)


def processor_seconds(farm: FarmHarness) -> float:
    """Processor time of the farm's daemon and of all its real agents, with all that live below them, so far."""
    assert farm.daemon is not None
    return sum(tree_seconds(process.pid) for process in [farm.daemon, *farm.real.values()])


class Counted(ABC):
    """A farm with one agent by folder, and its rate at jobs of so many things with nothing to do."""

    def __init__(self, farm: FarmHarness, count: int, warm: int) -> None:
        self.farm, self.count = farm, count
        self.cpu: list[float] = []  # of each run: processor seconds of daemon and agent for one thing
        farm.join("bench", "--cpus", str(CORES))
        until(lambda: farm.agent_status("bench"), "the agent to join", 60)
        self._run(warm)  # the pool is up once it has run

    def rate(self) -> float:
        before, began = processor_seconds(self.farm), time.monotonic()
        self._run(self.count)
        seconds = time.monotonic() - began
        self.cpu.append((processor_seconds(self.farm) - before) / self.count)
        return self.count / seconds

    @abstractmethod
    def _run(self, count: int) -> None:
        """A job of so many, from submit to merged result."""
