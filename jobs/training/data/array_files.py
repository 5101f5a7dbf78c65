"""Arrays out of .npy and idx files, gzipped or not, told apart by what is in them. Trusts no length a file claims."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from muster.jobs.common.errors import SourceError
from muster.jobs.sources.formats import npy
from muster.jobs.sources.formats.header import AXES_LIMIT, Header

Array = np.ndarray[Any, Any]

TYPES = {8: "|u1", 9: "|i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}  # as the idx format numbers them
CHUNK_BYTES = 16 << 20
UNZIPPED_LIMIT = 4 << 30
HINT = "give a .npy or an idx file, either may be .gz"


def read(path: Path, where: str) -> Array:
    """The array in a file; a SourceError that starts with `where` says what is wrong with it."""
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if zipped:
                raw = _unzipped(file, where)
                return _read(io.BytesIO(raw), len(raw), where)
            return _read(file, path.stat().st_size, where)
    except OSError as error:
        raise SourceError(f"{where}: {error.strerror or error}", HINT) from None


def _read(file: BinaryIO, size: int, where: str) -> Array:
    start = file.read(6)
    file.seek(0)
    if start == npy.MAGIC:
        header = npy.read_header(file, size, where)
    elif start[:2] == b"\0\0" and len(start) > 3 and start[2] in TYPES:
        header = _idx_header(file, size, where)
    else:
        raise SourceError(f"{where}: neither .npy nor idx", HINT)
    file.seek(header.offset)
    found = np.frombuffer(file.read(), np.dtype(header.dtype)).reshape(header.shape)
    return found.astype(found.dtype.newbyteorder("="), copy=False)


def _idx_header(file: BinaryIO, size: int, where: str) -> Header:
    start = file.read(4)
    axes = file.read(4 * start[3])
    if len(axes) < 4 * start[3] or not 1 <= start[3] <= AXES_LIMIT:
        raise SourceError(f"{where}: an idx file without its whole header", HINT)
    shape, offset = tuple(np.frombuffer(axes, ">u4").tolist()), 4 + len(axes)
    npy.check_length(size - offset, TYPES[start[2]], shape, where)
    return Header(TYPES[start[2]], shape, offset)


def _unzipped(file: BinaryIO, where: str) -> bytearray:
    """The contents, up to what a data set may be."""
    raw = bytearray()
    try:
        with gzip.GzipFile(fileobj=file) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                raw += chunk
                if len(raw) > UNZIPPED_LIMIT:
                    raise SourceError(f"{where}: unzipped it is larger than {UNZIPPED_LIMIT} bytes", "unzip it first")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise SourceError(f"{where}: {error}", "is the file whole?") from None
    return raw
