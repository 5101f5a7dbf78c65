"""The daemon's end of each helper's connection: control, pull, push. Checks what comes in; the scheduler judges it."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from muster.coordinator.daemon.agents.outbox import Mailbox
from muster.coordinator.daemon.connection import Wire
from muster.coordinator.daemon.engine import Engine
from muster.coordinator.daemon.store.statements import AlreadyCommitted, LayerGone, OtherKernels
from muster.coordinator.farm_root.paths import JobFolder
from muster.coordinator.protocol.control import Bye, Hello, Leave, Rejected, Sync
from muster.coordinator.protocol.transfer import (
    Attach,
    Failed,
    Fetch,
    FetchCode,
    Follow,
    Laid,
    Moved,
    NotYet,
    Offer,
    Probe,
    Readable,
    ReadableItems,
    Refused,
    Settled,
    Stored,
    Take,
)
from muster.coordinator.protocol.values import PROBE_LIMIT, PROTOCOL, Message
from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.entities import Agent
from muster.jobs.common.ranges import RangeSet
from muster.jobs.common.validation import one_line
from muster.jobs.contract.plan import ItemsSource, ItemsWindow, Layer, Output

log = logging.getLogger("muster.daemon")


@dataclass(frozen=True)
class Bundle:
    """A bundle between its acceptance and its commit."""

    job: str
    layer: str
    generation: int
    agent: str
    numbers: RangeSet
    outputs: tuple[Output, ...]
    fingerprint: str
    nbytes: int
    tmp: Path
    file: Path

    @property
    def event(self) -> e.BundleCommitted:
        return e.BundleCommitted(
            self.job, self.layer, self.generation, self.agent, self.numbers, self.nbytes, self.fingerprint
        )


class Channel:
    """One helper's connection, for as long as it lasts."""

    def __init__(self, engine: Engine, wire: Wire, attach: Attach) -> None:
        self._engine = engine
        self._wire = wire
        self._role = attach.role
        self._pinned = attach.pinned
        self._bundles: dict[int, Bundle] = {}
        self._session = 0
        self._mailbox: Mailbox | None = None

    async def serve(self) -> None:
        """Answer until the other end goes away."""
        try:
            while (message := await self._wire.receive()) is not None:
                answer = await self._answer(message)
                if answer is not None:
                    await self._wire.send(answer)
                if isinstance(answer, Bye):
                    return
        finally:
            self._clear_up()

    def _clear_up(self) -> None:
        """What a helper that died in the middle left behind: bytes without a row, news nobody will fetch."""
        for bundle in self._bundles.values():
            bundle.tmp.unlink(missing_ok=True)
            bundle.file.unlink(missing_ok=True)
        if self._engine.mailboxes.pop(self._session, None) is not None:
            self._engine.handle(e.HungUp(self._session))

    async def _answer(self, message: Message) -> Message | None:
        if self._role == "control":
            match message:
                case Hello():
                    return self._hello(message)
                case Sync():
                    return await self._sync(message)
                case Leave():
                    return self._leave(message)
        elif self._role == "push":
            match message:
                case Offer():
                    return self._offer(message)
                case Stored():
                    return await self._stored(message)
                case Failed():
                    return self._failed(message)
                case Moved():
                    self._engine.handle(e.Moved(message.session))
                    return None
        elif self._role == "pull":
            match message:
                case Fetch():
                    return self._fetch(message)
                case FetchCode():
                    return self._fetch_code(message)
                case Probe():
                    return self._probe(message)
                case Moved():
                    self._engine.handle(e.Moved(message.session))
                    return None
        elif self._role == "round":
            match message:
                case Follow():
                    return await self._follow(message)
                case Moved():
                    self._engine.handle(e.Moved(message.session))
                    return None
        return Rejected("bad-message", f"{type(message).__name__} does not belong on a {self._role} channel")

    # --- control -----------------------------------------------------------------------------------------

    def _hello(self, hello: Hello) -> Message:
        if hello.protocol != PROTOCOL:
            older = "agent" if hello.protocol < PROTOCOL else "coordinator"
            message = f"the agent speaks protocol {hello.protocol}, the coordinator {PROTOCOL}"
            return Rejected("protocol", message, f"upgrade muster on the {older}'s machine")
        if self._pinned and hello.name != self._pinned:
            log.warning("a key pinned to %s said hello as %s: refused", self._pinned, hello.name)
            return self._other_name()
        self._engine.mailboxes.pop(self._session, None)  # of an earlier hello here; a refusal in it has been read
        self._session, self._mailbox = self._engine.join(hello)
        if self._mailbox.rejected:
            return self._mailbox.rejected
        log.info("%s joined from %s with %d cpus", hello.name, one_line(hello.host), hello.cpus)
        timing = self._engine.scheduler.state.timing
        return self._mailbox.welcome(
            self._engine.farm, self._engine.boot, self._session, timing.lease, timing.heartbeat
        )

    def _other_name(self) -> Rejected:
        return Rejected("not-allowed", f"this key may only join as {self._pinned}", f"use --name {self._pinned}")

    async def _sync(self, sync: Sync) -> Message:
        mailbox = self._mailbox
        if mailbox is None or sync.session != self._session:
            return Rejected("no-session", "this session is not of this channel", "say hello again")
        if mailbox.rejected:
            return mailbox.rejected
        if sync.session not in self._engine.scheduler.state.by_session:
            return Rejected("no-session", "this session has ended", "say hello again")
        self._engine.sync(sync)
        await mailbox.wait(min(sync.wait, self._engine.scheduler.state.timing.lease / 4))
        return mailbox.rejected or mailbox.news()

    def _leave(self, leave: Leave) -> Message:
        if leave.session == self._session:
            self._engine.handle(e.Departed(leave.session))
            self._engine.mailboxes.pop(leave.session, None)
        return Bye("you left")

    # --- round -------------------------------------------------------------------------------------------

    async def _follow(self, follow: Follow) -> Message:
        """The first sheet that its shards want and it does not have, as soon as there is one."""
        engine, loop = self._engine, asyncio.get_running_loop()
        deadline = loop.time() + engine.scheduler.state.timing.heartbeat
        while True:
            agent = self._agent_of(follow.session)
            layer = engine.scheduler.state.open_layers.get(follow.layer)
            if agent is None:
                return Refused("no-session", [], "this session has ended")
            if layer is None or not layer.rounds:
                return Refused("gone", [], "no job has rounds under this name")
            live, left = engine.jobs[layer.job], deadline - loop.time()
            if sheet := live.sheet_for(agent, follow.layer, set(follow.have)):
                return _laid(engine.root.job(layer.job), sheet, live.bases.get(sheet, ""), follow.have)
            if left <= 0:
                return NotYet()
            with suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(engine.something_for_rounds.wait(), left)

    # --- pull --------------------------------------------------------------------------------------------

    def _fetch(self, fetch: Fetch) -> Message:
        """Which bytes of which file the helper may send: only of a shard that this session holds."""
        agent = self._agent_of(fetch.session)
        layer = self._engine.scheduler.state.open_layers.get(fetch.layer)
        if agent is None:
            return Refused("no-session", [], "this session has ended")
        held = [h for h in agent.holdings.values() if h.layer == fetch.layer and fetch.number in h.open]
        if layer is None or not held:
            log.info(
                "%s asked for shard %d of %s, which it does not hold: refused", agent.name, fetch.number, fetch.layer
            )
            return Refused("gone", [(fetch.number, fetch.number + 1)], "this shard is not yours to run")
        if layer.made:
            log.info("%s asked for the input of shard %d of %s, which has none", agent.name, fetch.number, fetch.layer)
            return Refused("corrupt", [], "this shard was made by a driver: it has no input to be fetched")
        window = self._engine.jobs[layer.job].layers[fetch.layer].window(fetch.number)
        start = min(fetch.start, window.nbytes)
        nbytes = min(window.nbytes - start, fetch.limit or window.nbytes)
        if isinstance(window, ItemsWindow):
            path, folder = str(self._engine.root.job(layer.job).items), window.folder or ""
            return ReadableItems(path, window.offset, window.listed, window.nbytes, folder, start, nbytes)
        return Readable(window.path, window.offset + start, nbytes, window.stamp)

    def _fetch_code(self, fetch: FetchCode) -> Message:
        agent = self._agent_of(fetch.session)
        if agent is None:
            return Refused("no-session", [], "this session has ended")
        file = self._file_of(fetch.code)
        if file is None:
            log.info("%s asked for the file %s, which no job has: refused", agent.name, fetch.code)
            return Refused("gone", [], "no job has such a file")
        size = file.stat().st_size
        start = min(fetch.start, size)
        return Readable(str(file), start, min(size - start, fetch.limit or size), None)

    def _file_of(self, digest: str) -> Path | None:
        """The pack of code or the model that some job has under this digest."""
        works = [live.work for live in self._engine.jobs.values()]
        if any(work.code == digest for work in works):
            return self._engine.root.pack(digest)
        if any(work.model is not None and work.model.digest == digest for work in works):
            return self._engine.root.model(digest)
        return None

    def _probe(self, probe: Probe) -> Message:
        if self._pinned and probe.name not in ("", self._pinned):
            return self._other_name()
        return Probe(min(probe.nbytes, PROBE_LIMIT))

    def _agent_of(self, session: int) -> Agent | None:
        """Whose session that is, if this channel's key may speak for it."""
        agent = self._engine.scheduler.state.by_session.get(session)
        if agent is not None and self._pinned and agent.name != self._pinned:
            log.warning("a key pinned to %s used a session of %s: refused", self._pinned, agent.name)
            return None
        return agent

    # --- push --------------------------------------------------------------------------------------------

    def _offer(self, offer: Offer) -> Message:
        agent = self._agent_of(offer.session)
        if agent is None:
            return Refused("no-session", [], "this session has ended")
        try:
            layer = self._engine.scheduler.state.open_layers.get(offer.layer)
            numbers = RangeSet.checked(offer.numbers, layer.count if layer else 1 << 53)
        except ValueError as error:
            return Refused("corrupt", [], str(error))
        (verdict,) = self._engine.handle(e.Offered(offer.session, offer.layer, numbers, offer.fingerprint))
        if isinstance(verdict, c.AcceptOffer):
            return self._accept(offer, verdict, agent.name, numbers)
        assert isinstance(verdict, c.RefuseOffer)
        return Refused(verdict.code, verdict.numbers.pairs())

    def _accept(self, offer: Offer, verdict: c.AcceptOffer, agent: str, numbers: RangeSet) -> Message:
        engine = self._engine
        live = engine.jobs[verdict.job]
        outputs = tuple(offer.outputs)
        fixed = live.outputs.get(verdict.layer, outputs)
        if refused := _judge_outputs(outputs, fixed, live.layers[verdict.layer], numbers):
            return refused
        if (free := engine.free_bytes()) < offer.nbytes:
            return Refused("full", [], f"the root has {free} bytes left, the bundle wants {offer.nbytes}")
        engine.last_token += 1
        token = engine.last_token
        name = f"{engine.boot}-{token}.part"
        layer = live.layers[verdict.layer]
        place = engine.root.job(verdict.job)
        file = (place.rounds if layer.rounds else place.bundles) / name
        bundle = Bundle(
            job=verdict.job,
            layer=verdict.layer,
            generation=verdict.generation,
            agent=agent,
            numbers=numbers,
            outputs=outputs,
            fingerprint=offer.fingerprint,
            nbytes=offer.nbytes,
            tmp=file if layer.rounds else engine.tmp / f"push-{name}",
            file=file,
        )
        self._bundles[token] = bundle
        return _take(token, bundle, layer)

    async def _stored(self, stored: Stored) -> Message:
        bundle = self._bundles.pop(stored.token, None)
        if bundle is None:
            return Refused("corrupt", [], "no such bundle was accepted")
        try:
            refused = await self._commit(bundle, stored.nbytes)
        except Exception as error:
            if not isinstance(error, sqlite3.Error) and not self._engine.broken.is_set():  # it is not in the store
                await asyncio.to_thread(bundle.file.unlink, True)
            raise
        if refused is not None:
            await asyncio.to_thread(bundle.file.unlink, True)
            return refused
        return Settled(bundle.numbers.pairs())

    async def _commit(self, bundle: Bundle, nbytes: int) -> Refused | None:
        """The one transaction; what it means for everyone else follows."""
        engine, b = self._engine, bundle
        layer = engine.scheduler.state.open_layers.get(b.layer)
        if layer is None or layer.job != b.job or layer.generation != b.generation:
            return Refused("gone", [], "the layer was taken back meanwhile")
        fixed = engine.jobs[b.job].outputs.setdefault(b.layer, b.outputs)  # by the first commit, where none is declared
        if refused := _judge_outputs(b.outputs, fixed, engine.jobs[b.job].layers[b.layer], b.numbers):
            return refused
        if layer.rounds:
            return self._take_in(bundle, layer.committed)
        each = b.nbytes // len(b.numbers)
        kernels = b.fingerprint if engine.jobs[b.job].plan.same_kernels else None
        try:
            await engine.ask(
                lambda store: store.commit_bundle(
                    b.job, b.layer, b.file.name, nbytes, b.agent, time.time(), b.numbers, b.outputs, each, kernels
                )
            )
        except AlreadyCommitted as error:
            return Refused("committed", error.numbers.pairs())
        except OtherKernels as error:
            return Refused("kernels", b.numbers.pairs(), str(error))
        except LayerGone:
            if b.job in engine.jobs:  # a bug of ours: of "gone" the agent deletes what it finished
                raise
            return Refused("gone", [], "the job was removed meanwhile")
        engine.committed(bundle.event, b.file.name)
        return None

    def _take_in(self, bundle: Bundle, committed: RangeSet) -> Refused | None:
        """The commit of a round's bundle: in memory, by the same key. Retired shards count as committed."""
        if twice := bundle.numbers & committed:
            return Refused("committed", twice.pairs())
        self._engine.committed(bundle.event, bundle.file.name)
        return None

    def _failed(self, failed: Failed) -> Message:
        bundle = self._bundles.pop(failed.token, None)
        if bundle and failed.code == "full":
            log.warning("no room for a bundle of %s: %s", bundle.job, failed.message)
        elif bundle:
            log.warning("a bundle of %s from %s did not arrive: %s", bundle.job, bundle.agent, failed.message)
        return Refused(failed.code, [], failed.message)


