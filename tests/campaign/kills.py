"""Kills of every process there is, two at once too, Ray's servers and helpers among them, while jobs of several kinds
run: every third one the same source again, one whose merge and one whose push fail for good."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from muster.coordinator.commands.submit import submit
from tests.campaign.line import Line
from tests.chaos import CODE, REST_SECONDS, WEIGHTS, WORDS, Chaos
from tests.support.farm import arrays

ODD = """
def odd(rows):
    return {"out": rows.astype("f8" if rows[0, 0] == 0 else "f4")}
"""
MORE_WORDS = {
    "raylet": ("raylet/raylet",),
    "gcs": ("gcs_server",),
    "Ray's helper": ("ray/dashboard/",),
    "pool's host": ("muster.agent.pool.ray_host",),
}
ODD_ENDS = {"incomplete", "halted"}


class Kills(Chaos):
    """One run; what is broken is counted, and no longer the end of it."""

    weights: ClassVar[dict[str, int]] = WEIGHTS | dict.fromkeys(MORE_WORDS, 2) | {"two at once": 4}

    def __init__(self, folder: Path, seed: int, kills: int, line: Line, say: Callable[[str], None]) -> None:
        super().__init__(folder, seed, kills, say)
        self.line = line
        self.odd: set[str] = set()
        self._files: list[Path] = []  # of the jobs that are to end well

    def _begin(self) -> None:
        super()._begin()
        self._submit_odd()

    def _submit_odd(self) -> None:
        """A job one of whose shards has outputs unlike the first ones, and one whose result cannot be written."""
        rows = arrays(1, 24, 8)
        rows["a"][::8] = 1.0
        rows["a"][16] = 0.0
        self.odd.add(self.farm.submit(rows, 8, ODD, kind="map", code="work.py:odd", name="push"))
        merge = self.farm.submit(arrays(1, 24, 8, seed=99), 8, name="merge")
        (self.farm.root.job(merge).result).mkdir(exist_ok=True)
        (self.farm.root.job(merge).result / "a").write_text("in the way")
        self.odd.add(merge)

    def _keep_busy(self) -> None:
        if not self._daemon_lives() or any(self.farm.status(job).state == "running" for job in self.jobs):
            return
        seed = len(self._files)
        if seed % 3 == 2:
            files = [self.random.choice(self._files)] * 2  # two of them, at once
        elif seed % 2:
            more: dict[str, Any] = {"kind": "map", "code": "work.py:half", "name": "map"}
            files = [self.farm.job_file(arrays(4, 160, 64, seed), 2, CODE, **more)]
        else:
            files = [self.farm.job_file(arrays(3, 96, 4096, seed), 4, name="cluster")]
        self._files.append(files[0])
        self.jobs += [submit(self.farm.root, file) for file in files]

    def _strikes(self) -> dict[str, Callable[[], bool]]:
        more = {kind: lambda words=words: self._kill_one(*words) for kind, words in MORE_WORDS.items()}
        return super()._strikes() | more | {"two at once": self._kill_two}

    def _kill_two(self) -> bool:
        """Whatever they are, one right after the other."""
        words = [*WORDS.values(), *MORE_WORDS.values()]
        first, second = self.random.sample(words, 2)
        return self._kill_one(*first) and self._kill_one(*second)

    # --- the end ---

    def _finish(self) -> None:
        self._revive()
        for job in [*self.jobs, *self.odd]:
            try:
                state = self.farm.wait(job, "complete", "incomplete", "halted", seconds=REST_SECONDS).state
            except AssertionError as error:
                self.line.broke("wedged", f"{job}: {error}")
                continue
            if job in self.odd:
                self._judge_odd(job, state)
            else:
                self._judge(job, state)
        self._count_what_is_left()

    def _judge_odd(self, job: str, state: str) -> None:
        if state not in ODD_ENDS:
            self.line.broke("wrong", f"{job} is {state}, and cannot be")

    def _judge(self, job: str, state: str) -> None:
        self.line.compared += 1
        if state != "complete":
            self.line.broke("lost", f"{job} is {state}: {self.farm.status(job).why}")
            return
        try:
            self.farm.check_result(job)
        except AssertionError:
            self.line.broke("wrong", f"{job} is not what a serial run gives")

    def _count_what_is_left(self) -> None:
        try:
            self._leave()
        except AssertionError as error:
            self.line.broke("leaked", str(error))
        for address in self.listeners:
            self.line.broke("leaked", f"listens on {address}")


def run(folder: Path, seed: int, times: int, line: Line, say: Callable[[str], None]) -> None:
    """So many faults in one life of a farm."""
    one = Kills(folder / "kills", seed, times, line, say)
    try:
        one.run()
    except AssertionError as error:
        line.broke("wedged", str(error))
    line.faults.update(one.done)
