"""The channels for inputs, bundles and sheets. Each checks what comes in; the scheduler and the store judge it."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from muster.coordinator.daemon.agents.channel import Answers, Channel
from muster.coordinator.daemon.connection import Wire
from muster.coordinator.daemon.engine import Engine
from muster.coordinator.daemon.jobs.damage import damaged, has_folder
from muster.coordinator.daemon.store.statements import AlreadyCommitted, LayerGone, OtherKernels
from muster.coordinator.daemon.waiting import wait_until
from muster.coordinator.farm_root.paths import JobFolder
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
from muster.coordinator.protocol.values import PROBE_LIMIT, Message
from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.intake import Coming
from muster.jobs.common.ranges import RangeSet
from muster.jobs.common.validation import one_line
from muster.jobs.contract.plan import Delivery, ItemsSource, ItemsWindow, Layer, Output, Work

log = logging.getLogger("muster.daemon")


class PullChannel(Channel):
    def _fetch(self, fetch: Fetch) -> Message:
        """Which bytes of which file the helper may send: only of a shard that this session holds."""
        self._moving = 0
        agent = self.agent_of(fetch.session)
        layer = self._engine.open_layer(fetch.layer)
        if agent is None:
            return Refused("no-session", [], "this session has ended")
        self.take_place(agent.name, "pull")
        held = [h for h in agent.holdings.values() if h.layer == fetch.layer and fetch.number in h.open]
        if layer is None or not held:
            log.info(
                "%s asked for shard %d of %s, which it does not hold: refused", agent.name, fetch.number, fetch.layer
            )
            return Refused("gone", [(fetch.number, fetch.number + 1)], "this shard is not yours to run")
        if layer.plan.made:
            log.info("%s asked for the input of shard %d of %s, which has none", agent.name, fetch.number, fetch.layer)
            return Refused("corrupt", [], "this shard was made by a driver: it has no input to be fetched")
        window = layer.plan.window(fetch.number)
        self._moving = fetch.session
        start = min(fetch.start, window.nbytes)
        nbytes = min(window.nbytes - start, fetch.limit or window.nbytes)
        if isinstance(window, ItemsWindow):
            path, folder = str(self._engine.root.job(layer.job).items), window.folder or ""
            return ReadableItems(path, window.offset, window.listed, window.nbytes, folder, start, nbytes)
        return Readable(window.path, window.offset + start, nbytes, window.stamp)

    def _fetch_code(self, fetch: FetchCode) -> Message:
        self._moving = 0
        agent = self.agent_of(fetch.session)
        if agent is None:
            return Refused("no-session", [], "this session has ended")
        self.take_place(agent.name, "pull")
        file = self._file_of(fetch.code)
        try:
            size = file.stat().st_size if file is not None else 0
        except OSError as error:
            for job in [one for one, live in self._engine.jobs.items() if fetch.code in _files_of(live.work)]:
                damaged(self._engine, job, f"{file}: {error.strerror}")
            file = None
        if file is None:
            log.info("%s asked for the file %s, which no job has: refused", agent.name, fetch.code)
            return Refused("gone", [], "no job has such a file")
        self._moving = fetch.session
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
            return self.other_name()
        return Probe(min(probe.nbytes, PROBE_LIMIT))

    answers: ClassVar[Answers] = {Fetch: _fetch, FetchCode: _fetch_code, Probe: _probe, Moved: Channel.moved}


def _files_of(work: Work) -> set[str | None]:
    """Digests of the pack of code and the model that it wants."""
    return {work.code, work.model.digest if work.model is not None else None}


class RoundChannel(Channel):
    async def _follow(self, follow: Follow) -> Message:
        """The first sheet that its shards want and it does not have, as soon as there is one. One that the agent has
        made itself since it asked it may have kept: it is to ask again, and to say so."""
        engine, loop, is_old = self._engine, asyncio.get_running_loop(), False
        deadline = loop.time() + engine.state.timing.heartbeat
        while True:
            agent = self.agent_of(follow.session)
            layer = engine.open_layer(follow.layer)
            if agent is None:
                return Refused("no-session", [], "this session has ended")
            self.take_place(agent.name, f"round {follow.layer}")
            if layer is None or layer.stored or not agent.had(follow.layer):
                return Refused("gone", [], "this session was granted nothing of rounds under this name")
            live, left = engine.jobs[layer.job], deadline - loop.time()
            if sheet := live.sheet_for(agent, follow.layer, set(follow.have)):
                if is_old and live.makers.get(sheet) == agent.name:
                    return NotYet()
                return _laid(engine.root.job(layer.job), sheet, live.bases.get(sheet, ""), follow.have)
            if left <= 0:
                return NotYet()
            await wait_until(live.sheets_granted.next, left)
            is_old = True

    answers: ClassVar[Answers] = {Follow: _follow, Moved: Channel.moved}


def _laid(place: JobFolder, sheet: str, base: str, have: list[str]) -> Laid:
    """The patch if the agent has its base sheet and the patch is smaller; otherwise the whole sheet."""
    whole, patch = place.sheet(sheet), place.patch(sheet)
    if base in have and patch.exists() and patch.stat().st_size < whole.stat().st_size:
        return Laid(str(patch), sheet, base)
    return Laid(str(whole), sheet)


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
    durable: bool  # whether there is to be a row of it; not of a round

    @property
    def event(self) -> e.BundleCommitted:
        return e.BundleCommitted(
            self.job, self.layer, self.generation, self.agent, self.numbers, self.nbytes, self.fingerprint
        )


class PushChannel(Channel):
    def __init__(self, engine: Engine, wire: Wire, attach: Attach) -> None:
        super().__init__(engine, wire, attach)
        self._bundles: dict[int, Bundle] = {}  # accepted, and not settled yet

    def clear_up(self) -> None:
        """Bytes without a row."""
        while self._bundles:
            token, bundle = self._bundles.popitem()
            self._engine.intake.ended(token)
            _discard(bundle.tmp)
            _discard(bundle.file)

    def _offer(self, offer: Offer) -> Message:
        self._moving = 0
        agent = self.agent_of(offer.session)
        if agent is None:
            return Refused("no-session", [], "this session has ended")
        self.take_place(agent.name, "push")
        try:
            layer = self._engine.open_layer(offer.layer)
            numbers = RangeSet.checked(offer.numbers, layer.count if layer else 1 << 53)
        except ValueError as error:
            return Refused("corrupt", [], str(error))
        said = e.Offered(offer.session, offer.layer, numbers, offer.fingerprint, tuple(offer.agents))
        (verdict,) = self._engine.handle(said)
        if isinstance(verdict, c.AcceptOffer):
            return self._accept(offer, verdict, agent.name, numbers)
        assert isinstance(verdict, c.RefuseOffer)
        if verdict.code == "sender":
            log.warning("%s %s: a bundle of %s is refused", agent.name, one_line(verdict.why), offer.layer)
        why = verdict.why or _damage_of(self._engine, offer.layer)
        return Refused(verdict.code, verdict.numbers.pairs(), why)

    def _accept(self, offer: Offer, verdict: c.AcceptOffer, agent: str, numbers: RangeSet) -> Message:
        engine = self._engine
        if self._bundles:
            return Refused("coming", [], "this channel has a bundle that is not at its end")
        live = engine.jobs[verdict.job]
        outputs = tuple(offer.outputs)
        fixed = live.outputs.get(verdict.layer, outputs)
        if refused := _judge_outputs(outputs, fixed, live.layers[verdict.layer], numbers):
            return refused
        coming = Coming(agent, verdict.layer, numbers, offer.nbytes, time.monotonic())
        state = engine.state
        if sender := engine.intake.sender(state, coming):
            return Refused("coming", [], f"these shards are coming from {sender}")
        if why := engine.intake.lack(state, state.open_layers[verdict.layer], coming, engine.free_bytes()):
            return Refused("full", [], why)
        token = next(engine.tokens)
        name = f"{engine.boot}-{token}.part"
        layer = live.layers[verdict.layer]
        durable = layer.delivery is Delivery.STORED
        file = (live.folder.bundles if durable else live.folder.rounds) / name
        bundle = Bundle(
            job=verdict.job,
            layer=verdict.layer,
            generation=verdict.generation,
            agent=agent,
            numbers=numbers,
            outputs=outputs,
            fingerprint=offer.fingerprint,
            nbytes=offer.nbytes,
            tmp=engine.tmp / f"push-{name}" if durable else file,
            file=file,
            durable=durable,
        )
        self._bundles[token], self._moving = bundle, offer.session
        engine.intake.accept(token, coming)
        return _take(token, bundle, layer)

    async def _stored(self, stored: Stored) -> Message:
        bundle = self._bundles.pop(stored.token, None)
        if bundle is None:
            return Refused("corrupt", [], "no such bundle was accepted")
        try:
            refused = await self._commit(bundle, stored)
        except Exception as error:
            if not isinstance(error, sqlite3.Error) and not self._engine.broken.is_set():  # it is not in the store
                await asyncio.to_thread(_discard, bundle.file)
            raise
        finally:
            self._engine.intake.ended(stored.token)
        if refused is not None:
            await asyncio.to_thread(_discard, bundle.file)
            return refused
        return Settled(bundle.numbers.pairs())

    async def _commit(self, bundle: Bundle, stored: Stored) -> Refused | None:
        """The one transaction; what it means for everyone else follows."""
        engine, b = self._engine, bundle
        layer = engine.open_layer(b.layer)
        if b.job in engine.damaged:
            return Refused("later", [], _damage_of(engine, b.layer))
        if layer is None or layer.job != b.job or layer.generation != b.generation:
            wanted = (layer is not None and layer.job != b.job) or engine.state.is_kept(b.layer)
            return Refused("later" if wanted else "gone", [])
        fixed = engine.jobs[b.job].fix_outputs(b.layer, b.outputs)  # by the first commit, where none is declared
        if refused := _judge_outputs(b.outputs, fixed, engine.jobs[b.job].layers[b.layer], b.numbers):
            return refused
        if not bundle.durable:
            return await self._fix_kernels(b) or self._take_in(b, stored)
        each, nbytes = b.nbytes // len(b.numbers), stored.nbytes
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
        _tell_committed(engine, bundle, stored)
        return None

    async def _fix_kernels(self, bundle: Bundle) -> Refused | None:
        """The first round fixes the kernels as a first commit does, and durably: a round leaves nothing else behind,
        and the ones after a restart are to be of the same."""
        job, fingerprint = self._engine.state.jobs[bundle.job], bundle.fingerprint
        if not job.plan.same_kernels or (job.kernels_fixed and job.suits(fingerprint)):
            return None
        try:
            await self._engine.ask(lambda store: store.fix_kernels(bundle.job, fingerprint))
        except OtherKernels as error:
            return Refused("kernels", bundle.numbers.pairs(), str(error))
        return None

    def _take_in(self, bundle: Bundle, stored: Stored) -> Refused | None:
        """The commit of a round's bundle: in memory, by the same key. Retired shards count as committed."""
        layer = self._engine.open_layer(bundle.layer)
        if layer is None or layer.job != bundle.job or layer.generation != bundle.generation:
            return Refused("gone", [], "the layer was taken back meanwhile")
        if twice := bundle.numbers & layer.committed:
            return Refused("committed", twice.pairs())
        _tell_committed(self._engine, bundle, stored)
        return None

    def _failed(self, failed: Failed) -> Message:
        bundle = self._bundles.pop(failed.token, None)
        if bundle:
            self._engine.intake.ended(failed.token)
        if bundle and failed.code == "full":
            log.warning("no room for a bundle of %s: %s", bundle.job, failed.message)
        elif bundle:
            log.warning("a bundle of %s from %s did not arrive: %s", bundle.job, bundle.agent, failed.message)
        if bundle and failed.code == "folder":
            has_folder(self._engine, bundle.job)  # else its job is damaged; one that is there may take it next time
            return Refused("later", [], _damage_of(self._engine, bundle.layer) or failed.message)
        return Refused(failed.code, [], failed.message)

    answers: ClassVar[Answers] = {Offer: _offer, Stored: _stored, Failed: _failed, Moved: Channel.moved}


