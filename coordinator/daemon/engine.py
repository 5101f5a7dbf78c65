"""Between the scheduler and the world: feeds it events, carries its commands out. Decides nothing about shards."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from muster.coordinator.api.process_messages import MergeReply
from muster.coordinator.api.status import Progress
from muster.coordinator.daemon.agents.outbox import Mailbox
from muster.coordinator.daemon.job_logs import append_failure, append_quarantine
from muster.coordinator.daemon.measures import JobFigures
from muster.coordinator.daemon.merge.publish import publish, withdraw
from muster.coordinator.daemon.merge.queue import Merging
from muster.coordinator.daemon.store.statements import LayerGone, Store
from muster.coordinator.daemon.store.thread import StoreThread
from muster.coordinator.daemon.views.shard_history import Chronicle
from muster.coordinator.farm_root import printed_log
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.protocol.control import Committed, Drop, Failure, Grant, Hello, LayerInfo, Rejected, Sync
from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.entities import Agent
from muster.coordinator.scheduler.state_machine import Scheduler
from muster.jobs.common.errors import MusterError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.common.validation import one_line
from muster.jobs.contract.failure_codes import JobCode
from muster.jobs.contract.plan import Layer, Output, Plan, Work
from muster.jobs.contract.states import ENDED, JobState

log = logging.getLogger("muster.daemon")

_T = TypeVar("_T")
BASES_KEPT = 16
SESSIONS_PER_BOOT = 1 << 32  # session numbers of two boots never meet


class AgentInfo(msgspec.Struct):
    """What an agent's last hello and sync said that no decision hangs on."""

    host: str
    version: str
    fingerprint: str
    cpus: int
    note: str = ""
    seen: float = 0.0  # wall clock


class LiveJob:
    """A job's plan and what was measured of it in this life of the daemon."""

    def __init__(
        self, plan: Plan, digest: str, created: float, started: float | None = None, ended: float | None = None
    ) -> None:
        self.plan = plan
        self.digest = digest  # of the plan's file
        self.layers: dict[str, Layer] = {layer.digest: layer for layer in plan.layers}
        self.outputs: dict[str, tuple[Output, ...]] = {
            layer.digest: layer.outputs for layer in plan.layers if layer.outputs is not None
        }
        self.created, self.started, self.ended = created, started, ended
        self.figures = JobFigures()
        self.changes: dict[str, str] = {}  # layer whose source changed → who says so, and of which file
        self.bundles: list[str] = []  # files in order of commit, where a driver reads them; "" for a damaged one
        self.progress = Progress(0, *plan.counted) if plan.counted else None  # what its driver last said of it
        self.taken = 0  # bundles of rounds that came before those: drivers count by places
        self.sheets: dict[int, str] = {}  # shard of a round not committed yet → the digest of its sheet
        self.bases: dict[str, str] = {}  # sheet → the one that there is a patch of; the last few

    @property
    def work(self) -> Work:
        return self.plan.work

    def sheets_of(self, numbers: RangeSet) -> dict[str, list[tuple[int, int]]]:
        """Which of `numbers` read which sheet."""
        by_sheet: dict[str, RangeSet] = {}
        for number in numbers:
            if sheet := self.sheets.get(number):
                by_sheet.setdefault(sheet, RangeSet()).add(number, number + 1)
        return {sheet: those.pairs() for sheet, those in by_sheet.items()}

    def sheet_for(self, agent: Agent, layer: str, have: set[str]) -> str:
        """One that shards this agent has to run want, and it does not have; "" for none."""
        for holding in agent.holdings.values():
            if holding.layer == layer:
                for number in holding.open:
                    if (sheet := self.sheets.get(number, "")) and sheet not in have:
                        return sheet
        return ""

    def patched(self, sheet: str, base: str) -> None:
        self.bases[sheet] = base
        while len(self.bases) > BASES_KEPT:
            del self.bases[next(iter(self.bases))]

    def drop_taken(self, known: int) -> None:
        """A driver of rounds has the first `known` bundles: their names are of no use any more."""
        count = min(max(0, known - self.taken), len(self.bundles))
        del self.bundles[:count]
        self.taken += count

    def forget_sheets(self, numbers: RangeSet) -> None:
        if self.sheets:
            for number in numbers:
                self.sheets.pop(number, None)


