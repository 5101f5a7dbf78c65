"""Parts: results of some shards of one layer in one self-checking file. A bundle is a part with more shards in it.

    body: for each entry, in order, the bytes of its `rows` and `ragged` outputs, then those of its `sum` outputs,
          each in the declared order
    index: msgpack of `Index`
    tail: xxh3_128 of the index, length of the index, magic

`rows`: the array's bytes. `ragged`: the lengths (int64, one a row), then the values. `files`: a table, then the
contents, see `written_files`. `sum`: int64, each shard apart in a part, or its own type where it is `narrow`; in a
bundle (`Index.summed`) the sums over all entries, at the body's end. Everything is little-endian.
Reads and writes parts, trusts nothing in them, and knows neither numpy nor who made them.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Sequence
from math import inf, prod
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import xxhash
from msgspec import Meta

from muster.jobs.common.durable import write_all
from muster.jobs.common.errors import DamagedError
from muster.jobs.common.names import is_plain
from muster.jobs.contract.plan import Output

MAGIC = b"muspart1"
TAIL = struct.Struct(">16sQ8s")
CHUNK = 1 << 20
INDEX_LIMIT = 1 << 30
DIGEST_BYTES = 16
BYTES = "|u1"  # dtype of a files output
TABLE_LIMIT = 1 << 28  # bytes of the table of a shard's files
SUM_BYTES = 8  # sums are int64, whatever they were declared as, unless they are narrow
NARROW = frozenset({"|i1", "<i2", "<i4"})
RESERVED = frozenset({"shards", "manifest"})  # names a merge writes itself

_DTYPE = re.compile(
    r"\|b1|\|[iu]1|<[iu][248]|<f[248]|<c(8|16)|\|S[1-9]\d{0,5}|<U[1-9]\d{0,5}"
    r"|<[mM]8(\[\d{0,4}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?"
)


Count = Annotated[int, Meta(ge=0, le=1 << 53)]


class PartEntry(msgspec.Struct, frozen=True, array_like=True):
    """One shard in a part: where its bytes are, and what the report and `shards.npy` say of it."""

    number: Count
    rows: Count
    boot: Count
    attempt: Count
    agent: Annotated[str, Meta(max_length=64)]
    started: float  # wall clock, seconds since the epoch
    seconds: float  # of compute
    in_bytes: Count
    in_digest: bytes  # xxh3_128 of the input
    peak: Count  # bytes of memory
    sizes: tuple[Count, ...]  # bytes of each segment in the body: one per rows and sum output, two per ragged and files
    digest: bytes  # xxh3_128 over the segments of rows and ragged outputs together
    sum_digest: bytes = b""  # xxh3_128 over the segments of sum outputs; empty where there are none


class Index(msgspec.Struct, frozen=True):
    """What a part says of itself."""

    farm: str
    layer: str  # the layer's digest
    outputs: tuple[Output, ...]
    fingerprint: str  # of the kernels that computed it
    entries: tuple[PartEntry, ...]  # by number, each once
    summed: bool = False
    sum_sizes: tuple[int, ...] = ()  # with `summed`: bytes per sum output
    sum_digest: bytes = b""

    @property
    def body_bytes(self) -> int:
        return sum(sum(entry.sizes) for entry in self.entries) + sum(self.sum_sizes)

    def spans(self) -> Iterator[tuple[PartEntry, int, int]]:
        """Each entry with the offset and length of its bytes."""
        offset = 0
        for entry in self.entries:
            size = sum(entry.sizes)
            yield entry, offset, size
            offset += size


class Layout:
    """What declared outputs mean in bytes. A ValueError for outputs that cannot be."""

    def __init__(self, outputs: tuple[Output, ...]) -> None:
        _check_outputs(outputs)
        self.kept = tuple(output for output in outputs if output.form != "sum")
        self.sums = tuple(output for output in outputs if output.form == "sum")
        self.sum_sizes = tuple((unit_bytes(one) if one.narrow else SUM_BYTES * prod(one.shape)) for one in self.sums)
        self.kept_segments = sum(segments_of(output) for output in self.kept)
        self._units = tuple((output.form, unit_bytes(output)) for output in self.kept)

    def fits(self, entry: PartEntry, summed: bool) -> bool:
        """Whether the sizes and digests of `entry` are possible for these outputs."""
        sums = () if summed else self.sum_sizes
        if len(entry.sizes) != self.kept_segments + len(sums) or entry.sizes[self.kept_segments :] != sums:
            return False
        digest_sizes = (len(entry.in_digest), len(entry.digest), len(entry.sum_digest))
        if digest_sizes != (DIGEST_BYTES, DIGEST_BYTES, DIGEST_BYTES if self.sums else 0):
            return False
        return self._kept_fit(entry)

    def _kept_fit(self, entry: PartEntry) -> bool:
        sizes = iter(entry.sizes)
        for form, unit in self._units:
            first = next(sizes)
            if form == "files":
                fits = first <= TABLE_LIMIT and next(sizes) >= 0
            elif form == "ragged":
                fits = first == entry.rows * SUM_BYTES and next(sizes) % unit == 0
            else:
                fits = first == entry.rows * unit
            if not fits:
                return False
        return True


def segments_of(output: Output) -> int:
    """How many runs of bytes a shard has of an output that is not summed."""
    return 1 if output.form == "rows" else 2


def item_bytes(dtype: str) -> int:
    """Bytes of one element of a dtype's name with its byte order."""
    if not _DTYPE.fullmatch(dtype):
        raise ValueError(f"dtype {dtype!r} cannot be an output's")
    size = int(re.findall(r"\d+", dtype)[0])
    return 4 * size if dtype[1] == "U" else size


