"""The agent process: events to the core, its commands carried out, on the main thread. Decides nothing about work."""

from __future__ import annotations

import logging
import os
import queue
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import msgspec

from muster.agent.channels.bandwidth import Bandwidth
from muster.agent.channels.control import Control
from muster.agent.channels.own_copy import OwnCopy
from muster.agent.channels.pull import Pulling
from muster.agent.channels.push import Pushing
from muster.agent.channels.rounds import Following
from muster.agent.core.actions import (
    Action,
    Delete,
    Discard,
    DropSheet,
    FollowRounds,
    Freeze,
    KeepSheet,
    Kill,
    Pull,
    PullCode,
    Push,
    Quit,
    Recheck,
    Redial,
    Run,
    Say,
    StopFollowing,
    Tell,
    Thaw,
)
from muster.agent.core.departure import Departure
from muster.agent.core.events import (
    BatchEnded,
    DrainAsked,
    Event,
    Lent,
    PackagesCame,
    PoolLost,
    SpaceSeen,
    Ticked,
)
from muster.agent.core.pool_restarts import PoolRestarts
from muster.agent.core.state_machine import AgentCore, Left
from muster.agent.display import DisplayState, Meter, StatusLine
from muster.agent.host import lending, memory
from muster.agent.host.cpu_shares import CpuShare
from muster.agent.host.taken_kinds import Takes
from muster.agent.links.base import Link
from muster.agent.pool import cleanup
from muster.agent.pool.controller import PoolController
from muster.agent.pool.interface import LOST_HINT, PoolKind
from muster.agent.pool.ray_cluster import Cluster
from muster.agent.spool.paths import Spool
from muster.coordinator.protocol.control import Hello
from muster.jobs.common.errors import INTERRUPTED_EXIT, MusterError
from muster.jobs.common.logs import close_log, open_log
from muster.jobs.common.validation import one_line
from muster.jobs.contract.plan import Environment
from muster.jobs.contract.requirements import limits_said
from muster.jobs.user_code import environments, reaper

LOOK_SECONDS = 0.25  # between looks at the slots' marks
WEIGH_SECONDS = 1.0
SPACE_SECONDS = 2.0
PACKAGES_SECONDS = 60.0  # between looks for packages that were installed, while there is no work
STATE_SECONDS = 1.0
FIRST_LINK_SECONDS = 30.0  # longer than it takes to find out that there is none
SWITCH_SECONDS = 0.0005  # a round waits for each of our threads in turn, and Python's own 5 ms would be most of it
HELLO_SECONDS = 1.0  # for the first hello to be on its way before workers are started

log = logging.getLogger("muster.agent")


@dataclass(frozen=True)
class AgentSettings:
    """What `agent join` was told, every default resolved."""

    who: Hello  # this agent and its machine, as each hello says
    packs: Path | None = None  # folder of the users' code as the coordinator has it; None: inputs and code are pulled
    bandwidth: int | None = None  # bytes per second, both ways together
    pythons: Mapping[str, str] = field(default_factory=dict)  # name of an environment → its interpreter
    share: CpuShare | None = None  # what it says to other agents here of the processors that it lends
    have: Path | None = None  # a copy of the sources on this machine
    pool: PoolKind | None = None  # what starts workers; None: Ray, or plain processes where it does not start
    cluster: Cluster | None = None  # whose nodes run what it is granted; None: this machine
    idle_timeout: float | None = None  # seconds without work after which it leaves; None: it stays
    time_limit: float | None = None  # seconds after which it leaves


class Interrupted(BaseException):
    """A second signal: stop at once."""


