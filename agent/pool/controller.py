"""Carries out what the core orders of the pool, and tells what came of it. Decides nothing about shards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from muster.agent.core.actions import Kill, Run
from muster.agent.core.events import (
    BatchEnded,
    Event,
    Kept,
    Needs,
    PoolEvent,
    SlotGone,
    SlotsSeen,
    SlotView,
    WorkerDied,
)
from muster.agent.host import memory as weigh
from muster.agent.host import priority
from muster.agent.host.taken_kinds import Takes
from muster.agent.pool import interface
from muster.agent.pool.demand import Demand
from muster.agent.pool.interface import PoolKind
from muster.agent.pool.pool import Pool
from muster.agent.pool.processes import Processes
from muster.agent.pool.ray_cluster import Cluster, ClusterRay
from muster.agent.pool.ray_local import LocalRay
from muster.agent.spool.paths import At, Spool
from muster.coordinator.protocol.control import Hello
from muster.jobs.common import cgroups
from muster.jobs.common.durable import is_full
from muster.jobs.common.errors import DamagedError, MusterError, RefusedError, SpaceError
from muster.jobs.contract.plan import Environment, ItemsWindow, MadeSource, ModelFile, Window
from muster.jobs.contract.requirements import rest_of
from muster.jobs.parts.part_file import read_index
from muster.jobs.sources.items import SUFFIX, located
from muster.jobs.user_code import reaper
from muster.jobs.workbench import slot_marker
from muster.jobs.workbench.batch import Batch, Item, Mishap, Outcome

NOT_WEIGHED = weigh.TreeUsage(0, 0.0)
log = logging.getLogger("muster.pool")


class PoolController:
    """The pool, and the files its workers need. All but the pool's own callback is for the main thread."""

    def __init__(
        self,
        spool: Spool,
        who: Hello,
        kind: PoolKind | None,
        packs: Path | None,
        pythons: Mapping[str, str],
        takes: Takes,
        put: Callable[[PoolEvent], None],
        cluster: Cluster | None = None,
    ) -> None:
        self._spool = spool
        self._name = who.name
        self._packs = packs  # folder with the users' code as the coordinator has it; None: it is pulled
        self._pythons = pythons  # by the name of their environment
        self._takes = takes
        self._envs: Mapping[str, Environment] = who.envs  # what those have, as the hello says; "" is our own
        self._put = put
        self._flying: dict[int, Run] = {}  # by ticket
        self._takes_no_rounds = who.no_rounds
        self._demand = Demand() if cluster is None else Demand(cluster.idle_seconds)
        self._at: dict[int, At] = {}
        self._frozen: set[int] = set()  # slots
        self._kind: dict[int, tuple[object, ...]] = {}  # slot → worker, nice and ionice it has
        self._weights: dict[int, int] = {}  # bytes of busy slots when they were last weighed
        self._oom_kills = cgroups.OomKills()
        self.pool: interface.Pool = self._make(who, kind, cluster)

    def _make(self, who: Hello, kind: PoolKind | None, cluster: Cluster | None) -> Pool:
        """The one asked for; else Ray's, with plain processes until it is there, or for good where it never is. Where
        GPUs are lent, not until then: Ray would give its workers those that a process still has."""
        run, log, slots = self._spool.run, self._spool.log, who.cpus
        if cluster is not None:
            return Pool(run, slots, self._on_event, ClusterRay(cluster, log))
        processes = Processes(log)
        if kind == "processes":
            return Pool(run, slots, self._on_event, processes)
        ray = LocalRay(slots, log, gpus=tuple(who.gpus), memory=who.memory)
        return Pool(run, slots, self._on_event, ray, None if kind == "ray" else processes, meanwhile=not who.gpus)

    def _on_event(self, event: PoolEvent) -> None:
        """On the pool's thread: the next worker writes its own mark over the dead one's."""
        if isinstance(event, WorkerDied):
            event = replace(event, running=_running(slot_marker.read(self._spool.mark(event.slot))))
            reaper.sweep(self._spool.scratch(event.slot))
        self._put(event)

    def learn(self, envs: Mapping[str, Environment]) -> None:
        """What the environments have from now on, as the next hello says it."""
        self._envs = envs

    # --- orders ---

    def run(self, run: Run) -> Event | None:
        """Submit a batch; what happened at once, if it could not be."""
        try:
            self._takes.check(run.info.work)
            if self._takes_no_rounds and run.info.layer.delivery.in_rounds:
                raise RefusedError("a cluster takes no jobs in rounds", "join its machines themselves")
            batch = self._batch(run)
            self._say_at(run)
        except (MusterError, OSError) as error:
            if isinstance(error, SpaceError) or (isinstance(error, OSError) and is_full(error)):
                return BatchEnded(run.ticket, Outcome((), 0, 0, 0, 0.0, 0, (), full=str(error)))
            mishaps = tuple(Mishap(n, "exception", str(error), "", 0.0, 0) for n, _, _ in run.items)
            return BatchEnded(run.ticket, Outcome((), 0, 0, 0, 0.0, 0, mishaps))
        self._flying[run.ticket] = run
        work = run.info.work
        try:
            self.pool.submit(run.slot, run.ticket, batch, Needs(work.cpus, work.gpus, work.memory))
        except MusterError as error:
            del self._flying[run.ticket]
            return WorkerDied(run.slot, (run.ticket,), error.message, ours=True)
        return None

    def ask(self, demand: Mapping[Needs, int], now: float) -> None:
        """Have workers where they come on demand."""
        self.pool.ask(self._demand.now(demand, now))

    def kill(self, kill: Kill) -> None:
        log.info("killing the worker of slot %d: %s", kill.slot, kill.why)
        self.pool.kill(kill.slot)

    def freeze(self, slot: int) -> None:
        """Stop its runner; `look` sees to one that starts later."""
        self._frozen.add(slot)
        reaper.freeze(self._spool.scratch(slot))

    def thaw(self, slot: int) -> None:
        self._frozen.discard(slot)
        reaper.thaw(self._spool.scratch(slot))

    def be_kind(self, slots: Sequence[int], nice: int | None, ionice: str | None) -> None:
        """Set the workers' priorities, each worker's once: what it starts later inherits them."""
        for slot in slots:
            pid = self.pool.worker_pid(slot)
            wanted = (pid, nice, ionice)
            if pid is not None and self._kind.get(slot, (pid, None, None)) != wanted:
                priority.be_kind(pid, nice, ionice)
            self._kind[slot] = wanted

    def _batch(self, run: Run) -> Batch:
        info, spool = run.info, self._spool
        items = tuple(
            Item(n, boot, attempt, self._window(run, n), run.payloads.get(n, b""), self._sheet(run, n))
            for n, boot, attempt in run.items
        )
        return Batch(
            farm=run.farm,
            agent=self._name,
            job=info.job,
            layer=info.layer,
            work=info.work,
            items=items,
            tmp=str(spool.part_tmp(run.part)),
            done=str(spool.part(run.part)),
            mark=str(spool.mark(run.slot)),
            scratch=str(spool.scratch(run.slot)),
            code=self._code(info.work.code),
            python=self._interpreter(info.work.env),
            model=self._model(info.work.model),
            pack=self._pack(info.work.code),
            rest=rest_of(info.work.env, self._envs.get(info.work.env or ""), info.work.rests_on),
            gpus=run.gpus,
            sheets=str(spool.sheets / info.layer.digest) if run.keeps else "",
            keeps=run.keeps,
        )

    def _window(self, run: Run, number: int) -> Window | ItemsWindow | None:
        """Where a shard's input is: in its source, or in the copy of it that was pulled."""
        if isinstance(run.info.layer.source, MadeSource):
            return None
        window, copy = run.info.layer.window(number), run.inputs.get(number)
        if copy is not None:
            return window.copied(str(self._spool.input(copy.name, copy.digest)), copy.digest)
        if isinstance(window, ItemsWindow):
            assert self._packs is not None, "what is not read in place has a copy"
            return located(window, self._packs / f"{window.source}.{SUFFIX}")
        return window

    def _sheet(self, run: Run, number: int) -> str | None:
        """What the shard's round laid out: in the spool, or where the coordinator has it."""
        sheet = run.sheets.get(number)
        if sheet is None:
            return None
        if self._packs is not None:
            return str(self._packs.parent / "jobs" / run.info.job / "rounds" / f"{sheet}.sheet")
        return str(self._spool.sheet(run.info.layer.digest, sheet))

    def _code(self, digest: str | None) -> str | None:
        """The folder that a worker unpacks the user's files in, and compares with their pack."""
        return str(self._spool.code(digest)) if digest is not None else None

    def _pack(self, digest: str | None) -> str | None:
        """In the spool, or where the coordinator has it."""
        if digest is None:
            return None
        return str(self._packs / f"{digest}.pack" if self._packs is not None else self._spool.pack(digest))

    def _model(self, model: ModelFile | None) -> str | None:
        """In the spool under its digest, or where the coordinator has it."""
        if model is None:
            return None
        if self._packs is not None:
            return str(self._packs / f"{model.digest}.model")
        return str(self._spool.input(model.digest, bytes.fromhex(model.digest)))

    def _interpreter(self, env: str | None) -> str | None:
        """What `env` names here; a path names itself."""
        return None if env is None else self._pythons.get(env, env)

    def _say_at(self, run: Run) -> None:
        at = At(run.farm, run.info.job, run.info.layer.digest)
        if self._at.get(run.slot) != at:
            self._spool.set_at(run.slot, at)
            self._at[run.slot] = at

    # --- what came of it ---

    def completed(self, event: Event) -> Event:
        """An event on its way to the core, a death with what was left of its batches. Batches that are told of are
        under way no more."""
        match event:
            case BatchEnded(ticket):
                if self._flying.pop(ticket, None) is not None:
                    self._oom_kills.look()
            case SlotGone():
                for ticket in event.tickets:
                    self._flying.pop(ticket, None)
            case WorkerDied():
                return self._death(event)
        return event

    def _death(self, died: WorkerDied) -> WorkerDied:
        taken = "" if died.ours else self._oom_kills.said(self._weights.get(died.slot, 0))
        reason = taken or died.reason
        log.warning("the worker of slot %d died: %s", died.slot, reason)
        runs = [run for ticket in died.tickets if (run := self._flying.pop(ticket, None))]
        kept = {run.ticket: found for run in runs if (found := self._kept(run))}
        return replace(died, reason=reason, kept=kept, short=bool(taken) and cgroups.memory_limit() is not None)

    def _kept(self, run: Run) -> Kept | None:
        """What the worker had committed of this batch, if it had."""
        self._spool.part_tmp(run.part).unlink(missing_ok=True)
        path = self._spool.part(run.part)
        try:
            index = read_index(path)
        except FileNotFoundError:
            return None
        except DamagedError as error:
            log.warning("a dead worker left a damaged part: %s", error)
            path.unlink(missing_ok=True)
            return None
        rows = sum(entry.rows for entry in index.entries)
        return Kept(tuple(entry.number for entry in index.entries), rows, path.stat().st_size)

    def look(self, slots: Sequence[int], weights: Mapping[int, weigh.TreeUsage]) -> SlotsSeen:
        """What busy slots are at."""
        for slot in self._frozen & set(slots):
            reaper.freeze(self._spool.scratch(slot), again=True)
        return SlotsSeen(tuple(self._view(n, weights.get(n, NOT_WEIGHED)) for n in slots))

    def _view(self, slot: int, usage: weigh.TreeUsage) -> SlotView:
        running = _running(slot_marker.read(self._spool.mark(slot)))
        return SlotView(slot, running, usage.nbytes, usage.processor_seconds)

    def weigh(self, slots: Sequence[int]) -> dict[int, weigh.TreeUsage]:
        """What the workers of busy slots take."""
        pids = {slot: pid for slot in slots if (pid := self.pool.worker_pid(slot))}
        usage_of = weigh.trees(pids.values())
        usage = {slot: usage_of[pid] for slot, pid in pids.items()}
        self._weights = {slot: one.nbytes for slot, one in usage.items()}
        return usage


def _running(marked: slot_marker.Marked | None) -> tuple[int, int, int] | None:
    return (marked.number, marked.boot, marked.attempt) if marked and marked.running else None
