"""A merged layer on disk: its manifest, opening it, and checking it against what it says of itself. Never merges."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from muster.jobs.common import hashing
from muster.jobs.common.errors import DamagedError, IncompleteError
from muster.jobs.common.names import is_digest
from muster.jobs.common.validation import one_line
from muster.jobs.contract.plan import ItemsSource, Layer, MadeSource
from muster.jobs.parts.manifest import (
    BYTES_LIMIT,
    CSV,
    FORMAT,
    ITEMS,
    MANIFEST,
    SHARDS,
    File,
    Merged,
    Product,
    read_manifest,
)
from muster.jobs.sources.items import is_path

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class RaggedRows:
    """A merged ragged output: `self[i]` has the values of row i."""

    offsets: Array
    values: Array

    def __repr__(self) -> str:
        return f"<RaggedRows: {len(self):,} rows, {len(self.values):,} values of {self.values.dtype}>"

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Array:
        found: Array = self.values[self.offsets[row] : self.offsets[row + 1]]
        return found


class FileRow(NamedTuple):
    """A line of the table of a `files` output."""

    item: int | None  # the file's; None where it is named after none
    name: str
    bytes: int
    digest: str  # xxh3_128, in hex


FILE_COLUMNS = FileRow._fields


@dataclass(frozen=True)
class WrittenFiles(Mapping[str, Path]):
    """A merged files output: names in the order of their items, each with where the file is."""

    folder: Path
    table: Path

    def rows(self) -> Iterator[FileRow]:
        """A DamagedError at the first that cannot be: the table may be another machine's."""
        with self.table.open(encoding="utf-8", newline="") as file:
            try:
                lines = csv.reader(file)
                next(lines, None)
                for item, name, nbytes, digest in lines:
                    row = FileRow(int(item) if item else None, name, int(nbytes), digest)
                    if not (is_path(name) and is_digest(digest) and 0 <= row.bytes <= BYTES_LIMIT):
                        raise DamagedError(f"{self.table}: {name[:80]!r} of {row.bytes} bytes, digest {digest[:80]!r}")
                    yield row
            except (ValueError, csv.Error) as error:
                raise DamagedError(f"{self.table}: line {lines.line_num}: {one_line(str(error))[:200]}") from None

    def __iter__(self) -> Iterator[str]:
        return (row.name for row in self.rows())

    def __len__(self) -> int:
        return sum(1 for _ in self.rows())

    def __getitem__(self, name: str) -> Path:
        path = self.folder / name
        if not (is_path(name) and path.is_file()):
            raise KeyError(name)
        return path


@dataclass(frozen=True)
class MergedLayer:
    """A layer's result, its arrays mapped and not loaded."""

    manifest: Merged
    outputs: Mapping[str, Array | RaggedRows | WrittenFiles]
    shards: Array

    def __repr__(self) -> str:
        return f"<MergedLayer: {len(self.shards):,} shards, outputs {', '.join(self.outputs)[:80]}>"


def open_result(folder: Path, partial: bool = False) -> MergedLayer:
    """A finished layer's arrays. `partial`: or those of one that was merged while shards of it were missing."""
    manifest = read_manifest(folder, partial=partial)
    outputs = {product.name: _open_product(folder, product) for product in manifest.outputs}
    return MergedLayer(manifest, outputs, _open_file(folder, manifest.table))


def _open_product(folder: Path, product: Product) -> Array | RaggedRows | WrittenFiles:
    if product.form == "files":
        return written_files(folder, product)
    arrays = [_open_file(folder, file) for file in product.files]
    return RaggedRows(*arrays) if product.form == "ragged" else arrays[0]


def written_files(folder: Path, product: Product) -> WrittenFiles:
    return WrittenFiles(folder / product.name, folder / product.files[0].file)


def _open_file(folder: Path, file: File) -> Array:
    empty = 0 in file.shape  # and nothing cannot be mapped
    array: Array = np.load(folder / file.file, mmap_mode=None if empty else "r", allow_pickle=False)
    return array


def verify_layer(folder: Path, job: str = "", layer: Layer | None = None, known: str | None = None) -> list[str]:
    """Read every file again; one line for each that is not what the manifest says, and for what of that cannot be of
    `layer` of `job`. `known`: the digest that the manifest has, where it was kept. Empty: all is well."""
    try:
        manifest = read_manifest(folder, known)
    except (IncompleteError, DamagedError) as error:
        return [error.message]
    checked = [_problem(folder / file.file, file.bytes, file.digest) for file in manifest.files]
    if any(checked):
        return [problem for problem in checked if problem]
    try:
        wrong = list(_contradictions(folder, manifest, job, layer))
        written = [written_files(folder, product) for product in manifest.outputs if product.form == "files"]
        found = (_problem(one.folder / row.name, row.bytes, row.digest) for one in written for row in one.rows())
        return wrong + [problem for problem in found if problem]
    except (OSError, ValueError, csv.Error, UnicodeDecodeError) as error:  # a file that is another's, by its name
        return [f"{folder / MANIFEST}: names what is no file of a result: {error}"]


