"""The files of a result while they are written, front to back and digested on the way. Knows nothing of shards."""

from __future__ import annotations

import csv
import io
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from jobs.commit import fsync, sync_tree, write_all
from jobs.errors import MusterError
from jobs.manifest import CSV, File
from jobs.parts import CHUNK
from jobs.result import FILE_COLUMNS
from jobs.written import NOBODY, WrittenFile, decode_table

DIRECT = 64 << 10  # bytes from which a piece is written straight through


class ResultFile:
    """One file. What it is given it does not keep."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._digest = xxhash.xxh3_128()
        self._held = bytearray()
        self._nbytes = 0

    def write(self, piece: bytes | memoryview) -> None:
        self._nbytes += len(piece)
        if len(piece) >= DIRECT:
            self._flush()
            self._put(piece)
            return
        self._held += piece
        if len(self._held) >= CHUNK:
            self._flush()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def end(self, dtype: str, shape: tuple[int, ...]) -> File:
        """The file is whole, durable and closed."""
        self._flush()
        fsync(self._fd)
        self.close()
        return File(self._path.name, dtype, shape, self._nbytes, self._digest.hexdigest())

    def _flush(self) -> None:
        held, self._held = self._held, bytearray()
        self._put(held)

    def _put(self, data: bytes | bytearray | memoryview) -> None:
        self._digest.update(data)
        write_all(self._fd, data)


class NpyFile(ResultFile):
    """One .npy."""

    def __init__(self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        super().__init__(path)
        self._dtype, self._shape = dtype, shape
        self.write(_header(dtype, shape))

    def finish(self) -> File:
        """The file is whole, durable and closed."""
        dtype = self._dtype.str if self._dtype.names is None else str(self._dtype.descr)
        return self.end(dtype, self._shape)


class CsvFile:
    """One table of text, in UTF-8, its header first. Quoted where a value needs it, lines end with a newline."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._file = ResultFile(path)
        self._columns, self._rows = len(columns), 0
        self._text = io.StringIO()
        self._writer = csv.writer(self._text, lineterminator="\n")
        self._writer.writerow(columns)

    def write(self, rows: Sequence[Sequence[object]]) -> None:
        self._writer.writerows(rows)
        self._rows += len(rows)
        self._file.write(self._text.getvalue().encode())
        self._text.seek(0)
        self._text.truncate()

    def finish(self) -> File:
        """The file is whole, durable and closed."""
        self.write(())
        return self._file.end(CSV, (self._rows, self._columns))

    def close(self) -> None:
        self._file.close()


class Collision(MusterError):
    """Two shards wrote files of which only one can be there."""

    default_hint = "let the names of the files say which item they are of, and submit the job again"


class FileTables:
    """Takes the table of each shard's files, which says what the bytes are that follow it."""

    def __init__(self) -> None:
        self.raw = bytearray()

    def write(self, piece: bytes | memoryview) -> None:
        self.raw += piece


class FilesOut:
    """The folder of a files output, and its table. Every name was checked, and is there once."""

    def __init__(self, folder: Path, tables: FileTables) -> None:
        self._folder = folder
        self._tables = tables
        self._csv = CsvFile(folder.with_name(f"{folder.name}.csv"), FILE_COLUMNS)
        self._left: deque[WrittenFile] = deque()
        self._due = 0  # bytes of the first of those that are still to come
        self._fd = -1
        self.nbytes = 0
        folder.mkdir()

    def begin(self, first_row: int, rows: int, nbytes: int) -> None:
        """A shard's files come next: its table is complete."""
        table = decode_table(self._tables.raw, rows, nbytes)
        self._tables.raw = bytearray()
        self._csv.write([_line(file, first_row) for file in table])
        self._left = deque(table)
        self._open()

    def write(self, piece: bytes | memoryview) -> None:
        view = memoryview(piece)
        self.nbytes += len(view)
        while view:
            taken = min(len(view), self._due)
            write_all(self._fd, view[:taken])
            self._due, view = self._due - taken, view[taken:]
            if not self._due:
                self._open()

    def finish(self) -> File:
        """Every file durable."""
        sync_tree(self._folder)
        return self._csv.finish()

    def close(self) -> None:
        self._end()
        self._csv.close()

    def _open(self) -> None:
        """The next file that has any bytes; those without are made on the way."""
        self._end()
        while self._left and not self._due:
            file = self._left.popleft()
            self._fd = self._made(file.name)
            self._due = file.nbytes
            if not self._due:
                self._end()

    def _end(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _made(self, name: str) -> int:
        path = f"{self._folder}/{name}"
        try:
            try:
                return os.open(path, _NEW, 0o666)
            except FileNotFoundError:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                return os.open(path, _NEW, 0o666)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise Collision(f"output {self._folder.name}: two items wrote {name!r}") from None


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def _line(file: WrittenFile, first_row: int) -> tuple[object, ...]:
    item = "" if file.item == NOBODY else first_row + file.item
    return item, file.name, file.nbytes, file.digest.hex()


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
