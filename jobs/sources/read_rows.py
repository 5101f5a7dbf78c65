"""Reading a window: its bytes in one copy, their digest on the way, and whether the file is still the one planned."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import xxhash

from muster.jobs.contract.plan import BF16, Stamp, Window
from muster.jobs.sources.discover import stamp_of

CHUNK = 1 << 20  # small enough that the digest finds the bytes in the cache
ALIGN = 64
STORED = {BF16: "<u2"}  # as what numpy has the values that it has no dtype for

Array = np.ndarray[Any, Any]


class SourceChanged(Exception):
    """The file is not, or while it was read no longer, what was planned. Nobody's failure: the result is discarded."""


def new_buffer(nbytes: int) -> Array:
    """Writable bytes, aligned for any vector unit. From numpy, which asks for huge pages: a malloc faults 5x slower."""
    raw = np.empty(nbytes + ALIGN, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + nbytes]


def read_window(window: Window, buffer: Array | None = None) -> tuple[Array, bytes]:
    """The window's rows and the xxh3_128 of their bytes in the file.

    With a `buffer` from `new_buffer` that is large enough, the rows lie in it and live until it is used again.
    """
    dtype = np.dtype(STORED[window.stored] if window.stored else window.dtype)
    if math.prod(window.shape) * dtype.itemsize != window.nbytes:
        raise ValueError(f"a window of {window.nbytes} bytes cannot have the shape {window.shape} of {dtype.str}")
    raw, digest = read_bytes(window, buffer)
    rows = raw.view(dtype).reshape(window.shape)
    return widened(rows) if window.stored else rows, digest


def read_bytes(window: Window, buffer: Array | None = None) -> tuple[Array, bytes]:
    """The window's bytes as the file has them, and their xxh3_128. Of `buffer` as `read_window` has it."""
    if buffer is None or buffer.nbytes < window.nbytes:
        buffer = new_buffer(window.nbytes)
    raw = buffer[: window.nbytes]
    try:
        fd = os.open(window.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise SourceChanged(f"{window.path} is gone") from None
    try:
        _check_stamp(fd, window)
        digest = _fill(fd, window, raw.data)
        _check_stamp(fd, window)
    finally:
        os.close(fd)
    if window.digest and digest != window.digest:
        raise SourceChanged(f"{window.path} is not what was pulled")
    return raw, digest


def widened(halves: Array) -> Array:
    """Float32 of which only the upper halves are given, as bf16 has them."""
    wide = new_buffer(4 * halves.size).view("<u4")
    np.copyto(wide, halves.reshape(-1))
    wide <<= 16
    floats: Array = wide.view("<f4").reshape(halves.shape)
    return floats


def _check_stamp(fd: int, window: Window) -> None:
    if window.stamp is None:
        return
    now = stamp_of(os.fstat(fd))
    if now != window.stamp:
        raise SourceChanged(f"{window.path} is not the file that was planned: {_difference(window.stamp, now)}")


def _difference(planned: Stamp, now: Stamp) -> str:
    if planned.size != now.size:
        return f"{planned.size} bytes then, {now.size} now"
    return "another file took its place" if planned.inode != now.inode else "it was written to"


def _fill(fd: int, window: Window, target: memoryview) -> bytes:
    """Read all of it, chunk by chunk. pread, not mmap: a file cut short meanwhile would be a SIGBUS."""
    digest = xxhash.xxh3_128()
    done = 0
    while done < window.nbytes:
        chunk = target[done : done + CHUNK]
        got = os.preadv(fd, [chunk], window.offset + done)
        if got == 0:
            raise SourceChanged(f"{window.path} ends {window.nbytes - done} bytes before its window does")
        digest.update(chunk[:got])
        done += got
    return digest.digest()
