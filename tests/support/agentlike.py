"""A process with a pool, as an agent has one: for tests that kill it, interrupt it, or look at what it prints."""

from __future__ import annotations

import os
import queue
import signal
import sys
from pathlib import Path

from muster.agent.core.events import BatchEnded, Needs, PoolEvent, PoolLost, SlotUp
from muster.agent.pool import ray_environment
from muster.agent.pool.pool import Pool
from tests.support.pools import workers
from tests.support.standin import batch


class Agent:
    """A pool of one slot, and what it tells."""

    def __init__(self, kind: str, what: str, folder: Path) -> None:
        self.folder = folder
        self.events: queue.SimpleQueue[PoolEvent] = queue.SimpleQueue()
        bench = "tests.support.standin:Unborn" if what == "unborn" else "tests.support.standin:Stand"
        self.pool = Pool(folder, 1, self.events.put, workers(kind, 1, None, bench))

    def next(self) -> PoolEvent:
        return self.events.get(timeout=60)

    def say(self) -> None:
        print(type(self.next()).__name__, flush=True)

    def start(self) -> None:
        self.pool.start()
        event = self.next()
        if isinstance(event, PoolLost) and event.error is not None:
            self.pool.stop()
            print(event.error.message)
            sys.exit(event.error.exit_code)
        assert isinstance(event, SlotUp), event

    def submit(self, what: str) -> None:
        self.pool.submit(0, 1, batch(what, self.folder), Needs())


def main(kind: str, what: str, folder: Path) -> None:
    signal.signal(signal.SIGINT, lambda *_: None)
    before = signal.getsignal(signal.SIGTERM)
    if what == "open":
        ray_environment.RAY_SETTINGS["RAY_AUTH_MODE"] = "disabled"  # as before Ray 2.52, which had no tokens
    agent = Agent(kind, what, folder)
    agent.start()
    assert signal.getsignal(signal.SIGTERM) == before
    {"calm": calm, "wait": wait, "lose": lose, "crash": crash}[what](agent)


def calm(agent: Agent) -> None:
    """A worker's death, a replacement, an orderly end."""
    agent.submit("segfault")
    agent.say()
    agent.say()
    agent.submit("until-told")
    agent.say()
    agent.pool.stop()


def wait(agent: Agent) -> None:
    agent.submit("runner")
    agent.events.get()


def lose(agent: Agent) -> None:
    """The pool dies, and is started again."""
    agent.submit("wait")
    agent.say()
    agent.say()
    agent.pool.stop()
    agent.start()
    agent.submit("nothing")
    done = agent.next()
    assert isinstance(done, BatchEnded) and done.outcome.peak != os.getpid()
    print("BatchEnded")
    agent.pool.stop()


def crash(agent: Agent) -> None:
    agent.submit("wait")
    raise RuntimeError("a bug of the agent")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
