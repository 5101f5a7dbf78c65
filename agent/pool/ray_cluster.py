"""Workers on the nodes of somebody's Ray cluster, which this machine is a node of: an actor each, a call a batch.

What is asked for and is not up yet is the cluster's demand, by which one that scales does so. Decides nothing about
slots.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import shutil
import ssl
import stat
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from muster.agent.core.events import Needs, PlaceRefused
from muster.agent.pool import authentication, cleanup, ray_environment
from muster.agent.pool import ray_words as words
from muster.agent.pool.demand import IDLE_SECONDS
from muster.agent.pool.interface import Closed, Opened, Word, WorkerGone, WorkerSaid, WorkerUp
from muster.agent.pool.ray_driver import RayDriver
from muster.agent.pool.worker import BENCH, WorkerDone
from muster.jobs.common.errors import AccessError, LinkError, MusterError, RefusedError, UsageError

LOOK_SECONDS = 90.0  # Ray looks a minute for a node of the cluster on this machine
PORT = 6379  # of a head that was told none
OURS = ("__init__.py", "jobs", "agent/__init__.py", "agent/pool")  # of our package, what nodes need of it
LEFT_OUT = ("__pycache__", "*.pyc", "ray_host.py", "ray_head.py", "ray_local.py", "ray_cluster.py", "controller.py")
START = (
    "it is where `ray start --head` ran; this machine becomes a node of it by `ray start --address={0} --num-cpus=0`"
)
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")
logger = logging.getLogger("muster.pool")


def checked_address(text: str) -> str:
    """host:port of a cluster's head."""
    if text.startswith("ray://"):
        why = f"--ray {text}: this is the address of Ray's client server, through which no results can be streamed"
        head = text.removeprefix("ray://").partition("/")[0].rpartition(":")[0] or "HOST"
        raise UsageError(
            why, f"name the head itself, such as --ray {head}:{PORT}, on a machine that is one of its nodes"
        )
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[2] or PORT) > 65535:
        raise UsageError(f"--ray {text!r}: expected the host and the port of a cluster's head", f"such as head:{PORT}")
    return f"{found[1]}:{found[2] or PORT}"


