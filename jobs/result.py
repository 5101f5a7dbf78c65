"""A merged layer on disk: its manifest, opening it, and checking it against what it says of itself. Never merges."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from jobs import checksum
from jobs.errors import DamagedError, IncompleteError
from jobs.items import is_path

Array = np.ndarray[Any, Any]

FORMAT = 1
MANIFEST = "manifest.json"
SHARDS = "shards.npy"
ITEMS = "items.csv"
CSV = "csv"  # in place of a dtype


class File(msgspec.Struct, frozen=True):
    """One .npy of a result; in `Merged.more` any file, and then it has neither dtype nor shape."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int  # of the whole file
    digest: str  # xxh3_128 of the whole file, in hex


class Product(msgspec.Struct, frozen=True):
    """One output: `rows` and `sum` are one file, `ragged` is offsets (one more than rows) and values, `files` is the
    table of what lies in the folder of the output's name."""

    name: str
    form: Literal["rows", "ragged", "sum", "files"]
    files: tuple[File, ...]
    bytes: int = 0  # of `files`: what is in the folder


class Merged(msgspec.Struct, frozen=True):
    """What a layer's manifest says. `shards` in the table refer to `fingerprints` by position."""

    format: int
    job: str
    layer: str
    digest: str
    rows: int
    shards: int
    outputs: tuple[Product, ...]
    table: File
    fingerprints: tuple[str, ...]
    items: File | None = None  # what each row is, where the source is a list: its dtype is "csv"
    more: tuple[File, ...] = ()  # files beside the outputs, in formats of their own

    @property
    def files(self) -> tuple[File, ...]:
        listed = (self.items,) if self.items else ()
        return (*(file for product in self.outputs for file in product.files), self.table, *listed, *self.more)

    @property
    def nbytes(self) -> int:
        return sum(file.bytes for file in self.files) + sum(product.bytes for product in self.outputs)

    @property
    def folders(self) -> tuple[str, ...]:
        """Of files that belong to the result."""
        return tuple(product.name for product in self.outputs if product.form == "files")


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


def encode_manifest(manifest: Merged) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def read_manifest(folder: Path) -> Merged:
    """The manifest of a finished layer; an IncompleteError where there is none."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Merged)
    except FileNotFoundError:
        raise IncompleteError(f"{folder}: not a finished layer: it has no {MANIFEST}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise DamagedError(f"{folder / MANIFEST}: {error}") from None
    if manifest.format != FORMAT:
        raise DamagedError(f"{folder / MANIFEST}: format {manifest.format}, this is muster for format {FORMAT}")
    return manifest


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
            digest = checksum.of_file(opened.fileno())
        return "" if digest == wanted else f"{path}: its bytes do not match their digest"
    except OSError as error:
        return f"{path}: {error.strerror}"
