"""What a merged layer says of itself: its manifest, written and read. Opens no arrays, and imports no numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from muster.jobs.common.errors import DamagedError, IncompleteError
from muster.jobs.common.hashing import of_bytes

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


def encode_manifest(manifest: Merged) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def read_manifest(folder: Path, known: str | None = None) -> Merged:
    """The manifest of a finished layer; an IncompleteError where there is none. `known`: the digest that it has, where
    somebody kept it; a DamagedError for any other."""
    try:
        raw = (folder / MANIFEST).read_bytes()
        if known is not None and of_bytes(raw) != known:
            raise DamagedError(f"{folder / MANIFEST}: it is not what was written: its digest is another")
        manifest = msgspec.json.decode(raw, type=Merged)
    except FileNotFoundError:
        raise IncompleteError(f"{folder}: not a finished layer: it has no {MANIFEST}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise DamagedError(f"{folder / MANIFEST}: {error}") from None
    if manifest.format != FORMAT:
        raise DamagedError(f"{folder / MANIFEST}: format {manifest.format}, this is muster for format {FORMAT}")
    return manifest


def folders_of_files(layer: Path) -> list[Path]:
    """The folders of written files in a layer's result: each has its table beside it; others are other layers'."""
    tables = [path for path in layer.iterdir() if path.suffix == ".csv"]
    return [path.with_suffix("") for path in tables if path.with_suffix("").is_dir()]
