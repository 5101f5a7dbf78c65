"""A process with workers on a cluster, as an agent has them, that end soon after there is no work for them.

    python -m tests.support.clusterlike ADDRESS TOKEN FOLDER IDLE_SECONDS

Reads how many workers there is work for, a number a line, and prints each event of the pool as a line.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from pathlib import Path

from muster.agent.core.events import Needs, PoolEvent, SlotGone, SlotUp
from muster.agent.host.taken_kinds import Takes
from muster.agent.pool.controller import PoolController
from muster.agent.pool.ray_cluster import Cluster
from muster.agent.spool.paths import Spool
from muster.coordinator.protocol.control import Hello

LOOK_SECONDS = 0.1
WHO = Hello(1, "1", "a", "s", "p" * 8, "h", 1, 4, 1 << 30, 1 << 30, {}, "", "3.11", envs={}, no_rounds=True)


def main(address: str, token: Path, folder: Path, idle_seconds: float) -> None:
    spool = Spool(folder)
    spool.run.mkdir(parents=True)
    events: queue.SimpleQueue[PoolEvent] = queue.SimpleQueue()
    cluster = Cluster(address, token, idle_seconds)
    controller = PoolController(spool, WHO, None, None, {}, Takes(), events.put, cluster)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=read, args=[lines], daemon=True).start()
    wanted = 0
    controller.pool.start()
    while True:
        while not lines.empty():
            if not (line := lines.get()):
                return controller.pool.stop()
            wanted = int(line)
        controller.ask({Needs(): wanted} if wanted else {}, time.monotonic())
        while not events.empty():
            said(events.get())
        time.sleep(LOOK_SECONDS)


def read(lines: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    lines.put("")


def said(event: PoolEvent) -> None:
    match event:
        case SlotUp(_, place):
            print(type(event).__name__, place, flush=True)
        case SlotGone(_, why):
            print(type(event).__name__, why, flush=True)
        case _:
            print(type(event).__name__, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
