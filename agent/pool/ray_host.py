"""Ray's driver, in a process of its own: what ends it ends no agent. Starts Ray and workers, and says which are gone.

Ray's client ends its whole process, without a word, a minute after the gcs died. The only importer of ray.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import sys
import threading
import warnings
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from muster.agent.pool import authentication, ray_environment
from muster.agent.pool.socket_workers import SILENT_DEATH
from muster.agent.pool.worker import Worker
from muster.agent.pool.worker_socket import WorkerSocket
from muster.jobs.common.errors import MusterError
from muster.jobs.common.logs import open_log
from muster.jobs.contract.requirements import pip_line

STORE_BYTES = 80 << 20  # Ray's least is 75 MB; only touched pages count, and batches and outcomes hardly touch it


class HostOrder(msgspec.Struct, frozen=True, array_like=True):
    """Of the agent: what to start. Workers serve at the socket `address`."""

    temp: str
    slots: int
    worker: str
    address: str
    log: str  # "" for none
    token: str


class SeatOrder(msgspec.Struct, frozen=True, array_like=True):
    """Of the agent: start a worker of that name, or kill it."""

    seat: str
    kill: bool = False


class HostWord(msgspec.Struct, frozen=True, array_like=True):
    """To the agent: Ray is up; or, with `seat`, that worker is gone; or, with `hint`, another try would change nothing,
    and `why`; else Ray did not start, and `why`."""

    why: str = ""
    seat: str = ""
    hint: str = ""


def main() -> int:
    """Until the agent hangs up: then it ends at once, and all that it started with it."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    agent, lock = WorkerSocket(socket.socket(fileno=int(sys.argv[1]))), threading.Lock()
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def say(word: HostWord) -> None:
        with lock, suppress(OSError):
            agent.send(msgspec.msgpack.encode(word))

    threading.Thread(target=_read, args=(agent, orders), daemon=True).start()
    order = msgspec.msgpack.decode(orders.get(), type=HostOrder)
    try:
        ray = _start(order)
    except MusterError as error:
        say(HostWord(error.message, hint=error.hint))
        return error.exit_code
    except ImportError as error:
        why = f"Ray cannot be imported by {sys.executable}: {error}"
        say(HostWord(why.splitlines()[0], hint=pip_line("'ray>=2.52'", sys.executable)))
        return 1
    except Exception as error:  # whatever Ray raises
        say(HostWord((str(error).strip() or type(error).__name__).splitlines()[0]))
        return 1
    say(HostWord())
    remote = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(Worker)
    actors: dict[str, Any] = {}
    while True:
        asked = msgspec.msgpack.decode(orders.get(), type=SeatOrder)
        if asked.kill:
            if asked.seat in actors:
                ray.kill(actors[asked.seat])
            continue
        actors[asked.seat] = remote.remote(order.worker, asked.seat, order.log)
        done = actors[asked.seat].serve_at.remote(order.address).future()
        done.add_done_callback(lambda future, seat=asked.seat: say(HostWord(_why(future), seat)))


def _read(agent: WorkerSocket, orders: queue.SimpleQueue[bytes]) -> None:
    while (raw := agent.receive()) is not None:
        orders.put(raw)
    os.kill(os.getpid(), signal.SIGKILL)  # Ray's processes die with the thread that started them


def _start(order: HostOrder) -> Any:
    ray = _import_ray()
    if order.log:
        open_log(Path(order.log), level=logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            address="local",
            num_cpus=order.slots,
            num_gpus=0,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            object_store_memory=STORE_BYTES,
            _temp_dir=str(ray_environment.rays(Path(order.temp))),
        )
    _check_closed(ray, order.token)
    return ray


def _import_ray() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
    ray_environment.quiet()
    return ray


def _check_closed(ray: Any, token: str) -> None:
    """Refuse a Ray that takes orders without the token: every user of this machine would be ours."""
    address = ray.get_runtime_context().gcs_address
    if authentication.answers(address):
        why = f"Ray {ray.__version__} obeys every user of this machine: it asks for no token"
        raise MusterError(why, pip_line("'ray>=2.52'", sys.executable))
    if not authentication.answers(address, token):
        print(f"Ray {ray.__version__} does not say whether it refuses who has no token", file=sys.stderr, flush=True)


def _why(future: Future[Any]) -> str:
    """Ray's reason in one line: the last of a traceback. What it says of a process's end is guesses."""
    text = str(future.exception())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return SILENT_DEATH if not lines or "worker process has died" in text else lines[-1]
