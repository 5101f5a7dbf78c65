"""A process with a pool, as an agent has one: for tests that kill it, interrupt it, or look at what it prints."""

from __future__ import annotations

import queue
import signal
import sys
from pathlib import Path

from muster.agent.pool import ray_environment
from muster.agent.pool.interface import PoolEvent
from muster.agent.pool.ray_local import Pool
from muster.jobs.common.errors import MusterError
from tests.support.standin import batch


def main(what: str, folder: Path) -> None:
    events: queue.SimpleQueue[PoolEvent] = queue.SimpleQueue()
    signal.signal(signal.SIGINT, lambda *_: None)
    before = signal.getsignal(signal.SIGTERM)
    if what == "open":
        ray_environment.RAY_SETTINGS["RAY_AUTH_MODE"] = "disabled"  # as before Ray 2.52, which had no tokens
    pool = Pool(folder, 1, events.put, worker=f"tests.support.standin:{'Unborn' if what == 'unborn' else 'Stand'}")
    try:
        pool.start()
    except MusterError as error:
        print(error.message)
        sys.exit(error.exit_code)
    assert signal.getsignal(signal.SIGTERM) == before
    {"calm": calm, "wait": wait, "lose": lose, "crash": crash}[what](pool, events, folder)


def calm(pool: Pool, events: queue.SimpleQueue[PoolEvent], folder: Path) -> None:
    """A worker's death, a replacement, an orderly end."""
    pool.submit(0, batch("segfault", folder))
    print(type(events.get(timeout=60)).__name__)
    pool.submit(0, batch("until-told", folder))
    print(type(events.get(timeout=60)).__name__, flush=True)
    pool.stop()


def wait(pool: Pool, events: queue.SimpleQueue[PoolEvent], folder: Path) -> None:
    pool.submit(0, batch("runner", folder))
    events.get()


def lose(pool: Pool, events: queue.SimpleQueue[PoolEvent], folder: Path) -> None:
    """Ray dies, and is started again."""
    pool.submit(0, batch("wait", folder))
    for _ in range(2):
        print(type(events.get(timeout=60)).__name__, flush=True)
    pool.stop()
    pool.start()
    pool.submit(0, batch("nothing", folder))
    print(type(events.get(timeout=60)).__name__)
    pool.stop()


def crash(pool: Pool, events: queue.SimpleQueue[PoolEvent], folder: Path) -> None:
    pool.submit(0, batch("wait", folder))
    raise RuntimeError("a bug of the agent")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
