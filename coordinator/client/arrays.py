"""Arrays on their way to a farm: as the bytes of a .npy, under their digest. Sends what is missing and no more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import numpy as np
import xxhash

from muster.coordinator.client.backends.base import Backend
from muster.coordinator.client.backends.retry import Patience
from muster.coordinator.client.bars import byte_bar
from muster.coordinator.farm_root.uploads import Upload
from muster.jobs.common.errors import LinkError, MusterError, NoDaemonError, RefusedError, SourceError
from muster.jobs.contract.plan import ArraySource
from muster.jobs.sources.formats.npy import DTYPES_HINT, canonical_dtype, itemsize, make_header
from muster.jobs.sources.read_rows import STORED, widened

if TYPE_CHECKING:
    from tqdm import tqdm

Array = np.ndarray[Any, Any]
CHUNK = 1 << 20


class Sendable(Protocol):
    """A file for a farm."""

    nbytes: int

    @property
    def digest(self) -> str: ...

    def pieces(self, start: int) -> Iterator[memoryview]: ...


class OutgoingFile:
    """A file of this machine as it is: a model's."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.nbytes = path.stat().st_size
        if not self.nbytes:
            raise SourceError(f"{path}: the file is empty", "write it again")

    @cached_property
    def digest(self) -> str:
        return _digest_of(self.pieces(0))

    def pieces(self, start: int) -> Iterator[memoryview]:
        with self._path.open("rb", buffering=0) as file:
            file.seek(start)
            while piece := file.read(CHUNK):
                yield memoryview(piece)


class Outgoing:
    """One array. It must not change until it is sent: the digest is of what it was."""

    def __init__(self, array: Array, what: str, widen: bool = False) -> None:
        """`widen`: it has the upper halves of float32, as bf16 is, and is sent as float32."""
        dtype = "<f4" if widen else canonical_dtype(array.dtype.str)
        if dtype is None:
            raise SourceError(f"{what} holds {array.dtype}", DTYPES_HINT)
        if array.ndim == 0 or array.size == 0:
            raise SourceError(f"{what} has no rows: its shape is {array.shape}", "its first axis counts the rows")
        self._array, self._widen = array, widen
        self._header = make_header(dtype, array.shape)
        self.nbytes = len(self._header) + array.size * itemsize(dtype)

    @cached_property
    def digest(self) -> str:
        """Of the whole file, as the server computes it."""
        return _digest_of(self.pieces(0))

    def pieces(self, start: int) -> Iterator[memoryview]:
        """The file from byte `start` on. What is contiguous is not copied, and a mapped array not loaded."""
        for piece in self._whole():
            if start < len(piece):
                yield piece[start:]
            start = max(0, start - len(piece))

    def _whole(self) -> Iterator[memoryview]:
        yield memoryview(self._header)
        rows = max(1, CHUNK // max(1, prod(self._array.shape[1:]) * self._array.itemsize))
        for first in range(0, len(self._array), rows):
            block = self._array[first : first + rows]
            block = widened(block) if self._widen else np.ascontiguousarray(block)
            whole = block.reshape(-1).view(np.uint8).data
            yield from (whole[at : at + CHUNK] for at in range(0, len(whole), CHUNK))


def _digest_of(pieces: Iterable[memoryview]) -> str:
    digest = xxhash.xxh3_128()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def is_array(value: object) -> bool:
    """Whether it is one, or says how to become one; paths and lists do not."""
    return isinstance(value, np.ndarray) or (hasattr(value, "__array__") and not isinstance(value, np.generic))


def is_arrays(value: object) -> TypeGuard[Mapping[str, object]]:
    """Whether it is a mapping of names to arrays."""
    return isinstance(value, Mapping) and bool(value) and all(is_array(one) for one in value.values())


def outgoing(arrays: Mapping[str, object]) -> dict[str, Outgoing]:
    return {name: Outgoing(np.asarray(array), f"array {name!r}") for name, array in arrays.items()}


def mapped(source: ArraySource) -> Array:
    """An array in a file of this machine, as it is stored."""
    dtype = np.dtype(STORED[source.stored] if source.stored else source.dtype)
    return np.memmap(Path(source.path), dtype, "r", source.offset, source.shape)


def send(place: Backend, arrays: Iterable[Sendable], progress: bool) -> None:
    """All that is not there already; what was cut off goes on where it ended."""
    there = {one.digest for one in place.uploads() if one.complete}
    left = {array.digest: array for array in arrays if array.digest not in there}
    if not left:
        return
    total = sum(array.nbytes for array in left.values())
    with byte_bar(progress, "upload", total) as bar:
        for array in left.values():
            _send_one(place, array, bar)


def _send_one(place: Backend, array: Sendable, bar: tqdm[Any]) -> None:
    patience, begun, reached = Patience(), int(bar.n), -1
    while True:
        try:
            _send_rest(place, array, bar, begun)
            return
        except (LinkError, NoDaemonError, RefusedError) as error:  # refused: somebody else sent the same meanwhile
            there = _there(place, array, patience).bytes
            if there > reached:
                patience.progress()
            elif isinstance(error, RefusedError):
                raise
            reached = max(there, reached)
            patience.endure(LinkError(error.message, error.hint) if isinstance(error, RefusedError) else error)


def _send_rest(place: Backend, array: Sendable, bar: tqdm[Any], begun: int) -> None:
    there = _there(place, array, Patience())
    if not there.complete:
        counted = _counted(array.pieces(there.bytes), bar, begun + there.bytes)
        place.upload(array.digest, array.nbytes, there.bytes, counted)
    bar.update(begun + array.nbytes - bar.n)


def _there(place: Backend, array: Sendable, patience: Patience) -> Upload:
    while True:
        try:
            return next((one for one in place.uploads() if one.digest == array.digest), Upload(array.digest, 0, False))
        except MusterError as error:
            patience.endure(error)


def _counted(pieces: Iterator[memoryview], bar: tqdm[Any], at: int) -> Iterator[memoryview]:
    bar.update(at - bar.n)
    for piece in pieces:
        yield piece
        bar.update(len(piece))
