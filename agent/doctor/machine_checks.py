"""Tries what an agent needs of this machine: room for its spool, and workers that start. Leaves nothing behind."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from muster.agent.core.events import PoolEvent, PoolLost
from muster.agent.doctor.checklist import Checklist, Rung
from muster.agent.pool.interface import LOST_HINT, Workers
from muster.agent.spool import owner as owners
from muster.agent.spool.paths import check_usable, nearest
from muster.jobs.common import filesystems
from muster.jobs.common.durable import is_full
from muster.jobs.common.errors import MusterError, RefusedError, SpaceError
from muster.jobs.common.units import counted, format_size

TRIED_BYTES = 64 << 20  # really taken for a moment: a quota does not show in what the file system has free
LITTLE_BYTES = 1 << 30  # of budget: a few shards of the usual size, going out and coming in
RUNGS = (Rung("disk"), Rung("workers"), Rung("ray"))


@dataclass(frozen=True)
class SpoolPlace:
    """The spool that a join would use."""

    folder: Path
    asked_for: bool  # by --spool
    share: float  # of what is free, that a join takes by default


def try_disk(sheet: Checklist, place: SpoolPlace) -> None:
    """As `agent join` looks at it, and then some."""
    kind = filesystems.file_system(place.folder)
    shared = kind in filesystems.NETWORK_FILE_SYSTEMS
    if shared and not place.asked_for:
        why = f"the spool {place.folder} is on a network file system ({kind})"
        return sheet.failed("disk", RefusedError(why, "name a local one with --spool"))
    try:
        check_usable(place.folder)
        there = nearest(place.folder)
        if not _is_in_use(place.folder):
            _take_room(there)
        free = shutil.disk_usage(there).free
    except RefusedError as error:
        return sheet.failed("disk", error)
    except OSError as error:
        return sheet.failed("disk", _no_room(place.folder, there, error))
    budget = int(free * place.share)
    text = (
        f"{place.folder} on {kind or 'a disk'}: {format_size(free)} free, of which a join takes {format_size(budget)}"
    )
    if problem := _problem(place.folder, shared, budget):
        return sheet.warned("disk", f"{text}; {problem[0]}", problem[1])
    if home := "" if place.asked_for else owners.network_home():
        text += f"; the home is on a network file system ({home})"
    return sheet.passed("disk", text, bytes_free=free, bytes_budget=budget)


def try_workers(sheet: Checklist) -> None:
    """Start a worker as a plain process, and end it: without these there is no agent."""
    from muster.agent.pool.processes import Processes

    try:
        seconds = _start_pool(Processes)
    except MusterError as error:
        return sheet.failed("workers", error)
    return sheet.passed("workers", f"a plain process is ready in {seconds:.1f} s", seconds=seconds)


def try_ray(sheet: Checklist) -> None:
    """Start a Ray with one worker, as an agent does, and end it. An agent does without."""
    from muster.agent.pool.ray_local import LocalRay

    try:
        seconds = _start_pool(lambda log: LocalRay(1, log))
    except MusterError as error:
        return sheet.warned("ray", f"{error.message}; agents here work in plain processes", error.hint)
    return sheet.passed("ray", f"starts with one worker in {seconds:.1f} s, and ends", seconds=seconds)


def try_cluster(sheet: Checklist, address: str, token: Path | None) -> None:
    """Be a driver of somebody's cluster for a moment: Ray compares its version and Python's with the head's."""
    from muster.agent.pool import ray_cluster

    try:
        has, is_open = ray_cluster.look(ray_cluster.Cluster(ray_cluster.checked_address(address), token))
    except MusterError as error:
        return sheet.failed("ray", error)
    now = f"{counted(has.nodes, 'node')} with {counted(has.cpus, 'cpu')} and {counted(has.gpus, 'gpu')}"
    text = f"the cluster at {address} has Ray {has.version} as we do, and now {now}"
    if is_open:
        return sheet.warned("ray", f"{text}; it obeys everybody who reaches it", "start it with RAY_AUTH_MODE=token")
    return sheet.passed("ray", text, nodes=has.nodes, cpus=has.cpus, gpus=has.gpus)


def _start_pool(make: Callable[[Path], Workers]) -> float:
    """The seconds until its first worker is up; a MusterError if none ever is. `make` is told of a file for a log."""
    from muster.agent.pool.pool import Pool

    told: queue.SimpleQueue[PoolEvent] = queue.SimpleQueue()
    folder = Path(tempfile.mkdtemp(prefix="muster-doctor-"))
    (folder / "run").mkdir()
    pool = Pool(folder / "run", 1, told.put, make(folder / "log"))
    begun = time.monotonic()
    try:
        with _signals_raise():
            pool.start()
            event = told.get()
            seconds = time.monotonic() - begun
    finally:
        pool.stop()
        shutil.rmtree(folder, ignore_errors=True)
    if isinstance(event, PoolLost):
        raise event.error or MusterError(event.reason, LOST_HINT)
    return seconds


def _problem(folder: Path, shared: bool, budget: int) -> tuple[str, str] | None:
    """What is not as it should be, and what to do."""
    owner = owners.owner_of(folder)
    if owner and owner.process():
        return (
            f"agent {owner.name} (process {owner.pid}) works in it",
            "`agent leave` ends it; or join as another --name",
        )
    if shared:
        return "it is on a network file system", "name a local one with --spool"
    if budget < LITTLE_BYTES:
        return "that is room for a few shards only", "make room, or name another disk with --spool"
    return None


def _is_in_use(folder: Path) -> bool:
    """By an agent, whose room it would take; or by results, which the next join pushes before it wants more."""
    owner = owners.owner_of(folder)
    return bool(owner and owner.process()) or any(folder.glob("done/**/*.part"))


def _take_room(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, TRIED_BYTES)


def _no_room(folder: Path, there: Path, error: OSError) -> MusterError:
    if is_full(error):
        left = format_size(shutil.disk_usage(there).free)
        why = f"{there} has no room for {format_size(TRIED_BYTES)}, with {left} free: {error.strerror}"
        return SpaceError(why, "make room, raise the quota, or name another disk with --spool")
    return RefusedError(f"the spool {folder} cannot be used: {error.strerror}", "name another folder with --spool")


@contextmanager
def _signals_raise() -> Iterator[None]:
    """A SIGTERM would leave Ray behind: here it is as a Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
