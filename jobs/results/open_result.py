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
from muster.jobs.parts.manifest import File, Merged, Product, read_manifest
from muster.jobs.sources.items import is_path

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class RaggedRows:
    """A merged ragged output: `self[i]` has the values of row i."""

    offsets: Array
    values: Array

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
        with self.table.open(encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            next(lines)
            for item, name, nbytes, digest in lines:
                yield FileRow(int(item) if item else None, name, int(nbytes), digest)

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


def open_result(folder: Path) -> MergedLayer:
    """A finished layer's arrays."""
    manifest = read_manifest(folder)
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


def verify_layer(folder: Path) -> list[str]:
    """Read every file again; one line for each that is not what the manifest says. Empty: all is well."""
    try:
        manifest = read_manifest(folder)
    except (IncompleteError, DamagedError) as error:
        return [error.message]
    checked = [_problem(folder / file.file, file.bytes, file.digest) for file in manifest.files]
    if any(checked):
        return [problem for problem in checked if problem]
    written = [written_files(folder, product) for product in manifest.outputs if product.form == "files"]
    found = (_problem(one.folder / row.name, row.bytes, row.digest) for one in written for row in one.rows())
    return [problem for problem in found if problem]


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