def unit_bytes(output: Output) -> int:
    """Bytes of one row of a `rows` output, of one value of a `ragged` one."""
    return item_bytes(output.dtype) * prod(output.shape)


def out_digest(entry: PartEntry) -> bytes:
    """One digest over all outputs of a shard, the same in a part and in a bundle."""
    return xxhash.xxh3_128_digest(entry.digest + entry.sum_digest) if entry.sum_digest else entry.digest


def _check_outputs(outputs: tuple[Output, ...]) -> None:
    for output in outputs:
        if not is_plain(output.name) or output.name in RESERVED:
            raise ValueError(f"an output cannot be called {output.name!r}")
        if not _DTYPE.fullmatch(output.dtype):
            raise ValueError(f"output {output.name}: dtype {output.dtype!r} cannot be kept in a file")
        if output.form == "files" and (output.dtype, output.shape) != (BYTES, ()):
            raise ValueError(f"output {output.name}: files are bytes")
        if output.form == "files" and output.name == "items":
            raise ValueError("files cannot be called items: a result has a table of that name")
        if min(output.shape, default=0) < 0 or len(output.shape) > 16:
            raise ValueError(f"output {output.name}: its shape cannot be {output.shape}")
        if output.form == "ragged" and not unit_bytes(output):
            raise ValueError(f"output {output.name}: values of no bytes cannot be counted")
        if output.scale is not None and (output.form != "sum" or not 0 < output.scale < inf):
            raise ValueError(f"output {output.name}: its scale cannot be {output.scale}")
        if output.narrow and (output.form != "sum" or output.scale is not None or output.dtype not in NARROW):
            raise ValueError(f"output {output.name}: a {output.form} of {output.dtype} cannot be narrow")
    if len({output.name for output in outputs}) < len(outputs):
        raise ValueError("two outputs of the same name")


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Index)


def encode_index(index: Index) -> bytes:
    return _encoder.encode(index)


def decode_index(raw: bytes) -> Index:
    """An index from bytes another process wrote; a DamagedError unless it is consistent in itself."""
    try:
        index = _decoder.decode(raw)
        layout = Layout(index.outputs)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DamagedError(f"an index that does not decode: {error}") from None
    last = -1
    for entry in index.entries:
        if entry.number <= last or not layout.fits(entry, index.summed):
            raise DamagedError(f"an index that cannot be, at shard {entry.number}")
        last = entry.number
    sums = (layout.sum_sizes, DIGEST_BYTES) if index.summed else ((), 0)
    if (index.sum_sizes, len(index.sum_digest)) != sums or (index.summed and not layout.sums):
        raise DamagedError("an index whose sums are not as declared")
    return index


