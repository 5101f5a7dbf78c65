"""The actors of a pool and their calls, in Ray's driver: on this machine, or on the nodes of somebody's cluster.

Each seat has threads of its own: what one actor is waited for holds up no other. The driver passes `ray` in.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import msgspec

from muster.agent.pool.ray_actor import RayWorker
from muster.agent.pool.ray_far_worker import CODE, MODEL, FarWorker, facts
from muster.agent.pool.ray_words import (
    AttendSeat,
    CallSeat,
    EndSeat,
    HostWord,
    KillSeat,
    NodeRefused,
    SeatGone,
    SeatOrder,
    SeatSaid,
    SeatUp,
    StartSeat,
)
from muster.agent.pool.worker import SILENT_DEATH, Ready, WorkerDone, decode
from muster.jobs.common.durable import is_full, local_commit
from muster.jobs.contract.plan import ItemsWindow, Stamp, Window
from muster.jobs.contract.requirements import apart
from muster.jobs.workbench.batch import Batch, Outcome

Tell = Callable[[HostWord], None]
Source: TypeAlias = str | tuple[str, Stamp | None]  # a list's digest, or an array's path and which file that was
NODE_LABEL = "ray.io/node-id"
ASK_SECONDS = 5.0  # between two questions to a worker on another machine that has nothing to do
KEPT_FILES = 8  # packs and models that stay in Ray's store: jobs that run side by side


class Seats:
    """Those that the agent asked for, by name."""

    def __init__(self, make: Callable[[StartSeat], Seat]) -> None:
        self._make = make
        self._seats: dict[str, Seat] = {}

    def obey(self, order: SeatOrder) -> None:
        if isinstance(order, StartSeat):
            self._seats = {name: seat for name, seat in self._seats.items() if not seat.ended}
            self._seats[order.seat] = self._make(order)
        elif (seat := self._seats.get(order.seat)) is not None:
            match order:
                case CallSeat():
                    seat.call(order)
                case AttendSeat():
                    seat.attend(order)
                case KillSeat():
                    seat.kill()
                case EndSeat():
                    seat.end()


class Seat:
    """One actor on this machine, and the calls that it has, in their order."""

    def __init__(self, ray: Any, order: StartSeat, worker: str, log: str, tell: Tell) -> None:
        self.ended = False
        self._ray = ray
        self._name = order.seat
        self._tell = tell
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()  # what each gives; None: it has ended
        remote = ray.remote(**lives(order))(RayWorker)
        self._actor = remote.remote(worker, order.seat, log)
        self._hello = self._actor.hello.remote()
        threading.Thread(target=self._listen, name=f"seat {order.seat}", daemon=True).start()

    def call(self, order: CallSeat) -> None:
        self._calls.put(self._actor.run.options(name=order.name).remote(order.ticket, order.batch))

    def attend(self, order: AttendSeat) -> None:
        self._calls.put(self._actor.attend.options(name="rounds").remote(order.address))

    def kill(self) -> None:
        self._ray.kill(self._actor)
        self._calls.put(None)

    def end(self) -> None:
        """Nothing is killed: where Ray has not seen the end yet, it would name that kill as the reason."""
        self._calls.put(None)

    def _listen(self) -> None:
        try:
            self._tell(SeatUp(self._name, self._ray.get(self._hello)))
            while (call := self._calls.get()) is not None:
                if (done := self._ray.get(call)) is not None:
                    self._tell(SeatSaid(self._name, done))
                del call
            why = SILENT_DEATH
        except Exception as error:  # whatever Ray raises: of an actor that is gone, or did not come to be
            why = reason(error)
        self.ended = True
        self._tell(SeatGone(self._name, why))


class Cluster:
    """What is known of somebody's cluster: which nodes see a source, which can run nothing of ours, and what is in its
    store for all of them."""

    def __init__(self, ray: Any, worker: str, tell: Tell) -> None:
        self.ray = ray
        self.worker = worker
        self.tell = tell
        self.node = ray.get_runtime_context().get_node_id()  # ours
        self.facts = facts()
        self.seen: dict[tuple[str, Source], bool] = {}  # node, source → whether that is seen there
        self.refused: dict[str, str] = {}  # node → why
        self._files: dict[str, Any] = {}  # digest → where it is in Ray's store
        self._lock = threading.Lock()

    def actor(self, order: StartSeat) -> Any:
        """Another actor for a seat, on no node that was refused."""
        away = {"label_selector": {NODE_LABEL: f"!in({','.join(self.refused)})"}} if self.refused else {}
        remote = self.ray.remote(**lives(order), **away, scheduling_strategy="SPREAD")(FarWorker)
        return remote.remote(self.worker, order.seat)

    def refuse(self, node: str, host: str, why: str) -> None:
        """Said once, whatever number of workers finds out."""
        with self._lock:
            known, self.refused[node] = self.refused.get(node), why
        if known != why:
            self.tell(NodeRefused(host, why))

    def file(self, digest: str, path: str) -> Any:
        """Of a file that many workers need."""
        from muster.jobs.sources.carried import whole

        with self._lock:
            if digest not in self._files:
                while len(self._files) >= KEPT_FILES:
                    del self._files[next(iter(self._files))]
                self._files[digest] = self.ray.put(whole(path))
            return self._files[digest]


@dataclass(frozen=True)
class _Call:
    """A batch that its node was called for: which sources that reads itself, and the pieces of what comes of it."""

    batch: Batch
    reads: frozenset[tuple[str, Source]]
    pieces: Any


class FarSeat(Seat):
    """One actor somewhere in the cluster. Its inputs go along where its node does not see them, and its parts come
    back, to where a worker of this machine would have put them."""

    def __init__(self, cluster: Cluster, order: StartSeat) -> None:
        self.ended = False
        self._cluster = cluster
        self._ray = cluster.ray
        self._order = order
        self._name = order.seat
        self._tell = cluster.tell
        self._node = ""
        self._has: set[str] = set()  # digests of what it was given
        self._killed = False
        self._orders: queue.SimpleQueue[CallSeat | None] = queue.SimpleQueue()
        # What it was called for, or what came of that already; None: the end.
        self._calls: queue.SimpleQueue[_Call | WorkerDone | None] = queue.SimpleQueue()
        self._actor = cluster.actor(order)
        threading.Thread(target=self._listen, name=f"seat {order.seat}", daemon=True).start()
        threading.Thread(target=self._pass_on, name=f"seat {order.seat} out", daemon=True).start()

    def call(self, order: CallSeat) -> None:
        self._orders.put(order)

    def attend(self, order: AttendSeat) -> None:
        raise NotImplementedError("a cluster takes no rounds")

    def kill(self) -> None:
        self._killed = True
        self._orders.put(None)
        self._ray.kill(self._actor)

    def end(self) -> None:
        raise NotImplementedError("Ray sees the end of what runs on other machines")

    # --- to the node ---

    def _pass_on(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                self._calls.put(self._called(order))
            except Exception as error:  # whatever Ray raises, and whatever is wrong with an input
                self._calls.put(self._not_called(order, error))
        self._calls.put(None)

    def _called(self, order: CallSeat) -> _Call:
        from muster.jobs.sources.carried import carried

        batch, names, given, reads = decode(order.batch), [], [], set()
        for place, item in enumerate(batch.items):
            if item.window is None:
                continue
            if self._sees(item.window):
                reads.add((self._node, source_of(item.window)))
                continue
            names.append(str(place))
            given.append(self._ray.put(carried(item.window)))
        files = [(CODE, batch.work.code, batch.pack)]
        files += [(MODEL, batch.work.model.digest, batch.model)] if batch.work.model is not None else []
        for name, digest, path in files:
            if digest is not None and path is not None and digest not in self._has:
                names.append(name)
                given.append(self._cluster.file(digest, path))
                self._has.add(digest)
        call = self._actor.run.options(name=order.name).remote(order.ticket, order.batch, names, *given)
        return _Call(batch, frozenset(reads), call)

    def _not_called(self, order: CallSeat, error: Exception) -> WorkerDone:
        from muster.jobs.sources.read_rows import SourceChanged

        if isinstance(error, SourceChanged):
            changed = Outcome((), 0, 0, 0, 0.0, 0, (), changed=True, change=str(error))
            return WorkerDone(order.ticket, msgspec.msgpack.encode(changed))
        return WorkerDone(order.ticket, b"", reason(error))

    def _sees(self, window: Window | ItemsWindow) -> bool:
        """Whether its node reads the window's source itself: asked once of each source and node."""
        if self._node == self._cluster.node:
            return True
        if window.is_copy:
            return False
        key = self._node, source_of(window)
        if key not in self._cluster.seen:
            self._cluster.seen[key] = self._ray.get(self._actor.sees.remote(msgspec.msgpack.encode(window)))
        return self._cluster.seen[key]

    def _doubted(self, call: _Call, done: WorkerDone) -> WorkerDone:
        """Where a node finds changed what it was to read itself, its sight is doubted first: next the source is read
        here. So is what it says of each batch that it had by then."""
        outcome = msgspec.msgpack.decode(done.outcome, type=Outcome) if done.outcome else None
        if outcome is None or not outcome.changed or not call.reads or self._node == self._cluster.node:
            return done
        self._cluster.seen.update(dict.fromkeys(call.reads, False))
        believed = msgspec.structs.replace(outcome, changed=False, change="")
        return msgspec.structs.replace(done, outcome=msgspec.msgpack.encode(believed))

    # --- and back ---

    def _listen(self) -> None:
        try:
            self._arrive()
            while (call := self._next()) is not None:
                done = call if isinstance(call, WorkerDone) else self._brought(call)
                self._tell(SeatSaid(self._name, msgspec.msgpack.encode(done)))
                del call  # else its values stay in Ray's store until the next one
            why = SILENT_DEATH
        except Exception as error:  # whatever Ray raises: of an actor or a node that is gone
            why = reason(error)
        self.ended = True
        self._orders.put(None)
        with suppress(Exception):
            self._ray.kill(self._actor)
        self._tell(SeatGone(self._name, why))

    def _next(self) -> _Call | WorkerDone | None:
        """What it is called for next. Meanwhile it is asked from time to time: the death of one with no call shows in
        none."""
        while True:
            with suppress(queue.Empty):
                return self._calls.get(timeout=ASK_SECONDS)
            self._ray.get(self._actor.is_there.remote())

    def _arrive(self) -> None:
        """Until it says its first word on a node that has what our work needs."""
        while True:
            said = self._ray.get(self._actor.hello.remote())
            why = unlike(said, self._cluster.facts)
            if not why:
                break
            self._cluster.refuse(said["node"], said["host"], why)
            self._ray.kill(self._actor)
            self._actor = self._cluster.actor(self._order)
            if self._killed:
                self._ray.kill(self._actor)
        self._node = said["node"]
        self._tell(SeatUp(self._name, msgspec.msgpack.encode(Ready(self._name, said["pid"], 0.0)), said["host"]))

    def _brought(self, call: _Call) -> WorkerDone:
        """What came of a batch, once its part is where the batch says."""
        batch = call.batch
        tmp, file, full = Path(batch.tmp), None, ""
        try:
            for ref in call.pieces:
                last, raw = self._ray.get(ref)
                if last:
                    break
                if not full:
                    try:
                        file = file or _opened(tmp)
                        file.write(raw)
                    except OSError as error:
                        if not is_full(error):
                            raise
                        full = str(error)
            done = msgspec.msgpack.decode(raw, type=WorkerDone)
            if file is not None and not full:
                full = _committed(file, tmp, Path(batch.done))
        finally:
            if file is not None:
                file.close()
                tmp.unlink(missing_ok=True)
        if not full:
            return self._doubted(call, done)
        return WorkerDone(done.ticket, msgspec.msgpack.encode(Outcome((), 0, 0, 0, 0.0, 0, (), full=full)))


