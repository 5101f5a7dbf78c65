"""How a measured farm is served and waited for. Measures nothing itself."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from benchmarks.measure import CORES
from tests.farm import Farm, until

TIMING = {"heartbeat": 5.0, "lease": 60.0, "tick": 1.0}  # as served by default
ASK_SECONDS = 0.1  # each answer takes processor time from what is measured


def finish(farm: Farm, job: str) -> None:
    """Until the job is complete."""
    while farm.status(job).state == "running":
        time.sleep(ASK_SECONDS)
    farm.wait(job)


class Counted(ABC):
    """A farm with one agent by folder, and its rate at jobs of so many things with nothing to do."""

    def __init__(self, farm: Farm, count: int, warm: int) -> None:
        self.farm, self.count = farm, count
        farm.join("bench", "--cpus", str(CORES))
        until(lambda: farm.agent_status("bench"), "the agent to join", 60)
        self._run(warm)  # the pool is up once it has run

    def rate(self) -> float:
        began = time.monotonic()
        self._run(self.count)
        return self.count / (time.monotonic() - began)

    @abstractmethod
    def _run(self, count: int) -> None:
        """A job of so many, from submit to merged result."""
