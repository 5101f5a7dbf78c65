"""The values a job is made of once it is planned: layers, windows, outputs. Frozen, typed, no I/O."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """Which file this was when it was planned; another stamp is another source."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class Window(msgspec.Struct, frozen=True):
    """A shard's input: a run of bytes in one file, seen as an array. Never the array itself."""

    path: str
    offset: int
    shape: tuple[int, ...]  # first axis: rows
    dtype: str  # numpy's name with its byte order, "<f4"
    nbytes: int
    stamp: Stamp | None  # None: a copy in the spool
    digest: bytes = b""  # xxh3_128 of the copy as it was pulled; b"" where there is none


class Output(msgspec.Struct, frozen=True):
    """One declared output. Merging follows the form alone.

    rows: `shape` and `dtype` per row, concatenated in row order.
    ragged: any number of values of `shape` per row; stored as lengths (int64, one per row) and values.
    sum: one array of `shape` per shard, integers, added up; with `scale`, floats stored as round(x * scale) in int64.
    files: bytes under relative names, kept apart.
    """

    name: str
    form: Literal["rows", "ragged", "sum", "files"]
    dtype: str
    shape: tuple[int, ...] = ()
    scale: float | None = None


class ArraySource(msgspec.Struct, frozen=True, tag="array"):
    """The rows of one array in one file on the server."""

    path: str
    offset: int
    dtype: str
    shape: tuple[int, ...]
    stamp: Stamp


class MadeSource(msgspec.Struct, frozen=True, tag="made"):
    """No file: shards are made by a driver as results arrive, each with a payload of its own."""


Source = ArraySource | MadeSource


class ModelFile(msgspec.Struct, frozen=True):
    """A file every machine that works on a job gets a copy of, once."""

    name: str  # as the job file has it
    digest: str  # xxh3_128 of its bytes, 32 hex digits
    nbytes: int


class Work(msgspec.Struct, frozen=True):
    """What every shard of a job has in common, as a worker needs it."""

    kind: str
    kernel: int
    params: dict[str, Any]
    code: str | None  # digest of the user's files
    entry: str | None  # "work.py:embed"
    env: str | None
    cpus: int
    memory: int | None  # bytes per running shard
    timeout: float | None  # seconds per attempt
    model: ModelFile | None = None
    needs: tuple[str, ...] = ()  # packages beyond our own, as `jobs.packages` knows them


class Layer(msgspec.Struct, frozen=True):
    """One input array and how it is cut. Shard n is rows [n * shard_rows, min((n + 1) * shard_rows, rows))."""

    name: str
    digest: str  # over everything the result depends on, 32 hex digits
    source: Source
    rows: int  # 0 for a made layer
    shard_rows: int
    count: int  # shards planned; a made layer starts at 0 and grows
    in_bytes: int  # of a full shard
    out_bytes: int  # of a full shard, as declared; 0 where nobody knows yet
    outputs: tuple[Output, ...] | None  # None: fixed by the first commit

    def rows_of(self, number: int) -> int:
        return min(self.shard_rows, self.rows - number * self.shard_rows) if self.rows else 1

    def window(self, number: int) -> Window:
        source = self.source
        assert isinstance(source, ArraySource), "a made shard has no window"
        count = self.rows_of(number)
        row_bytes = self.in_bytes // self.shard_rows
        return Window(
            path=source.path,
            offset=source.offset + number * self.shard_rows * row_bytes,
            shape=(count, *source.shape[1:]),
            dtype=source.dtype,
            nbytes=count * row_bytes,
            stamp=source.stamp,
        )
