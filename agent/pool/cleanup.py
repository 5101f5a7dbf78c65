"""A pool's temp folder and the record of its processes: making them, and removing all they name. Starts nothing."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from muster.jobs.common.durable import read_json, write_private
from muster.jobs.common.errors import RefusedError
from muster.jobs.common.processes import ProcessId, identify, is_alive, kill
from muster.jobs.user_code import reaper

RECORD = "pool.json"
TEMP_NAME = re.compile(r"mst-[0-9a-f]{8}")
TEMP_ROOT_LENGTH = 20  # Ray's sockets lie 13 + 66 characters further down; AF_UNIX ends at 107, macOS's at 103
SWEEP_SECONDS = 10.0  # for killed processes to be gone
LOOK_SECONDS = 0.02


class PoolRecord(msgspec.Struct, frozen=True):
    """A pool on disk: who started it, its temp folder ("" before there is one) and its processes."""

    owner: ProcessId
    temp: str
    processes: tuple[ProcessId, ...] = ()


def make_temp(folder: Path) -> Path:
    """A temp folder for us alone, which the record in `folder` names before it is there."""
    root = tempfile.gettempdir()
    temp = Path(root if len(root) <= TEMP_ROOT_LENGTH else "/tmp") / f"mst-{secrets.token_hex(4)}"
    record(folder, temp)
    temp.mkdir(mode=0o700)
    empty(temp).mkdir(mode=0o700)
    return temp


def empty(temp: Path) -> Path:
    """The folder that all of a pool is started in: whatever lies where somebody types `agent join`, a jobs.py or a
    numpy.py, is no module of a worker's."""
    return temp / "empty"


def record(folder: Path, temp: Path) -> None:
    """Write down this process, its pool's temp folder and those of our descendants that belong to it."""
    us = psutil.Process()
    marks = []
    for process in us.children(recursive=True):
        with suppress(psutil.Error):
            if _names(process, temp.name):
                marks.append(identify(process.pid))
    said = PoolRecord(identify(), str(temp), tuple(marks))
    write_private(folder / RECORD, msgspec.json.encode(said))  # after a power cut there is no process left to sweep


def sweep(folder: Path, scratch: Path | None = None) -> list[str]:
    """Kill what is left of the pool recorded in `folder`, remove its temp folder and the record; say what was found.

    With `scratch`, the root of the workers' scratch folders, also runners recorded there.
    """
    left = read(folder)
    found = _sweep_pool(left) if left is not None else []
    (folder / RECORD).unlink(missing_ok=True)
    runners = reaper.sweep(scratch) if scratch is not None else 0
    return found + [f"{runners} runners"] * bool(runners)


def _sweep_pool(left: PoolRecord) -> list[str]:
    if left.owner.pid != os.getpid() and left.owner.process() is not None:
        raise RefusedError(
            f"the pool of this spool belongs to process {left.owner.pid}, which is running",
            "let it end first, or give this agent a `--spool` of its own",
        )
    found = kill_until_gone(left)
    temp = Path(left.temp)
    if _is_ours(temp):
        shutil.rmtree(temp, ignore_errors=True)
        found.append(f"folder {temp}")
    return found


def read(folder: Path) -> PoolRecord | None:
    """The record in `folder`; None if there is none, or none that can be read."""
    return read_json(folder / RECORD, PoolRecord)


def kill_until_gone(left: PoolRecord) -> list[str]:
    """Kill the record's processes, and all that name its temp folder, until a look finds none; say which."""
    found: dict[psutil.Process, str] = {}
    deadline = time.monotonic() + SWEEP_SECONDS
    while time.monotonic() < deadline:
        victims = list(_members(left))
        if not victims:
            break
        for process in victims:
            with suppress(psutil.Error):
                found.setdefault(process, f"process {process.pid} {process.name()}")
        kill(victims)
        time.sleep(LOOK_SECONDS)
    return list(found.values())


def _members(left: PoolRecord) -> Iterator[psutil.Process]:
    """Living processes of the record, and any that name its temp folder; never ourselves."""
    seen = {os.getpid()}
    for mark in left.processes:
        process = mark.process()
        if process is not None and process.pid not in seen:
            seen.add(process.pid)
            yield process
    if TEMP_NAME.fullmatch(Path(left.temp).name):
        yield from naming(Path(left.temp).name, seen)


def naming(text: str, seen: Iterable[int] = ()) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid not in seen and _names(process, text) and is_alive(process):
                yield process


def _names(process: psutil.Process, text: str) -> bool:
    """Whether a process of ours has this text in its command line, its first environment or, if Ray's, an open file.

    Ray's helpers write their title over both of the former; what they print goes to a file below the temp folder.
    """
    if process.uids().real != os.getuid():
        return False
    command = process.cmdline()
    if any(text in word for word in [*command, *process.environ().values()]):
        return True
    return "ray::" in "".join(command[:1]) and any(text in file.path for file in process.open_files())


def _is_ours(temp: Path) -> bool:
    """A folder named as a pool names one, and owned by us: a damaged record removes nothing else."""
    try:
        info = temp.lstat()
    except OSError:
        return False
    ours = info.st_uid == os.getuid() and stat.S_ISDIR(info.st_mode)
    return ours and temp.is_absolute() and TEMP_NAME.fullmatch(temp.name) is not None
