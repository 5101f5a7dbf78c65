"""The implementations of a pool's workers, for tests that hold of all of them; and what of a pool one may listen to."""

from __future__ import annotations

import ipaddress
import queue
from contextlib import suppress
from pathlib import Path

import psutil

from muster.agent.core.events import BatchEnded, Needs, PoolEvent, SlotUp, WorkerDied
from muster.agent.pool import cleanup
from muster.agent.pool.interface import Workers
from muster.agent.pool.pool import Pool
from muster.agent.pool.processes import Processes
from muster.agent.pool.ray_local import LocalRay
from tests.support.farm import until
from tests.support.standin import batch

KINDS = ("processes", "ray")
DEADLINE_SECONDS = 60.0
STAND = "tests.support.standin:Stand"


def workers(kind: str, slots: int, log: Path | None, bench: str = STAND, gpus: tuple[str, ...] = ()) -> Workers:
    return Processes(log, bench) if kind == "processes" else LocalRay(slots, log, bench, gpus=gpus)


class Rig:
    """A pool of two slots and its events."""

    def __init__(self, kind: str, folder: Path, gpus: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self.folder = folder
        self.events: queue.SimpleQueue[PoolEvent] = queue.SimpleQueue()
        self.log = folder.with_name(f"{folder.name}.log")
        self.pool = Pool(folder, 2, self.events.put, workers(kind, 2, self.log, gpus=gpus))
        self.tickets = 0

    def submit(self, slot: int, what: str, scratch: Path) -> int:
        self.tickets += 1
        self.pool.submit(slot, self.tickets, batch(what, scratch), Needs())
        return self.tickets

    def next(self) -> PoolEvent:
        return self.events.get(timeout=DEADLINE_SECONDS)

    def up(self) -> SlotUp:
        event = self.next()
        assert isinstance(event, SlotUp), event
        return event

    def done(self) -> BatchEnded:
        event = self.next()
        assert isinstance(event, BatchEnded), event
        return event

    def died(self) -> WorkerDied:
        event = self.next()
        assert isinstance(event, WorkerDied), event
        return event

    def pid(self, slot: int) -> int:
        return until(lambda: self.pool.worker_pid(slot), "the worker to be there", DEADLINE_SECONDS)

    @property
    def temp(self) -> Path:
        record = cleanup.read(self.folder)
        assert record is not None
        return Path(record.temp)

    def lanes(self) -> int:
        """How many workers called at the socket that Ray's are told of."""
        ours = psutil.Process().net_connections("unix")
        return sum(one.laddr == str(self.temp / "lane") for one in ours) - 1  # that which listens

    def listening(self) -> list[str]:
        """Addresses of sockets, of us and all below us, that somebody may call: not those that call somebody, as a Ray
        that starts does for a moment over UDP, to see which address it has."""
        us, found = psutil.Process(), list[str]()
        for process in [us, *us.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):  # it ended meanwhile
                found += [
                    connection.laddr.ip
                    for connection in process.net_connections("inet")
                    if connection.status in {psutil.CONN_LISTEN, psutil.CONN_NONE} and not connection.raddr
                ]
        return found


def is_loopback(text: str) -> bool:
    ip = ipaddress.ip_address(text)
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool((mapped or ip).is_loopback)
