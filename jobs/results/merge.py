"""Level 2: the bundles of a layer → one .npy per output, rows in order. One pass, bounded memory, no deciding.

Shards are taken in order of their numbers, so that every file is written from front to back and digested as it is
written, while each shard's digest is checked as it is read. Memory: some MiB of buffers, the sums, and about 200 bytes
a shard for the table. A few bundles and a few files of the result are open at a time, however many there are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import xxhash

from muster.jobs.common.durable import fsync_folder, naming_space, write_durably
from muster.jobs.common.errors import DamagedError
from muster.jobs.contract.plan import ItemsSource, Layer, Output
from muster.jobs.parts.manifest import (
    FORMAT,
    ITEM_COLUMNS,
    ITEMS,
    MANIFEST,
    PARTIAL_FORMAT,
    SHARDS,
    File,
    Merged,
    Partial,
    Product,
    encode_manifest,
)
from muster.jobs.parts.part_file import CHUNK, segments_of, unit_bytes
from muster.jobs.results.bundle_index import DamagedBundle, Incomplete, Placed, Source, Survey, blamed, index_of
from muster.jobs.results.outputs import Sums, blank
from muster.jobs.results.result_formats import CsvFile, FilesOut, FileTables, NpyFile, Offsets, OpenFiles
from muster.jobs.sources.items import files_in, lines_in, located
from muster.jobs.sources.items import records as read_records

__all__ = [
    "DamagedBundle",
    "Incomplete",
    "Merged",
    "bytes_of",
    "last_shard",
    "merge_layer",
    "merge_partly",
    "survey_partly",
]

Array = np.ndarray[Any, Any]

READ_AHEAD = 128 << 10  # bytes per open bundle
OPEN_BUNDLES = 16
TABLE_BYTES = 256  # of a shard's line in the table, at most
OK = "ok"  # the output that says which rows are there, where some may be missing

_M = TypeVar("_M", bound=Merged)


def merge_layer(
    layer: Layer, bundles: Sequence[Path], folder: Path, *, job: str, items: Path | None = None, since: float = 0.0
) -> Merged:
    """Merge into `folder`, a tmp folder that exists and that the caller renames. Every file in it is durable.

    `items`: the layer's list, where it has one. `since`: no shard can have begun before that.
    Raises Incomplete, DamagedBundle, SpaceError or SumTooLarge; what is in `folder` is then worth nothing.
    """
    survey = _surveyed(layer, bundles, since)
    survey.check()
    return _sealed(_written(survey, folder, job, items, ""), folder)


def survey_partly(layer: Layer, bundles: Sequence[Path]) -> Survey:
    """What `merge_partly` puts together of the bundles of a layer that may lack shards. Raises as `merge_layer`."""
    survey = _surveyed(layer, bundles)
    survey.admit_holes()
    return survey


def merge_partly(survey: Survey, folder: Path, *, job: str, items: Path | None = None) -> Partial:
    """As `merge_layer`, with a hole in place of each shard that is missing: NaN in rows of floats, 0 in others, no
    values where ragged, no files, nothing added to sums. `ok.npy` says which rows are there, unless the layer has an
    output of that name: one of booleans is then false in holes."""
    named = {output.name for output in survey.outputs or ()}
    merged = _written(survey, folder, job, items, "" if OK in named else OK)
    fields = {**msgspec.structs.asdict(merged), "format": PARTIAL_FORMAT, "missing_rows": survey.missing_rows}
    return _sealed(Partial(**fields, missing_shards=len(survey.numbers) - survey.present), folder)


def last_shard(bundles: Sequence[Path]) -> int:
    """The highest number in them; -1 where there is none. Raises DamagedBundle."""
    return max((entry.number for path in bundles for entry in index_of(path).entries), default=-1)


def bytes_of(survey: Survey) -> int:
    """About what the merged files take: of holes all that they have, of all else what the bundles have."""
    rows = sum(unit_bytes(output) for output in survey.layout.kept if output.form == "rows") * survey.rows
    others = [at for at, output in enumerate(_segments(survey.layout.kept)) if output.form != "rows"]
    return rows + sum(map(survey.segment_bytes, others)) + survey.rows + TABLE_BYTES * survey.present


def _segments(outputs: Iterable[Output]) -> Iterator[Output]:
    """The output of each segment of a shard."""
    for output in outputs:
        yield from [output] * segments_of(output)


def _surveyed(layer: Layer, bundles: Sequence[Path], since: float = 0.0) -> Survey:
    survey = Survey(layer, since)
    for path in bundles:
        survey.add(path)
    return survey


def _sealed(manifest: _M, folder: Path) -> _M:
    """The manifest comes last, and all is durable."""
    with naming_space(folder):
        write_durably(folder / MANIFEST, encode_manifest(manifest))
        fsync_folder(folder)
    return manifest


def _written(survey: Survey, folder: Path, job: str, items: Path | None, ok: str) -> Merged:
    """All files but the manifest. `ok`: the output that says which rows are there; "" for none."""
    layer = survey.layer
    with naming_space(folder), ExitStack() as closing:
        files = OpenFiles()
        products = _Pass(survey, folder, files, closing, ok).run()
        return Merged(
            format=FORMAT,
            job=job,
            layer=layer.name,
            digest=layer.digest,
            rows=survey.rows,
            shards=survey.present,
            outputs=products,
            table=_write_table(survey, folder, files, closing),
            fingerprints=survey.fingerprints,
            items=_write_items(layer, items, folder, files, closing) if items else None,
        )


def _write_table(survey: Survey, folder: Path, files: OpenFiles, closing: ExitStack) -> File:
    dtype, blocks = survey.table()
    npy = NpyFile(folder / SHARDS, dtype, (survey.present,), files)
    closing.callback(npy.close)
    for block in blocks:
        npy.write(block.tobytes())
    return npy.finish()


def _write_items(layer: Layer, items: Path, folder: Path, files: OpenFiles, closing: ExitStack) -> File:
    """What each row is: the name and the size of a file, or the line of the table."""
    source = layer.source
    assert isinstance(source, ItemsSource), "a list is of items"
    table = CsvFile(folder / ITEMS, source.columns or ITEM_COLUMNS, files)
    closing.callback(table.close)
    for number in layer.numbers:
        raw = read_records(located(source.window(number), items))
        table.write(lines_in(raw) if source.columns else [(file.name, file.stamp.size) for file in files_in(raw)])
    return table.finish()


class _Reader:
    """Reads bundles by position, a few of them open at a time. What goes wrong is the bundle's fault."""

    def __init__(self, sources: list[Source]) -> None:
        self._sources = sources
        self._open: OrderedDict[int, BufferedReader] = OrderedDict()
        self._room = memoryview(bytearray(CHUNK))

    def pieces(self, at: int, offset: int, size: int) -> Iterator[memoryview]:
        """Bytes of bundle `at`, up to 1 MiB at a time; each piece holds until the next is asked for."""
        try:
            file = self._standing(at, offset)
            while size > 0:
                count = file.readinto(self._room[: min(size, CHUNK)])
                if not count:
                    raise DamagedError("shorter than its index says")
                yield self._room[:count]
                size -= count
        except (DamagedError, OSError) as error:
            raise blamed(self._sources[at].path, error) from None

    def close(self) -> None:
        for file in self._open.values():
            file.close()

    def _standing(self, at: int, offset: int) -> BufferedReader:
        """The bundle's file at this offset; the one used longest ago makes room for it."""
        file = self._open.get(at)
        if file is None:
            if len(self._open) >= OPEN_BUNDLES:
                self._open.popitem(last=False)[1].close()
            file = self._open[at] = BufferedReader(FileIO(self._sources[at].path), READ_AHEAD)
        self._open.move_to_end(at)
        if file.tell() != offset:
            file.seek(offset)
        return file


