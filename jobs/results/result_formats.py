"""The files of a result while they are written, front to back and digested on the way. Knows nothing of shards."""

from __future__ import annotations

import csv
import io
import os
from collections import OrderedDict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from muster.jobs.common.durable import fsync, sync_tree, write_all
from muster.jobs.common.errors import MusterError
from muster.jobs.parts.manifest import CSV, File
from muster.jobs.parts.part_file import CHUNK
from muster.jobs.parts.written_files import NOBODY, WrittenFile, decode_table
from muster.jobs.results.open_result import FILE_COLUMNS, dtype_text

LENGTH_LIMIT = 1 << 40  # values in a row: so many lengths as come at once add up within int64
OFFSET_LIMIT = 1 << 61
DIRECT = 64 << 10  # bytes from which a piece is written straight through
OPEN_FILES = 64  # of a result, at a time
HELD_BYTES = 64 << 20  # of all files of a result together, before they are written
HELD_LEAST = 4 << 10  # of one file, however many there are


class OpenFiles:
    """The files of one result that are open: a few of however many there are. The one used longest ago is closed."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._count = 0

    def expect(self) -> None:
        """One more file shares what may be held back."""
        self._count += 1

    @property
    def room(self) -> int:
        """Bytes that each file may hold back."""
        return min(CHUNK, max(HELD_LEAST, HELD_BYTES // max(1, self._count)))

    def fd(self, path: Path, fresh: bool) -> int:
        """`path`, open to be written at its end; emptied where it is `fresh`."""
        fd = self._open.get(path)
        if fd is None:
            while len(self._open) >= OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
            fd = self._open[path] = os.open(path, _APPENDED | (os.O_TRUNC if fresh else 0), 0o666)
        self._open.move_to_end(path)
        return fd

    def close(self, path: Path) -> None:
        fd = self._open.pop(path, None)
        if fd is not None:
            os.close(fd)


_APPENDED = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class ResultFile:
    """One file. What it is given it does not keep. It is there once it has a `room` of bytes, or ends."""

    def __init__(self, path: Path, files: OpenFiles) -> None:
        self._path, self._files = path, files
        self._digest = xxhash.xxh3_128()
        self._held = bytearray()
        self._nbytes = 0
        self._fresh = True
        files.expect()

    def write(self, piece: bytes | memoryview) -> None:
        self._nbytes += len(piece)
        if len(piece) >= DIRECT:
            self._flush()
            self._put(piece)
            return
        self._held += piece
        if len(self._held) >= self._files.room:
            self._flush()

    def close(self) -> None:
        self._files.close(self._path)

    def end(self, dtype: str, shape: tuple[int, ...]) -> File:
        """The file is whole, durable and closed. A sync tells of all that went wrong with it since it was made, while
        it was closed, too: the kernel keeps that for the next one who opens it."""
        self._flush()
        fsync(self._files.fd(self._path, self._fresh))
        self.close()
        return File(self._path.name, dtype, shape, self._nbytes, self._digest.hexdigest())

    def _flush(self) -> None:
        held, self._held = self._held, bytearray()
        if held:
            self._put(held)

    def _put(self, data: bytes | bytearray | memoryview) -> None:
        self._digest.update(data)
        write_all(self._files.fd(self._path, self._fresh), data)
        self._fresh = False


class NpyFile(ResultFile):
    """One .npy."""

    def __init__(self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], files: OpenFiles) -> None:
        super().__init__(path, files)
        self._dtype, self._shape = dtype, shape
        self.write(_header(dtype, shape))

    def finish(self) -> File:
        """The file is whole, durable and closed."""
        return self.end(dtype_text(self._dtype), self._shape)


class CsvFile:
    """One table of text, in UTF-8, its header first. Quoted where a value needs it, lines end with a newline."""

    def __init__(self, path: Path, columns: Sequence[str], files: OpenFiles) -> None:
        self._file = ResultFile(path, files)
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

    def __init__(self, folder: Path, tables: FileTables, files: OpenFiles) -> None:
        self._folder = folder
        self._tables = tables
        self._csv = CsvFile(folder.with_name(f"{folder.name}.csv"), FILE_COLUMNS, files)
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
        self._odd = False  # whether a length was met that cannot be
        npy.write(bytes(8))

    def write(self, piece: memoryview) -> None:
        """Lengths, int64."""
        lengths = np.frombuffer(piece, "<i8")
        self._odd = self._odd or bool(lengths.min() < 0 or lengths.max() > LENGTH_LIMIT) or self._top > OFFSET_LIMIT
        offsets = np.cumsum(lengths, dtype="<i8") + self._top
        self._top = int(offsets[-1])
        self._npy.write(offsets.tobytes())

    def counted(self) -> int:
        """How many values were told of since this was last asked; -1 for lengths that cannot be."""
        count, self._told = self._top - self._told, self._top
        return -1 if self._odd else count


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    text = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(text, described)
    return text.getvalue()
