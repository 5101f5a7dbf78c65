"""Disks without room, of bytes or of inodes, below the root and below a spool: while a job runs, and at a start."""

from __future__ import annotations

import contextlib
import itertools
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from muster.agent.commands.status import state_of
from tests.campaign.left import count_left
from tests.campaign.line import Line
from tests.support import disks
from tests.support.farm import FarmHarness, until

ROOT_MEGABYTES, SPOOL_MEGABYTES = 100, 12  # of the former 64 MiB stay free
# whose disk, of what, and whether somebody is started: by turns
CASES = [*itertools.product(("root", "spool"), ("bytes", "inodes"), (False, True))]
INODES = {"root": 3000, "spool": 600}
SHARDS = 20
WIDE = 1 << 14
WORK = f"""
import time
import numpy as np
def wide(rows):
    time.sleep(0.05)
    return np.repeat(rows, {WIDE}, axis=1)
"""
OUTPUTS = {"out": {"dtype": "float32", "shape": [WIDE]}}
SAID = ("No space", "full", "are left", "no room", "in the root")  # of which somebody says some while there is none
READY_SECONDS = 120.0
FULL_EXIT = 8


class Full:
    """One farm whose agent is a real one; what is taken of its disks is given back."""

    def __init__(self, folder: Path, seed: int, line: Line) -> None:
        self._cases = list(CASES)
        random.Random(seed).shuffle(self._cases)
        self.line = line
        self.open = contextlib.ExitStack()
        self.spool = folder / "spools" / "one"
        root = self.open.enter_context(disks.small(folder / "root", ROOT_MEGABYTES, INODES["root"]))
        self.disks = {
            "root": root,
            "spool": self.open.enter_context(disks.small(self.spool, SPOOL_MEGABYTES, INODES["spool"])),
        }
        self.farm = FarmHarness(folder)
        self.open.callback(self.farm.close)
        self.farm.start()
        self._join()

    def _join(self) -> None:
        self.farm.join("one", "--cpus", "1")
        until(lambda: (state := state_of(self.spool)) and state.ready, "the workers", READY_SECONDS)

    def play(self, number: int) -> None:
        """One disk is full while a job runs, and perhaps while who uses it is started."""
        place, what, starts = self._cases[number % len(self._cases)]
        self.line.faults[f"no {what} in the {place}" + (", and a start" if starts else "")] += 1
        job = self._submit(number)
        until(lambda: self.farm.status(job).totals.committed, "a shard to be committed", READY_SECONDS)
        ballast = disks.Ballast(self.disks[place], what)
        ballast.fill()
        if starts:
            self._kill(place)
            ballast.fill()  # what was given back by who is gone now
            self._start(place, what)
        else:
            self._await_word(job, place, what)
        ballast.drop()
        if starts:
            self.farm.start() if place == "root" else self._join()
        self._judge(job)

    def _submit(self, number: int) -> str:
        rows: dict[str, Any] = {"a": np.arange(SHARDS, dtype="f4").reshape(SHARDS, 1) + number}
        return self.farm.submit(rows, 1, WORK, kind="map", code="work.py:wide", params={"outputs": OUTPUTS})

    def _await_word(self, job: str, place: str, what: str) -> None:
        """Until somebody says why the job stands still, or there was room enough for it after all."""
        said = until(lambda: self._word(job), f"a word about no {what} in the {place}")
        self.line.found[f"no {what} in the {place}: {said}"] += 1

    def _word(self, job: str) -> str:
        status = self.farm.status(job)
        if status.is_over:
            return "the job was done before"
        agent = self.farm.agent_status("one")
        said = [*status.notes, status.why, agent.note if agent else ""]
        return "said" if any(word in text for word in SAID for text in said) else ""

    def _kill(self, place: str) -> None:
        """Who uses the disk."""
        if place == "root":
            self.farm.kill()
        else:
            self.farm.real["one"].kill()
            self.farm.real["one"].wait()

    def _start(self, place: str, what: str) -> None:
        """What is started on the full disk ends with 8, and says where there is no room and what to do."""
        options = ["--name", "one", "--spool", str(self.spool)]
        try:
            if place == "root":
                ended = self.farm.coordinator("serve")
            else:
                ended = self.farm.agent_command("join", str(self.farm.root.path), *options)
        except subprocess.TimeoutExpired:
            self.line.broke("wrong", f"no {what} in the {place}, and a start does not end")
            return
        hint = "make room" in ended.stderr and str(self.disks[place]) in ended.stderr
        if ended.returncode == FULL_EXIT and hint:
            self.line.found[f"no {what} in the {place}: exit 8 at a start"] += 1
        else:
            why = f"no {what} in the {place}, and a start ends with {ended.returncode}: {ended.stderr[-400:]}"
            self.line.broke("wrong", why)

    def _judge(self, job: str) -> None:
        try:
            self.farm.wait(job, seconds=READY_SECONDS)
        except AssertionError as error:
            self.line.broke("wedged", f"{job}: {error}")
            return
        self.line.compared += 1
        if failures := self.farm.status(job).failures:
            self.line.broke("wrong", f"{job} has {failures} failures that were the disk's")
        try:
            self.farm.check_result(job)
        except AssertionError:
            self.line.broke("wrong", f"{job} is not what a serial run gives")
        removed = self.farm.coordinator("rm", job)
        assert removed.returncode == 0, removed.stderr

    def end(self) -> None:
        """Everybody leaves in good order."""
        self.farm.real["one"].terminate()
        if code := self.farm.real["one"].wait(READY_SECONDS):
            self.line.broke("leaked", f"the agent left with {code}")
        self.farm.stop()
        count_left(self.farm, self.line)


def run(folder: Path, seed: int, times: int, line: Line, say: Callable[[str], None]) -> None:
    """So many full disks in one life of a farm."""
    one = Full(folder / "full", seed, line)
    with one.open:
        for number in range(times):
            one.play(number)
            say(f"{number + 1:4} full: {dict(line.faults)}")
        one.end()
