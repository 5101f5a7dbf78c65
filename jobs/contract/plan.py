"""The plan of a job, and the values it is made of: layers, windows, outputs. Fixed at submit; frozen, typed, no I/O."""

from __future__ import annotations

from enum import Enum
from hashlib import blake2b
from struct import Struct
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from muster.jobs.common.errors import DamagedError, RefusedError
from muster.jobs.common.ranges import RangeSet

FORMAT = 1  # of a plan as it is stored
ITEMS_LIST = "items.list"  # the file beside a plan whose source is a list of items

BF16 = "<bf2"  # the upper halves of float32's values, in numpy's manner of naming, which has no name for them

Distribution = Annotated[str, Meta(max_length=256)]
Version = Annotated[str, Meta(max_length=256)]


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """Which file this was when it was planned; another stamp is another source."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class Window(msgspec.Struct, frozen=True, tag="rows"):
    """A shard's input: a run of bytes in one file, seen as an array. Never the array itself."""

    path: str
    offset: int
    shape: tuple[int, ...]  # first axis: rows
    dtype: str  # numpy's name with its byte order, "<f4"
    nbytes: int
    stamp: Stamp | None  # None: a copy in the spool
    digest: bytes = b""  # xxh3_128 of the copy as it was pulled; b"" where there is none
    stored: str = ""  # as what the file has the values, where that is not `dtype`: BF16

    @property
    def is_copy(self) -> bool:
        return self.stamp is None

    def copied(self, path: str, digest: bytes) -> Window:
        """The same in the spool."""
        return msgspec.structs.replace(self, path=path, offset=0, stamp=None, digest=digest)


class ItemsWindow(msgspec.Struct, frozen=True, tag="items"):
    """A shard's input: a run of items of a list. A copy has the files' bytes behind the records."""

    path: str  # of the list, or of the copy; "" until somebody knows where the list is
    source: str  # the list's digest
    offset: int  # of the first record
    listed: int  # bytes of the records
    count: int
    nbytes: int  # of the records and the files
    folder: str | None  # that names start at; "" for a table, None for a copy
    columns: tuple[str, ...]  # of a table
    digest: bytes = b""  # xxh3_128 of the copy as it was pulled; b"" where there is none

    @property
    def is_copy(self) -> bool:
        return self.folder is None

    def copied(self, path: str, digest: bytes) -> ItemsWindow:
        """The same in the spool."""
        return msgspec.structs.replace(self, path=path, offset=0, folder=None, digest=digest)


class Output(msgspec.Struct, frozen=True):
    """One declared output. Merging follows the form alone.

    rows: `shape` and `dtype` per row, concatenated in row order.
    ragged: any number of values of `shape` per row; stored as lengths (int64, one per row) and values.
    sum: one array of `shape` per shard, integers, added up; with `scale`, floats stored as round(x * scale) in int64.
         `narrow`: in `dtype` itself, of which the kind promises that it holds the sum over all shards of a bundle.
    files: bytes under relative names, kept apart.
    """

    name: str
    form: Literal["rows", "ragged", "sum", "files"]
    dtype: str
    shape: tuple[int, ...] = ()
    scale: float | None = None
    narrow: bool = False


class ArraySource(msgspec.Struct, frozen=True, tag="array", omit_defaults=True):
    """The rows of one array in one file on the server."""

    path: str
    offset: int
    dtype: str
    shape: tuple[int, ...]
    stamp: Stamp
    stored: str = ""  # as what the file has the values, where that is not `dtype`: BF16, which is read as float32


class Delivery(Enum):
    """How what an agent finished of a layer goes up, and what comes of it; each value is as plans have it.

    STORED: a row for each shard, its bytes in a durable bundle. Of rounds nothing is stored, and a new life of the
    daemon or of the driver begins with none. ROUND_WHOLE: what an agent has of a round goes up once nothing more of it
    is to come. ROUND_EACH: each part goes up by itself.
    """

    STORED = ""
    ROUND_WHOLE = "whole"
    ROUND_EACH = "each"

    @property
    def in_rounds(self) -> bool:
        return self is not Delivery.STORED


class MadeSource(msgspec.Struct, frozen=True, tag="made"):
    """No file: shards are made by a driver as results arrive, each with a payload of its own."""

    rounds: Literal["", "whole", "each"] = ""  # the value of a `Delivery`


