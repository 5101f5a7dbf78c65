"""The committed shards of a job with their bytes, in the order of their commits: out of bundles, or of the result once
the layer is merged. Only reads, a megabyte at a time; knows nobody who asks for them."""

from __future__ import annotations

import os
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from itertools import accumulate, chain, pairwise
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

import msgspec

from muster.coordinator.api.requests import CommitsAsk
from muster.coordinator.api.status import Commit, Commits
from muster.coordinator.farm_root import ask_daemon, plans
from muster.coordinator.farm_root.paths import JobFolder, Root
from muster.coordinator.protocol.frames import frame
from muster.coordinator.result_downloads.stream import Messages, Read, pieces
from muster.jobs.common.errors import DamagedError, IncompleteError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import Layer, Output
from muster.jobs.parts.manifest import File, Product, read_manifest
from muster.jobs.parts.part_file import CHUNK, SUM_BYTES, Layout, PartEntry, index_of, item_bytes, segments_of

WAIT_SECONDS = 10.0  # between two signs of life while nothing is committed


class Cursor(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A place in a job's history: this shard and all before it were seen."""

    seq: int = 0  # of a commit
    number: int = -1  # of a shard in it; its shards come by number


class Record(msgspec.Struct, frozen=True, tag="shard"):
    """One shard; its bytes follow, segment after segment as in a part, `sum` and `files` outputs left out."""

    cursor: Cursor
    layer: str
    number: int
    first_row: int
    rows: int
    outputs: tuple[Output, ...]
    sizes: tuple[int, ...]
    digest: bytes = b""  # xxh3_128 of the bytes; b"" where the result was read
    agent: str = ""  # that computed it; "" where the result was read
    started: float = 0.0  # wall clock, there

    @property
    def nbytes(self) -> int:
        return sum(self.sizes)


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """Nothing new; the job goes on."""


Pieces = Iterator[bytes]
News = Record | Beat
Item = tuple[News, Pieces]  # the pieces of one have to be taken before the next is asked for
Items = Generator[Item, None, None]


def read(root: Root, job: str, after: Cursor, wait: float = WAIT_SECONDS) -> Items:
    """Every shard committed after `after`, until the job ends. A sign of life for each `wait` without any."""
    reader = _Reader(root.job(job))
    seq = after.seq - 1 if after.number >= 0 else after.seq
    with ask_daemon.line(root) as line:
        while True:
            page = line.ask(CommitsAsk(job, max(seq, 0), wait), Commits, wait)
            for commit in page.items:
                yield from reader.shards(commit, after)
                seq = commit.seq
            if page.over:
                return
            if not page.items:
                yield Beat(), iter(())


class _Reader:
    """Finds the bytes of one job's shards."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._layers = {layer.name: layer for layer in plans.load(folder).layers}

    def shards(self, commit: Commit, after: Cursor) -> Iterator[Item]:
        """Those of one commit that come after `after`; none where it was taken back meanwhile."""
        layer = self._layers[commit.layer]
        wanted = RangeSet(commit.numbers)
        if commit.seq == after.seq:
            wanted.discard(0, after.number + 1)
        try:
            file = (self._folder.bundles / commit.file).open("rb")
        except FileNotFoundError:  # merged, or to be run again: then its shards are in a later commit
            yield from self._merged(layer, commit, wanted)
            return
        with file:
            index = index_of(file, os.fstat(file.fileno()).st_size)
            layout = Layout(index.outputs)
            for entry, offset, _ in index.spans():
                if entry.number in wanted:
                    yield _bundled(layer, commit.seq, layout, entry), _streamed(file, offset, layout, entry)

    def _merged(self, layer: Layer, commit: Commit, wanted: RangeSet) -> Iterator[Item]:
        with ExitStack() as closing:
            try:
                rows = _MergedRows(self._folder.result / layer.name, layer, closing)
            except (IncompleteError, FileNotFoundError):
                return
            for number in wanted:
                yield rows.shard(Cursor(commit.seq, number))


def _bundled(layer: Layer, seq: int, layout: Layout, entry: PartEntry) -> Record:
    outputs = tuple(output for output in layout.kept if output.form != "files")
    return Record(
        cursor=Cursor(seq, entry.number),
        layer=layer.name,
        number=entry.number,
        first_row=layer.first_row(entry.number),
        rows=entry.rows,
        outputs=outputs,
        sizes=tuple(size for output, size in _sized(layout, entry) if output.form != "files"),
        digest=entry.digest if len(outputs) == len(layout.kept) else b"",
        agent=entry.agent,
        started=entry.started,
    )


def _sized(layout: Layout, entry: PartEntry) -> Iterator[tuple[Output, int]]:
    """Each segment's output and bytes."""
    sizes = iter(entry.sizes)
    for output in layout.kept:
        for _ in range(segments_of(output)):
            yield output, next(sizes)


def _streamed(file: BinaryIO, offset: int, layout: Layout, entry: PartEntry) -> Pieces:
    """The segments of a shard, but for files: these are in the result alone."""
    for output, size in _sized(layout, entry):
        if output.form != "files":
            yield from _pieces(file, offset, size)
        offset += size


def _pieces(file: BinaryIO, offset: int, nbytes: int) -> Pieces:
    while nbytes > 0:
        piece = os.pread(file.fileno(), min(nbytes, CHUNK), offset)
        if not piece:
            raise DamagedError(f"{file.name}: shorter than it should be")
        yield piece
        offset, nbytes = offset + len(piece), nbytes - len(piece)


class _MergedFile:
    """One .npy of a result, by rows. Where its data starts follows from its length: no header is trusted or parsed."""

    def __init__(self, folder: Path, file: File, closing: ExitStack) -> None:
        self.file = closing.enter_context((folder / file.file).open("rb"))
        self.dtype, self.row_shape = file.dtype, file.shape[1:]
        self.row_bytes = item_bytes(file.dtype) * prod(self.row_shape)
        self._start = file.bytes - self.row_bytes * file.shape[0]

    def pieces(self, first: int, count: int) -> Pieces:
        return _pieces(self.file, self._start + first * self.row_bytes, count * self.row_bytes)

    def int64s(self, first: int, count: int) -> array[int]:
        found = array("q", b"".join(self.pieces(first, count)))
        if sys.byteorder == "big":
            found.byteswap()
        return found


class _MergedRows:
    """A merged layer's rows and ragged outputs, cut into its shards again."""

    def __init__(self, folder: Path, layer: Layer, closing: ExitStack) -> None:
        self._layer, self._ranges = layer, layer.run_rows.pairs() if layer.only is not None else [(0, 0)]
        self._before = [0, *accumulate(end - first for first, end in self._ranges)]  # rows of the result
        self._products = [
            (product, [_MergedFile(folder, file, closing) for file in product.files])
            for product in read_manifest(folder).outputs
            if product.form in ("rows", "ragged")
        ]

    def shard(self, cursor: Cursor) -> Item:
        layer, number = self._layer, cursor.number
        first, rows = layer.first_row(number), layer.rows_of(number)
        place = self._place(first)
        segments = [one for product, files in self._products for one in self._segments(product, files, place, rows)]
        record = Record(
            cursor=cursor,
            layer=layer.name,
            number=number,
            first_row=first,
            rows=rows,
            outputs=tuple(_declared(product, files[-1]) for product, files in self._products),
            sizes=tuple(size for size, _ in segments),
        )
        return record, chain.from_iterable(pieces for _, pieces in segments)

    def _place(self, row: int) -> int:
        """Where a row of the layer is in the result, which has those of shards that are run."""
        at = bisect_right(self._ranges, row, key=itemgetter(0)) - 1
        return self._before[at] + row - self._ranges[at][0]

    def _segments(
        self, product: Product, files: list[_MergedFile], first: int, rows: int
    ) -> Iterator[tuple[int, Pieces]]:
        if product.form == "rows":
            yield rows * files[0].row_bytes, files[0].pieces(first, rows)
            return
        offsets = files[0].int64s(first, rows + 1)
        lengths = array("q", (end - start for start, end in pairwise(offsets)))
        if sys.byteorder == "big":
            lengths.byteswap()
        yield rows * SUM_BYTES, iter((lengths.tobytes(),))
        count = offsets[-1] - offsets[0]
        yield count * files[1].row_bytes, files[1].pieces(offsets[0], count)


def _declared(product: Product, values: _MergedFile) -> Output:
    return Output(product.name, product.form, values.dtype, values.row_shape)


# --- over a pipe ------------------------------------------------------------------------------------------

_messages = Messages(msgspec.msgpack.Decoder(News))


def send(items: Iterable[Item], write: Callable[[bytes], object], flush: Callable[[], object]) -> None:
    """Each as a frame and its bytes."""
    for news, run in items:
        write(frame(msgspec.msgpack.encode(news)))
        for piece in run:
            write(piece)
        flush()


def receive(read: Read) -> Items:
    """What `send` sent, until its end. The bytes come in pieces of at most a megabyte."""
    while (news := _messages.next(read, within=False)) is not None:
        yield news, pieces(read, news.nbytes if isinstance(news, Record) else 0, "a shard")