def _take(token: int, bundle: Bundle, layer: Layer) -> Take:
    """With what rows each shard must have."""
    counts = [layer.rows_of(n) for n in bundle.numbers] if isinstance(layer.source, ItemsSource) else []
    rows = layer.rows if not counts else 0
    return Take(token, str(bundle.tmp), str(bundle.file), rows, layer.shard_rows, counts, not layer.rounds)


def _laid(place: JobFolder, sheet: str, base: str, have: list[str]) -> Laid:
    """What makes it of one that the agent has, where there is that and it is less."""
    whole, patch = place.sheet(sheet), place.patch(sheet)
    if base in have and patch.exists() and patch.stat().st_size < whole.stat().st_size:
        return Laid(str(patch), sheet, base)
    return Laid(str(whole), sheet)


def _judge_outputs(
    outputs: tuple[Output, ...], fixed: tuple[Output, ...], layer: Layer, numbers: RangeSet
) -> Refused | None:
    if any(one.form == "files" for one in outputs) and not isinstance(layer.source, ItemsSource):
        return Refused("outputs", numbers.pairs(), "files, of a source that has no items")  # layers may lie below it
    if outputs == fixed:
        return None
    why = f"outputs {_shown(outputs)} where the layer's first commit has {_shown(fixed)}; declared ones would decide"
    return Refused("outputs", numbers.pairs(), why)


def _shown(outputs: tuple[Output, ...]) -> str:
    return ", ".join(f"{o.name} {o.form} {list(o.shape)} {o.dtype}" for o in outputs) or "nothing"
