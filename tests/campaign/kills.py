"""Kills of every process there is, two at once too, Ray's servers and helpers among them, while jobs of every kind and
sessions of calls run: every third job the source of an earlier one again, some after others, and beside them one whose
merge and one whose push fail for good. With agents by folder, or over ssh, where links are struck as well."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from muster.coordinator.api.requests import Done, Retry
from muster.jobs.parts.manifest import SHARDS
from tests.campaign.calls import Calls
from tests.campaign.jobs import NAP, WORD, Work, work
from tests.campaign.left import count_left
from tests.campaign.line import Line
from tests.campaign.over_ssh import StrikesOverSsh
from tests.campaign.strikes import OTHER, Strikes
from tests.support.farm import POLL_SECONDS, FarmHarness, arrays, until

ODD = """
def odd(rows):
    return {"out": rows.astype("f8" if rows[0, 0] == 0 else "f4")}
"""
ODD_ENDS = {"incomplete", "halted"}
KILLED_TOO_OFTEN = re.compile(
    r"ended \d+ times without getting on, the last time with -9|lost \d+ times while running|it was to start after"
)
NAP_SECONDS = 0.05  # of a shard of the map jobs
AT_ONCE = 3  # jobs under way
FOLLOWERS = 0.2  # of jobs: those that start after another one that is under way
TOLD_SECONDS = 30.0  # for word of an end
STILL_SECONDS = 240.0  # after which a job of which nothing changes is wedged: longer than any lease, pause or retry
BACK_SECONDS = 300.0  # for everyone to go on once nothing is struck any more
QUIET_SECONDS = (0.2, 120.0)  # between bursts, as evenly over the orders of magnitude: what is struck has lived so long
BURST = 5  # strikes at most
BURST_SECONDS = 0.3  # between two of them
LOOK_SECONDS = 0.3  # between two looks at who has ended, and at what is under way
LISTENERS_EACH = 10  # strikes: between two looks at who listens

# Kinds by turns, within each of the two: the one that is furthest behind its share of those that are there is next.
CHEAP = MappingProxyType({"connect": 2, "runner": 2, "worker": 2, "driver": 2, "merger": 1, "teller of an end": 1})
COSTLY = MappingProxyType(
    {  # the farm takes some seconds of a processor until it is up again
        "daemon": 3,
        "agent": 2,
        "agent stopped past its lease": 2,
        "two at once": 3,
        "pool's host": 1,
        "raylet": 1,
        "gcs": 1,
        "dashboard agent": 1,
        "runtime env agent": 1,
        "helper or worker of Ray": 1,
        OTHER: 1,
        "daemon stopped": 1,
    }
)
LINKS = MappingProxyType(
    {
        "sshd session": 2,
        "link reset": 2,
        "link stalled past the lease": 1,
        "link delayed": 1,
        "link half-open": 1,
    }
)
COSTLY_SHARE = 0.25  # of strikes while a worker is up
AT_STARTS = 0.04  # the same while none is: else nothing would ever get on


class Kills:
    """One run; what is broken is counted."""

    def __init__(self, strikes: Strikes, cheap: Mapping[str, int], seed: int, line: Line) -> None:
        self.strikes, self.farm, self.random = strikes, strikes.farm, strikes.random
        self.cheap, self.seed, self.line = cheap, seed, line
        self.works: list[Work] = []
        self.submitted: dict[str, Work] = {}  # jobs that are to end well
        self.after: dict[str, str] = {}  # of those, what they start after
        self.odd: set[str] = set()
        self.calls = Calls(self.farm.root.path, line)

    def run(self, times: int, say: Callable[[str], None]) -> None:
        """So many strikes, and what came of them."""
        self.strikes.begin()
        self._submit_odd()
        self.calls.start()
        while (struck := self.strikes.done.total()) < times:
            self._keep_on()
            for _ in range(self.random.randint(1, BURST)):
                self._strike(say)
                time.sleep(self.random.uniform(0.0, BURST_SECONDS))
            if self.strikes.done.total() // LISTENERS_EACH > struck // LISTENERS_EACH:
                self.strikes.look_for_listeners()
            self._be_quiet()
        self._finish()

    def _strike(self, say: Callable[[str], None]) -> None:
        there = self.strikes.look()
        costly = self.random.random() < (COSTLY_SHARE if "worker" in there else AT_STARTS)
        shares = COSTLY if costly else self.cheap
        kinds = [kind for kind in shares if kind in there or kind in self.strikes.ways()]
        self.random.shuffle(kinds)
        for kind in sorted(kinds, key=lambda kind: self.strikes.done[kind] / shares[kind]):
            if self.strikes.strike(kind):
                say(f"{self.strikes.done.total():4} {kind}")
                return

    def _be_quiet(self) -> None:
        low, high = map(math.log, QUIET_SECONDS)
        until_then = time.monotonic() + math.exp(self.random.uniform(low, high))
        while time.monotonic() < until_then:
            self._keep_on()
            time.sleep(LOOK_SECONDS)

    def _keep_on(self) -> None:
        """Nobody but us may have ended the daemon. An agent may end where its pool was lost again and again."""
        for said in self.strikes.revive():
            if said.startswith("the daemon"):
                self.line.broke("wedged", said)
            else:
                self.line.found[said] += 1
        self._keep_busy()

    # --- work -------------------------------------------------------------------------------------------

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
        under_way = {one.id for one in self.farm.jobs() if one.state == "running"} & self.submitted.keys()
        for _ in range(AT_ONCE - len(under_way)):
            one = self._next_work()
            after = self.random.choice(sorted(under_way)) if under_way and self.random.random() < FOLLOWERS else ""
            job = one.submit(self.farm, after)
            self.submitted[job] = one
            if after:
                self.after[job] = after

    def _next_work(self) -> Work:
        """The kinds by turns, from another one on with each seed. Every third job is an earlier one again: often the
        last one, which is under way still."""
        if len(self.submitted) % 3 == 2:
            return self.random.choice([self.works[-1], self.random.choice(self.works)])
        self.works.append(work(self.farm, self.seed + len(self.works)))
        return self.works[-1]

    # --- the end ----------------------------------------------------------------------------------------

    def _finish(self) -> None:
        until(self._all_go_on, "every agent to go on", BACK_SECONDS)
        self.calls.end()
        for job in [*self.submitted, *self.odd, *self.calls.jobs]:
            try:
                state = self._end_of(job)
                if job in self.submitted and self._was_given_up(job):
                    state = self._end_of(job)
            except AssertionError as error:
                self.line.broke("wedged", f"{job}: {error}")
                continue
            if job in self.odd:
                self._judge_odd(job, state)
            elif job in self.submitted:
                self._judge(job, state)
            elif state != "complete":
                self.line.broke("lost", f"{job}, a session of calls, is {state}: {self.farm.status(job).why}")
        self._count_what_is_left()

    def _all_go_on(self) -> bool:
        self.strikes.revive()
        return self.strikes.nobody_is_stopped

    def _end_of(self, job: str) -> str:
        """The state it ends in; an AssertionError once nothing of it changed for so long."""
        seen, since = None, time.monotonic()
        while True:
            self.strikes.revive()
            status = self.farm.status(job)
            if status.is_over:
                return status.state
            now = status.state, status.totals, status.layers_merged, status.progress
            if now != seen:
                seen, since = now, time.monotonic()
            assert time.monotonic() - since < STILL_SECONDS, f"nothing changes: {status}"
            time.sleep(POLL_SECONDS)

    def _was_given_up(self, job: str) -> bool:
        """What was killed too often in a row cannot be told from what ends itself: then its user has it tried again,
        and what was to start after it."""
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
        judge_shards(self.farm, job, self.line)
        self._judge_order(job)
        try:
            one.judge(self.farm, job)
            self.line.found[f"{one.kind}: as in a serial run"] += 1
        except AssertionError as error:
            self.line.broke("wrong", f"{job} is not what a serial run gives: {error}")
        self._judge_word_of(job, one)

    def _judge_order(self, job: str) -> None:
        if job not in self.after:
            return
        started, ended = self.farm.status(job).started, self.farm.status(self.after[job]).ended
        self.line.found["began once another job was complete"] += 1
        if started is None or ended is None or started < ended:
            self.line.broke("wrong", f"{job} began at {started}, and {self.after[job]} was complete at {ended}")

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
        """Nobody and nothing may be; and each committed shard of the jobs that are not complete is in one bundle."""
        try:
            self.strikes.leave()
        except AssertionError as error:
            self.line.broke("leaked", str(error))
            return
        for address in self.strikes.listeners:
            self.line.broke("leaked", f"listens on {address}")
        count_left(self.farm, self.line)
        for job in self.odd:
            try:
                self.farm.found(job)
            except AssertionError as error:
                self.line.broke("twice" if "twice" in str(error) else "lost", f"{job}: {error}")


def judge_shards(farm: FarmHarness, job: str, line: Line) -> None:
    """What says who computed what has each shard of a complete job's plan, once."""
    for layer in farm.plan(job).layers:
        if layer.made:
            continue
        numbers = np.load(farm.root.job(job).result / layer.name / SHARDS)["shard"].tolist()
        if len(set(numbers)) < len(numbers):
            line.broke("twice", f"{job}/{layer.name} has shards twice: {sorted(numbers)}"[:200])
        if set(numbers) != set(range(layer.count)):
            line.broke("lost", f"{job}/{layer.name} has {len(set(numbers))} shards of {layer.count}")


def run(folder: Path, seed: int, times: int, line: Line, say: Callable[[str], None]) -> None:
    """So many strikes in one life of a farm whose agents are beside the server."""
    _run(Strikes(folder / "kills", seed), CHEAP, seed, times, line, say)


def run_over_ssh(folder: Path, seed: int, times: int, line: Line, say: Callable[[str], None]) -> None:
    """The same where agents come over ssh, and links are struck as well."""
    _run(StrikesOverSsh(folder / "ssh", seed), {**CHEAP, **LINKS}, seed, times, line, say)


def _run(
    strikes: Strikes, cheap: Mapping[str, int], seed: int, times: int, line: Line, say: Callable[[str], None]
) -> None:
    strikes.farm.env[NAP] = str(NAP_SECONDS)
    try:
        Kills(strikes, cheap, seed, line).run(times, say)
    except AssertionError as error:
        line.broke("wedged", str(error))
    finally:
        strikes.close()
        line.faults.update(strikes.done)
        line.ages = strikes.ages
