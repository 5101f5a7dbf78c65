"""Slots and their workers: which worker has which slot, what it is given, and what is told of it in which order.

How worker processes come to be is the lower port's, `Workers`; which shards run, and what becomes of those of a dead
worker, is the agent's to say. Whatever else may happen: a death is told after the worker's last word, and before
another worker runs anything in that slot.

Where the workers that are wanted take long to come, others work meanwhile: each hands its slot over once the one that
is wanted said its first word, and ends with the last batch it had.
"""

from __future__ import annotations

import atexit
import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from muster.agent.core.events import (
    BatchEnded,
    Needs,
    PlaceRefused,
    PoolEvent,
    PoolFellBack,
    PoolLost,
    PoolOpened,
    SlotGone,
    SlotUp,
    WorkerDied,
)
from muster.agent.pool import cleanup
from muster.agent.pool.interface import Closed, Opened, Word, WorkerGone, Workers, WorkerSaid, WorkerUp
from muster.jobs.common.errors import MusterError
from muster.jobs.workbench.batch import Batch, Outcome

DEATHS_BEFORE_UP = 5  # in a row in one slot: workers cannot start here
AHEAD_BYTES = 64 << 10  # of batches a worker has not run yet: what its socket holds, so that nobody waits for it
logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Worker:
    """A worker and its batches. Guarded by the pool's lock."""

    slot: int
    seat: str
    needs: Needs
    by: Workers  # who started it
    deaths: int = 0  # of those before it in this slot, in a row, that never said a word
    forerunner: _Worker | None = None  # which has to be gone before anything runs here
    up: WorkerUp | None = None  # its first word
    is_open: bool = False  # up, and without a forerunner: batches go straight to it
    batches: dict[int, _Queued] = field(default_factory=dict)  # by ticket, in order; until its outcome is told
    sent: dict[int, int] = field(default_factory=dict)  # the first of those, passed to it → their bytes
    killed: bool = False  # by `Pool.kill`
    broken: str = ""  # why it runs nothing more, as it said itself
    dismissed: bool = False  # another has its slot, or needs none: it ends with its last batch, and no word of it
    rests: bool = False  # it is started with the slot's next batch, or when it is asked for: others need the room


@dataclass(frozen=True)
class _Queued:
    """A batch, encoded, and what it is for people."""

    raw: bytes
    name: str
    in_rounds: bool


