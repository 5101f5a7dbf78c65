"""Writing a layer fast: rows appended, one .npy at the end, finished by rename. A reader never sees half of one."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from muster.jobs.common import durable
from muster.jobs.sources.formats import npy

BUFFER_BYTES = 1 << 20  # with 64 MiB, each page of it new and cold, writing took three times as long


class LayerWriter:
    """`with LayerWriter(path, (65536,), "float32") as layer: layer.append(rows)`. After an exception, nothing appears.

    The header is written last, into the room left for it, so rows may come from a stream of unknown length.
    """

    def __init__(self, path: str | os.PathLike[str], row_shape: tuple[int, ...], dtype: Any) -> None:
        self.rows = 0
        self._path = Path(path)
        self._dtype = np.dtype(dtype)
        if npy.canonical_dtype(self._dtype.str) is None:
            raise ValueError(f"layers do not hold {self._dtype}: {npy.DTYPES_HINT}")
        if min(row_shape, default=1) < 1:
            raise ValueError(f"every axis of a row needs a length, got {row_shape}")
        self._row_shape = tuple(int(n) for n in row_shape)
        per_row = self._dtype.itemsize * int(np.prod(self._row_shape, dtype=object))
        self._buffer = np.empty((max(1, BUFFER_BYTES // per_row), *self._row_shape), dtype=self._dtype)
        self._filled = 0
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._tmp = self._path.parent / f".{self._path.name}.{secrets.token_hex(4)}.tmp"
        self._file = self._tmp.open("xb", buffering=0)
        self._file.seek(len(self._header()))

    def append(self, rows: Any) -> None:
        """Some rows, or one. Values are cast to the layer's dtype only where numpy calls that safe."""
        block = np.asarray(rows)
        if block.shape == self._row_shape:
            block = block[np.newaxis]
        if block.shape[1:] != self._row_shape or block.ndim != len(self._row_shape) + 1:
            raise ValueError(f"expected rows of shape {self._row_shape}, got an array of shape {block.shape}")
        if not np.can_cast(block.dtype, self._dtype, "safe"):
            raise ValueError(f"expected {self._dtype}, got {block.dtype}; cast it first with `.astype`")
        while len(block):
            taken = min(len(block), len(self._buffer) - self._filled)
            self._buffer[self._filled : self._filled + taken] = block[:taken]
            self._filled += taken
            self.rows += taken
            block = block[taken:]
            if self._filled == len(self._buffer):
                self._flush()

    def close(self) -> None:
        """Write what is left and give the file its name, durably."""
        try:
            if not self.rows:
                raise ValueError(f"{self._path}: a layer without rows")
            self._flush()
            self._file.seek(0)
            durable.write_all(self._file.fileno(), self._header())
            self._file.close()
            durable.publish(self._tmp, self._path)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        self._tmp.unlink(missing_ok=True)

    def _header(self) -> bytes:
        return npy.make_header(self._dtype.str, (self.rows, *self._row_shape))

    def _flush(self) -> None:
        with durable.naming_space(self._path):
            durable.write_all(self._file.fileno(), self._buffer[: self._filled].reshape(-1).view(np.uint8).data)
        self._filled = 0

    def __enter__(self) -> LayerWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
