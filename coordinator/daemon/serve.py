"""`coordinator serve`: one process per root that puts the engine, the socket and the clock together."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
from pathlib import Path
from typing import Any

from muster.coordinator.api.requests import FromCommand
from muster.coordinator.daemon.actions import HANDLERS
from muster.coordinator.daemon.agents.channel import Channel
from muster.coordinator.daemon.agents.control import ControlChannel
from muster.coordinator.daemon.agents.transfers import PullChannel, PushChannel, RoundChannel
from muster.coordinator.daemon.connection import Wire
from muster.coordinator.daemon.engine import Engine
from muster.coordinator.daemon.jobs import drivers
from muster.coordinator.daemon.jobs.remove import sweep_forever
from muster.coordinator.daemon.jobs.restore import restore
from muster.coordinator.daemon.notify.queue import NotifyQueue
from muster.coordinator.daemon.requests import answer
from muster.coordinator.daemon.store.opening import open_store
from muster.coordinator.daemon.store.statements import Store, StoredJob
from muster.coordinator.daemon.views import long_shards
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import HeldRoot, Root
from muster.coordinator.protocol.transfer import Attach, FromHelper
from muster.coordinator.protocol.values import Decoder, Message
from muster.coordinator.scheduler.answers import unpacked
from muster.coordinator.scheduler.state_machine import Scheduler
from muster.coordinator.scheduler.timing import Timing
from muster.jobs.common.errors import INTERNAL_EXIT, MusterError, ProtocolError, RefusedError
from muster.jobs.common.logs import PEER, close_log, open_log

log = logging.getLogger("muster.daemon")

FIRST_SECONDS = 60.0  # until whoever connected says what it is: commands and helpers do at once
BACKLOG = 2048  # connections that may wait: all machines may come at once
ACCEPTED_AT_ONCE = 4  # in a turn of the loop: it takes some until `_connected` has a say
CHANNELS = {"control": ControlChannel, "pull": PullChannel, "push": PushChannel, "round": RoundChannel}
_decode = Decoder(FromHelper | FromCommand)


def serve(path: Path, timing: Timing | None = None, quiet: bool = False) -> int:
    """Serve `path` until told to stop; the exit code. `quiet`: nobody reads stderr."""
    root = roots.prepare(path)
    with roots.held(root) as held:
        open_log(root.log, for_people=not quiet)
        return asyncio.run(_Daemon(root, held, timing or Timing()).run())


class _Daemon:
    def __init__(self, root: Root, held: HeldRoot, timing: Timing) -> None:
        self._root, self._held = root, held
        store, self._boot = open_store(root)
        self._stored = _settle_submissions(root, store)
        known_agents = store.agents()
        expected = frozenset(name for name, live, _, _ in known_agents if live)
        self._failures = store.failure_counts()
        _delete_leftovers(root)
        scheduler = Scheduler(self._boot, timing, expected, unpacked(store.answers()))
        self._engine = Engine(root, store, scheduler, HANDLERS)
        self._engine.tmp.mkdir(mode=0o700)
        for name, _, seen, raw in known_agents:
            self._engine.sessions.remember(name, seen, raw)
        self._notifying = NotifyQueue(self._engine)
        self._connections: set[asyncio.Task[None]] = set()
        self._crowded = False  # whether it was said that there are too many of them

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(name, self._asked_to_end, name)
        for stored in self._stored:
            await restore(self._engine, stored, self._failures.get(stored.id, 0))
        self._root.socket.unlink(missing_ok=True)
        server = await self._listen()
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._engine.tick_forever()),
            asyncio.create_task(self._engine.merging.run()),
            asyncio.create_task(sweep_forever(self._engine)),
            asyncio.create_task(self._notifying.look_forever()),
            asyncio.create_task(long_shards.log_forever(self._engine)),
            asyncio.create_task(self._engine.figures.keep_forever(self._engine)),
            asyncio.create_task(self._watch_root(self._engine.state.timing.tick)),
        ]
        for job in self._engine.jobs:
            drivers.start(self._engine, job)
        self._notifying.go_on(self._stored)
        log.info("serving %s, farm %s, boot %d", self._root.path, self._root.farm, self._boot)
        log.info("machines without `coordinator` on the PATH here join with --command %s", self._root.launcher)
        ends = [asyncio.create_task(event.wait()) for event in (self._engine.stop, self._engine.broken)]
        done, _ = await asyncio.wait([*ends, *tasks], return_when=asyncio.FIRST_COMPLETED)
        in_place = self._held.is_in_place
        if not in_place:
            close_log()  # which would be written below whatever is in the root's place now
        for task in done:
            if (error := task.exception()) and in_place and not self._engine.broken.is_set():
                self._engine.give_up("a task ended", error)
        await self._wind_down(server, [*tasks, *ends], in_place)
        if not in_place:
            raise self._moved()
        return INTERNAL_EXIT if self._engine.broken.is_set() else 0

    async def _watch_root(self, seconds: float) -> None:
        """Ends once the root is no longer where it was: what is done by its path would be done to another one."""
        while self._held.is_in_place:
            await asyncio.sleep(seconds)

    def _moved(self) -> RefusedError:
        return RefusedError(
            f"the root {self._root.path} was moved or removed while it was served",
            "serve it where it is now, `coordinator serve --root DIR`: all that was stored is in it",
        )

    async def _listen(self) -> asyncio.Server:
        listening = socket.socket(socket.AF_UNIX)
        with roots.address(self._root.socket) as where:
            listening.bind(where)
        self._root.socket.chmod(0o600)
        server = await asyncio.start_unix_server(self._connected, sock=listening, backlog=ACCEPTED_AT_ONCE)
        listening.listen(BACKLOG)
        return server

    def _asked_to_end(self, number: int) -> None:
        """Stop in good order when first asked, and at once when asked again: what is stored is not lost."""
        if self._engine.stop.is_set():
            log.warning("asked to end again: not waiting any longer")
            os._exit(128 + number)
        self._engine.stop.set()

    async def _wind_down(self, server: asyncio.Server, tasks: list[asyncio.Task[Any]], in_place: bool) -> None:
        log.info("stopping; jobs go on when this root is served again")
        server.close()
        if in_place:
            self._root.socket.unlink(missing_ok=True)
        gone = await self._engine.wind_down([*tasks, *self._connections])
        if in_place:
            shutil.rmtree(self._engine.tmp, ignore_errors=True)
        if not gone:
            os._exit(INTERNAL_EXIT)  # all is stored; leaving the loop would wait for that task for ever

    # --- connections -------------------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        PEER.set("new connections")  # until one says whose it is
        self._connections.add(task)
        wire = Wire(reader, writer, _decode)
        for other in self._engine.connections.open(wire):
            self._note_crowd()
            other.hang_up()
        try:
            await self._converse(wire)
        except (ProtocolError, ConnectionError, asyncio.IncompleteReadError) as error:
            log.warning("a connection was closed: %s", error)
        except asyncio.CancelledError:
            pass
        except (OSError, MusterError):
            log.exception("a connection failed")
        except Exception:
            log.exception("a connection was closed, a bug of ours; whoever was there will come again")
        finally:
            self._connections.discard(task)
            self._engine.connections.close(wire)
            drivers.close(self._engine, wire)
            await wire.close()

    def _note_crowd(self) -> None:
        """Once: whoever opens so many would fill the log as well."""
        if not self._crowded:
            self._crowded = True
            said = "%d connections are open, as many as there may be: for each new one, that of whoever has most ends"
            log.warning(said, self._engine.connections.limit)

    async def _converse(self, wire: Wire) -> None:
        first = await wire.receive(FIRST_SECONDS)
        if isinstance(first, Attach):
            await CHANNELS.get(first.role, Channel)(self._engine, wire, first).serve()
            return
        question: Message | None = first
        while question is not None:
            await wire.send(await answer(self._engine, question, wire))
            question = await wire.receive()


def _settle_submissions(root: Root, store: Store) -> list[StoredJob]:
    """A job whose folder is in place is one; without it, it never was."""
    for job in store.half_submitted():
        if root.job(job).plan.exists():
            store.set_ready(job)
        else:
            store.remove_job(job)
    return store.jobs()


def _delete_leftovers(root: Root) -> None:
    """`tmp/` of other boots."""
    for path in root.tmp.iterdir():
        if path.name.isdecimal():
            shutil.rmtree(path, ignore_errors=True)
