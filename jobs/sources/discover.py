"""Which layers a source has: .npy or raw files below a folder, one .npy, one raw file. Reads headers, never data."""

from __future__ import annotations

import math
import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from muster.jobs.common import names
from muster.jobs.common.errors import SourceError
from muster.jobs.common.locations import located
from muster.jobs.common.units import counted
from muster.jobs.common.validation import nearest, one_line
from muster.jobs.contract.plan import ArraySource, Stamp
from muster.jobs.sources.formats import npy
from muster.jobs.sources.globs import leads_into, matches

SUFFIX = ".npy"
ARCHIVE = ".npz"  # of numpy: several arrays in one file
_LEAVE_OUT = "leave it out with `source.layers`"

PathText = Annotated[str, Meta(min_length=1, max_length=4096)]


class SourceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the input is: one of `path` (arrays), `files` (a pattern), `names` (a list of files) and `table` (csv).
    `dtype` and `shape` are for raw binary alone, and in a folder hold for each file."""

    path: PathText | None = None
    layers: Annotated[list[PathText], Meta(min_length=1)] | None = None
    dtype: str | None = None
    shape: Annotated[list[int], Meta(min_length=1, max_length=npy.AXES_LIMIT)] | None = None
    files: PathText | None = None
    names: PathText | None = None
    table: PathText | None = None

    @property
    def has_items(self) -> bool:
        """Whether it names files or lines, and no arrays."""
        return self.path is None

    def asks_for(self, layer: str) -> bool:
        """Whether a layer of this name is wanted."""
        return self.layers is None or any(matches(layer, glob) for glob in self.layers)

    def asks_below(self, folder: str) -> bool:
        """Whether a layer below this folder could be wanted; "" is the source's own."""
        return self.layers is None or not folder or any(leads_into(folder, glob) for glob in self.layers)


class FoundLayer(NamedTuple):
    """A layer and the array it is."""

    name: str
    source: ArraySource


class Discovered(NamedTuple):
    """The layers of a source, by name, and a line for people on each sort of file that was left out of them."""

    layers: list[FoundLayer]
    notes: tuple[str, ...]


def stamp_of(status: os.stat_result) -> Stamp:
    """Which file this is, as a window remembers it."""
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def discover(spec: SourceSpec, base: Path) -> Discovered:
    """What the source has. Relative paths start at `base`, the job file's folder."""
    assert spec.path is not None, "items are found by `muster.jobs.sources.list_items`"
    path = _reachable(spec.path, base)
    notes: tuple[str, ...] = ()
    if path.is_dir():
        files, notes = _files_below(path, spec)
    elif spec.dtype is not None and path.suffix.lower() == SUFFIX:
        raise _says_its_own(path)
    else:
        files = {_layer_name(path.stem, path): path}
    if spec.layers is not None:
        files = _chosen(files, spec.layers)
    return Discovered([FoundLayer(name, _opened(files[name], spec)) for name in sorted(files)], notes)


def _says_its_own(path: Path) -> SourceError:
    return SourceError(
        f"{one_line(str(path))}: a .npy says its own dtype and shape", "leave `source.dtype` and `source.shape` out"
    )


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


class _Entry(NamedTuple):
    """A file below the source's folder."""

    relative: str
    path: Path
    problem: SourceError | None = None  # why it can be no layer

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.relative).suffix.lower()

    @property
    def stem(self) -> str:
        """Its path without the last suffix."""
        return self.relative.removesuffix(PurePosixPath(self.relative).suffix)


def _files_below(root: Path, spec: SourceSpec) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Layer name → file, and what is said of files that were left out. Names that start with a dot are passed over, as
    by a shell. What is wrong with a file that nobody asked for is of no interest."""
    arrays, others = list[_Entry](), Counter[str]()
    for entry in _walk(root, "", frozenset(), spec):
        is_array = entry.suffix == SUFFIX if spec.dtype is None else entry.suffix not in (SUFFIX, ARCHIVE)
        if is_array:
            arrays.append(entry)
        elif spec.asks_for(entry.stem) and entry.problem is None:
            others[entry.suffix] += 1
    if not arrays:
        raise _no_array(root, others, spec.dtype is not None)
    files: dict[str, Path] = {}
    for name, entry in _named(arrays, spec.dtype is not None):
        if not spec.asks_for(name):
            files.setdefault(name, entry.path)  # known by its name where a glob matches none
            continue
        if entry.problem is not None:
            raise entry.problem
        if _layer_name(name, entry.path) in files:
            raise SourceError(f"{one_line(str(root))}: two files give the layer {name}", "rename one of them")
        files[name] = entry.path
    return files, tuple(_skipped(suffix, others[suffix]) for suffix in sorted(others))


def _named(entries: list[_Entry], raw: bool) -> Iterator[tuple[str, _Entry]]:
    """Each with its layer's name: its path without the suffix. Raw files that would share one keep their suffixes."""
    alike = Counter(entry.stem for entry in entries)
    for entry in entries:
        yield (entry.relative if raw and alike[entry.stem] > 1 else entry.stem), entry


