"""Ray's driver, in a process of its own: what ends it ends no agent. Starts a Ray, or is one more driver of a cluster.

Ray's client ends its whole process, without a word, a minute after the gcs died.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from muster.agent.pool import authentication, ray_environment, worker_environment
from muster.agent.pool.ray_head import RayHead
from muster.agent.pool.ray_seats import Cluster, FarSeat, Seat, Seats, minor
from muster.agent.pool.ray_words import FirstOrder, HostWord, JoinRay, RayDown, RayUp, SeatOrder, StartRay, StartSeat
from muster.agent.pool.worker_socket import WorkerSocket
from muster.jobs.common.errors import LinkError, MusterError, RefusedError
from muster.jobs.common.logs import open_log
from muster.jobs.contract.requirements import pip_line

ASK_SECONDS = 2.0  # between two questions to a cluster's head
SILENT_ASKS = 5  # in a row, and it is taken for dead
_VERSIONS = re.compile(r"Ray: (\S+) Python: (\S+)")


def main() -> int:
    """Until the agent hangs up: then it ends at once, and all that it started with it."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    agent = AgentLine(WorkerSocket(socket.socket(fileno=int(sys.argv[1]))))
    order = msgspec.msgpack.decode(agent.orders.get(), type=FirstOrder)
    if order.log:
        open_log(Path(order.log), level=logging.WARNING)
    try:
        make, up = _started(order, agent) if isinstance(order, StartRay) else _joined(order, agent)
    except MusterError as error:
        agent.tell(RayDown(error.message, "" if error.retryable else error.hint))
        return error.exit_code
    except ImportError as error:
        why = f"Ray cannot be imported by {sys.executable}: {error}"
        agent.tell(RayDown(why.splitlines()[0], pip_line("'ray>=2.52'", sys.executable)))
        return 1
    except Exception as error:  # whatever Ray raises
        agent.tell(RayDown((str(error).strip() or type(error).__name__).splitlines()[0]))
        return 1
    agent.tell(up)
    seats = Seats(make)
    while True:
        seats.obey(msgspec.msgpack.decode(agent.orders.get(), type=SeatOrder))


class AgentLine:
    """The agent's orders, and telling it what happened."""

    def __init__(self, line: WorkerSocket) -> None:
        self.orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._line = line
        self._lock = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def tell(self, word: HostWord) -> None:
        with self._lock, suppress(OSError):
            self._line.send(msgspec.msgpack.encode(word))

    def _read(self) -> None:
        while (raw := self._line.receive()) is not None:
            self.orders.put(raw)
        os.kill(os.getpid(), signal.SIGKILL)  # `ray start` ends with us


# --- a Ray of this machine ---


def _started(order: StartRay, agent: AgentLine) -> tuple[Callable[[StartSeat], Seat], RayUp]:
    head = RayHead(Path(order.temp), order.cpus, order.gpus, order.memory, lambda why: agent.tell(RayDown(why)))
    ray = _import_ray()
    if not head.wait():
        sys.exit(1)  # the agent was told why
    _connect(ray, head.address)
    _check_closed(ray, head.address, order.token)
    return lambda asked: Seat(ray, asked, order.worker, order.log, agent.tell), RayUp()


def _check_closed(ray: Any, address: str, token: str) -> None:
    """Refuse a Ray that takes orders without the token: every user of this machine would be ours."""
    if authentication.answers(address):
        why = f"Ray {ray.__version__} obeys every user of this machine: it asks for no token"
        raise MusterError(why, pip_line("'ray>=2.52'", sys.executable))
    if not authentication.answers(address, token):
        print(f"Ray {ray.__version__} does not say whether it refuses who has no token", file=sys.stderr, flush=True)


# --- a cluster that is there ---


def _joined(order: JoinRay, agent: AgentLine) -> tuple[Callable[[StartSeat], Seat], RayUp]:
    ray = _import_ray()
    threads = dict.fromkeys(worker_environment.THREADS, "1")
    try:
        _connect(ray, order.address, runtime_env={"py_modules": [order.modules], "env_vars": threads})
    except (RuntimeError, ConnectionError, ValueError) as error:
        raise not_joined(order.address, " ".join(str(error).split())) from None
    cluster = Cluster(ray, order.worker, agent.tell)
    threading.Thread(target=_watch_head, args=(order, agent), name="head", daemon=True).start()
    has, nodes = ray.cluster_resources(), [node for node in ray.nodes() if node["Alive"]]
    counts = (int(has.get(name, 0)) for name in ("CPU", "GPU", "memory"))
    return lambda asked: FarSeat(cluster, asked), RayUp(ray.__version__, len(nodes), *counts)


def not_joined(address: str, why: str) -> MusterError:
    """As Ray said it, and what to do about the two things that are in nobody's way but a person's."""
    if "Version mismatch" in why:
        return _apart(address, why)
    if "IP address" in why or "No node" in why or "raylet" in why.lower():
        hint = f"join this machine to the cluster first: `ray start --address={address} --num-cpus=0`"
        return RefusedError(f"this machine is no node of the Ray cluster at {address}: {why}", hint)
    return LinkError(f"the Ray cluster at {address} cannot be joined: {why}", "agent.log may say more")


def _apart(address: str, why: str) -> RefusedError:
    """Ray names its own version and Python's, first the cluster's, then ours."""
    found = _VERSIONS.findall(why)
    if len(found) != 2:
        return RefusedError(why, "have the same Ray and the same minor version of Python in both")
    (ray, python), (our_ray, our_python) = found
    has = f"the Ray cluster at {address} has Ray {ray} and Python {python}"
    hint = f"join from an environment with Ray {ray} and Python {minor(python)}"
    return RefusedError(f"{has}, here are Ray {our_ray} and Python {our_python}", hint)


def _watch_head(order: JoinRay, agent: AgentLine) -> None:
    """Without its head a cluster starts nothing new, and its nodes end after a minute."""
    silent, tls = 0, ray_environment.tls()
    while silent < SILENT_ASKS:
        time.sleep(ASK_SECONDS)
        try:
            silent = 0 if authentication.answers(order.address, order.token, tls) else silent + 1
        except OSError:
            silent += 1
    agent.tell(RayDown(f"the head of the Ray cluster at {order.address} is gone"))


# --- both ---


def _import_ray() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
    log = logging.getLogger("ray")  # its warnings go where all that is logged goes
    log.propagate = True
    log.setLevel(logging.WARNING)
    for handler in log.handlers[:]:
        log.removeHandler(handler)
        handler.close()
    return ray


def _connect(ray: Any, address: str, **more: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(address, log_to_driver=False, configure_logging=False, **more)