def read_token(path: Path) -> str:
    """What the cluster's own token file has, which nobody else may read."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(4097)
    except OSError as error:
        raise UsageError(
            f"--ray-token {path}: {error.strerror}", "name a file with the cluster's token in it"
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(f"--ray-token {path}: others may read it", f"chmod 600 {path}")
    token = raw.decode(errors="replace").strip()
    if not token or len(raw) > 4096 or not token.isprintable():
        raise UsageError(
            f"--ray-token {path}: there is no token in it", "it is what the cluster has in RAY_AUTH_TOKEN_PATH"
        )
    return token


def check_head(address: str, token: str) -> bool:
    """Whether the cluster obeys those alone who have this token, or its certificates; False where it obeys all. An
    error where it is not there, or does not obey us."""
    tls = ray_environment.tls()
    try:
        if authentication.answers(address, tls=tls):
            return tls is not None
        if token and authentication.answers(address, token, tls):
            return True
    except ssl.SSLError as error:
        raise AccessError(f"no TLS with the Ray at {address}: {error}", ray_environment.TLS_HINT) from None
    except OSError as error:
        raise LinkError(f"no Ray at {address}: {error.strerror or error}", START.format(address)) from None
    if tls is None and authentication.wants_tls(address):
        raise AccessError(f"what is at {address} wants TLS", ray_environment.TLS_HINT)
    if token:
        raise AccessError(
            f"the Ray at {address} does not take this token", "name the cluster's own with --ray-token FILE"
        )
    raise AccessError(
        f"what is at {address} is no Ray, or one that wants a token", "name the cluster's with --ray-token FILE"
    )


@dataclass(frozen=True)
class Cluster:
    """One that an agent uses, as its user named it."""

    address: str  # host:port of its head
    token: Path | None
    idle_seconds: float = IDLE_SECONDS  # without work, after which a worker there ends


def look(cluster: Cluster) -> tuple[words.RayUp, bool]:
    """What a cluster has now, and whether it obeys everybody who reaches it. A MusterError if it cannot be joined from
    here. Takes some seconds."""
    token = read_token(cluster.token) if cluster.token is not None else ""
    is_open = not check_head(cluster.address, token)
    temp = Path(tempfile.mkdtemp(prefix="mst-"))
    told: queue.SimpleQueue[words.HostWord] = queue.SimpleQueue()
    try:
        cleanup.empty(temp).mkdir()
        order = words.JoinRay(cluster.address, str(_modules(temp)), "", "", token)
        driver = RayDriver(order, temp, ray_environment.of_cluster(cluster.token), told.put)
        try:
            word = told.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            word = words.RayDown(f"the Ray cluster at {cluster.address} was not joined within {LOOK_SECONDS:.0f} s")
        finally:
            driver.close()
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    if isinstance(word, words.RayUp):
        return word, is_open
    assert isinstance(word, words.RayDown)
    raise RefusedError(word.why, word.hint) if word.hint else LinkError(word.why, "try again; agent.log may say more")


class ClusterRay:
    """`Workers`, on the nodes of a cluster."""

    on_demand = True
    heeds_needs = True
    room: Needs | None = None  # a cluster may grow by what waits

    def __init__(self, cluster: Cluster, log: Path | None = None, bench: str = BENCH) -> None:
        self._address = cluster.address
        self._token = cluster.token
        self._log = log
        self._bench = bench
        self._tell: Callable[[Word], None] = lambda word: None
        self._driver: RayDriver | None = None

    def open(self, temp: Path, tell: Callable[[Word], None]) -> None:
        self._tell = tell
        try:
            token = read_token(self._token) if self._token is not None else ""
            check_head(self._address, token)
        except LinkError as error:  # it let us in when the agent joined: a head that starts refuses everybody
            return tell(Closed(error.message))
        except MusterError as error:
            return tell(Closed(error.message, error))
        log = str(self._log or "")
        order = words.JoinRay(self._address, str(_modules(temp)), self._bench, log, token)
        self._driver = RayDriver(order, temp, ray_environment.of_cluster(self._token), self._told)
        return None

    def start(self, seat: str, needs: Needs) -> None:
        self._order(words.StartSeat(seat, needs.cpus, needs.gpus, needs.memory or 0))

    def send(self, seat: str, ticket: int, batch: bytes, name: str, in_rounds: bool) -> None:
        assert not in_rounds, "the hello says that none are taken"
        self._order(words.CallSeat(seat, ticket, batch, name))

    def kill(self, seat: str) -> None:
        self._order(words.KillSeat(seat))

    def close(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _order(self, order: words.SeatOrder) -> None:
        if (driver := self._driver) is not None:
            driver.order(order)

    def _told(self, word: words.HostWord) -> None:
        match word:
            case words.RayUp():
                self._tell(Opened())
            case words.SeatUp(seat, _, place):
                self._tell(WorkerUp(seat, place))
            case words.SeatSaid(seat, raw):
                done = msgspec.msgpack.decode(raw, type=WorkerDone)
                self._tell(WorkerSaid(seat, done.ticket, done.outcome, done.broken))
            case words.SeatGone(seat, why):
                self._tell(WorkerGone(seat, why))
            case words.NodeRefused(place, why):
                logger.warning("nothing is run on node %s: %s", place, why)
                self._tell(PlaceRefused(place, why))
            case words.RayDown(why, hint):
                self._tell(Closed(why, MusterError(why, hint) if hint else None))


def _modules(temp: Path) -> Path:
    """Our package as nodes are to have it: what runs batches, and nothing else."""
    home, there = Path(str(sys.modules["muster"].__file__)).parent, temp / "modules" / "muster"
    for name in OURS:
        source, target = home / name, there / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns(*LEFT_OUT))
        else:
            shutil.copyfile(source, target)
    return there
