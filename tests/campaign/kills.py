"""Kills of every process there is, two at once too, Ray's servers and helpers among them, while jobs of every kind run:
every third one the source of an earlier one again, and beside them one whose merge and one whose push fail for good."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from muster.coordinator.api.requests import Done, Retry
from tests.campaign.jobs import WORD, Work, work
from tests.campaign.line import Line
from tests.chaos import AGENTS, Chaos
from tests.support.farm import POLL_SECONDS, arrays, until

ODD = """
def odd(rows):
    return {"out": rows.astype("f8" if rows[0, 0] == 0 else "f4")}
"""
ODD_ENDS = {"incomplete", "halted"}
KILLED_TOO_OFTEN = re.compile(r"ended \d+ times without getting on, the last time with -9|lost \d+ times while running")
AT_ONCE = 3  # jobs under way
TOLD_SECONDS = 30.0  # for word of an end
STILL_SECONDS = 240.0  # after which a job of which nothing changes is wedged: longer than any lease, pause or retry


class Kills(Chaos):
    """One run; what is broken is counted, and no longer the end of it."""

    pause_seconds: ClassVar[tuple[float, float]] = (0.0, 0.3)
    most_at_once: ClassVar[int] = 5

    def __init__(self, folder: Path, seed: int, kills: int, line: Line, say: Callable[[str], None]) -> None:
        super().__init__(folder, seed, kills, say)
        self.line = line
        self.works: list[Work] = []
        self.submitted: dict[str, Work] = {}  # jobs that are to end well
        self.odd: set[str] = set()

    def _begin(self) -> None:
        super()._begin()
        self._submit_odd()

    def _submit_odd(self) -> None:
        """A job one of whose shards has outputs unlike the first ones, and one whose result cannot be written."""
        rows = arrays(1, 24, 8)
        rows["a"][::8] = 1.0
        rows["a"][16] = 0.0
        self.odd.add(self.farm.submit(rows, 8, ODD, kind="map", code="work.py:odd", name="push", notify=WORD))
        merge = self.farm.submit(arrays(1, 24, 8, seed=99), 8, name="merge", notify=WORD)
        (self.farm.root.job(merge).result).mkdir(exist_ok=True)
        (self.farm.root.job(merge).result / "a").write_text("in the way")
        self.odd.add(merge)

    def _keep_busy(self) -> None:
        if not self._daemon_lives():
            return
        running = {one.id for one in self.farm.jobs() if one.state == "running"} - self.odd
        for _ in range(AT_ONCE - len(running)):
            one = self._next_work()
            self.submitted[one.submit(self.farm)] = one

    def _next_work(self) -> Work:
        """Every third job is an earlier one again: often the last one, which is under way still."""
        if len(self.submitted) % 3 == 2:
            return self.random.choice([self.works[-1], self.random.choice(self.works)])
        self.works.append(work(self.farm, len(self.works)))
        return self.works[-1]

    def _revive(self) -> None:
        """Nobody but us may have ended the daemon. An agent may end where its pool was lost again and again."""
        assert self.farm.daemon is not None
        if (code := self.farm.daemon.poll()) not in {None, -signal.SIGKILL}:
            self.line.broke("wedged", f"the daemon ended with {code}: {self.farm.said()}")
        for name in AGENTS:
            if (code := self.farm.real[name].poll()) not in {None, -signal.SIGKILL}:
                self.line.found[f"an agent ended with {code}"] += 1
        super()._revive()

    # --- the end ---

    def _finish(self) -> None:
        until(self._all_go_on, "every agent to go on")
        for job in [*self.submitted, *self.odd]:
            try:
                state = self._end_of(job)
                if job in self.submitted and self._was_given_up(job):
                    state = self._end_of(job)
            except AssertionError as error:
                self.line.broke("wedged", f"{job}: {error}")
                continue
            if job in self.odd:
                self._judge_odd(job, state)
            else:
                self._judge(job, state)
        self._count_what_is_left()

    def _end_of(self, job: str) -> str:
        """The state it ends in; an AssertionError once nothing of it changed for so long."""
        seen, since = None, time.monotonic()
        while True:
            self._revive()
            status = self.farm.status(job)
            if status.is_over:
                return status.state
            now = status.totals, status.layers_merged, status.progress
            if now != seen:
                seen, since = now, time.monotonic()
            assert time.monotonic() - since < STILL_SECONDS, f"nothing changes: {status}"
            time.sleep(POLL_SECONDS)

    def _was_given_up(self, job: str) -> bool:
        """What was killed too often in a row cannot be told from what ends itself: then its user has it tried again."""
        said = [self.farm.status(job).why, *(failure.message for failure in self.farm.failures(job))]
        if self.farm.status(job).state not in ODD_ENDS or not any(KILLED_TOO_OFTEN.search(text) for text in said):
            return False
        self.line.found["given up after kills in a row, and tried again"] += 1
        self.farm.ask(Retry(job), Done)
        return True

    def _judge_odd(self, job: str, state: str) -> None:
        self.line.found[f"{job.partition('.')[0]} for good: the job is {state}"] += 1
        if state not in ODD_ENDS:
            self.line.broke("wrong", f"{job} is {state}, and cannot be")

    def _judge(self, job: str, state: str) -> None:
        if state != "complete":
            self.line.broke("lost", f"{job} is {state}: {self.farm.status(job).why}")
            return
        self.line.compared += 1
        one = self.submitted[job]
        try:
            one.judge(self.farm, job)
            self.line.found[f"{one.kind}: as in a serial run"] += 1
        except AssertionError as error:
            self.line.broke("wrong", f"{job} is not what a serial run gives: {error}")
        self._judge_word_of(job, one)

    def _judge_word_of(self, job: str, one: Work) -> None:
        """Its user was told of the end, or is once the daemon starts again: its teller may be killed time and again."""
        for again in (False, True):
            if again:
                self.farm.restart()
            with contextlib.suppress(AssertionError):
                until(lambda: "complete" in one.told(job), "word of its end", TOLD_SECONDS)
                self.line.found["told of an end"] += 1
                return
        self.line.broke("lost", f"{job} is complete, and nobody was told")

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
    line.found.update({f"{kind}: killed while it started": times for kind, times in one.young.items() if times})
