"""The .npy files of a result while they are written, front to back and digested on the way. Knows nothing of shards."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from jobs.commit import fsync, write_all
from jobs.parts import CHUNK
from jobs.result import File

DIRECT = 64 << 10  # bytes from which a piece is written straight through


class NpyFile:
    """One .npy. What it is given it does not keep."""

    def __init__(self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._path, self._dtype, self._shape = path, dtype, shape
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._digest = xxhash.xxh3_128()
        self._held = bytearray()
        self._nbytes = 0
        self.write(_header(dtype, shape))

    def write(self, piece: bytes | memoryview) -> None:
        self._nbytes += len(piece)
        if len(piece) >= DIRECT:
            self._flush()
            self._put(piece)
            return
        self._held += piece
        if len(self._held) >= CHUNK:
            self._flush()

    def finish(self) -> File:
        """The file is whole, durable and closed."""
        self._flush()
        fsync(self._fd)
        self.close()
        dtype = self._dtype.str if self._dtype.names is None else str(self._dtype.descr)
        return File(self._path.name, dtype, self._shape, self._nbytes, self._digest.hexdigest())

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _flush(self) -> None:
        held, self._held = self._held, bytearray()
        self._put(held)

    def _put(self, data: bytes | bytearray | memoryview) -> None:
        self._digest.update(data)
        write_all(self._fd, data)


class Offsets:
    """The offsets of a ragged output, counted up from lengths: one more than there are rows."""

    def __init__(self, npy: NpyFile) -> None:
        self._npy = npy
        self._top = 0
        self._told = 0
        self._falling = False  # whether a length below 0 was met
        npy.write(bytes(8))

    def write(self, piece: memoryview) -> None:
        """Lengths, int64."""
        lengths = np.frombuffer(piece, "<i8")
        self._falling = self._falling or bool(lengths.min() < 0)
        offsets = np.cumsum(lengths, dtype="<i8") + self._top
        self._top = int(offsets[-1])
        self._npy.write(offsets.tobytes())

    def counted(self) -> int:
        """How many values were told of since this was last asked; -1 for lengths that cannot be."""
        count, self._told = self._top - self._told, self._top
        return -1 if self._falling else count


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    text = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(text, described)
    return text.getvalue()
