"""Bits that rot beneath a farm while it does not run: then it is started on them, and goes on as its users would have
it do. Each of its jobs comes to what a serial run gives, or says why not."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from muster.jobs.common.errors import DamagedError, RefusedError
from tests.campaign.jobs import CODE, NAP
from tests.campaign.line import Line
from tests.support.farm import FarmHarness, arrays, until

FLIPS = 12  # at a time
JOBS, SHARDS = 3, 30  # under way when everything stops, beside one that is complete
NAP_SECONDS = 0.03  # of a shard
PLACES = {  # what lies below the farm's folder, and how often of so many flips one is of it
    "store": ("root/state.sqlite*", 8),
    "figures": ("root/figures.sqlite*", 4),
    "farm": ("root/farm.json", 1),
    "plan": ("root/jobs/*/plan.msgpack", 6),
    "job file": ("root/jobs/*/job.yaml", 4),
    "bundle": ("root/jobs/*/bundles/*", 20),
    "result": ("root/jobs/*/result/*/*", 15),
    "code": ("root/code/*", 6),
    "part": ("spools/one/done/*/*/*.part", 20),
    "input": ("job-*/arrays/*", 4),
}
SAID = {DamagedError.exit_code, RefusedError.exit_code}  # with which a start on damaged files ends
Result = dict[str, dict[str, bytes]]


class Beneath:
    """One farm, stopped half way."""

    def __init__(self, folder: Path, seed: int, line: Line) -> None:
        self.random = random.Random(seed)
        self.line = line
        self.farm = FarmHarness(folder, pool="processes")
        self.farm.env[NAP] = str(NAP_SECONDS)
        self.wanted: dict[str, Result] = {}
        self._backup = folder / "backup"
        self._rebuilt = ""  # what a rebuild said

    def play(self) -> None:
        farm = self.farm
        farm.start()
        farm.join("one", "--cpus", "2")
        whole = self._submit(0)
        farm.wait(whole)
        jobs = [self._submit(number + 1) for number in range(JOBS)]
        enough = self.random.randint(1, JOBS * SHARDS // 2)
        until(lambda: sum(farm.status(job).totals.committed for job in jobs) >= enough, "some shards to be committed")
        self._stop()
        shutil.copytree(farm.root.path, self._backup, symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
        self._flip()
        self._serve()
        self._go_on()
        for job in self.wanted:
            self._judge(job)

    def _submit(self, seed: int) -> str:
        """Each with code of its own."""
        code = CODE + f"# {seed}\n"
        more: dict[str, Any] = {"kind": "map", "code": "work.py:half", "name": "map"}
        job = self.farm.submit(arrays(rows=SHARDS * 2, seed=seed), 2, code, **more)
        self.wanted[job] = self.farm.serial(job)
        return job

    def _stop(self) -> None:
        """Everything at once, so that there are parts in the spool and bundles that are not merged."""
        self.farm.real["one"].kill()
        self.farm.real["one"].wait()
        self.farm.kill()
        until(lambda: not self.farm.processes("runner/runner.py"), "what ran to be gone")

    # --- flips ------------------------------------------------------------------------------------------

    def _flip(self) -> None:
        """A bit each of some files."""
        found = {kind: sorted(filter(_has_bytes, self.farm.folder.glob(what))) for kind, (what, _) in PLACES.items()}
        there = [kind for kind, files in found.items() if files]
        for kind in self.random.choices(there, [PLACES[kind][1] for kind in there], k=FLIPS):
            self._flip_one(self.random.choice(found[kind]), keeps_time=kind != "input")
            self.line.faults[f"{kind} flipped beneath a farm"] += 1

    def _flip_one(self, path: Path, keeps_time: bool) -> None:
        """As a disk does it, which tells nobody; but of a source somebody changed a byte: else it is what it is."""
        info = path.stat()
        with path.open("r+b") as file:
            place = self.random.randrange(info.st_size)
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ 1 << self.random.randrange(8)]))
        if keeps_time:
            os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))

    # --- and on -----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """At once, or once its user has done what the daemon says, or has put back a backup."""
        if self._starts():
            return
        done = self.farm.coordinator("rebuild")
        self._rebuilt = done.stdout
        self.line.found[f"a start says that files are damaged; a rebuild ends with {done.returncode}"] += 1
        if "Traceback" in done.stderr:
            self.line.broke("wrong", f"a rebuild of a damaged root: {done.stderr[-400:]}")
        if done.returncode or not self._starts():
            shutil.rmtree(self.farm.root.path)
            self._backup.rename(self.farm.root.path)
            self.line.found["the root is put back from a backup"] += 1
            self.farm.start()

    def _starts(self) -> bool:
        """One that does not must say that something is damaged, and what can be done; hanging is no answer."""
        log = self.farm.folder / "daemon.out"
        before = log.stat().st_size
        try:
            self.farm.start()
        except AssertionError as error:
            assert self.farm.daemon is not None
            code, said = self.farm.daemon.poll(), log.read_bytes()[before:].decode(errors="replace")
            if code is None:
                self.farm.kill()
            if code not in SAID or "error: " not in said or "hint: " not in said or "Traceback" in said:
                self.line.broke("wrong", f"a start on damaged files ends with {code}: {said[-300:]} {error}"[:450])
            return False
        return True

    def _go_on(self) -> None:
        """The agent is back; whatever a rebuild left paused is resumed; every job comes to an end of some kind."""
        for job in self.farm.jobs():
            if job.state == "paused":
                self.farm.coordinator("resume", job.id)
        self.farm.join("one", "--cpus", "2")
        try:
            until(lambda: all(job.is_over for job in self.farm.jobs()), "every job to stand still or be whole", 120.0)
        except AssertionError as error:
            stuck = [(job.id, job.state, job.why, job.notes) for job in self.farm.jobs() if not job.is_over]
            self.line.broke("wedged", f"{error}: {stuck} {self._agents_words()}")

    def _agents_words(self) -> str:
        return (self.farm.folder / "agent-one.out").read_text(errors="replace")[-300:]

    def _judge(self, job: str) -> None:
        self.line.compared += 1
        found = [one for one in self.farm.jobs() if one.id == job]
        if not found and job in self._rebuilt:
            self.line.found["beneath a farm: a rebuild sets the job aside, and says so"] += 1
        elif not found:
            self.line.broke("lost", f"{job} is gone after flips")
        elif found[0].state != "complete":
            self._judge_words(job, found[0].state, found[0].why)
        elif _alike(self.farm, job, self.wanted[job]):
            self.line.found["beneath a farm: mended, or without effect"] += 1
        elif self.farm.coordinator("verify", job).returncode:
            self.line.found["beneath a farm: verify finds it"] += 1
        else:
            self.line.broke("wrong", f"{job} is not what a serial run gives, and nobody notices")

    def _judge_words(self, job: str, state: str, why: str) -> None:
        if why:
            self.line.found[f"beneath a farm: the job is {state}, and says why"] += 1
        else:
            self.line.broke("wrong", f"{job} is {state}, and does not say why")

    def close(self) -> None:
        self.farm.close()


def _has_bytes(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size > 0


def _alike(farm: FarmHarness, job: str, wanted: Result) -> bool:
    try:
        return farm.merged(job) == wanted
    except Exception:  # whatever an array that rotted makes of its reader
        return False


def rounds(folder: Path, seed: int, times: int, line: Line) -> Iterator[int]:
    """So many farms, one after the other."""
    for number in range(times):
        one = Beneath(folder / f"beneath-{number}", seed * 1000 + number, line)
        try:
            one.play()
        finally:
            one.close()
        yield number
