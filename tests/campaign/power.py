"""The power goes, again and again, in the midst of work: the root is on an ext4 that is shut down without a flush."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from tests.campaign.left import count_left
from tests.campaign.line import Line
from tests.support import disks
from tests.support.farm import FarmHarness, arrays
from tests.support.simulated import SimulatedAgent

JOBS = 3  # under way at once
SHARDS = 6


class Power:
    """One farm, and the cuts it lives through."""

    def __init__(self, folder: Path, seed: int, line: Line) -> None:
        self.random = random.Random(seed)
        self.line = line
        self.disk = disks.Cuttable(folder / "root")  # 64 MiB of it stay free
        self.farm = FarmHarness(folder)
        self.agent: SimulatedAgent | None = None
        self._jobs: list[str] = []
        self._wanted: dict[str, dict[str, dict[str, bytes]]] = {}  # job → what each layer's arrays have to be
        self._watched: list[str] = []  # that were under way when the daemon was last started
        self._steps = 0

    def live(self) -> None:
        """Serve, work a while, and lose the power."""
        self.farm.start()
        states = {one.id: one.state for one in self.farm.jobs()}
        for job in self._jobs:
            if job not in states:
                self.line.broke("lost", f"{job} was submitted, and is gone")
        self._watched = [job for job in self._jobs if states.get(job) == "running"]
        while len(self._watched) < JOBS:
            self._watched.append(self.farm.submit(arrays(seed=len(self._jobs))))
            self._jobs.append(self._watched[-1])
            self._wanted[self._watched[-1]] = self.farm.serial(self._watched[-1])
        if self.agent is None:
            self.agent = self.farm.agent()
        self._work_a_while(self.agent)
        self.cut()

    def _work_a_while(self, agent: SimulatedAgent) -> None:
        """Some steps of it, which may end in the midst of a commit or a merge."""
        self._steps = self.random.randint(1, 12)
        agent.work(self._is_enough)

    def _is_enough(self) -> bool:
        self._steps -= 1
        return self._steps <= 0

    def cut(self) -> None:
        assert self.agent is not None
        self.disk.cut_beneath(self.farm, check=True)
        self.line.faults["power cut"] += 1
        for job in set(self._watched) & set(self.farm.stored()):
            try:
                self.farm.audit(job, self.agent)
            except AssertionError as error:
                self.line.broke("twice" if "twice" in str(error) else "lost", f"{job}: {error}")
            for layer, files in self.farm.merged(job).items():
                self.line.found["a layer that may be read is whole"] += 1
                if files != self._wanted[job][layer]:
                    self.line.broke("wrong", f"{job}/{layer} has a manifest, and not what it has to have")

    def end(self) -> None:
        """All of them come to their end, and are compared."""
        self.farm.start()
        assert self.agent is not None
        for job in self._jobs:
            try:
                self.agent.work(lambda job=job: self.farm.status(job).state == "complete")  # type: ignore[misc]
                self.line.compared += 1
                assert self.farm.merged(job) == self._wanted[job]
            except AssertionError as error:
                self.line.broke("wrong" if self.farm.status(job).state == "complete" else "wedged", f"{job}: {error}")
        self.agent.hang_up()
        self.farm.stop()
        count_left(self.farm, self.line)

    def close(self) -> None:
        self.farm.close()
        self.disk.close()


def run(folder: Path, seed: int, times: int, line: Line, say: Callable[[str], None]) -> None:
    """So many cuts of one farm's power."""
    one = Power(folder / "power", seed, line)
    try:
        for number in range(times):
            one.live()
            say(f"{number + 1:4} power cut")
        one.end()
    finally:
        one.close()