class AgentProcess:
    """One run of `agent join`."""

    def __init__(self, settings: AgentSettings, spool: Spool, link: Link) -> None:
        self._settings = settings
        self._spool = spool
        self._link = link
        self._link.hand_over(spool.tmp)
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._control = Control(link, self._inbox.put)
        bandwidth = Bandwidth(settings.bandwidth)
        self._pushing = Pushing(link, spool, bandwidth, self._inbox.put)
        copy = OwnCopy(settings.have) if settings.have else None
        self._pulling = Pulling(link, spool, bandwidth, self._inbox.put, copy)
        self._following = Following(link, spool, bandwidth, self._inbox.put)
        self._pool_controller = PoolController(
            spool,
            settings.who,
            settings.pool,
            settings.packs,
            settings.pythons,
            Takes(tuple(settings.who.kinds), settings.who.no_code),
            self._inbox.put,
            settings.cluster,
        )
        self._cores = lending.cores() if settings.cluster is None else settings.who.cpus
        self._core = self._make_desk()
        self._line = StatusLine()
        self._meter = Meter()
        self._weights: dict[int, memory.TreeUsage] = {}
        self._due = dict.fromkeys(("wish", "look", "weigh", "space", "state"), 0.0)
        self._wish, self._wish_stamp = lending.read(spool.path), lending.stamp(spool.path)
        self._lent = (settings.who.cpus, "")
        self._envs: Mapping[str, Environment] = settings.who.envs
        self._packages = tuple(settings.who.packages)
        self._looking: threading.Thread | None = None  # for packages that came
        if settings.cluster is not None:
            self._due["demand"] = 0.0
        self._due["packages"] = time.monotonic() + PACKAGES_SECONDS
        self._departure = Departure(settings.idle_timeout, settings.time_limit, time.monotonic())
        if settings.idle_timeout is not None or settings.time_limit is not None:
            self._due["departure"] = 0.0
        self._signals = 0
        self._restarts = PoolRestarts() if settings.cluster is None else PoolRestarts(limit=None)
        self._pool_lost = False  # and not started again
        self._quit: Quit | None = None

    def run(self) -> int:
        """Until it has left; the exit code. A MusterError is raised once everything is stopped."""
        self._catch_signals()
        open_log(self._spool.log)
        log.info("joining %s as %s", self._link, self._settings.who.name)
        try:
            self._work()
        except Interrupted:
            kept = self._spool.done
            self._line.say(f"stopped at once; finished work is kept in {kept} and offered at the next join")
            return INTERRUPTED_EXIT
        finally:
            self._stop()
        assert self._quit is not None
        if self._quit.error is not None:
            raise self._quit.error
        self._spool.release()
        return 0

    def _make_desk(self) -> AgentCore:
        """What an earlier process left becomes the first thing to tell."""
        losses = self._spool.losses()
        cleanup.sweep(self._spool.run, scratch=self._spool.run)  # before its record is cleared away
        self._spool.clear()
        parts = [part for part, _ in self._spool.parts()]
        return AgentCore(self._settings.who, Left(parts, losses, self._spool.copies(), self._spool.codes()))

    # --- the loop ---

    def _work(self) -> None:
        self._control.start()
        self._pushing.start()
        if self._settings.packs is None:
            self._pulling.start()
        self._until_hello()
        self._start_pool()
        while self._quit is None:
            self._step(self._core.patience(time.monotonic()))
            if self._pool_lost and self._restarts.retry.is_over(time.monotonic()):
                self._start_pool()

    def _until_hello(self) -> None:
        """Until the first hello is said, or it takes too long. Workers are not started for a link there never is."""
        begun = time.monotonic()
        while self._quit is None and not (core := self._core.snapshot()).asked:
            if time.monotonic() - begun > (HELLO_SECONDS if core.up else FIRST_LINK_SECONDS):
                break
            self._step(self._core.patience(time.monotonic()))

    def _start_pool(self) -> None:
        if self._quit is None:
            who, cluster = self._settings.who, self._settings.cluster
            what = (
                f"starting {who.cpus} workers" if cluster is None else f"joining the Ray cluster at {cluster.address}"
            )
            self._line.say(f"{who.name}: {what}")
            self._pool_lost = False
            self._pool_controller.pool.start()

    def _lose_pool(self, lost: PoolLost) -> PoolLost:
        """It died, or did not start. Its workers' batches were given up already."""
        if lost.error is not None:
            return lost
        pause = self._restarts.lost(lost.reason, time.monotonic())
        if pause is None:
            told = f"the pool of workers was lost {self._restarts.equal} times in a row, with nothing done: "
            return PoolLost(lost.reason, MusterError(told + lost.reason, LOST_HINT))
        self._pool_controller.pool.stop()
        self._pool_lost = True
        return PoolLost(f"its pool of workers is started again in {pause:.2g} s: {lost.reason}")

    def _step(self, seconds: float) -> None:
        try:
            event = self._inbox.get(timeout=seconds)
        except queue.Empty:
            self._handle(Ticked())
        else:
            if not isinstance(event, PackagesCame) or self._take_packages(event):
                self._handle(self._pool_controller.completed(event))
        self._look_around(time.monotonic())

    def _handle(self, event: Event) -> None:
        if isinstance(event, PoolLost):
            event = self._lose_pool(event)
            self._due["state"] = 0.0
            log.error("%s", event.error.message if event.error else event.reason)
        elif isinstance(event, BatchEnded):
            self._restarts.worked()
        now = time.monotonic()
        self._meter.note(event, now)
        for action in self._core.handle(event, now):
            self._obey(action)

    def _obey(self, action: Action) -> None:
        match action:
            case Run():
                if action.info.layer.delivery.in_rounds:
                    sys.setswitchinterval(SWITCH_SECONDS)
                event = self._pool_controller.run(action)
                if event is not None:
                    self._inbox.put(event)
            case Kill():
                self._pool_controller.kill(action)
                self._weights = {}  # of the worker that was: the next one must not be blamed for it
            case Freeze(slot):
                self._pool_controller.freeze(slot)
            case Thaw(slot):
                self._pool_controller.thaw(slot)
            case Say():
                self._control.say(action)
            case Redial():
                self._control.redial(action)
            case Push() | Recheck():
                self._pushing.order(action)
            case Pull() | PullCode():
                self._pulling.order(action)
            case FollowRounds() | KeepSheet() | DropSheet() | StopFollowing():
                self._following.obey(action)
            case Discard(name, digest):
                path = self._spool.half(name) if digest is None else self._spool.input(name, digest)
                path.unlink(missing_ok=True)
            case Delete(name):
                self._spool.part(name).unlink(missing_ok=True)
            case Tell(line):
                log.info("%s", one_line(line))
                self._line.say(f"{self._settings.who.name}: {one_line(line)}")
            case Quit():
                self._quit = action

    # --- looking ---

    def _look_around(self, now: float) -> None:
        if self._is_due("wish", LOOK_SECONDS, now):
            self._mind_wishes()
        if all(now < due for due in self._due.values()):
            return
        core = self._core.snapshot()
        busy = core.busy
        if "demand" in self._due and self._is_due("demand", LOOK_SECONDS, now):
            self._pool_controller.ask(core.demand, now)
        if not busy and self._is_due("packages", PACKAGES_SECONDS, now):
            self._look_for_packages()
        if busy and self._is_due("weigh", WEIGH_SECONDS, now):
            self._weights = self._pool_controller.weigh(busy)
            self._pool_controller.be_kind(busy, self._wish.nice, self._wish.ionice)
        if busy and self._is_due("look", LOOK_SECONDS, now):
            self._handle(self._pool_controller.look(busy, self._weights))
        if self._is_due("space", SPACE_SECONDS, now):
            self._handle(SpaceSeen(shutil.disk_usage(self._spool.path).free))
        if "departure" in self._due and self._is_due("departure", LOOK_SECONDS, now):
            at_work = bool(core.running or core.waiting or core.finished)
            may_work = (core.ready or self._settings.cluster is not None) and self._lent[0] > 0
            if why := self._departure.look(now, may_work=may_work, at_work=at_work):
                self._handle(DrainAsked(why))
        if self._is_due("state", STATE_SECONDS, now):
            self._show(now)

    def _mind_wishes(self) -> None:
        """Lend as many processors as whoever sits here wants to, now."""
        stamp = lending.stamp(self._spool.path)
        fresh = stamp != self._wish_stamp
        if fresh:
            self._wish, self._wish_stamp = lending.read(self._spool.path), stamp
        lent = lending.lent(self._wish, self._settings.who.cpus, self._cores, lending.minute_of_week())
        if lent != self._lent:
            self._lent = lent
            self._pool_controller.pool.want(lent[0])
            self._handle(Lent(*lent))
            if lent[0] and self._settings.share is not None:  # one that is paused comes back to what it lent
                self._settings.share.change(self._settings.who.name, lent[0])
        if fresh:
            self._due["state"] = 0.0  # who wished it waits for the word

    def _look_for_packages(self) -> None:
        """Whoever has no work may have none for want of a package that was installed meanwhile. On a thread: each
        interpreter is asked."""
        if self._looking is None or not self._looking.is_alive():
            self._looking = threading.Thread(target=self._ask_environments, name="packages", daemon=True)
            self._looking.start()

    def _ask_environments(self) -> None:
        seen = {"": environments.own()}
        for name, python in self._settings.pythons.items():
            with suppress(MusterError):  # it was good when the agent joined; jobs that use it will tell
                seen[name] = environments.probe(name, python)
        who = self._settings.who
        packages = dict.fromkeys([*who.packages, *environments.installed()])
        self._inbox.put(PackagesCame(tuple(packages), environments.grown(who.envs, seen)))

    def _take_packages(self, came: PackagesCame) -> bool:
        """Whether anything came."""
        if came.packages == self._packages and came.envs == self._envs:
            return False
        names = {
            one for name, env in came.envs.items() for one in env.packages.keys() - self._envs[name].packages.keys()
        }
        log.info("packages were installed: %s", ", ".join(sorted(names)) or "-")
        self._packages, self._envs = came.packages, came.envs
        self._pool_controller.learn(came.envs)
        return True

    def _is_due(self, what: str, seconds: float, now: float) -> bool:
        if now < self._due[what]:
            return False
        self._due[what] = now + seconds
        return True

    def _show(self, now: float) -> None:
        state = self._state(now)
        self._line.show(state, now)
        with suppress(OSError):  # a full disk: there is no news then, and no harm
            self._spool.write_state(msgspec.json.encode(state))

    def _state(self, now: float) -> DisplayState:
        core, meter = self._core.snapshot(), self._meter
        return DisplayState(
            name=self._settings.who.name,
            host=self._settings.who.host,
            where=str(self._link),
            pid=os.getpid(),
            linked=core.linked,
            lasting=core.lasting,
            ready=core.ready,
            why_idle=core.why_idle,
            running=core.running,
            waiting=core.waiting,
            finished=core.finished,
            done=meter.done,
            pushed=meter.pushed,
            bytes_pushed=meter.bytes_pushed,
            bytes_pulled=meter.bytes_pulled,
            rate=meter.rate(now),
            cpus=self._lent[0],
            wishes=self._wish_stamp,
            limits=limits_said(self._settings.who.kinds, no_code=self._settings.who.no_code),
            at=time.time(),
            elsewhere=self._wish.elsewhere,
        )

    # --- signals, and the end ---

    def _catch_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._signalled)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            raise Interrupted
        self._inbox.put(DrainAsked(signal.Signals(number).name))

    def _stop(self) -> None:
        """Whatever state things are in. A third signal changes nothing: this is short."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self._control.stop()
        self._pushing.stop()
        self._pulling.stop()
        self._following.stop()
        self._pool_controller.pool.stop()
        reaper.sweep(self._spool.run)
        self._link.close()
        if self._quit is not None:
            self._show(time.monotonic())
        self._line.close()
        log.info("left")
        close_log()
