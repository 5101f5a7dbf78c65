"""Merging on the daemon's side: one layer at a time through the helper, then into `result/`. Touches no array.

Order of a merge, each step safe to die after: arrays and manifest durable in tmp → old manifest removed → arrays
renamed → manifest renamed last → the layer's `merged` row, which drops its bundles' rows → the bundles' files deleted.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
import traceback
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from muster.coordinator.api.process_messages import MergeOrder, MergeReply
from muster.coordinator.daemon.waiting import wait_until
from muster.coordinator.protocol.frames import HEAD, frame, payload_size
from muster.jobs.common import launch
from muster.jobs.common.durable import is_full
from muster.jobs.common.errors import MusterError, SpaceError
from muster.jobs.common.retry_delay import RetryDelay
from muster.jobs.contract.plan import Layer
from muster.jobs.contract.text_limits import EVIDENCE_CHARS, MESSAGE_CHARS

log = logging.getLogger("muster.merge")
RETRY_SECONDS = 1.0  # doubled with each try that settled nothing
PAUSE_LIMIT_SECONDS = 30.0
FAILURES_TO_HALT = 5  # of one order, in a row, alike
FindBundles = Callable[[], Awaitable["list[str] | None"]]  # the paths to merge; None: nobody wants it any more
Settle = Callable[[MergeReply, Path, float], Awaitable[bool]]  # False: it must be tried again


class MergeDied(Exception):
    """The helper ended in the middle of a merge."""


class Helper:
    """The helper process, started when there is a merge and kept for the next."""

    def __init__(self, log: Path | None = None) -> None:
        """`log`: the daemon's, which the helper writes into too."""
        self._log = log
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def merge(self, order: MergeOrder) -> MergeReply:
        process = self._process or await asyncio.create_subprocess_exec(
            *launch.python("muster.coordinator.daemon.merge.merge_process", *([str(self._log)] if self._log else [])),
            stdin=PIPE,
            stdout=PIPE,
            cwd="/",
        )
        self._process = process
        assert process.stdin and process.stdout
        try:
            process.stdin.write(frame(msgspec.msgpack.encode(order)))
            await process.stdin.drain()
            head = await process.stdout.readexactly(HEAD.size)
            reply = await process.stdout.readexactly(payload_size(head))
        except (asyncio.IncompleteReadError, ConnectionError):
            self._process = None
            raise MergeDied(f"the merge helper ended with {await process.wait()}") from None
        return msgspec.msgpack.decode(reply, type=MergeReply)

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process:
            if process.stdin:
                process.stdin.close()
            try:
                await process.wait()
            except asyncio.CancelledError:  # it does not end, and we do not wait any longer
                process.kill()
                raise


@dataclass
class QueuedMerge:
    """A layer to be merged, and what came of it so far."""

    job: str
    layer: Layer
    bundles: FindBundles
    settle: Settle
    items: str = ""  # the job's list of items, where its source is one
    since: float = 0.0  # when the job was made
    due: float = field(default_factory=time.monotonic)
    equal: int = 0  # of the last ones, how many failed alike
    why: str = ""  # what the last one failed with
    retry: RetryDelay = field(default_factory=lambda: RetryDelay(RETRY_SECONDS, PAUSE_LIMIT_SECONDS))

    @property
    def key(self) -> tuple[str, str]:
        return self.job, self.layer.digest

    def put_off(self, reply: MergeReply) -> float:
        """It goes back behind the others; for so many seconds. Only what failed is counted: a full disk is waited for,
        and its order begins anew once there is room."""
        self.equal = 0 if reply.full else self.equal + 1 if reply.message == self.why else 1
        self.why = reply.message
        now = time.monotonic()
        pause = self.retry.failed(now)
        self.due = now + pause
        return pause


class MergeQueue:
    """The complete layers, and the task that merges one after the other: whichever is due longest."""

    def __init__(self, tmp: Path, log: Path | None = None) -> None:
        self._tmp = tmp
        self._orders: dict[tuple[str, str], QueuedMerge] = {}
        self._news = asyncio.Event()
        self._helper = Helper(log)
        self._made = 0

    def put(self, order: QueuedMerge) -> None:
        """In place of an earlier order for the same layer, and all that went wrong with that."""
        self._orders.pop(order.key, None)
        self._orders[order.key] = order
        self._news.set()

    def trouble(self, job: str, digest: str) -> str:
        """Why a layer that should be merged is not yet; "" where nothing is wrong with it."""
        order = self._orders.get((job, digest))
        return order.why if order else ""

    async def run(self) -> None:
        try:
            while True:
                await self._merge(await self._next())
        finally:
            await self._helper.stop()

    async def _next(self) -> QueuedMerge:
        """It stays where it is until it is settled, or put again."""
        while True:
            order = min(self._orders.values(), key=lambda order: order.due, default=None)
            left = order.due - time.monotonic() if order else None
            if order is not None and left is not None and left <= 0:
                return order
            self._news.clear()
            await wait_until(self._news, left)

    async def _merge(self, order: QueuedMerge) -> None:
        self._made += 1
        folder = self._tmp / f"merge-{self._made}"
        try:
            reply = await self._tried(order, folder)
            if reply is not None:
                message = reply.message.replace(str(folder), str(self._tmp))[:MESSAGE_CHARS]  # each try has another
                reply = await self._failed(order, msgspec.structs.replace(reply, message=message), folder)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, True)
        if reply is None and self._orders.get(order.key) is order:
            del self._orders[order.key]

    async def _tried(self, order: QueuedMerge, folder: Path) -> MergeReply | None:
        """What went wrong; None where it is settled, whatever came of it. Whatever happens here is this order's own
        trouble: a merge may begin anew from any step, and what breaks in the scheduler ends the daemon by itself."""
        began, reply = time.monotonic(), MergeReply()
        try:
            paths = await order.bundles()
            if paths is None:
                return None
            asked = MergeOrder(order.job, order.layer, paths, str(folder), order.items, order.since)
            reply = await self._helper.merge(asked)
            settled = await order.settle(reply, folder, time.monotonic() - began)
            return None if settled else reply
        except (MergeDied, MusterError) as error:
            return MergeReply(full=isinstance(error, SpaceError), message=str(error))
        except OSError as error:
            return MergeReply(full=is_full(error), message=str(error))
        except Exception as error:
            log.exception("%s/%s is not merged, a bug of ours", order.job, order.layer.name)
            evidence = traceback.format_exc()[-EVIDENCE_CHARS:]
            return MergeReply(message=f"{type(error).__name__}: {error}", evidence=evidence)

    async def _failed(self, order: QueuedMerge, reply: MergeReply, folder: Path) -> MergeReply | None:
        """Back behind the others, or, after so many failures of one kind, no further: None."""
        pause = order.put_off(reply)
        name = f"{order.job}/{order.layer.name}"
        if order.equal < FAILURES_TO_HALT:
            log.warning("%s is not merged: %s; it is tried again in %.2g s", name, reply.message, pause)
            return reply
        why = f"{reply.message} ({order.equal} times in a row)"
        halt = MergeReply(hopeless=True, message=why, evidence=reply.evidence)
        await order.settle(halt, folder, 0.0)
        return None
