"""How much freed memory the C library keeps for this process's next arrays. Decides nothing about what is computed."""

from __future__ import annotations

import ctypes
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEPT_BYTES = 64 << 20  # of what is free at the heap's end
MAPPED_BYTES = 32 << 20  # from here on an array has a mapping of its own: the most that glibc takes


def keep_freed() -> None:
    """Left to itself, glibc gives arrays back to the system, or does not, as its heap happens to lie: the next
    shard then faults each page in again. Elsewhere than with glibc nothing is done."""
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
    libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
