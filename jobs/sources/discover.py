"""Which layers a source has: .npy files below a folder, one .npy, or raw binary. Reads headers, never data."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from muster.jobs.common import names
from muster.jobs.common.errors import SourceError
from muster.jobs.common.locations import located
from muster.jobs.common.validation import nearest, one_line
from muster.jobs.contract.plan import ArraySource, Stamp
from muster.jobs.sources.formats import npy
from muster.jobs.sources.globs import matches

SUFFIX = ".npy"

PathText = Annotated[str, Meta(min_length=1, max_length=4096)]


class SourceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the input is: one of `path` (arrays), `files` (a pattern) and `table` (csv). `dtype` and `shape` are for
    raw binary alone."""

    path: PathText | None = None
    layers: Annotated[list[PathText], Meta(min_length=1)] | None = None
    dtype: str | None = None
    shape: Annotated[list[int], Meta(min_length=1, max_length=npy.AXES_LIMIT)] | None = None
    files: PathText | None = None
    table: PathText | None = None

    @property
    def has_items(self) -> bool:
        """Whether it names files or lines, and no arrays."""
        return self.path is None


class FoundLayer(NamedTuple):
    """A layer and the array it is."""

    name: str
    source: ArraySource


def stamp_of(status: os.stat_result) -> Stamp:
    """Which file this is, as a window remembers it."""
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def discover(spec: SourceSpec, base: Path) -> list[FoundLayer]:
    """Every layer of the source, by name. Relative paths start at `base`, the job file's folder."""
    assert spec.path is not None, "items are found by `muster.jobs.sources.list_items`"
    path = _reachable(spec.path, base)
    folder = path.is_dir()
    if spec.dtype is not None and (folder or path.suffix.lower() == SUFFIX):
        raise SourceError(
            f"{one_line(str(path))}: a .npy says its own dtype and shape", "leave `source.dtype` and `source.shape` out"
        )
    files = _files_below(path) if folder else {_layer_name(path.stem, path): path}
    if spec.layers is not None:
        files = _chosen(files, spec.layers)
    return [FoundLayer(name, _opened(files[name], spec)) for name in sorted(files)]


def _reachable(text: str, base: Path) -> Path:
    path = located(base, text)
    try:
        path.stat()
        str(path).encode("utf-8")
    except OSError as error:
        raise _unreadable(path, error, "correct `source.path`; it is relative to the job file") from None
    except ValueError:
        raise SourceError(f"{one_line(str(path))}: not a name in UTF-8", "rename it") from None
    return path


def _unreadable(path: Path, error: OSError, hint: str | None = None) -> SourceError:
    return SourceError(
        f"{one_line(str(path))}: {error.strerror}", hint or "see that the file is there and that you may read it"
    )


# --- names, before any file is opened --------------------------------------------------------------------


def _files_below(root: Path) -> dict[str, Path]:
    """Layer name → file, for every .npy below a folder. Names that start with a dot are passed over, as by a shell."""
    files: dict[str, Path] = {}
    for relative, path in _walk(root, "", frozenset()):
        name = _layer_name(relative[: -len(SUFFIX)], path)
        if name in files:
            raise SourceError(f"{one_line(str(root))}: two files give the layer {name}", "rename one of the two")
        files[name] = path
    if not files:
        raise SourceError(
            f"{one_line(str(root))}: no .npy below this folder", "save arrays there, or correct `source.path`"
        )
    return files


def _walk(folder: Path, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[tuple[str, Path]]:
    """Every .npy with its path below the root. `above` has the folders we came through."""
    try:
        status = folder.stat()
        with os.scandir(folder) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(folder, error) from None
    if len(prefix) > names.LAYER_NAME_LIMIT:
        raise SourceError(
            f"{one_line(str(folder))}: too deep below the source for a layer's name", "move it further up"
        )
    here = (status.st_dev, status.st_ino)
    if here in above:
        raise SourceError(
            f"{one_line(str(folder))}: a folder that holds itself, through a symlink", "remove the symlink"
        )
    for entry in entries:
        if not entry.name.startswith("."):
            yield from _visit(entry, folder, prefix, above | {here})


def _visit(
    entry: os.DirEntry[str], folder: Path, prefix: str, above: frozenset[tuple[int, int]]
) -> Iterator[tuple[str, Path]]:
    is_array = entry.name.lower().endswith(SUFFIX)
    path = folder / entry.name
    if entry.is_symlink():  # stored resolved, so that a symlink that moves is another source only when planned again
        path = Path(os.path.realpath(path))
    if _is_folder(entry, path):
        if is_array:
            raise SourceError(f"{one_line(str(path))}: a folder, named like an array", "rename it")
        yield from _walk(path, f"{prefix}{entry.name}/", above)
    elif is_array:
        yield f"{prefix}{entry.name}", path


def _is_folder(entry: os.DirEntry[str], path: Path) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # a symlink to itself
        raise _unreadable(path, error) from None


def _layer_name(name: str, path: Path) -> str:
    if not names.is_layer(name):
        raise SourceError(
            f"{one_line(str(path))}: {name!r} cannot be a layer's name",
            "rename it: letters, digits, spaces and `_.+@=,-`, not ending in .npy, each part up to 128 characters",
        )
    return name


def _chosen(files: dict[str, Path], globs: list[str]) -> dict[str, Path]:
    """The layers that a glob matches; every glob must match one."""
    chosen: dict[str, Path] = {}
    for i, glob in enumerate(globs):
        matched = {name: path for name, path in files.items() if matches(name, glob)}
        if not matched:
            near = nearest(glob, files)
            known = f"did you mean `{near}`?" if near else f"layers here: {_listed(sorted(files))}"
            raise SourceError(f"source.layers[{i}]: {glob!r} matches no layer", known)
        chosen |= matched
    return chosen


def _listed(known: list[str]) -> str:
    return ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")


# --- headers -----------------------------------------------------------------------------------------------


def _opened(path: Path, spec: SourceSpec) -> ArraySource:
    """The array in one file. Opened without waiting, so that a pipe named like an array cannot hold us."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise SourceError(
                    f"{one_line(str(path))}: not a regular file", "remove it, or leave it out with `source.layers`"
                )
            if spec.dtype is not None and spec.shape is not None:
                header = _raw_header(path, status.st_size, spec.dtype, spec.shape)
            else:
                header = npy.read_header(file, status.st_size, one_line(str(path)))
    except OSError as error:
        raise _unreadable(path, error) from None
    return ArraySource(str(path), header.offset, header.dtype, header.shape, stamp_of(status))


def _raw_header(path: Path, size: int, dtype: str, shape: list[int]) -> npy.NpyHeader:
    """What the job file says of a raw file, its open axis filled in."""
    canonical = npy.canonical_dtype(dtype)
    assert canonical is not None, "the job file was checked"
    row = math.prod(shape[1:]) * npy.itemsize(canonical)
    if size == 0:
        raise SourceError(f"{one_line(str(path))}: the file is empty", "correct `source.path`, or write the file again")
    if shape[0] == -1 and size % row:
        raise SourceError(
            f"{one_line(str(path))}: {size} bytes are not a whole number of rows of {row} bytes",
            "correct `source.shape` or `source.dtype`",
        )
    full = (size // row if shape[0] == -1 else shape[0], *shape[1:])
    npy.check_length(size, canonical, full, one_line(str(path)))
    return npy.NpyHeader(canonical, full, 0)