def _skipped(suffix: str, count: int) -> str:
    said = f"skipped: {counted(count, f'{suffix} file')}, "
    if suffix == ARCHIVE:
        return said + "archives of several arrays; to have those as layers, save each by `np.save` as a .npy"
    return said + "which say their own dtype and shape; a job without `source.dtype` and `source.shape` has them"


def _no_array(root: Path, others: Counter[str], raw: bool) -> SourceError:
    if raw and others[SUFFIX]:
        return _says_its_own(root)
    what = "file" if raw else ".npy"
    if others[ARCHIVE]:
        wrong = f"{one_line(str(root))}: no {what} below this folder but {others[ARCHIVE]:,} of {ARCHIVE}"
        return SourceError(wrong, "an .npz is an archive of several arrays; save each by `np.save` as a .npy")
    return SourceError(
        f"{one_line(str(root))}: no {what} below this folder", "save arrays there, or correct `source.path`"
    )


def _walk(folder: Path, prefix: str, above: frozenset[tuple[int, int]], spec: SourceSpec) -> Iterator[_Entry]:
    """Every file that may be an array, with its path below the root. `above` has the folders we came through. A folder
    that cannot be walked is passed over where no layer below it was asked for."""
    try:
        entries, here = _entries(folder, prefix, above)
    except SourceError:
        if spec.asks_below(prefix.rstrip("/")):
            raise
        return
    for entry in entries:
        if not entry.name.startswith("."):
            yield from _visit(entry, folder, prefix, above | {here}, spec)


def _entries(
    folder: Path, prefix: str, above: frozenset[tuple[int, int]]
) -> tuple[list[os.DirEntry[str]], tuple[int, int]]:
    """What is in a folder, and which one it is."""
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
    return entries, here


def _visit(
    entry: os.DirEntry[str], folder: Path, prefix: str, above: frozenset[tuple[int, int]], spec: SourceSpec
) -> Iterator[_Entry]:
    relative, path = f"{prefix}{entry.name}", folder / entry.name
    is_array = entry.name.lower().endswith(SUFFIX)
    is_file = is_array or spec.dtype is not None or entry.name.lower().endswith(ARCHIVE)
    if entry.is_symlink():  # stored resolved, so that a symlink that moves is another source only when planned again
        path = Path(os.path.realpath(path))
    try:
        is_folder = entry.is_dir()
    except OSError as error:  # a symlink to itself
        if is_file:
            yield _Entry(relative, path, _unreadable(path, error))
        elif spec.asks_below(relative):
            raise _unreadable(path, error) from None
        return
    if is_folder and is_array and spec.dtype is None:
        yield _Entry(relative, path, SourceError(f"{one_line(str(path))}: a folder, named like an array", "rename it"))
    elif is_folder:
        yield from _walk(path, f"{relative}/", above, spec)
    elif is_file:
        yield _Entry(relative, path)


def _layer_name(name: str, path: Path) -> str:
    if not names.is_layer(name):
        raise SourceError(
            f"{one_line(str(path))}: {name!r} cannot be a layer's name",
            "rename it: letters, digits, spaces and `_.+@=,-`, not ending in .npy, each part up to 128 characters; or"
            f" {_LEAVE_OUT}",
        )
    return name


def _chosen(files: dict[str, Path], globs: list[str]) -> dict[str, Path]:
    """The layers that a glob matches; every glob must match one."""
    chosen: dict[str, Path] = {}
    for i, glob in enumerate(globs):
        matched = {name: path for name, path in files.items() if matches(name, glob)}
        if not matched:
            known = sorted(filter(names.is_layer, files))
            near = nearest(glob, known)
            hint = f"did you mean `{near}`?" if near else f"layers here: {_listed(known)}"
            raise SourceError(f"source.layers[{i}]: {glob!r} matches no layer", hint)
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
                raise SourceError(f"{one_line(str(path))}: not a regular file", f"remove it, or {_LEAVE_OUT}")
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
        raise SourceError(f"{one_line(str(path))}: the file is empty", f"write the file again, or {_LEAVE_OUT}")
    if shape[0] == -1 and size % row:
        raise SourceError(
            f"{one_line(str(path))}: {size} bytes are not a whole number of rows of {row} bytes",
            f"correct `source.shape` or `source.dtype`, or {_LEAVE_OUT}",
        )
    full = (size // row if shape[0] == -1 else shape[0], *shape[1:])
    npy.check_length(size, canonical, full, one_line(str(path)))
    return npy.NpyHeader(canonical, full, 0)
