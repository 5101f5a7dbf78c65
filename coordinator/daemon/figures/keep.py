"""The jobs' ledgers, and when what is in them goes into figures.sqlite: on a thread of its own, never waited for.

Whatever happens to that file, jobs go on as if it were not there. What is told here is only remembered; adding it up
and writing it takes at most a hundredth of the daemon's time, as each time waits a hundred times as long as the last
one took.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from muster import VERSION
from muster.coordinator.api.figures import Figures, JobEvent
from muster.coordinator.daemon.figures.lately import Lately
from muster.coordinator.daemon.figures.ledger import Heard, JobLedger
from muster.coordinator.farm_root import figures_file
from muster.coordinator.farm_root.figures_file import FiguresFile, OtherLayout, Rows
from muster.coordinator.protocol.control import Failure, MachineAccount
from muster.coordinator.protocol.transfer import BundleFigures
from muster.coordinator.scheduler.entities import Agent
from muster.jobs.contract.states import JobState

if TYPE_CHECKING:
    from muster.coordinator.daemon.engine import Engine

log = logging.getLogger("muster.daemon")

SHARE = 100  # a round of adding up and writing waits so many times as long as the last one took
LEAST_SECONDS, MOST_SECONDS = 2.0, 30.0  # between two of them, for the disk's sake
HURRY_SECONDS = 0.5  # after a first result, or an end, unless the last round took too long for that
BYTES_PER_SECOND = 300 << 10  # that are written, at most on average
ENDED_SECONDS = 20.0  # a job that ended is kept in memory: its machines' last accounts come after its end
ROWS_AT_ONCE = 50  # between two of them whoever waits has its turn
OTHERS_MOST = 8  # jobs to which a machine's idle time is counted beside those it works for
LAST_SECONDS = 5.0  # for the last write, at the daemon's end
_T = TypeVar("_T")
_Written = list[tuple[bytes | None, str, list[tuple[str, bytes]]]]


class FiguresKeeper:
    """One per daemon. Everything but the file is for the daemon's own thread."""

    def __init__(self, path: Path) -> None:
        self.trouble = ""  # why the file is not written, for people; "" while it is
        self._path = path
        self._folder = path.parent.stat()
        self._file: FiguresFile | None = None
        self._anew = False  # whether the file was begun anew since the last round
        self._thread = ThreadPoolExecutor(1, "figures")
        self._ledgers: dict[str, JobLedger] = {}
        self._heard: dict[str, Heard] = {}
        self._lately: dict[str, Lately] = {}
        self._hurry = asyncio.Event()

    # --- what is told ---

    def opened(self, job: str, kind: str, created: float, state: JobState = "running") -> None:
        """A new job."""
        self._ledgers[job] = JobLedger(figures_file.new_job(job, kind, VERSION, created, state))

    async def restored(self, job: str, kind: str, created: float, started: float | None, state: JobState) -> None:
        """A job of an earlier life of the daemon that has not ended."""
        rows = await self._ask(lambda: self._opened().read(job))
        now = time.time()
        if rows is None:
            self.opened(job, kind, created, state)
            self._ledgers[job].nothing_known_until(now)
        else:
            self._ledgers[job] = JobLedger(*rows)
        ledger = self._ledgers[job]
        ledger.began_at(started)
        if ledger.record.state != state:  # the last word was not written any more
            ledger.turned(state, "", max(ledger.record.at, ledger.record.since or 0.0))
        ledger.served_again(now)

    def began(self, job: str) -> None:
        if ledger := self._ledgers.get(job):
            ledger.began(time.time())

    def turned(self, engine: Engine, job: str, state: JobState, why: str) -> None:
        """A job is in another state. One that ended before and goes on again is read back first."""
        if ledger := self._ledgers.get(job):
            ledger.turned(state, why, time.time())
            self._hurry.set()
        elif job in engine.jobs:
            engine.background(self._again(engine, job, state, why))

    async def _again(self, engine: Engine, job: str, state: JobState, why: str) -> None:
        rows = await self._ask(lambda: self._opened().read(job))
        if job in engine.jobs and job not in self._ledgers:
            live = engine.jobs[job]
            kept = rows or (figures_file.new_job(job, live.work.kind, VERSION, live.created, "complete"), [])
            self._ledgers[job] = JobLedger(*kept)
            self.turned(engine, job, state, why)

    def merged(self, job: str) -> None:
        if ledger := self._ledgers.get(job):
            ledger.merged(time.time())

    def committed(self, job: str, agent: str, layer: str, count: int, told: BundleFigures | None) -> None:
        if ledger := self._ledgers.get(job):
            if ledger.record.first_commit is None:
                self._hurry.set()
            ledger.committed(agent, layer, count, told, time.time())

    def waited(self, job: str, agent: str, made: Sequence[float], attempts: Sequence[int]) -> None:
        if (made or attempts) and (ledger := self._ledgers.get(job)):
            ledger.waited(agent, made, attempts, time.time())

    def took(self, job: str, seconds: Mapping[int, int]) -> None:
        """What its driver's clients had done."""
        if ledger := self._ledgers.get(job):
            ledger.took(seconds)

    def failed(self, job: str, agent: str, layer: str, failure: Failure) -> None:
        if ledger := self._ledgers.get(job):
            ledger.failed(agent, layer, failure, time.time())

    def lost(self, job: str, agent: str, count: int) -> None:
        if ledger := self._ledgers.get(job):
            ledger.lost(agent, count)

    def uncommitted(self, job: str, count: int) -> None:
        if ledger := self._ledgers.get(job):
            said = f"{count} committed shards were damaged, and run again"
            ledger.note(JobEvent(time.time(), "uncommitted", "", said))

    def machine_event(self, what: str, agent: str, said: str) -> None:
        """A machine came or went: that is of every job that runs."""
        for ledger in self._ledgers.values():
            if ledger.record.state == "running":
                ledger.note(JobEvent(time.time(), what, agent, said))

    def parted(self, engine: Engine, what: str, agent: str, said: str) -> None:
        """A machine left, or is gone. What it said last counts; of a process that ended nothing more will come."""
        self.machine_event(what, agent, said)
        self._lately.pop(agent, None)
        if what == "left" and agent in self._heard:
            if self._heard[agent].is_new:
                self._add_up(engine, agent)
            del self._heard[agent]

    def account(self, engine: Engine, agent: Agent, account: MachineAccount) -> None:
        """Only remembered, until the next round. What an earlier process of the agent said last is added up first."""
        process, heard = agent.hello.process, self._heard.get(agent.name)
        if heard is not None and heard.process != process:
            self._add_up(engine, agent.name)
            heard = None
        if heard is None:
            heard = self._heard[agent.name] = Heard(process, max(agent.hello.cpus, agent.cpus), 0.0, account)
        heard.cpus = max(heard.cpus, agent.cpus)
        heard.more(account, time.time())
        lately = self._lately.get(agent.name)
        if lately is None or lately.process != process:
            lately = self._lately[agent.name] = Lately(process)
        lately.add(msgspec.structs.replace(account, jobs=[]), heard.at)

    def lately(self, agent: str) -> Lately | None:
        """What a machine did during the last minute; None of one that told nothing in this life of the daemon."""
        return self._lately.get(agent)

    # --- adding up, and writing ---

    def _add_up(self, engine: Engine, name: str) -> None:
        """The machine's last account, for each job that it concerns."""
        heard, agent = self._heard[name], engine.state.agents.get(name)
        others = [one for one in self._ledgers.values() if one.record.started and one.record.job not in heard.jobs]
        mine = [self._ledgers[job] for job in heard.jobs if job in self._ledgers]
        for ledger in [*mine, *(others if len(others) <= OTHERS_MOST else [])]:
            job = engine.state.jobs.get(ledger.record.job)
            if job is None or (name not in ledger.machines and job.state != "running"):
                continue
            works = agent is not None and engine.state.obstacle(agent, job) is None  # it was there when it said so
            if works or name in ledger.machines:
                ledger.account(name, heard, works)
        heard.added_up()

    def _describe(self, engine: Engine, ledger: JobLedger, now: float) -> None:
        """What others know of the job, as of now."""
        from muster.coordinator.daemon.views.status import job_status

        job = ledger.record.job
        if job not in engine.jobs:
            return
        live = engine.jobs[job]
        ledger.describe(job_status(engine, engine.state.jobs[job], with_layers=False, with_rates=False))
        for name, done in live.figures.by_agent.items():
            ledger.known_committed(name, done.committed, done.committed_bytes)
        for name in ledger.machines:
            if (info := engine.sessions.agents.get(name)) and (agent := engine.state.agents.get(name)):
                ledger.known_machine(name, info.in_place, agent.hello.memory)

    async def keep_forever(self, engine: Engine) -> None:
        """Add up and write, again and again. A bug in that costs measurements, and nothing else."""
        least, pause = HURRY_SECONDS, LEAST_SECONDS
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), pause)
            if self._hurry.is_set():
                self._hurry.clear()
                await asyncio.sleep(least)  # what belongs to it comes within a moment
            try:
                took, nbytes = await self._round(engine)
            except Exception as error:
                log.exception("measurements were not added up, a bug of ours; jobs go on all the same")
                self.trouble, took, nbytes = f"{type(error).__name__}: {error}", 1.0, 0
            least = max(HURRY_SECONDS, SHARE * took)
            pause = max(LEAST_SECONDS, least, min(MOST_SECONDS, nbytes / BYTES_PER_SECOND))

    async def _round(self, engine: Engine) -> tuple[float, int]:
        """The seconds that it took of the daemon's thread, and the bytes that were written."""
        took, now = 0.0, time.time()
        if self._anew:  # what was written before is not in the file any more
            self._anew = False
            for ledger in self._ledgers.values():
                ledger.not_written()
        for number, name in enumerate([name for name, heard in self._heard.items() if heard.is_new]):
            begun = time.thread_time()
            self._add_up(engine, name)
            took += time.thread_time() - begun
            if number % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
                await asyncio.sleep(0)
        written: _Written = []
        taken = [ledger for ledger in list(self._ledgers.values()) if ledger.is_dirty or _goes_on(ledger, now)]
        for ledger in taken:
            begun = time.thread_time()
            written.append(self._encoded(engine, ledger, now))
            took += time.thread_time() - begun
            await asyncio.sleep(0)
        written = [one for one in written if one[1] in self._ledgers]  # but for jobs that were deleted meanwhile
        if written:
            await self._write(taken, written)
        unwritten = set() if self.trouble == "" else {job for job, one in self._ledgers.items() if one.is_dirty}
        self._ledgers = {job: one for job, one in self._ledgers.items() if job in unwritten or _goes_on(one, now)}
        nbytes = sum(len(told or b"") + sum(len(raw) for _, raw in machines) for told, _, machines in written)
        return took, nbytes

    def _encoded(self, engine: Engine, ledger: JobLedger, now: float) -> tuple[bytes, str, list[tuple[str, bytes]]]:
        self._describe(engine, ledger, now)
        job, machines = ledger.new_values(now)
        return figures_file.encoded(job), job.job, [(one.agent, figures_file.encoded(one)) for one in machines]

    async def _write(self, ledgers: list[JobLedger], written: _Written) -> None:
        if not await self._ask(lambda: self._written(written)):
            for ledger in ledgers:
                ledger.not_written()

    # --- on the file's thread ---

    def _opened(self) -> FiguresFile:
        """The file; one that cannot be used is put aside, and another begun."""
        if self._file is None:
            if not os.path.samestat(self._folder, self._path.parent.stat()):
                raise FileNotFoundError(f"{self._path.parent} is not the folder that it was")
            try:
                self._file = FiguresFile(self._path)
            except sqlite3.OperationalError:  # of the disk, or of who may write there
                raise
            except (sqlite3.DatabaseError, OtherLayout) as error:
                self._put_aside(error)
                self._file = FiguresFile(self._path)
        return self._file

    def _put_aside(self, why: Exception) -> None:
        aside = self._path.with_name(f"{self._path.name}.{time.strftime('%Y%m%d-%H%M%S')}")
        self._path.replace(aside)
        self._anew = True
        self._path.with_name(f"{self._path.name}-journal").unlink(missing_ok=True)
        log.error("%s cannot be used: %s; it is %s now, and measurements begin anew", self._path, why, aside.name)

    def _written(self, rows: _Written) -> bool:
        self._opened().write(rows)
        return True

    async def _ask(self, what: Callable[[], _T]) -> _T | None:
        """On the file's thread; None where the file would not."""
        return await asyncio.wrap_future(self._run(what))

    def _run(self, what: Callable[[], _T]) -> Future[_T | None]:
        def tried() -> _T | None:
            try:
                found = what()
            except (sqlite3.Error, OSError, OtherLayout, msgspec.MsgspecError) as error:
                self._failed(error)
                return None
            self.trouble = ""
            return found

        return self._thread.submit(tried)

    def _failed(self, error: Exception) -> None:
        if not self.trouble:
            log.error("measurements are not written: %s; jobs go on all the same", error)
        self.trouble = str(error)
        damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
        if (damaged or isinstance(error, msgspec.MsgspecError)) and self._file is not None:
            self._file.close()
            self._file = None
            with suppress(OSError):
                self._put_aside(error)

    # --- for who asks ---

    async def figures_of(self, engine: Engine, job: str) -> Figures:
        """All that is known of a job."""
        if ledger := self._ledgers.get(job):
            for name in [name for name, heard in self._heard.items() if heard.is_new]:
                self._add_up(engine, name)
            self._describe(engine, ledger, time.time())
            return Figures(*ledger.all_values(time.time()), self.trouble)
        rows: Rows | None = await self._ask(lambda: self._opened().read(job))
        return Figures(rows[0], rows[1], self.trouble) if rows else Figures(None, [], self.trouble)

    async def forget(self, job: str) -> None:
        """A job is deleted."""
        self._ledgers.pop(job, None)
        await self._ask(lambda: self._opened().forget(job))

    async def close(self, engine: Engine) -> None:
        """Write what there is, unless that takes too long."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._round(engine), LAST_SECONDS)
        self._thread.shutdown(wait=False, cancel_futures=True)


def _goes_on(ledger: JobLedger, now: float) -> bool:
    return ledger.record.ended is None or now - ledger.record.ended < ENDED_SECONDS