class _Sinks:
    """Where each kept segment of a shard goes, and whether it is there."""

    def __init__(self, survey: Survey, folder: Path, open_files: OpenFiles, closing: ExitStack, ok: str) -> None:
        self._survey, self._folder, self._open, self._closing = survey, folder, open_files, closing
        self.targets: list[NpyFile | Offsets | FileTables | FilesOut] = []
        self._files: dict[str, list[NpyFile]] = {}
        self._folders: dict[str, FilesOut] = {}
        self._ragged: list[tuple[Offsets, int, int]] = []  # with the segment of its values, and a value's bytes
        self._blanks: list[tuple[NpyFile | Offsets, bytes]] = []  # with what stands there for a row that is missing
        for output in survey.layout.kept:
            if output.form == "ragged":
                self._add_ragged(output)
            elif output.form == "files":
                self._add_files(output)
            else:
                self._add_rows(output)
        self._ok = self._create(Output(ok, "rows", "|b1"), "", "|b1", (survey.rows,)) if ok else None

    def leave_out(self, rows: int) -> None:
        """A shard that is missing."""
        for target, blank_row in self._blanks:
            _repeat(target, blank_row, rows)
        self.note(rows, False)

    def note(self, rows: int, there: bool) -> None:
        """Say it of so many rows."""
        if self._ok is not None:
            _repeat(self._ok, bytes([there]), rows)

    def adds_up(self, sizes: list[int]) -> bool:
        """After a shard: whether its lengths are those of its values."""
        counted = [offsets.counted() for offsets, _, _ in self._ragged]
        return counted == [sizes[segment] // unit for _, segment, unit in self._ragged]

    def add_sum(self, output: Output, total: Array) -> None:
        self._create(output, "", total.dtype.str, total.shape).write(total.tobytes())

    def finish(self, outputs: tuple[Output, ...]) -> tuple[Product, ...]:
        """Every file durable."""
        ok = () if self._ok is None else (Product(OK, "rows", (self._ok.finish(),)),)
        return (*(self._product(output) for output in outputs), *ok)

    def _product(self, output: Output) -> Product:
        if output.form == "files":
            folder = self._folders[output.name]
            return Product(output.name, output.form, (folder.finish(),), folder.nbytes)
        return Product(output.name, output.form, tuple(npy.finish() for npy in self._files[output.name]))

    def _add_rows(self, output: Output) -> None:
        npy = self._create(output, "", output.dtype, (self._survey.rows, *output.shape))
        self.targets.append(npy)
        self._blanks.append((npy, np.full(output.shape, blank(output.dtype), output.dtype).tobytes()))

    def _add_files(self, output: Output) -> None:
        tables = FileTables()
        folder = self._folders[output.name] = FilesOut(self._folder / output.name, tables, self._open)
        self._closing.callback(folder.close)
        self.targets += [tables, folder]

    def _add_ragged(self, output: Output) -> None:
        segment, unit = len(self.targets) + 1, unit_bytes(output)
        count = self._survey.segment_bytes(segment) // unit
        offsets = Offsets(self._create(output, ".offsets", "<i8", (self._survey.rows + 1,)))
        self.targets += [offsets, self._create(output, ".values", output.dtype, (count, *output.shape))]
        self._blanks.append((offsets, bytes(8)))  # its length
        self._ragged.append((offsets, segment, unit))

    def _create(self, output: Output, suffix: str, dtype: str, shape: tuple[int, ...]) -> NpyFile:
        npy = NpyFile(self._folder / f"{output.name}{suffix}.npy", np.dtype(dtype), shape, self._open)
        self._closing.callback(npy.close)
        self._files.setdefault(output.name, []).append(npy)
        return npy


class _Pass:
    """The one pass over all bytes."""

    def __init__(self, survey: Survey, folder: Path, files: OpenFiles, closing: ExitStack, ok: str) -> None:
        self._survey = survey
        self._sinks = _Sinks(survey, folder, files, closing, ok)
        self._sums = Sums(survey.layout)
        self._reader = _Reader(survey.sources)
        closing.callback(self._reader.close)

    def run(self) -> tuple[Product, ...]:
        apart = bool(self._survey.layout.sums)
        first_row = 0
        for shard in self._survey.shards():
            if shard.at < 0:
                self._sinks.leave_out(shard.rows)
                first_row += shard.rows
                continue
            self._copy(shard, first_row)
            self._sinks.note(shard.rows, True)
            first_row += shard.rows
            if apart and not self._survey.sources[shard.at].summed:
                self._add(shard.at, shard.offset + sum(shard.sizes), shard.sum_digest)
        for at, source in enumerate(self._survey.sources):
            if source.summed:
                self._add(at, source.sums_at, source.sum_digest)
        for output, total in zip(self._survey.layout.sums, self._sums.shown(), strict=True):
            self._sinks.add_sum(output, total)
        return self._sinks.finish(self._survey.outputs or ())

    def _copy(self, shard: Placed, first_row: int) -> None:
        """A shard's rows, ragged outputs and files, checked on the way."""
        digest, offset = xxhash.xxh3_128(), shard.offset
        for target, size in zip(self._sinks.targets, shard.sizes, strict=True):
            if isinstance(target, FilesOut):
                self._judge(shard.at, shard.offset, self._is_whole(shard))  # before names of it are made
                try:
                    target.begin(first_row, shard.rows, size)
                except DamagedError as error:
                    raise blamed(self._survey.sources[shard.at].path, error) from None
            for piece in self._reader.pieces(shard.at, offset, size):
                digest.update(piece)
                target.write(piece)
            offset += size
        self._judge(shard.at, shard.offset, digest.digest() == shard.digest and self._sinks.adds_up(shard.sizes))

    def _is_whole(self, shard: Placed) -> bool:
        digest = xxhash.xxh3_128()
        for piece in self._reader.pieces(shard.at, shard.offset, sum(shard.sizes)):
            digest.update(piece)
        return digest.digest() == shard.digest

    def _add(self, at: int, offset: int, digest: bytes) -> None:
        raw = b"".join(bytes(piece) for piece in self._reader.pieces(at, offset, self._sums.nbytes))
        self._judge(at, offset, xxhash.xxh3_128_digest(raw) == digest)
        self._sums.add(raw)

    def _judge(self, at: int, offset: int, well: bool) -> None:
        if not well:
            raise DamagedBundle(self._survey.sources[at].path, f"what is at byte {offset} does not match its digest")


def _repeat(target: NpyFile | Offsets, row: bytes, count: int) -> None:
    """So many rows of these bytes, some at a time."""
    at_once = max(1, CHUNK // max(1, len(row)))
    while count > 0:
        target.write(memoryview(row * min(count, at_once)))
        count -= at_once