def _damage_of(engine: Engine, layer: str) -> str:
    """What is wrong with a job that has this layer; "" where none is damaged."""
    damaged = (job for job, layers in engine.state.damaged.items() if layer in layers)
    return next((f"{job} is damaged: {engine.damaged[job][1].message}" for job in damaged), "")


def _discard(file: Path) -> None:
    """Bytes without a row. What stays goes at the next start."""
    with suppress(OSError):
        file.unlink()


def _tell_committed(engine: Engine, bundle: Bundle, stored: Stored) -> None:
    """A bundle is durable: tell the scheduler, the figures and whoever waits for one."""
    live = engine.jobs.get(bundle.job)
    if live is None:  # removed meanwhile, and what was committed of it with it
        return
    layer = engine.state.open_layers.get(bundle.layer)
    attempts = layer.attempts(bundle.numbers) if layer is not None else []
    with engine.changing("a commit"):
        made = live.commit(bundle.agent, bundle.numbers, bundle.nbytes, bundle.file.name)
        engine.shard_history.note("committed", bundle.layer, bundle.agent, bundle.numbers)
        engine.handle(bundle.event)
        live.moved.give()
    name, count = live.layers[bundle.layer].name, len(bundle.numbers)
    engine.figures.committed(bundle.job, bundle.agent, name, count, stored.figures)
    engine.figures.waited(bundle.job, bundle.agent, made, attempts)


def _take(token: int, bundle: Bundle, layer: Layer) -> Take:
    """The daemon's answer to an accepted offer, with the row count of each shard."""
    counts = [layer.rows_of(n) for n in bundle.numbers] if isinstance(layer.source, ItemsSource) else []
    rows = layer.rows if not counts else 0
    return Take(token, str(bundle.tmp), str(bundle.file), rows, layer.shard_rows, counts, bundle.durable)


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
