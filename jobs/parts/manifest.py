"""What a merged layer says of itself: its manifest, written and read. Opens no arrays, and imports no numpy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Literal

import msgspec

from muster.jobs.common.errors import DamagedError, IncompleteError
from muster.jobs.common.hashing import of_bytes
from muster.jobs.common.names import is_digest, is_plain
from muster.jobs.common.validation import one_line

FORMAT = 1
PARTIAL_FORMAT = 2  # a number of its own, so that no version takes what lacks rows for a result
MANIFEST = "manifest.json"
SHARDS = "shards.npy"
ITEMS = "items.csv"
ITEM_COLUMNS = ("name", "bytes")  # of its lines, where items are files
CSV = "csv"  # in place of a dtype
NAME_BYTES = 128  # of a file of a result; output names have 64
BYTES_LIMIT = 1 << 53  # of one file


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
    rounds: tuple[int, ...] = ()  # of a training: in how many each of `fingerprints` had a part

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


class Partial(Merged, frozen=True):
    """What a layer's manifest says where shards may be missing. `shards` are those that are there."""

    partial: bool = True
    missing_shards: int = 0
    missing_rows: tuple[tuple[int, int], ...] = ()  # ranges [start, stop) of rows of the arrays that have no result


def encode_manifest(manifest: Merged) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def read_manifest(folder: Path, known: str | None = None, partial: bool = False) -> Merged:
    """The manifest of a finished layer; an IncompleteError where there is none. `known`: the digest that it has, where
    somebody kept it; a DamagedError for any other. `partial`: whether one may be a `Partial`."""
    try:
        raw = (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise IncompleteError(f"{folder}: not a finished layer: it has no {MANIFEST}") from None
    if known is not None and of_bytes(raw) != known:
        raise DamagedError(f"{folder / MANIFEST}: it is not what was written: its digest is another")
    return decode_manifest(raw, str(folder / MANIFEST), partial)


def decode_manifest(raw: bytes, where: str, partial: bool = False) -> Merged:
    """What somebody wrote there, whoever it was; a DamagedError unless it names files beside it and nothing else."""
    try:
        manifest: Merged = msgspec.json.decode(raw, type=Merged)
        if manifest.format == PARTIAL_FORMAT:
            manifest = msgspec.json.decode(raw, type=Partial)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DamagedError(f"{where}: {one_line(str(error))}") from None
    if isinstance(manifest, Partial) and not partial:
        hint = "`coordinator result JOB` has whole layers alone"
        raise IncompleteError(f"{where}: of a layer that was merged while shards of it were missing", hint)
    if manifest.format != FORMAT and not isinstance(manifest, Partial):
        raise DamagedError(f"{where}: format {manifest.format}, this is muster for format {FORMAT}")
    if wrong := _wrong(manifest):
        raise DamagedError(f"{where}: {wrong}")
    return manifest


def _wrong(manifest: Merged) -> str:
    """What cannot be in it; "" where all can."""
    for product in manifest.outputs:
        if not is_plain(product.name) or product.bytes < 0:
            return f"an output {product.name[:80]!r} of {product.bytes} bytes"
        if len(product.files) != (2 if product.form == "ragged" else 1):
            return f"output {product.name} of form {product.form} in {len(product.files)} files"
    for file in manifest.files:
        if not _is_file(file.file) or not is_digest(file.digest):
            return f"a file {file.file[:80]!r} of digest {file.digest[:80]!r}"
        if not 0 <= file.bytes <= BYTES_LIMIT or min(file.shape, default=0) < 0:
            return f"{file.file}: {file.bytes} bytes of shape {file.shape!r:.80}"
    names = [*(file.file for file in manifest.files), *manifest.folders]
    return "two files of the same name" if len(set(names)) < len(names) else ""


def _is_file(name: str) -> bool:
    plain = 0 < len(name.encode(errors="replace")) <= NAME_BYTES and name.isprintable() and "/" not in name
    return plain and name != MANIFEST and not name.startswith(".")


def link_files(manifest: Merged, there: Path, here: Path) -> None:
    """All but the manifest of a layer's result, as hard links: either may go without harm to the other."""
    for file in manifest.files:
        os.link(there / file.file, here / file.file)
    for folder in manifest.folders:
        shutil.copytree(there / folder, here / folder, copy_function=os.link)


def folders_of_files(layer: Path) -> list[Path]:
    """The folders of written files in a layer's result: each has its table beside it; others are other layers'."""
    tables = [path for path in layer.iterdir() if path.suffix == ".csv"]
    return [path.with_suffix("") for path in tables if path.with_suffix("").is_dir()]