class Pool:
    """`want`, `submit`, `kill` and `worker_pid` may be called from any thread.

    `on_event` is called with an event at a time; it may call these, not `stop`.
    """

    def __init__(
        self,
        folder: Path,
        slots: int,
        on_event: Callable[[PoolEvent], None],
        workers: Workers,
        others: Workers | None = None,
        meanwhile: bool = True,
    ) -> None:
        """Where `workers` cannot be had, the `others` are the pool for good; with `meanwhile`, they work until then."""
        self._folder = folder.absolute()  # has the record of what runs
        self._wanted = slots
        self._on_event = on_event
        self._workers = workers
        self._others = others
        self._meanwhile = meanwhile
        self._stays = False  # from now on there are the others alone
        self._temp = Path()
        self._lock = threading.RLock()  # held while no event is told and no word
        self._slots: list[_Worker] = []  # the worker of each
        self._by_seat: dict[str, _Worker] = {}  # all that are not gone
        self._by: Workers | None = None  # who starts the next one; None before anybody can
        self._proven: set[Workers] = set()  # those of which a worker was up
        self._lost = "not started"
        self._words: deque[tuple[Workers, Word]] = deque()
        self._turn = threading.Lock()  # of whoever handles words

    # --- life ---

    def start(self) -> None:
        """Begin to start workers, and return at once. A SlotUp follows for each slot, or a PoolLost."""
        cleanup.sweep(self._folder)
        self._slots, self._by_seat, self._by, self._proven, self._lost = [], {}, None, set(), ""
        atexit.register(self.stop)
        try:
            self._temp = cleanup.make_temp(self._folder)
        except OSError as error:
            return self._tell(self._workers, Closed(f"the pool cannot be started: {error}"))
        for workers in self._all:
            self._open_workers(workers)
        return None

    def stop(self) -> None:
        """End all that was started. Batches still running are killed without an event; drain first."""
        atexit.unregister(self.stop)
        with self._lock:
            self._lost = self._lost or "stopped"
            self._slots, self._by_seat = [], {}
        for workers in (self._workers, self._others):
            if workers is not None:
                workers.close()
        cleanup.sweep(self._folder)

    @property
    def _all(self) -> list[Workers]:
        """Those that are opened, the ones that are soon there first."""
        others = self._others if self._meanwhile or self._stays else None
        return [one for one in (others, None if self._stays else self._workers) if one is not None]

    def _open_workers(self, workers: Workers) -> None:
        try:
            workers.open(self._temp, partial(self._tell, workers))
        except OSError as error:  # no more processes, no room in its folder
            self._tell(workers, Closed(f"the pool cannot be started: {error}"))

    # --- commands ---

    def want(self, slots: int) -> None:
        """So many slots at least."""
        with self._lock:
            self._wanted = max(self._wanted, slots)
            fresh = self._fill()
        self._begin(*fresh)

    def ask(self, wanted: Mapping[Needs, int]) -> None:
        """So many workers of each sort; those beyond end, unless they have a batch. Of slots that lose theirs it is
        told."""
        with self._lock:
            if self._by is None or self._lost:
                return
            surplus, missing = self._compared(wanted)
            for worker in surplus:
                self._replace(worker, Needs(), rests=True)
            fresh = [self._wake(needs) for needs in missing]
        for worker in surplus:
            self._say(SlotGone(worker.slot, "there is no work for it"))
        if surplus:
            self._end_idle()
        self._begin(*fresh)

    def submit(self, slot: int, ticket: int, batch: Batch, needs: Needs) -> None:
        """Queue a batch on a slot's worker, which runs them in order; one event will carry the ticket."""
        queued = _Queued(msgspec.msgpack.encode(batch), _name_of(batch), batch.layer.delivery.in_rounds)
        with self._lock:
            if self._lost:
                raise MusterError(f"the pool is gone: {self._lost}", "start the agent again")
            worker = self._slots[slot]
            if waits := worker.by.on_demand and not worker.is_open:
                fresh = []
            else:
                fresh = self._fitting(slot, needs)
                self._slots[slot].batches[ticket] = queued
                self._pass_on(self._slots[slot])
        if waits:  # for room, perhaps for good: the news of that is under way
            self._say(SlotGone(slot, "its worker has to be asked for again", (ticket,)))
        if fresh:
            self._end_idle()
            self._begin(*fresh)

    def kill(self, slot: int) -> None:
        """SIGKILL a slot's worker and its runners. A WorkerDied that is `ours` follows."""
        with self._lock:
            if self._lost or slot >= len(self._slots):
                return
            worker = self._at_work(slot)
            worker.killed = True
        worker.by.kill(worker.seat)

    def worker_pid(self, slot: int) -> int | None:
        """Of a worker on this machine; None while there is none."""
        with self._lock:
            up = self._at_work(slot).up if slot < len(self._slots) else None
            return up.process.pid if up is not None and up.process is not None else None

    # --- words, one at a time ---

    def _tell(self, by: Workers, word: Word) -> None:
        """Handle a word, on the thread that brings it, or on that which handles one just now: after it."""
        self._words.append((by, word))
        while self._words and self._turn.acquire(blocking=False):
            try:
                while self._words:
                    self._handle(*self._words.popleft())
            finally:
                self._turn.release()

    def _handle(self, by: Workers, word: Word) -> None:
        try:
            match word:
                case Opened():
                    self._open_slots(by)
                case WorkerUp():
                    self._came_up(word)
                case WorkerSaid():
                    self._said(word)
                case WorkerGone():
                    self._gone(word)
                case PlaceRefused():
                    self._say(word)
                case Closed(why, hopeless):
                    self._closed(by, why, hopeless)
        except Exception:
            logger.exception("a word of the workers was not taken: %s", word)

    def _open_slots(self, by: Workers) -> None:
        """Start a worker for each slot: the first, or the one that is to have it from the other."""
        with self._lock:
            if self._lost or self._by is self._workers or (self._stays and by is self._workers):
                return
            self._by = by
            heirs = [self._new_worker(one.slot, one.needs) for one in self._slots]
            fresh = [*heirs, *self._fill()]
        self._begin(*fresh)
        if by.on_demand:
            self._say(PoolOpened())

    def _closed(self, by: Workers, why: str, hopeless: MusterError | None) -> None:
        if by is not self._workers or by in self._proven or self._others is None:
            return self._lose(why, hopeless)
        return self._stay(self._others, why)

    def _stay(self, others: Workers, why: str) -> None:
        """The workers that were wanted cannot be had: the others have all slots from now on."""
        with self._lock:
            if self._lost or self._stays:
                return
            self._stays = True
            if not self._meanwhile:  # no slot was up yet, and nothing was submitted
                self._by, self._slots, self._by_seat = None, [], {}
            self._by = others if self._by is not None else None
            fresh = [self._new_worker(one.slot, one.needs) for one in self._slots if one.by is self._workers]
            for worker in fresh:
                before, self._slots[worker.slot] = self._slots[worker.slot], worker
                if before.seat in self._by_seat:  # else what it had is told of
                    worker.batches = before.batches
            self._by_seat = {seat: one for seat, one in self._by_seat.items() if one.by is not self._workers}
        threading.Thread(target=self._workers.close, name="pool close", daemon=True).start()  # this may be its thread
        self._say(PoolFellBack(why))
        self._begin(*fresh)
        if not self._meanwhile:
            self._open_workers(others)

    def _came_up(self, word: WorkerUp) -> None:
        with self._lock:
            worker = self._by_seat.get(word.seat)
            if worker is None:
                return
            worker.up = word
            self._proven.add(worker.by)
            is_heir = self._slots[worker.slot] is not worker and not worker.dismissed
            fresh = self._hand_over(worker) if is_heir else []
            everyone = all(each.up or each.rests for each in self._slots)
        if is_heir:
            self._end_idle()
            self._begin(*fresh)
        self._open(worker)
        if everyone:
            self._write_down()

    def _hand_over(self, heir: _Worker) -> list[_Worker]:
        """Give a worker its slot. Where that needs something else by now, another heir is to be begun."""
        before = self._slots[heir.slot]
        if heir.by.heeds_needs and heir.needs != before.needs:
            heir.dismissed = True
            return [self._new_worker(heir.slot, before.needs)]
        self._slots[heir.slot], heir.forerunner, before.dismissed = heir, before, True
        for ticket in [ticket for ticket in before.batches if ticket not in before.sent]:
            heir.batches[ticket] = before.batches.pop(ticket)
        return []

    def _said(self, word: WorkerSaid) -> None:
        with self._lock:
            worker = self._by_seat.get(word.seat)
            if worker is None:
                return
            if word.broken:
                worker.broken = worker.broken or word.broken
            elif word.ticket in worker.batches:
                del worker.batches[word.ticket], worker.sent[word.ticket]
                self._pass_on(worker)
        if word.broken or (worker.dismissed and not worker.batches):
            worker.by.kill(worker.seat)
        if not word.broken:
            self._say(BatchEnded(word.ticket, msgspec.msgpack.decode(word.outcome, type=Outcome)))

    def _gone(self, word: WorkerGone) -> None:
        """Put another in its slot, and tell what it had."""
        with self._lock:
            worker = self._by_seat.pop(word.seat, None)
            if worker is None:
                return
            reason = "killed by the agent" if worker.killed else worker.broken or word.why
            stillborn = worker.up is None and not worker.killed
            hopeless = stillborn and not worker.dismissed and worker.deaths + 1 >= DEATHS_BEFORE_UP
            fresh = [] if worker.dismissed or hopeless or self._lost else [self._succeed(worker, stillborn)]
        self._begin(*fresh)
        if worker.batches or worker.killed or not (stillborn or worker.dismissed):
            self._say(WorkerDied(worker.slot, tuple(worker.batches), reason, worker.killed))
        self._open_after(worker)
        if hopeless:
            self._cannot_start(worker.by, f"workers do not start: {reason}")

    def _succeed(self, worker: _Worker, stillborn: bool) -> _Worker:
        """The next one in its slot. Of a worker that never said a word nothing ran: its batches are the next one's."""
        fresh = self._new_worker(worker.slot, worker.needs, worker.by)
        if self._slots[worker.slot] is worker:
            self._slots[worker.slot] = fresh
        fresh.forerunner = worker.forerunner
        if stillborn:
            fresh.deaths, fresh.batches, worker.batches = worker.deaths + 1, worker.batches, {}
        return fresh

    def _cannot_start(self, by: Workers, why: str) -> None:
        """One that never had a worker would come to the same end again."""
        hint = "`agent doctor` tries each part; run the same version everywhere"
        self._closed(by, why, None if by in self._proven else MusterError(why, hint))

    def _lose(self, reason: str, hopeless: MusterError | None) -> None:
        """The end of this pool: what was running is lost, and nothing is replaced any more."""
        with self._lock:
            if self._lost:
                return
            self._lost = reason
            dead, self._by_seat = list(self._by_seat.values()), {}
        for worker in dead:
            if worker.batches:
                self._say(WorkerDied(worker.slot, tuple(worker.batches), worker.broken or reason, worker.killed))
        self._say(PoolLost(reason, hopeless))

    # --- workers: what follows is called with the lock held, but for what says so ---

    def _fill(self) -> list[_Worker]:
        """Seats for the slots that have none."""
        ready = self._by is not None and not self._by.on_demand and not self._lost
        missing = range(len(self._slots), self._wanted) if ready else range(0)
        fresh = [self._new_worker(slot, Needs()) for slot in missing]
        self._slots += fresh
        return fresh

    def _new_worker(self, slot: int, needs: Needs, by: Workers | None = None) -> _Worker:
        """A worker for a slot, which `_begin` starts, and `_slots` or `_hand_over` gives its slot."""
        by = by or self._by
        assert by is not None
        fresh = _Worker(slot, f"{self._temp.name}.{secrets.token_hex(4)}", needs, by)
        self._by_seat[fresh.seat] = fresh
        return fresh

    def _begin(self, *fresh: _Worker) -> None:
        """Without the lock: what is started may tell something at once."""
        for worker in fresh:
            if worker.rests:
                self._say(SlotUp(worker.slot))
            else:
                worker.by.start(worker.seat, worker.needs)

    def _end_idle(self) -> None:
        """Without the lock: those that are dismissed and have nothing to run."""
        with self._lock:
            idle = [worker for worker in self._by_seat.values() if worker.dismissed and not worker.batches]
        for worker in idle:
            worker.by.kill(worker.seat)

    def _fitting(self, slot: int, needs: Needs) -> list[_Worker]:
        """Put a worker in a slot that suits these needs, where that is not so and matters; the one to begin."""
        worker = self._slots[slot]
        needs = _within(worker.by.room, needs)
        if not worker.by.heeds_needs:
            worker.needs = needs  # of the one that may have its slot next
        if worker.batches or (worker.needs == needs and not worker.rests):
            return []
        if worker.rests:
            worker.needs, worker.rests = needs, False
        else:
            worker = self._replace(worker, needs)
        return [*self._make_room(worker), worker]

    def _replace(self, worker: _Worker, needs: Needs, rests: bool = False) -> _Worker:
        """Another has this one's slot from now on; at once, or from the slot's next batch on."""
        fresh = self._slots[worker.slot] = self._new_worker(worker.slot, needs, worker.by)
        worker.dismissed, fresh.forerunner, fresh.rests = True, worker, rests
        return fresh

    def _make_room(self, but: _Worker) -> list[_Worker]:
        """Have workers without a batch rest until what the others need is there; those that have their slots then."""
        resting: list[_Worker] = []
        idle = [worker for worker in self._slots if not worker.batches and not worker.rests and worker is not but]
        while idle and not _fit(but.by.room, [worker.needs for worker in self._slots if not worker.rests]):
            resting.append(self._replace(idle.pop(), Needs(), rests=True))
        return resting

    def _wake(self, needs: Needs) -> _Worker:
        """A worker for a slot that has none, or for another slot."""
        worker = next((worker for worker in self._slots if worker.rests), None)
        if worker is None:
            worker = self._new_worker(len(self._slots), needs)
            self._slots.append(worker)
        worker.needs, worker.rests = needs, False
        return worker

    def _compared(self, wanted: Mapping[Needs, int]) -> tuple[list[_Worker], list[Needs]]:
        """The workers beyond what is wanted, without a batch, those that are not up yet first; and what is missing."""
        surplus, missing = list[_Worker](), list[Needs]()
        there = [worker for worker in self._slots if not worker.rests]
        for needs in {*wanted, *(worker.needs for worker in there)}:
            those = [worker for worker in there if worker.needs == needs]
            beyond = len(those) - wanted.get(needs, 0)
            idle = sorted((one for one in those if not one.batches), key=lambda one: one.is_open)
            surplus += idle[: max(0, beyond)]
            missing += [needs] * -beyond
        return surplus, missing

    def _at_work(self, slot: int) -> _Worker:
        """The worker whose batch is the slot's first."""
        worker = self._slots[slot]
        return worker.forerunner if worker.forerunner is not None and worker.forerunner.batches else worker

    def _open(self, worker: _Worker) -> None:
        """Without the lock."""
        with self._lock:
            if worker.is_open or worker.up is None or worker.forerunner is not None or self._lost:
                return
            worker.is_open = True
            given = worker.needs if worker.by.on_demand else None
            up = SlotUp(worker.slot, worker.up.place, given)
            self._pass_on(worker)
        self._say(up)

    def _open_after(self, gone: _Worker) -> None:
        """Without the lock: the one that waited for it."""
        with self._lock:
            waiting = [worker for worker in self._by_seat.values() if worker.forerunner is gone]
            for worker in waiting:
                worker.forerunner = gone.forerunner
        for worker in waiting:
            self._open(worker)

    def _pass_on(self, worker: _Worker) -> None:
        """Batches to run, some ahead of time."""
        if not worker.is_open or worker.broken:
            return
        for ticket, queued in worker.batches.items():
            if ticket in worker.sent:
                continue
            if worker.sent and sum(worker.sent.values()) + len(queued.raw) > AHEAD_BYTES:
                return
            worker.sent[ticket] = len(queued.raw)
            worker.by.send(worker.seat, ticket, queued.raw, queued.name, queued.in_rounds)

    def _say(self, event: PoolEvent) -> None:
        """Without the lock."""
        try:
            self._on_event(event)
        except Exception:
            logger.exception("an event of the pool was not taken: %s", event)

    def _write_down(self) -> None:
        with self._lock:  # there is one record
            if not self._lost:
                cleanup.record(self._folder, self._temp)


def _within(room: Needs | None, needs: Needs) -> Needs:
    """What needs more than there is gets all of it, alone."""
    if room is None:
        return needs
    memory = None if needs.memory is None else min(needs.memory, room.memory or needs.memory)
    return Needs(min(needs.cpus, room.cpus), min(needs.gpus, room.gpus), memory)


def _fit(room: Needs | None, needs: Sequence[Needs]) -> bool:
    return room is None or (
        sum(one.cpus for one in needs) <= room.cpus
        and sum(one.gpus for one in needs) <= room.gpus
        and (room.memory is None or sum(one.memory or 0 for one in needs) <= room.memory)
    )


def _name_of(batch: Batch) -> str:
    numbers = [item.number for item in batch.items]
    return f"{batch.job} {batch.layer.name} {numbers[0]}-{numbers[-1]}" if numbers else batch.job