class Cut(NamedTuple):
    """Where a shard of items begins."""

    item: int
    offset: int  # of its first record in the list
    before: int  # bytes of input of all shards before it


CUT = Struct("<QQQ")


class ItemsSource(msgspec.Struct, frozen=True, tag="items"):
    """Files below a folder of the server, or the lines of a table. The list of them is a file, see `sources.items`."""

    folder: str  # of the files; "" for a table
    columns: tuple[str, ...]  # of the table; none for files
    digest: str  # of the list, and so of every name and stamp, or every line: 32 hex digits
    cuts: bytes  # a packed `Cut` for each shard, and one for the end

    def cut(self, number: int) -> Cut:
        return Cut(*CUT.unpack_from(self.cuts, number * CUT.size))

    def window(self, number: int) -> ItemsWindow:
        start, end = self.cut(number), self.cut(number + 1)
        return ItemsWindow(
            path="",
            source=self.digest,
            offset=start.offset,
            listed=end.offset - start.offset,
            count=end.item - start.item,
            nbytes=end.before - start.before,
            folder=self.folder,
            columns=self.columns,
        )


Source = ArraySource | ItemsSource | MadeSource


class ModelFile(msgspec.Struct, frozen=True):
    """A file every machine that works on a job gets a copy of, once."""

    name: str  # as the job file has it
    digest: str  # xxh3_128 of its bytes, 32 hex digits
    nbytes: int


class Environment(msgspec.Struct, frozen=True):
    """A Python that a machine has for users' code."""

    python: Annotated[str, Meta(max_length=64)]  # its version
    packages: Annotated[dict[Distribution, Version], Meta(max_length=20_000)]  # name, in lower case → version


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
    needs: tuple[str, ...] = ()  # packages beyond our own, as `muster.jobs.contract.requirements` knows them
    gpus: int = 0
    threads: int | None = None  # of numeric libraries; None: as many as cpus
    packages: tuple[str, ...] = ()  # that `env`, or the agent's own where there is none, must have: `torch>=2`
    disk: Annotated[int, Meta(ge=0)] = 0  # bytes of scratch space per running shard, beside its input and output
    runs_code: bool = True  # whether it runs what its submitter wrote, as its kind says; older plans do not tell
    rests_on: tuple[str, ...] | None = None  # packages whose versions are in its fingerprints; None: planned before
    variables: dict[str, str] = {}  # more environment for what the submitter wrote
    flush: float | None = None  # seconds that a result may wait for others on its way; None: as the agent likes

    @property
    def of_submitter(self) -> str:
        """What runs, where it is what the submitter wrote: how fast another such thing was tells nothing of it."""
        if not self.runs_code:
            return ""
        what = (self.code, self.entry) if self.code else (self.params, self.model and self.model.digest)
        return blake2b(msgspec.msgpack.encode(what), digest_size=16).hexdigest()

    @property
    def takes(self) -> tuple[int | None, ...]:
        """What a running shard takes of a machine."""
        return self.cpus, self.memory, self.gpus, self.disk


