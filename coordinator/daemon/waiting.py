"""How the daemon's tasks wait for each other and end: signals, waits with a deadline, cancels. Decides nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Any

log = logging.getLogger("muster.daemon")

CANCEL_SECONDS = 0.5  # between a cancel and the next of the same task
END_SECONDS = 20.0


class Signal:
    """Wakes all who wait, each time it is given."""

    def __init__(self) -> None:
        self.next = asyncio.Event()

    def give(self) -> None:
        self.next.set()
        self.next = asyncio.Event()


async def wait_until(event: asyncio.Event, seconds: float | None) -> None:
    """Return once `event` is set, or after so many seconds; None: whenever that is.

    Not by `asyncio.wait_for`: that of Python 3.10 and 3.11 swallows a cancel that comes in the turn of the loop in
    which the event is set, and events here are set thousands of times a second.
    """
    waiter = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiter}, timeout=seconds)
    finally:
        waiter.cancel()


async def end(tasks: Iterable[asyncio.Task[Any]]) -> bool:
    """Cancel tasks until all are gone, however often they catch it. False if some outlast that: they are named."""
    left, deadline = set(tasks), time.monotonic() + END_SECONDS
    while left and time.monotonic() < deadline:
        for task in left:
            task.cancel()
        gone, left = await asyncio.wait(left, timeout=CANCEL_SECONDS)
        await asyncio.gather(*gone, return_exceptions=True)  # so that none is said to have been looked at by nobody
    for task in left:
        log.error("this task does not end, a bug of ours: %s", task)
    return not left
