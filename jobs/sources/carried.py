"""A shard's input as bytes to take along, for a machine that does not see its source; and whether one sees it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from muster.jobs.common.errors import DamagedError
from muster.jobs.contract.plan import ItemsWindow, Window
from muster.jobs.sources import items
from muster.jobs.sources.discover import stamp_of
from muster.jobs.sources.items import FileItem
from muster.jobs.sources.read_rows import SourceChanged, new_buffer, read_bytes

Array = np.ndarray[Any, Any]


def is_here(window: Window | ItemsWindow) -> bool:
    """Whether this machine has the window's source, the very file, under the same path."""
    try:
        if isinstance(window, Window):
            found = os.stat(window.path)  # noqa: PTH116
            return (
                found.st_size >= window.offset + window.nbytes
                if window.stamp is None
                else stamp_of(found) == window.stamp
            )
        raw = items.records(window)
        files = items.files_in(raw) if not window.columns else []
        return not window.is_copy and all(_is_as_planned(window, file) for file in files[:1])
    except (OSError, DamagedError):
        return False


def carried(window: Window | ItemsWindow, buffer: Array | None = None) -> Array:
    """The input's bytes, as a copy of it has them; SourceChanged where the source is not what was planned. With a
    `buffer` from `new_buffer` that is large enough, they lie in it and live until it is used again."""
    if isinstance(window, Window):
        return read_bytes(window, buffer)[0]
    target = (
        buffer[: window.nbytes] if buffer is not None and buffer.nbytes >= window.nbytes else new_buffer(window.nbytes)
    )
    try:
        raw = items.records(window)
        files = items.files_in(raw) if not window.columns else []
    except DamagedError as error:
        raise SourceChanged(error.message) from None
    target[: len(raw)] = np.frombuffer(raw, np.uint8)
    if window.is_copy:
        _read(window.path, window.offset + window.listed, target.data[len(raw) :])
        return target
    at = len(raw)
    for file in files:
        if not _is_as_planned(window, file):
            raise SourceChanged(f"{window.folder}/{file.name} is not the file that was planned")
        _read(f"{window.folder}/{file.name}", 0, target.data[at : at + file.stamp.size])
        if not _is_as_planned(window, file):
            raise SourceChanged(f"{window.folder}/{file.name} was written to while it was read")
        at += file.stamp.size
    return target


def whole(path: str) -> Array:
    """All bytes of a file that does not change."""
    return np.fromfile(path, np.uint8)


def _is_as_planned(window: ItemsWindow, file: FileItem) -> bool:
    try:
        return stamp_of(os.stat(f"{window.folder}/{file.name}")) == file.stamp  # noqa: PTH116
    except OSError:
        return False


def _read(path: str, offset: int, target: memoryview) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        done = 0
        while done < len(target):
            got = os.preadv(fd, [target[done:]], offset + done)
            if not got:
                raise SourceChanged(f"{path} is shorter than was planned")
            done += got
    finally:
        os.close(fd)