def _contradictions(folder: Path, manifest: Merged, job: str, layer: Layer | None) -> Iterator[str]:
    """What a manifest says of its files and of `layer`, derived again and compared: a line for each that differs."""
    told = {
        "format": (manifest.format, FORMAT),
        "table": (manifest.table.file, SHARDS),
        "items": (manifest.items.file if manifest.items else ITEMS, ITEMS),
        **_of_layer(manifest, job, layer),
        **_of_table(folder, manifest),
    }
    for product in manifest.outputs:
        told[f"files of {product.name}"] = ([file.file for file in product.files], _names_of(product))
        rows = written_files(folder, product).rows() if product.form == "files" else iter(())
        told[f"bytes of {product.name}"] = (product.bytes, sum(row.bytes for row in rows))
    for file in manifest.files:
        told[f"form of {file.file}"] = ((file.dtype, file.shape), _form_of(folder, file, file in manifest.more))
    yield from (
        f"{folder / MANIFEST}: {what} is {said!r}, not {true!r}" for what, (said, true) in told.items() if said != true
    )


def _of_layer(manifest: Merged, job: str, layer: Layer | None) -> dict[str, tuple[Any, Any]]:
    """What the plan knows. Of a made layer that is less: it grew."""
    if layer is None:
        return {}
    told: dict[str, tuple[Any, Any]] = {
        "job": (manifest.job, job),
        "layer": (manifest.layer, layer.name),
        "digest": (manifest.digest, layer.digest),
    }
    if not isinstance(layer.source, MadeSource):
        listed = isinstance(layer.source, ItemsSource)
        told |= {
            "shards": (manifest.shards, len(layer.numbers)),
            "rows": (manifest.rows, len(layer.run_rows)),
            "list of items": (manifest.items is not None, listed),
        }
    if layer.outputs is not None and not layer.delivery.in_rounds:
        said = [(product.name, product.form) for product in manifest.outputs]
        told["outputs"] = (said, [(output.name, output.form) for output in layer.outputs])
    return told


def _of_table(folder: Path, manifest: Merged) -> dict[str, tuple[Any, Any]]:
    """What `shards.npy` knows. A training's is empty, and without columns: it has a count of rounds for each."""
    table = _open_file(folder, manifest.table)
    columns = table.dtype.names is not None
    prints = sorted(set(table["fingerprint"].tolist())) if columns else list(range(len(manifest.rounds)))
    return {
        "number of shards": (manifest.shards, len(table)),
        "number of rows": (manifest.rows, int(table["rows"].sum()) if columns else 0),
        "fingerprints": (list(range(len(manifest.fingerprints))), prints),
        "number of counts of rounds": (len(manifest.rounds), 0 if columns else len(prints)),
    }


def _form_of(folder: Path, file: File, more: bool) -> tuple[str, tuple[int, ...]]:
    """A file's dtype and shape, by what is in it."""
    if more:
        return "", ()
    if file.file.endswith(".npy"):
        array = _open_file(folder, file)
        return dtype_text(array.dtype), array.shape
    with (folder / file.file).open(encoding="utf-8", newline="") as opened:
        lines = csv.reader(opened)
        columns = len(next(lines, ()))
        return CSV, (sum(1 for _ in lines), columns)


def dtype_text(dtype: np.dtype[Any]) -> str:
    """What a manifest calls it."""
    return dtype.str if dtype.names is None else str(dtype.descr)


def _names_of(product: Product) -> list[str]:
    """The files that an output of this form has."""
    endings = {"ragged": (".offsets.npy", ".values.npy"), "files": (".csv",)}.get(product.form, (".npy",))
    return [f"{product.name}{ending}" for ending in endings]


def _problem(path: Path, nbytes: int, wanted: str) -> str:
    try:
        size = path.stat().st_size
        if size != nbytes:
            return f"{path}: has {size} bytes, not {nbytes}"
        with path.open("rb", buffering=0) as opened:
            digest = hashing.of_file(opened.fileno())
        return "" if digest == wanted else f"{path}: its bytes do not match their digest"
    except OSError as error:
        return f"{path}: {error.strerror}"
