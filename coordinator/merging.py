"""Merging on the daemon's side: one layer at a time through the helper, then into `result/`. Touches no array.

Order of a merge, each step safe to die after: arrays and manifest durable in tmp → old manifest removed → arrays
renamed → manifest renamed last → the layer's `merged` row, which drops its bundles' rows → the bundles' files deleted.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from coordinator import root as roots
from coordinator.merger import MergeOrder, MergeReply
from coordinator.protocol.frames import HEAD, frame, payload_size
from jobs.commit import fsync_folder, make_folder
from jobs.errors import MusterError
from jobs.model import ItemsSource, Layer

log = logging.getLogger("muster.merge")

RETRY_SECONDS = 2.0
MANIFEST = "manifest.json"


Bundles = Callable[[], Awaitable["list[str] | None"]]  # the paths to merge; None: nobody wants it any more


class MergeDied(Exception):
    """The helper ended in the middle of a merge."""


class Helper:
    """The helper process, started when there is a merge and kept for the next."""

    def __init__(self) -> None:
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def merge(self, order: MergeOrder) -> MergeReply:
        process = self._process or await asyncio.create_subprocess_exec(
            *roots.python("coordinator.merger"), stdin=PIPE, stdout=PIPE, cwd="/"
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
            await process.wait()


class Merging:
    """A queue of complete layers and the task that works it off."""

    def __init__(
        self,
        tmp: Path,
        items: Callable[[str], Path],
        outcome: Callable[[str, Layer, int, MergeReply, Path, float], Awaitable[bool]],
    ) -> None:
        self._tmp = tmp
        self._items = items  # where a job's list of items is
        self._outcome = outcome  # told of every reply; True when that settles it
        self._queue: asyncio.Queue[tuple[str, Layer, int, Bundles]] = asyncio.Queue()
        self._helper = Helper()
        self._made = 0

    def put(self, job: str, layer: Layer, generation: int, bundles: Bundles) -> None:
        self._queue.put_nowait((job, layer, generation, bundles))

    async def run(self) -> None:
        try:
            while True:
                order = await self._queue.get()
                while not await self._merge(*order):
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            await self._helper.stop()

    async def _merge(self, job: str, layer: Layer, generation: int, bundles: Bundles) -> bool:
        """True when it is settled, whatever came of it."""
        self._made += 1
        folder = self._tmp / f"merge-{self._made}"
        began = time.monotonic()
        try:
            paths = await bundles()
            if paths is None:
                return True
            items = str(self._items(job)) if isinstance(layer.source, ItemsSource) else ""
            reply = await self._helper.merge(MergeOrder(job, layer, paths, str(folder), items))
            return await self._outcome(job, layer, generation, reply, folder, time.monotonic() - began)
        except (MergeDied, MusterError, OSError, KeyError) as error:  # KeyError: the job was removed meanwhile
            log.warning("%s/%s is not merged: %s; it is tried again", job, layer.name, error)
            return False
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, True)


def publish(folder: Path, target: Path) -> None:
    """Rename a merged layer into place. A reader that finds the manifest finds everything it names."""
    make_folder(target)
    (target / MANIFEST).unlink(missing_ok=True)
    fsync_folder(target)
    files = sorted(path for path in folder.iterdir() if path.name != MANIFEST)
    for path in files:
        if path.is_dir() and (target / path.name).is_dir():  # of a publication that was cut short
            (target / path.name).rename(folder / f".{path.name}")
        path.rename(target / path.name)
    (folder / MANIFEST).rename(target / MANIFEST)
    fsync_folder(target)


def withdraw(target: Path) -> None:
    """Take a layer's result away, the manifest first. Folders of other layers below it stay."""
    if not target.is_dir():
        return
    (target / MANIFEST).unlink(missing_ok=True)
    fsync_folder(target)
    for folder in folders_of_files(target):
        shutil.rmtree(folder)
    for path in target.iterdir():
        if path.is_file():
            path.unlink(missing_ok=True)


def folders_of_files(target: Path) -> list[Path]:
    """Of a layer's result: each has its table beside it. Other folders are other layers'."""
    tables = [path for path in target.iterdir() if path.suffix == ".csv"]
    return [path.with_suffix("") for path in tables if path.with_suffix("").is_dir()]