class Engine:
    """One per daemon, on its event loop."""

    def __init__(self, root: Root, boot: int, store: StoreThread, scheduler: Scheduler) -> None:
        self.root = root
        self.boot = boot
        self.farm = root.farm
        self.store = store
        self.scheduler = scheduler
        self.tmp = root.tmp / str(boot)
        self.jobs: dict[str, LiveJob] = {}
        self.damaged: dict[str, MusterError] = {}  # jobs that are not served, as their plan cannot be used
        self.agents: dict[str, AgentInfo] = {}
        self.mailboxes: dict[int, Mailbox] = {}
        self.chronicle = Chronicle()
        self.on_job_state: Callable[[str, JobState, str], None] = lambda job, state, why: None
        self.merging = Merging(self.tmp, lambda job: root.job(job).items, self._merge_outcome)
        self.store_trouble = ""  # what keeps the store from writing, for people
        self.something_for_rounds = asyncio.Event()  # set and replaced when shards with a sheet are granted
        self.something_for_drivers = asyncio.Event()  # set and replaced when a bundle is committed or a job ends
        self.last_token = 0  # of accepted bundles
        self.broken = asyncio.Event()  # a bug: what is in memory may differ from what is stored
        self._last_session = boot * SESSIONS_PER_BOOT
        self.tasks: set[asyncio.Task[None]] = set()

    # --- events in, commands out ------------------------------------------------------------------------

    def handle(self, event: e.Event) -> list[c.Action]:
        """Let the scheduler react; the commands only the asker can carry out come back."""
        answers: list[c.Action] = []
        try:
            for command in self.scheduler.handle(event, time.monotonic()):
                if not self._carry_out(command):
                    answers.append(command)
        except Exception as error:
            self.give_up(f"{type(event).__name__} was handled by half", error)
            raise
        return answers

    @contextmanager
    def changing(self, what: str) -> Iterator[None]:
        """Within it, what is to agree is changed in more than one place: the store, the scheduler, files. A bug there
        leaves them apart, and ends the daemon; any other, while something is answered, ends that answer alone."""
        try:
            yield
        except (MusterError, OSError):
            raise
        except Exception as error:
            if not self.broken.is_set():
                self.give_up(f"{what} was done by half", error)
            raise

    def give_up(self, what: str, error: BaseException) -> None:
        """After a bug only what is stored is to be trusted: the daemon ends, and another one starts from that."""
        log.critical(
            "%s, a bug of ours: stopping. Nothing is lost; nobody starts the coordinator again but you, with"
            " `coordinator serve`, or what supervises it",
            what,
            exc_info=error,
        )
        self.broken.set()

    def _carry_out(self, command: c.Action) -> bool:
        match command:
            case c.SendGrant() | c.SendDrop() | c.SendCommitted() | c.SendGone() | c.SendDrain() | c.Reject():
                self._say(command)
            case c.AcceptOffer() | c.RefuseOffer():
                return False
            case c.NoteMissing(agent, layer, believed, said):
                what = (
                    "%s has %d shards of %s by what we know and %d by its own count, a bug of ours: it has to say hello"
                )
                log.warning(what, agent, believed, layer, said)
            case c.StartMerge():
                self._start_merge(command)
            case c.DiscardLayer():
                self.background(self._discard_layer(command, self._discarded(command)))
            case c.RaiseHighWater():
                self.background(self._raise_high_water(command))
            case c.StoreAgent():
                if not command.live:
                    self.chronicle.note_parting(command.agent, self.scheduler.state.agents[command.agent].state)
                self.keep_agent(command.agent, command.live)
            case _:
                self._remember(command)
        return True

    def _say(self, command: c.Action) -> None:
        """News for a session goes into its mailbox; a session that is over needs none."""
        mailbox = self.mailboxes.get(command.session)  # type: ignore[union-attr]
        self._chronicle(command)
        if mailbox is None:
            return
        match command:
            case c.SendGrant():
                mailbox.grant(self._grant(command), self.layer_info(command.job, command.layer))
            case c.SendDrop():
                drop = Drop(command.layer, command.boot, command.attempt, command.numbers.pairs())
                mailbox.drop(drop)
            case c.SendCommitted():
                mailbox.committed(Committed(command.layer, command.numbers.pairs()))
            case c.SendGone():
                mailbox.gone(command.layer)
            case c.SendDrain():
                mailbox.ask_to_drain()
            case c.Reject():
                mailbox.reject(Rejected(command.code, command.message, command.hint))

    def _chronicle(self, command: c.Action) -> None:
        match command:
            case c.SendGrant(session, _, layer, attempt, numbers):
                self.chronicle.note("granted", layer, self._agent_name(session), numbers, self.boot, attempt)
            case c.SendDrop(session, layer, boot, attempt, numbers):
                self.chronicle.note("dropped", layer, self._agent_name(session), numbers, boot, attempt)

    def _agent_name(self, session: int) -> str:
        agent = self.scheduler.state.by_session.get(session)
        return agent.name if agent else ""

    def _grant(self, command: c.SendGrant) -> Grant:
        live = self.jobs[command.job]
        if live.started is None:
            live.started = time.time()
            self.write(lambda store: store.set_started(command.job, time.time()))
        payloads = self.scheduler.state.open_layers[command.layer].payloads
        sheets = live.sheets_of(command.numbers) if live.sheets else {}
        if sheets:
            self.something_for_rounds.set()
            self.something_for_rounds = asyncio.Event()
        return Grant(
            job=command.job,
            layer=command.layer,
            boot=self.boot,
            attempt=command.attempt,
            numbers=command.numbers.pairs(),
            payloads={n: payloads[n] for n in command.numbers} if payloads else {},
            sheets=sheets,
        )

    def layer_info(self, job: str, digest: str) -> LayerInfo:
        live = self.jobs[job]
        layer = live.layers[digest]
        return LayerInfo(job, layer, live.plan.work_of(layer))

    def _remember(self, command: c.Action) -> None:
        """Commands that only the store carries out."""
        match command:
            case c.StoreFailure():
                self._store_failure(command)
            case c.StoreQuarantine():
                job, layer, number, why = command.job, command.layer, command.number, command.why
                self.write(lambda store: store.add_quarantine(job, layer, number, why))
                append_quarantine(self.root.job(job).failures, self._shard(job, layer, number), why)
            case c.ForgetFailures():
                self.write(lambda store: store.forget_failures(command.job, command.agent, command.shards))
            case c.StoreJob():
                self._store_job(command)
            case c.StoreSuccess():
                self.write(lambda store: store.set_succeeded(command.job))
            case c.StoreLayer():
                self.write(lambda store: store.set_layer(command.job, command.layer, command.state, command.generation))
            case _:
                raise AssertionError(f"a command nobody carries out: {command!r}")

    def _store_failure(self, command: c.StoreFailure) -> None:
        job, agent, failure, quarantine = command.job, command.agent, command.failure, command.quarantine
        self.jobs[job].figures.failures += 1
        at = time.time()
        self.write(lambda store: store.add_failure(job, agent, at, failure, quarantine))
        host = self.agents[agent].host if agent in self.agents else ""
        shard = self._shard(job, failure.layer, failure.number)
        append_failure(self.root.job(job).failures, shard, agent, host, failure, quarantine)

    def driver_failed(self, job: str, number: int, message: str, evidence: str) -> None:
        """A driver that cannot go on: the job is halted, with the evidence where that of shards is, under the shard it
        was to make next. It counts against none."""
        layer = self.jobs[job].plan.layers[0].digest
        self._store_own_failure(job, layer, number, "driver", message, evidence)
        self.handle(e.DriverFailed(job, message))

    def _merge_refused(self, job: str, layer: Layer, generation: int, message: str, evidence: str) -> None:
        """A layer that does not merge: its job is halted, with the evidence where that of shards is, under a shard
        that there is not. It counts against none."""
        why = f"{layer.name} does not merge: {message}"
        log.error("%s/%s", job, why)
        self._store_own_failure(job, layer.digest, layer.count, "merge", why, evidence)
        self.handle(e.MergeRefused(job, layer.digest, generation, why))

    def _store_own_failure(self, job: str, layer: str, number: int, code: JobCode, message: str, evidence: str) -> None:
        """What failed here, on the server."""
        failure = Failure(job, layer, number, self.boot, 0, code, message, evidence, 0.0, 0)
        at = time.time()
        self.jobs[job].figures.failures += 1
        self.write(lambda store: store.add_failure(job, "coordinator", at, failure, False, counts=False))
        append_failure(self.root.job(job).failures, self._shard(job, layer, number), "coordinator", "", failure, False)

    def _shard(self, job: str, layer: str, number: int) -> str:
        return f"{job}/{self.jobs[job].layers[layer].name}/{number}"

    def _store_job(self, command: c.StoreJob) -> None:
        job, state, why = command.job, command.state, command.why
        live = self.jobs[job]
        live.ended = time.time() if state in ENDED else None
        log.info("%s is %s%s", job, state, f": {why}" if why else "")
        self.write(lambda store: store.set_job(job, state, why, live.ended))
        self.on_job_state(job, state, why)
        self._wake_drivers()

    # --- the store ---------------------------------------------------------------------------------------

    def write(self, statement: Callable[[Store], _T]) -> Future[_T]:
        """Ask the store for something nobody waits for."""
        future = self.store.run(statement)
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda done: self._written(done, loop))
        return future

    def _written(self, future: Future[Any], loop: asyncio.AbstractEventLoop) -> None:
        """On the store's thread."""
        error = future.exception()
        if isinstance(error, sqlite3.OperationalError):  # told to stop while the disk took nothing
            log.error("the store stopped with a statement unwritten: %s", error)
        elif error is not None:
            loop.call_soon_threadsafe(self.give_up, "the store refused a statement", error)

    async def ask(self, statement: Callable[[Store], _T]) -> _T:
        """Durable once this returns."""
        return await asyncio.wrap_future(self.store.run(statement))

    def background(self, coroutine: object) -> None:
        """A task of ours: kept until it is done, its error logged."""
        task: asyncio.Task[None] = asyncio.ensure_future(coroutine)  # type: ignore[call-overload]
        self.tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, (OSError, MusterError)) and not isinstance(error, LayerGone):
            log.error("a task failed", exc_info=error)
        elif error is not None:
            self.give_up("a task failed", error)

    async def _raise_high_water(self, command: c.RaiseHighWater) -> None:
        await self.ask(lambda store: store.raise_high_water(command.job, command.layer, command.value))
        self.handle(e.HighWaterStored(command.job, command.layer, command.value))

    def _discarded(self, command: c.DiscardLayer) -> Future[list[str]]:
        """Asked for at once: the store must hear of it before the layer opens again, and the next commit fixes its
        outputs anew."""
        live = self.jobs[command.job]
        live.outputs.pop(command.layer, None)
        if (declared := live.layers[command.layer].outputs) is not None:
            live.outputs[command.layer] = declared
        return self.write(lambda store: store.discard_layer(command.job, command.layer, command.generation))

    async def _discard_layer(self, command: c.DiscardLayer, discarded: Future[list[str]]) -> None:
        job, digest = command.job, command.layer
        files = await asyncio.wrap_future(discarded)
        live = self.jobs.get(job)
        if live:
            await asyncio.to_thread(withdraw, self.root.job(job).result / live.layers[digest].name)
        await asyncio.to_thread(self._delete_bundles, job, files)

    def _delete_bundles(self, job: str, files: list[str]) -> None:
        """Of which the store knows nothing any more. What stays goes at the next start."""
        for file in files:
            try:
                (self.root.job(job).bundles / file).unlink(missing_ok=True)
            except OSError as error:
                log.warning("a bundle of %s is not deleted: %s", job, error)

    # --- sessions ----------------------------------------------------------------------------------------

    def join(self, hello: Hello) -> tuple[int, Mailbox]:
        """A new session for whoever said hello; its mailbox may hold a refusal."""
        self._last_session += 1
        session = self._last_session
        mailbox = self.mailboxes[session] = Mailbox()
        known = self.agents.get(hello.name)
        state = self.scheduler.state.agents.get(hello.name)
        taken = state is not None and state.present and state.spool != hello.spool
        if not taken:
            info = AgentInfo(hello.host, hello.version, hello.fingerprint, hello.cpus, "", time.time())
            self.agents[hello.name] = info
            self._note_news(hello.name, hello)
        self.handle(
            e.Joined(
                name=hello.name,
                spool=hello.spool,
                process=hello.process,
                session=session,
                cpus=hello.cpus,
                memory=hello.memory,
                room=hello.disk,
                kernels=hello.kernels,
                fingerprint=hello.fingerprint,
                in_place=hello.in_place,
                packages=frozenset(hello.packages),
                gpus=len(hello.gpus),
                envs=hello.envs,
                held=tuple(hello.held),
                failures=tuple(hello.failures),
                losses=tuple(hello.losses),
            )
        )
        if mailbox.rejected:
            del self.mailboxes[session]
            if known:
                self.agents[hello.name] = known
        self._forget_ended_sessions()
        return session, mailbox

    def _forget_ended_sessions(self) -> None:
        """Mailboxes of sessions that are over; a fenced one keeps its refusal until it is read."""
        live = self.scheduler.state.by_session
        for session in [s for s, box in self.mailboxes.items() if s not in live and not box.rejected]:
            del self.mailboxes[session]

    def sync(self, sync: Sync) -> None:
        agent = self.scheduler.state.by_session.get(sync.session)
        if agent:
            info = self.agents[agent.name]
            info.seen, info.note, info.cpus = time.time(), sync.note, sync.lent if sync.lent > 0 else info.cpus
            self._count_finished(agent.name, sync)
            self._note_news(agent.name, sync)
            if sync.printed or sync.unprinted:
                self._keep_printed(agent.name, sync)
            self._note_changes(agent.name, sync)
        self.handle(
            e.Synced(
                session=sync.session,
                room=sync.room,
                hungry=sync.hungry,
                lent=sync.lent if sync.lent >= 0 else None,
                finished=tuple(sync.finished),
                failures=tuple(sync.failures),
                losses=tuple(sync.losses),
                returned=tuple(sync.returned),
                changed=tuple(sync.changed),
                counts=sync.counts,
            )
        )

    def _note_changes(self, agent: str, sync: Sync) -> None:
        for digest in sync.changed if sync.change else ():
            layer = self.scheduler.state.open_layers.get(digest)
            if layer is not None:
                why = f"{agent}: {one_line(sync.change)}"
                log.warning("the source of %s/%s changed: %s", layer.job, layer.name, why)
                self.jobs[layer.job].changes[digest] = why

    def _count_finished(self, agent: str, sync: Sync) -> None:
        for report in sync.finished:
            layer = self.scheduler.state.open_layers.get(report.layer)
            count = len(RangeSet(report.numbers) & layer.whole) if layer else 0
            if layer and count:
                self.jobs[layer.job].figures.finished(agent, report, count)

    def _note_news(self, agent: str, news: Sync | Hello) -> None:
        """For whoever asks what became of a shard. Failures are stored anyway."""
        note = self.chronicle.note
        if isinstance(news, Sync):
            for done in news.finished:
                note("finished", done.layer, agent, done.numbers, done.boot, done.attempt)
            for back in news.returned:
                note("returned", back.layer, agent, back.numbers, back.boot, back.attempt)
        for loss in news.losses:
            note("lost", loss.layer, agent, loss.numbers, loss.boot, loss.attempt, loss.reason)

    def _keep_printed(self, agent: str, sync: Sync) -> None:
        """What users' code printed goes to the log of each one's job."""
        by_job: dict[str, list[printed_log.Saying]] = {}
        now = time.time()
        for one in sync.printed:
            if job := self._job_of(one.layer):
                name = self.jobs[job].layers[one.layer].name
                saying = printed_log.Saying(now, agent, name, one.number, one.boot, one.attempt, one.text)
                by_job.setdefault(job, []).append(saying)
        if sync.unprinted and by_job:
            next(iter(by_job.values())).append(printed_log.Saying(now, agent, left_out=sync.unprinted))
        for job, sayings in by_job.items():
            printed_log.append(self.root.job(job).printed, sayings)

    def _job_of(self, layer: str) -> str:
        """Whose shards of it run, or ran last; "" for what nobody knows."""
        state = self.scheduler.state
        known = [state.open_layers[layer]] if layer in state.open_layers else state.by_digest.get(layer, [])
        return known[-1].job if known else ""

    def keep_agent(self, name: str, live: bool) -> None:
        info = self.agents.get(name)
        if info:
            seen, raw = info.seen, msgspec.msgpack.encode(info)
            self.write(lambda store: store.set_agent(name, live, seen, raw))

    def committed(self, event: e.BundleCommitted, file: str) -> None:
        """A bundle is durable: tell the scheduler, the figures and whoever waits for one."""
        live = self.jobs.get(event.job)
        if live is None:  # removed meanwhile, and what was committed of it with it
            return
        with self.changing("a commit"):
            self._tell_committed(live, event, file)

    def _tell_committed(self, live: LiveJob, event: e.BundleCommitted, file: str) -> None:
        live.figures.committed(event.agent, len(event.numbers), event.nbytes)
        self.chronicle.note("committed", event.layer, event.agent, event.numbers)
        if live.plan.driven:
            live.bundles.append(file)
        live.forget_sheets(event.numbers)
        self.handle(event)
        self._wake_drivers()

    def _wake_drivers(self) -> None:
        self.something_for_drivers.set()
        self.something_for_drivers = asyncio.Event()

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.root.path).free

    # --- merging -----------------------------------------------------------------------------------------

    def _start_merge(self, command: c.StartMerge) -> None:
        job, digest = command.job, command.layer
        layer = self.jobs[job].layers[digest]
        state = self.scheduler.state.open_layers[digest]
        layer = msgspec.structs.replace(
            layer, count=state.count, outputs=self.jobs[job].outputs.get(digest, layer.outputs)
        )
        folder = self.root.job(job).bundles

        async def bundles() -> list[str] | None:
            if not self._still_wanted(job, layer, command.generation):
                return None
            return [str(folder / file) for _, file, _ in await self.ask(lambda store: store.bundles_of(job, digest))]

        self.merging.put(job, layer, command.generation, bundles)

    async def _merge_outcome(
        self, job: str, layer: Layer, generation: int, reply: MergeReply, folder: Path, seconds: float
    ) -> bool:
        if not self._still_wanted(job, layer, generation):
            return True
        if reply.damaged:
            await self._uncommit_bundle(job, layer, generation, Path(reply.damaged), reply.message)
            return True
        if reply.missing:
            missing = RangeSet(reply.missing)
            log.error("%s/%s: %s; they run again", job, layer.name, reply.message)
            await self.ask(lambda store: store.forget_shards(job, layer.digest, missing))
            await self._uncommit(job, layer, generation, missing)
            return True
        if reply.hopeless:
            self._merge_refused(job, layer, generation, reply.message, reply.evidence)
            return True
        if reply.message:
            return False
        await self._finish_merge(job, layer, generation, folder)
        if live := self.jobs.get(job):
            live.figures.merged_bytes += reply.nbytes
            live.figures.merge_seconds += seconds
        return True

    def _still_wanted(self, job: str, layer: Layer, generation: int) -> bool:
        state = self.scheduler.state.open_layers.get(layer.digest)
        return state is not None and (state.job, state.state, state.generation) == (job, "merging", generation)

    async def _finish_merge(self, job: str, layer: Layer, generation: int, folder: Path) -> None:
        await asyncio.to_thread(publish, folder, self.root.job(job).result / layer.name)
        files = await self.ask(lambda store: store.set_merged(job, layer.digest, generation))
        if files is None:  # a retry came between, and took the result away before this one was there
            await asyncio.to_thread(withdraw, self.root.job(job).result / layer.name)
            return
        await asyncio.to_thread(self._delete_bundles, job, files)
        self.handle(e.LayerMerged(job, layer.digest, generation))

    async def bundle_damaged(self, job: str, file: str) -> None:
        """Whoever read a bundle of a driver's job found it so."""
        layer = self.jobs[job].plan.layers[0]
        state = self.scheduler.state.open_layers.get(layer.digest)
        if state is not None and state.job == job and file in self.jobs[job].bundles:
            path = self.root.job(job).bundles / file
            await self._uncommit_bundle(job, layer, state.generation, path, "its driver cannot read it")

    async def _uncommit_bundle(self, job: str, layer: Layer, generation: int, bundle: Path, why: str) -> None:
        log.error("%s/%s: a committed bundle is damaged (%s); its shards run again", job, layer.name, why)
        if live := self.jobs.get(job):  # its place stays: drivers count by places
            live.bundles = ["" if file == bundle.name else file for file in live.bundles]
        numbers = await self.ask(lambda store: store.forget_bundle(job, layer.digest, bundle.name))
        await self._uncommit(job, layer, generation, numbers)
        await asyncio.to_thread(self._delete_bundles, job, [bundle.name])

    async def _uncommit(self, job: str, layer: Layer, generation: int, numbers: RangeSet) -> None:
        payloads = await self.ask(lambda store: store.payloads_of(job, layer.digest, numbers))
        self.chronicle.note("uncommitted", layer.digest, "", numbers)
        self.handle(e.Uncommitted(layer.digest, generation, numbers, payloads))

    # --- time --------------------------------------------------------------------------------------------

    async def tick_forever(self) -> None:
        tick = self.scheduler.state.timing.tick
        while True:
            self.handle(e.SpaceMeasured(self.free_bytes()))
            self.handle(e.Ticked())
            for job, live in self.jobs.items():
                if self.scheduler.state.jobs[job].state == "running":
                    live.figures.tick(tick)
            await asyncio.sleep(tick)
