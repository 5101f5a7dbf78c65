"""Formats whose rows no machine can read as they lie in the file: how each is known, and what to do instead."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from muster.jobs.common.errors import SourceError
from muster.jobs.common.validation import one_line

EXAMPLE = "docs/examples/tables.md"
TABLES: Mapping[str, str] = {
    ".parquet": "Parquet", ".pq": "Parquet", ".arrow": "Arrow", ".feather": "Arrow",
}  # fmt: skip
STORE = ".zarr"  # a folder
SOURCES = {STORE: "table: rows.csv"}  # of a job over what is no file
CHECKPOINTS = frozenset({".pt", ".pth", ".ckpt", ".bin"})  # of torch, where their bytes agree
SUFFIXES = (*TABLES, STORE, *sorted(CHECKPOINTS - {".bin"}))  # of files that a folder of layers may have
IN_STORES = ("zarr.json", ".zgroup", ".zarray")  # one of which is in each folder that is a zarr
_STARTS = {b"PAR1": "Parquet", b"ARROW1": "Arrow"}
_PICKLES = (b"PK\x03\x04", b"\x80\x02")  # of torch.save, today and before 1.6
_CONVERT = (
    "import sys, torch; from safetensors.torch import save_file; found = torch.load(sys.argv[1], 'cpu',"
    " weights_only=True); save_file({name: one.clone().contiguous() for name, one in found.items()}, sys.argv[2])"
)


def as_items(told: str, source: str) -> SourceError:
    """The refusal of what only a library can read, with the source of a job whose function uses one."""
    hint = f"let a function read it: `kind: map` with `source: {{{source}}}`, as {EXAMPLE} does"
    return SourceError(told, hint)


def refusal(path: Path, name: str, start: bytes) -> SourceError | None:
    """Why a file of this name that starts so is no source of rows, where that is known."""
    suffix, where = Path(name).suffix.lower(), one_line(str(path))
    found = TABLES.get(suffix) or next((one for magic, one in _STARTS.items() if start.startswith(magic)), None)
    if found is not None:
        return as_items(f"{where}: {found}, whose rows are encoded", f'files: "*{suffix}"')
    if suffix in CHECKPOINTS and start.startswith(_PICKLES):
        return checkpoint(path)
    return None


def store(folder: Path) -> SourceError:
    """The refusal of a folder that is a zarr."""
    return as_items(f"{one_line(str(folder))}: zarr, whose rows lie in chunks", SOURCES[STORE])


def checkpoint(path: Path) -> SourceError:
    """The refusal of what torch.save wrote, with the line that converts it."""
    source, target = (shlex.quote(one_line(str(one))) for one in (path, path.with_suffix(".safetensors")))
    line = f'python -c "{_CONVERT}" {source} {target}'
    return SourceError(f"{one_line(str(path))}: a checkpoint of torch.save, which is a pickle", f"convert it: {line}")