def tail_of(raw_index: bytes) -> bytes:
    """What follows the body in the file: the index and the tail."""
    return raw_index + TAIL.pack(xxhash.xxh3_128_digest(raw_index), len(raw_index), MAGIC)


class PartWriter:
    """Writes a part, small segments gathered and large ones straight through. What it is given it does not keep."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.nbytes = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._held = bytearray()

    def add(self, segments: Sequence[memoryview]) -> None:
        """The segments of the next entry."""
        for segment in segments:
            self.nbytes += segment.nbytes
            if segment.nbytes >= CHUNK:
                self._flush()
                write_all(self._fd, segment)
            else:
                self._held += segment
        if len(self._held) >= CHUNK:
            self._flush()

    def finish(self, index: Index) -> None:
        """Index and tail; the file is whole, and closed."""
        tail = tail_of(encode_index(index))
        self.nbytes += len(tail)
        self._held += tail
        self._flush()
        self.close()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _flush(self) -> None:
        write_all(self._fd, self._held)
        self._held = bytearray()


def read_index(path: Path) -> Index:
    """The index of a part on disk, its length checked against the file's; a DamagedError for anything else."""
    try:
        with path.open("rb") as file:
            return index_of(file, os.fstat(file.fileno()).st_size)
    except DamagedError as error:
        raise DamagedError(f"{path.name}: {error.message}") from None


def index_of(file: BinaryIO, size: int) -> Index:
    """The same of an open file of `size` bytes."""
    if size < TAIL.size:
        raise DamagedError("shorter than a part can be")
    file.seek(size - TAIL.size)
    digest, length, magic = TAIL.unpack(file.read(TAIL.size))
    if magic != MAGIC or length > min(size - TAIL.size, INDEX_LIMIT):
        raise DamagedError("not a part, or cut short")
    file.seek(size - TAIL.size - length)
    raw = file.read(length)
    if xxhash.xxh3_128_digest(raw) != digest:
        raise DamagedError("its index does not match its digest")
    index = decode_index(raw)
    if index.body_bytes != size - TAIL.size - length:
        raise DamagedError("its body is not as long as its index says")
    return index


class BodyCheck:
    """Compares a body with its index while the bytes come, cut anywhere. A DamagedError names what differs."""

    def __init__(self, index: Index) -> None:
        self._pieces = _pieces(index)
        self._open = self._advance()

    def feed(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while self._open and len(view) >= self._left:
            self._hash.update(view[: self._left])
            view = view[self._left :]
            self._judge()
            self._open = self._advance()
        if not self._open and len(view):
            raise DamagedError("a body longer than its index says")
        if len(view):
            self._hash.update(view)
            self._left -= len(view)

    def finish(self) -> None:
        """At the body's end."""
        self.feed(b"")
        if self._open:
            raise DamagedError(f"a body that ends within {self._name}")

    def _advance(self) -> bool:
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._name, self._left, self._digest = piece
        self._hash = xxhash.xxh3_128()
        return True

    def _judge(self) -> None:
        if self._hash.digest() != self._digest:
            raise DamagedError(f"the bytes of {self._name} do not match their digest")


def _pieces(index: Index) -> Iterator[tuple[str, int, bytes]]:
    """The runs of a body that have a digest each."""
    kept = Layout(index.outputs).kept_segments
    for entry in index.entries:
        name = f"shard {entry.number}"
        yield name, sum(entry.sizes[:kept]), entry.digest
        if len(entry.sizes) > kept:
            yield name, sum(entry.sizes[kept:]), entry.sum_digest
    if index.sum_sizes:
        yield "the sums", sum(index.sum_sizes), index.sum_digest


def check_body(path: Path, index: Index) -> None:
    """Read the whole body and compare every digest; a DamagedError names the first shard that differs."""
    check = BodyCheck(index)
    left = index.body_bytes
    try:
        with path.open("rb", buffering=0) as file:
            while left > 0 and (chunk := file.read(min(left, CHUNK))):
                check.feed(chunk)
                left -= len(chunk)
        check.finish()
    except DamagedError as error:
        raise DamagedError(f"{path.name}: {error.message}") from None