class Layer(msgspec.Struct, frozen=True):
    """One input and how it is cut. Shard n of an array is rows [n * shard_rows, min((n + 1) * shard_rows, rows)); a
    list of items says itself where each begins."""

    name: str
    digest: str  # over everything the result depends on, 32 hex digits
    source: Source
    rows: int  # or items; 0 for a made layer
    shard_rows: int  # of a full shard; of the largest one of a list
    count: int  # shards planned; a made layer starts at 0 and grows
    in_bytes: int  # of a full shard
    out_bytes: int  # of a full shard, as declared; 0 where nobody knows yet
    outputs: tuple[Output, ...] | None  # None: fixed by the first commit
    params: dict[str, Any] | None = None  # in place of the job's
    only: tuple[tuple[int, int], ...] | None = None  # ranges of the shards that are run, by their numbers; None: all

    @property
    def numbers(self) -> RangeSet:
        """Of the shards that are run."""
        return RangeSet([(0, self.count)]) if self.only is None else RangeSet.canonical(self.only)

    @property
    def run_rows(self) -> RangeSet:
        """The rows, or items, of these: the result has no others."""
        pairs = self.numbers.pairs()
        return RangeSet((self.first_row(lo), self.first_row(hi - 1) + self.rows_of(hi - 1)) for lo, hi in pairs)

    @property
    def made(self) -> bool:
        """Whether a driver makes its shards."""
        return isinstance(self.source, MadeSource)

    @property
    def delivery(self) -> Delivery:
        return Delivery(self.source.rounds) if isinstance(self.source, MadeSource) else Delivery.STORED

    def rows_of(self, number: int) -> int:
        if isinstance(self.source, ItemsSource):
            return self.source.cut(number + 1).item - self.source.cut(number).item
        return min(self.shard_rows, self.rows - number * self.shard_rows) if self.rows else 1

    def first_row(self, number: int) -> int:
        return self.source.cut(number).item if isinstance(self.source, ItemsSource) else number * self.shard_rows

    @property
    def total_in_bytes(self) -> int:
        """Of all shards that are run."""
        if isinstance(self.source, ItemsSource):
            cut = self.source.cut
            return sum(cut(hi).before - cut(lo).before for lo, hi in self.numbers.pairs())
        rows = self.rows if self.only is None else len(self.run_rows)
        return rows * self.in_bytes // max(self.shard_rows, 1)

    def window(self, number: int) -> Window | ItemsWindow:
        source = self.source
        assert not isinstance(source, MadeSource), "a made shard has no window"
        return source.window(number) if isinstance(source, ItemsSource) else self._rows_window(source, number)

    def _rows_window(self, source: ArraySource, number: int) -> Window:
        count = self.rows_of(number)
        row_bytes = self.in_bytes // self.shard_rows
        return Window(
            path=source.path,
            offset=source.offset + number * self.shard_rows * row_bytes,
            shape=(count, *source.shape[1:]),
            dtype=source.dtype,
            nbytes=count * row_bytes,
            stamp=source.stamp,
            stored=source.stored,
        )


class Plan(msgspec.Struct, frozen=True):
    """A job as it is stored and run."""

    format: int
    name: str
    work: Work
    layers: tuple[Layer, ...]  # by name
    attempts: int
    max_failures: int
    priority: int
    driver: str | None  # None, or its kind, whose driver makes shards; 0.1.0 wrote where that was, to the same effect
    same_kernels: bool = False  # only on machines with the kernel fingerprint of its first result
    notify: str = ""  # a shell command that is told of its end, of halts and standstills
    base: str = ""  # the folder that paths in its job file start at; "": the job's own
    counted: tuple[int, str] | None = None  # how many of what its driver counts: (1000, "round"); None: shards
    machine: str = ""  # the one agent that runs it; "": whichever suits
    cut: str = ""  # how the plan cut it and why, for people; "": as the job file says, or as an older version did
    at_once: int = 0  # shards that agents may have to run, all together; 0: as many as suits
    proven: bool = False  # whether machines get more than one shard of it before the first has succeeded
    notes: tuple[str, ...] = ()  # what its user should know of its source: files that were left out
    after: tuple[str, ...] = ()  # jobs that are to be complete before it starts; their full ids once it is submitted
    owner: str = ""  # the second person who submitted it, as the farm's keys have that name; "": whose farm it is

    @property
    def driven(self) -> bool:
        """Whether the driver of its kind makes shards."""
        return self.driver is not None

    def work_of(self, layer: Layer) -> Work:
        """The layer's shards in common: the job's, with the layer's own parameters."""
        return self.work if layer.params is None else msgspec.structs.replace(self.work, params=layer.params)


class _Format(msgspec.Struct):
    format: int


# --- what a plan adds up to ------------------------------------------------------------------------------


def total_shards(plan: Plan) -> int:
    return sum(len(layer.numbers) for layer in plan.layers)


def in_bytes_total(plan: Plan) -> int:
    return sum(layer.total_in_bytes for layer in plan.layers)


# --- as bytes ----------------------------------------------------------------------------------------------


def encode_plan(plan: Plan) -> bytes:
    return msgspec.msgpack.encode(plan)


def decode_plan(raw: bytes) -> Plan:
    """A stored plan; an error with a hint for one that another version wrote."""
    try:
        found = msgspec.msgpack.decode(raw, type=_Format).format
        if found != FORMAT:
            raise RefusedError(f"a plan of format {found}, this version reads {FORMAT}", "submit the job again")
        return msgspec.msgpack.decode(raw, type=Plan)
    except (msgspec.DecodeError, ValueError) as error:
        raise DamagedError(f"a stored plan does not decode: {error}", "submit the job again") from None
