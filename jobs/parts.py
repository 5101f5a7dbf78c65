"""Parts: results of some shards of one layer in one self-checking file. A bundle is a part with more shards in it.

    body: for each entry, in order, its outputs' bytes, in the declared order
    index: msgpack of `Index`
    tail: xxh3_128 of the index, length of the index, magic

`rows`: the array's bytes. `ragged`: the lengths (int64, one a row), then the values. `sum`: the array's bytes, each
shard apart in a part; in a bundle (`Index.summed`) the sum over all entries, in one segment at the body's end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import xxhash

from jobs.errors import DamagedError
from jobs.model import Output

MAGIC = b"muspart1"
TAIL = struct.Struct(">16sQ8s")
CHUNK = 1 << 20
INDEX_LIMIT = 1 << 30


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One shard in a part: where its bytes are, and what the report and `shards.npy` say of it."""

    number: int
    rows: int
    boot: int
    attempt: int
    agent: str
    started: float  # wall clock, seconds since the epoch
    seconds: float  # of compute
    in_bytes: int
    in_digest: bytes  # xxh3_128 of the input
    peak: int  # bytes of memory
    sizes: tuple[int, ...]  # bytes of each segment in the body: one per rows and sum output, two per ragged
    digest: bytes  # xxh3_128 over those segments together


class Index(msgspec.Struct, frozen=True):
    """What a part says of itself."""

    farm: str
    layer: str  # the layer's digest
    outputs: tuple[Output, ...]
    fingerprint: str  # of the kernels that computed it
    entries: tuple[Entry, ...]  # by number, each once
    summed: bool = False
    sum_sizes: tuple[int, ...] = ()  # with `summed`: bytes per sum output
    sum_digest: bytes = b""

    @property
    def body_bytes(self) -> int:
        return sum(sum(entry.sizes) for entry in self.entries) + sum(self.sum_sizes)

    def spans(self) -> Iterator[tuple[Entry, int, int]]:
        """Each entry with the offset and length of its bytes."""
        offset = 0
        for entry in self.entries:
            size = sum(entry.sizes)
            yield entry, offset, size
            offset += size


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Index)


def encode_index(index: Index) -> bytes:
    return _encoder.encode(index)


def decode_index(raw: bytes) -> Index:
    """An index from bytes another process wrote; a DamagedError unless it is consistent in itself."""
    try:
        index = _decoder.decode(raw)
    except (msgspec.DecodeError, ValueError) as error:
        raise DamagedError(f"an index that does not decode: {error}") from None
    last = -1
    for entry in index.entries:
        if entry.number <= last or min(entry.sizes, default=0) < 0 or entry.rows < 0:
            raise DamagedError("an index whose entries are out of order or of negative size")
        last = entry.number
    return index


def tail_of(raw_index: bytes) -> bytes:
    """What follows the body in the file: the index and the tail."""
    return raw_index + TAIL.pack(xxhash.xxh3_128_digest(raw_index), len(raw_index), MAGIC)


def read_index(path: Path) -> Index:
    """The index of a part on disk, its length checked against the file's; a DamagedError for anything else."""
    try:
        with path.open("rb") as file:
            return _read_index(file, path.stat().st_size)
    except DamagedError as error:
        raise DamagedError(f"{path.name}: {error.message}") from None


def _read_index(file: BinaryIO, size: int) -> Index:
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


def check_body(path: Path, index: Index) -> None:
    """Read the whole body and compare every digest; a DamagedError names the first shard that differs."""
    with path.open("rb", buffering=0) as file:
        for entry, _, size in index.spans():
            if _digest_of(file, size) != entry.digest:
                raise DamagedError(f"{path.name}: the bytes of shard {entry.number} do not match their digest")
        if index.summed and _digest_of(file, sum(index.sum_sizes)) != index.sum_digest:
            raise DamagedError(f"{path.name}: its sums do not match their digest")


def _digest_of(file: BinaryIO, size: int) -> bytes:
    digest = xxhash.xxh3_128()
    while size > 0:
        chunk = file.read(min(size, CHUNK))
        if not chunk:
            break
        digest.update(chunk)
        size -= len(chunk)
    return digest.digest()