def source_of(window: Window | ItemsWindow) -> Source:
    return (window.path, window.stamp) if isinstance(window, Window) else window.source


def _opened(tmp: Path) -> BinaryIO:
    tmp.parent.mkdir(parents=True, exist_ok=True)
    return tmp.open("wb")


def _committed(file: BinaryIO, tmp: Path, done: Path) -> str:
    """Why the part could not be kept, where the disk is full."""
    try:
        file.close()
        done.parent.mkdir(parents=True, exist_ok=True)
        local_commit(tmp, done)
    except OSError as error:
        if not is_full(error):
            raise
        return str(error)
    return ""


def unlike(said: dict[str, Any], here: dict[str, Any]) -> str:
    """Why a node can run nothing of ours, with what it has and what we have; "" where it can. Its parts are to be such
    as this machine's would be, and what was pickled here is to be read there."""
    if minor(said["python"]) != minor(here["python"]):
        return f"Python {here['python']} here, Python {said['python']} there"
    if said["missing"]:
        return f"its Python {said['python']} has no {', '.join(said['missing'])}"
    for what in ("kinds", "numerics"):
        if said[what] != here[what]:
            return f"other {what}: {apart(here[what], said[what])}"
    return ""


def minor(python: str) -> str:
    """`3.11` of `3.11.7`."""
    return ".".join(python.split(".")[:2])


def lives(order: StartSeat) -> dict[str, Any]:
    """What an actor is given for its life. Another takes a dead one's place sooner than Ray would start it again."""
    return {
        "num_cpus": order.cpus,
        "num_gpus": order.gpus,
        "memory": order.memory or None,
        "max_restarts": 0,
        "max_task_retries": 0,
    }


def reason(error: Exception) -> str:
    """Ray's in one line: the last of a traceback. What it says of a process's end is guesses."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return SILENT_DEATH if not lines or "worker process has died" in text else lines[-1]
