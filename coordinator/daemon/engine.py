"""Between the scheduler and the world: events go in, each action goes to its handler. Decides nothing."""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import sqlite3
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from muster.coordinator.api.status import JobStatus
from muster.coordinator.daemon import waiting
from muster.coordinator.daemon.agents.sessions import Sessions
from muster.coordinator.daemon.connection import Wire
from muster.coordinator.daemon.connections import Connections, raise_limit
from muster.coordinator.daemon.figures.keep import FiguresKeeper
from muster.coordinator.daemon.jobs.live import LiveJob
from muster.coordinator.daemon.looking import LookBudget
from muster.coordinator.daemon.merge.queue import MergeQueue
from muster.coordinator.daemon.store.statements import LayerGone, Store
from muster.coordinator.daemon.store.thread import StoreThread
from muster.coordinator.daemon.views.shard_history import ShardHistory
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.entities import Agent, Job, Layer
from muster.coordinator.scheduler.intake import Intake
from muster.coordinator.scheduler.state import State
from muster.coordinator.scheduler.state_machine import Scheduler
from muster.jobs.common.errors import DamagedError, MusterError, NotFoundError
from muster.jobs.common.validation import nearest
from muster.jobs.contract.plan import Plan
from muster.jobs.contract.states import JobState

log = logging.getLogger("muster.daemon")

_T = TypeVar("_T")
Handlers = Mapping[type[c.Action], Callable[["Engine", Any], None]]
VERDICTS = (c.AcceptOffer, c.RefuseOffer)  # that go back to whoever brought the event
LAYERS_HINT = "`coordinator status {}` lists its layers and how many shards each has"


class Engine:
    """One per daemon, on its event loop."""

    def __init__(self, root: Root, store: Store, scheduler: Scheduler, handlers: Handlers) -> None:
        self.root = root
        self.boot = scheduler.state.boot
        self.tmp = root.tmp / str(self.boot)
        self.jobs: dict[str, LiveJob] = {}
        self.damaged: dict[
            str, tuple[JobStatus, DamagedError]
        ] = {}  # jobs that are not served → as last known, and why
        self.tokens = itertools.count(1)  # of accepted bundles
        self.intake = Intake()
        self.connections: Connections[Wire] = Connections(raise_limit())
        self.taking: dict[str, Plan | None] = {}  # folders of submissions that are being taken over
        self.sessions = Sessions(self.boot)
        self.shard_history = ShardHistory()
        self.merging = MergeQueue(self.tmp, root.log)
        self.figures = FiguresKeeper(root.figures)
        self.looking = LookBudget(time.monotonic(), time.process_time())
        self.job_listeners: list[Callable[[str, JobState, str], None]] = []  # told of a job, its new state, and why
        self.store_trouble = ""  # what keeps the store from writing, for people
        self.stop = asyncio.Event()  # somebody asked for it
        self.broken = asyncio.Event()  # a bug: what is in memory may differ from what is stored
        self._store = StoreThread(store, self._note_trouble)
        self._scheduler = scheduler
        self._handlers = handlers
        self._tasks: set[asyncio.Task[None]] = set()

    # --- what is known -----------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """To be read; only events change it."""
        return self._scheduler.state

    def job(self, job: str) -> Job:
        """A job that somebody asks about."""
        found = self.state.jobs.get(job)
        if job in self.damaged:
            raise self.damaged[job][1]
        if found is None:
            near = nearest(job, [*self.state.jobs, *self.damaged])
            raise NotFoundError(f"there is no job {job}", f"did you mean {near}?" if near else None)
        return found

    def layer_named(self, job: Job, name: str) -> Layer:
        found = next((layer for layer in job.layers if layer.name == name), None)
        if found is None:
            raise NotFoundError(f"{job.id} has no layer {name!r}", LAYERS_HINT.format(job.id))
        return found

    def agent_of(self, session: int) -> Agent | None:
        return self.state.by_session.get(session)

    def open_layer(self, digest: str) -> Layer | None:
        """The one open or merging layer with this digest."""
        return self.state.open_layers.get(digest)

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.root.path).free

    # --- events in, actions out --------------------------------------------------------------------------

    def handle(self, event: e.Event) -> list[c.Action]:
        """Let the scheduler react; the actions only the asker can carry out come back."""
        verdicts: list[c.Action] = []
        try:
            for action in self._scheduler.handle(event, time.monotonic()):
                if isinstance(action, VERDICTS):
                    verdicts.append(action)
                else:
                    self._handlers[type(action)](self, action)
        except Exception as error:
            self.give_up(f"{type(event).__name__} was handled by half", error)
            raise
        return verdicts

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

    # --- the store ---------------------------------------------------------------------------------------

    def write(self, statement: Callable[[Store], _T]) -> Future[_T]:
        """Ask the store for something nobody waits for."""
        future = self._store.run(statement)
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
        return await asyncio.wrap_future(self._store.run(statement))

    async def stored(self) -> None:
        """Whatever the store was asked for so far is durable once this returns."""
        await self.ask(lambda store: None)

    def _note_trouble(self, why: str) -> None:
        """On the store's thread."""
        if why and why != self.store_trouble:
            log.error("the root's database cannot be written: %s; it is tried again until it can", why)
        self.store_trouble = why

    # --- tasks and time ----------------------------------------------------------------------------------

    def background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """A task of ours: kept until it is done, its error logged."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, (OSError, MusterError)) and not isinstance(error, LayerGone):
            log.error("a task failed", exc_info=error)
        elif error is not None:
            self.give_up("a task failed", error)

    async def tick_forever(self) -> None:
        tick = self.state.timing.tick
        while True:
            self.handle(e.SpaceMeasured(self.free_bytes()))
            self.handle(e.Ticked())
            for job in self.state.running:
                self.jobs[job].figures.tick(tick)
            await asyncio.sleep(tick)

    async def wind_down(self, others: Iterable[asyncio.Task[Any]]) -> bool:
        """No task goes on; what was asked of the store is stored, and which agents were here. False if one goes on."""
        gone = await waiting.end([*others, *self._tasks])
        for name, agent in self.state.agents.items():
            self.keep_agent(name, agent.present)
        await self.figures.close(self)
        await asyncio.to_thread(self._store.stop)
        return gone

    def keep_agent(self, name: str, live: bool) -> None:
        """Store what is known of an agent, and whether it is expected back."""
        if name in self.sessions.agents:
            info = self.sessions.agents[name]
            if agent := self.state.agents.get(name):
                info.fingerprints, info.left = list(agent.fingerprints), agent.state == "left"
            seen, raw = self.sessions.stored(name)
            self.write(lambda store: store.set_agent(name, live, seen, raw))
