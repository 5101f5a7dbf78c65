"""Level 2: the bundles of a complete layer → one .npy per output, rows in order. One pass, bounded memory, no deciding.

Shards are taken in order of their numbers, so that every file is written from front to back and digested as it is
written, while each shard's digest is checked as it is read. Memory: some MiB of buffers, the sums, and about 200 bytes
a shard for the table. A few bundles and a few files of the result are open at a time, however many there are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from muster.jobs.common.durable import fsync_folder, naming_space, write_durably
from muster.jobs.common.errors import DamagedError
from muster.jobs.contract.plan import ItemsSource, Layer, Output
from muster.jobs.parts.manifest import FORMAT, ITEMS, MANIFEST, SHARDS, File, Merged, Product, encode_manifest
from muster.jobs.parts.part_file import CHUNK, unit_bytes
from muster.jobs.results.bundle_index import DamagedBundle, Incomplete, Placed, Source, Survey, blamed
from muster.jobs.results.outputs import Sums
from muster.jobs.results.result_formats import CsvFile, FilesOut, FileTables, NpyFile, Offsets, OpenFiles
from muster.jobs.sources.items import files_in, lines_in, located
from muster.jobs.sources.items import records as read_records

__all__ = ["DamagedBundle", "Incomplete", "Merged", "merge_layer"]

Array = np.ndarray[Any, Any]

READ_AHEAD = 128 << 10  # bytes per open bundle
OPEN_BUNDLES = 16


def merge_layer(
    layer: Layer, bundles: Sequence[Path], folder: Path, *, job: str, items: Path | None = None, since: float = 0.0
) -> Merged:
    """Merge into `folder`, a tmp folder that exists and that the caller renames. Every file in it is durable.

    `items`: the layer's list, where it has one. `since`: no shard can have begun before that.
    Raises Incomplete, DamagedBundle, SpaceError or SumTooLarge; what is in `folder` is then worth nothing.
    """
    survey = Survey(layer, since)
    for path in bundles:
        survey.add(path)
    survey.check()
    with naming_space(folder):
        manifest = _written(survey, folder, job, items)
        write_durably(folder / MANIFEST, encode_manifest(manifest))
        fsync_folder(folder)
    return manifest


def _written(survey: Survey, folder: Path, job: str, items: Path | None) -> Merged:
    layer = survey.layer
    with ExitStack() as closing:
        files = OpenFiles()
        products = _Pass(survey, folder, files, closing).run()
        return Merged(
            format=FORMAT,
            job=job,
            layer=layer.name,
            digest=layer.digest,
            rows=survey.rows,
            shards=len(survey.numbers),
            outputs=products,
            table=_write_table(survey, folder, files, closing),
            fingerprints=survey.fingerprints,
            items=_write_items(layer, items, folder, files, closing) if items else None,
        )


def _write_table(survey: Survey, folder: Path, files: OpenFiles, closing: ExitStack) -> File:
    dtype, blocks = survey.table()
    npy = NpyFile(folder / SHARDS, dtype, (len(survey.numbers),), files)
    closing.callback(npy.close)
    for block in blocks:
        npy.write(block.tobytes())
    return npy.finish()


def _write_items(layer: Layer, items: Path, folder: Path, files: OpenFiles, closing: ExitStack) -> File:
    """What each row is: the name and the size of a file, or the line of the table."""
    source = layer.source
    assert isinstance(source, ItemsSource), "a list is of items"
    table = CsvFile(folder / ITEMS, source.columns or ("name", "bytes"), files)
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
    """Where each kept segment of a shard goes."""

    def __init__(self, survey: Survey, folder: Path, open_files: OpenFiles, closing: ExitStack) -> None:
        self._survey, self._folder, self._open, self._closing = survey, folder, open_files, closing
        self.targets: list[NpyFile | Offsets | FileTables | FilesOut] = []
        self._files: dict[str, list[NpyFile]] = {}
        self._folders: dict[str, FilesOut] = {}
        self._ragged: list[tuple[Offsets, int, int]] = []  # with the segment of its values, and a value's bytes
        for output in survey.layout.kept:
            if output.form == "ragged":
                self._add_ragged(output)
            elif output.form == "files":
                self._add_files(output)
            else:
                self.targets.append(self._create(output, "", output.dtype, (survey.rows, *output.shape)))

    def adds_up(self, sizes: list[int]) -> bool:
        """After a shard: whether its lengths are those of its values."""
        counted = [offsets.counted() for offsets, _, _ in self._ragged]
        return counted == [sizes[segment] // unit for _, segment, unit in self._ragged]

    def add_sum(self, output: Output, total: Array) -> None:
        self._create(output, "", total.dtype.str, total.shape).write(total.tobytes())

    def finish(self, outputs: tuple[Output, ...]) -> tuple[Product, ...]:
        """Every file durable."""
        return tuple(self._product(output) for output in outputs)

    def _product(self, output: Output) -> Product:
        if output.form == "files":
            folder = self._folders[output.name]
            return Product(output.name, output.form, (folder.finish(),), folder.nbytes)
        return Product(output.name, output.form, tuple(npy.finish() for npy in self._files[output.name]))

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
        self._ragged.append((offsets, segment, unit))

    def _create(self, output: Output, suffix: str, dtype: str, shape: tuple[int, ...]) -> NpyFile:
        npy = NpyFile(self._folder / f"{output.name}{suffix}.npy", np.dtype(dtype), shape, self._open)
        self._closing.callback(npy.close)
        self._files.setdefault(output.name, []).append(npy)
        return npy


class _Pass:
    """The one pass over all bytes."""

    def __init__(self, survey: Survey, folder: Path, files: OpenFiles, closing: ExitStack) -> None:
        self._survey = survey
        self._sinks = _Sinks(survey, folder, files, closing)
        self._sums = Sums(survey.layout)
        self._reader = _Reader(survey.sources)
        closing.callback(self._reader.close)

    def run(self) -> tuple[Product, ...]:
        apart = bool(self._survey.layout.sums)
        first_row = 0
        for shard in self._survey.shards():
            self._copy(shard, first_row)
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
