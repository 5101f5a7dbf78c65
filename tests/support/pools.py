"""The implementations of a pool's workers, for tests that hold of all of them; and what of a pool one may listen to."""

from __future__ import annotations

import contextlib
import ipaddress
import queue
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from muster.agent.core.events import BatchEnded, Needs, PoolEvent, PoolOpened, SlotUp, WorkerDied
from muster.agent.pool import cleanup
from muster.agent.pool.interface import Workers
from muster.agent.pool.pool import Pool
from muster.agent.pool.processes import Processes
from muster.agent.pool.ray_cluster import Cluster, ClusterRay
from muster.agent.pool.ray_local import LocalRay
from tests.support import ray_cluster
from tests.support.farm import until
from tests.support.ray_cluster import RayCluster
from tests.support.standin import batch

DEADLINE_SECONDS = 60.0
STAND = "tests.support.standin:Stand"
ROOT = Path(__file__).parents[2]


def workers(
    kind: str,
    slots: int,
    log: Path | None,
    bench: str = STAND,
    gpus: tuple[str, ...] = (),
    cluster: Cluster | None = None,
) -> Workers:
    if cluster is not None:
        return ClusterRay(cluster, log, bench)
    return Processes(log, bench) if kind == "processes" else LocalRay(slots, log, bench, gpus=gpus)


@contextlib.contextmanager
def cluster_for(kind: str, folder: Path) -> Iterator[RayCluster | None]:
    """One with a node of four processors, where workers of this kind are on one."""
    if kind != "cluster":
        yield None
        return
    with ray_cluster.running(folder) as cluster:
        cluster.add(cpus=4, packages=ROOT)
        yield cluster


class Rig:
    """A pool of two slots and its events."""

    def __init__(self, kind: str, folder: Path, gpus: tuple[str, ...] = (), cluster: RayCluster | None = None) -> None:
        self.kind = kind
        self.folder = folder
        self.cluster = cluster
        self.place = cluster.nodes[0].name if cluster is not None else ""
        self.events: queue.SimpleQueue[PoolEvent] = queue.SimpleQueue()
        self.log = folder.with_name(f"{folder.name}.log")
        joined = Cluster(cluster.address, cluster.token) if cluster is not None else None
        self.pool = Pool(folder, 2, self.events.put, workers(kind, 2, self.log, gpus=gpus, cluster=joined))
        self.tickets = 0

    def start(self) -> None:
        """Until both slots are up."""
        if self.cluster is None:
            self.pool.start()
        else:
            with self.cluster.machine.entered():
                self.pool.start()
            assert self.next() == PoolOpened()
            self.pool.ask({Needs(): 2})
        assert {self.up().slot, self.up().slot} == {0, 1}

    def is_up(self, slot: int) -> SlotUp:
        """What is told once it is."""
        return SlotUp(slot) if self.cluster is None else SlotUp(slot, self.place, Needs())

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
        """Of its worker; one on another machine is asked for it."""
        if self.cluster is None:
            return until(lambda: self.pool.worker_pid(slot), "the worker to be there", DEADLINE_SECONDS)
        assert self.pool.worker_pid(slot) is None
        self.submit(slot, "nothing", self.log.parent)
        return self.done().outcome.peak

    @property
    def temp(self) -> Path:
        record = cleanup.read(self.folder)
        assert record is not None
        return Path(record.temp)

    def lanes(self) -> int:
        """How many workers called at the socket that Ray's are told of."""
        ours = psutil.Process().net_connections("unix")
        return sum(one.laddr == str(self.temp / "lane") for one in ours) - 1  # that which listens

    def below(self) -> set[psutil.Process]:
        """What it started: all below us but a cluster that is there."""
        nodes = [] if self.cluster is None else [self.cluster.head, *self.cluster.nodes]
        those = [psutil.Process(node.process.pid) for node in nodes]
        others = {one for each in those for one in [each, *each.children(recursive=True)]}
        return set(psutil.Process().children(recursive=True)) - others

    def listening(self) -> list[str]:
        """Addresses of sockets, of us and all below us, that somebody may call: not those that call somebody, as a Ray
        that starts does for a moment over UDP, to see which address it has."""
        found = list[str]()
        for process in [psutil.Process(), *self.below()]:
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
