"""Which layers a source has: the arrays of the files below a folder, or of one file. Reads headers, never data."""

from __future__ import annotations

import math
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from typing import Annotated, BinaryIO, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from muster.jobs.common import names
from muster.jobs.common.errors import SourceError
from muster.jobs.common.locations import located
from muster.jobs.common.units import counted
from muster.jobs.common.validation import nearest, one_line
from muster.jobs.contract.plan import BF16, ArraySource, Stamp
from muster.jobs.sources.formats import hdf5, npy, npz, safetensors, unreadable
from muster.jobs.sources.formats.header import AXES_LIMIT, Header, Member, NoRows
from muster.jobs.sources.globs import leads_into, matches
from muster.jobs.sources.walk_folder import Entry, Wanted, cannot_open, files_below

Read = Callable[[BinaryIO, int, str], list[Member]]
T = TypeVar("T")

# Of files that have several arrays, by their suffix
READERS: Mapping[str, Read] = {
    safetensors.SUFFIX: safetensors.members,
    npz.SUFFIX: npz.members,
    **dict.fromkeys(hdf5.SUFFIXES, hdf5.members),
}
# A folder's layers are of one format: of the first that it has
FORMATS = ((npy.SUFFIX,), (safetensors.SUFFIX, safetensors.INDEX), (npz.SUFFIX,), hdf5.SUFFIXES)
KNOWN = tuple(suffix for suffixes in FORMATS for suffix in suffixes)
_LEAVE_OUT = "leave it out with `source.layers`"

PathText = Annotated[str, Meta(min_length=1, max_length=4096)]


class SourceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the input is: one of `path` (arrays), `files` (a pattern), `names` (a list of files) and `table` (csv).
    `dtype` and `shape` are for raw binary alone, and in a folder hold for each file. `pattern` is of the files of a
    folder that are looked at, `layers` of the layers that are wanted."""

    path: PathText | None = None
    layers: Annotated[list[PathText], Meta(min_length=1)] | None = None
    dtype: str | None = None
    shape: Annotated[list[int], Meta(min_length=1, max_length=AXES_LIMIT)] | None = None
    files: PathText | None = None
    names: PathText | None = None
    table: PathText | None = None
    pattern: PathText | None = None

    @property
    def has_items(self) -> bool:
        """Whether it names files or lines, and no arrays."""
        return self.path is None

    @property
    def is_raw(self) -> bool:
        return self.dtype is not None

    def asks_for(self, layer: str) -> bool:
        """Whether a layer of this name is wanted."""
        return self.layers is None or any(matches(layer, glob) for glob in self.layers)

    def looks_at(self, relative: str) -> bool:
        """Whether a file of this name below the source's folder may have layers."""
        return self.pattern is None or matches(relative, self.pattern)

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


class _Candidate(NamedTuple):
    """A layer that there may be."""

    name: str
    path: Path
    open: Callable[[], ArraySource]


def discover(spec: SourceSpec, base: Path) -> Discovered:
    """What the source has. Relative paths start at `base`, the job file's folder."""
    assert spec.path is not None, "items are found by `muster.jobs.sources.list_items`"
    path = _reachable(spec.path, base)
    rowless: list[str] = []
    if path.is_dir():
        candidates, notes = _in_folder(path, spec, rowless)
    else:
        named, notes = Path(base, os.path.expanduser(spec.path)), []  # noqa: PTH111 as `located` does
        candidates = _in_file(path, named, spec, rowless)
    layers = _by_name(path, candidates, spec)
    if not layers:
        raise SourceError(
            f"{one_line(str(path))}: no array that has rows", "save arrays whose first axis counts the rows"
        )
    if spec.layers is not None:
        layers = _chosen(layers, spec.layers)
    if rowless:
        notes.append(f"skipped: {counted(len(rowless), 'array')} without rows, such as {one_line(rowless[0][:80])}")
    return Discovered([FoundLayer(name, layers[name].open()) for name in sorted(layers)], tuple(notes))


def _says_its_own(path: Path, suffix: str) -> SourceError:
    return SourceError(
        f"{one_line(str(path))}: a {suffix} says its own dtype and shape", "leave `source.dtype` and `source.shape` out"
    )


def _reachable(text: str, base: Path) -> Path:
    path = located(base, text)
    try:
        path.stat()
        str(path).encode("utf-8")
    except OSError as error:
        raise cannot_open(path, error, "correct `source.path`; it is relative to the job file") from None
    except ValueError:
        raise SourceError(f"{one_line(str(path))}: not a name in UTF-8", "rename it") from None
    return path


# --- which arrays there are --------------------------------------------------------------------------------


def _in_file(path: Path, named: Path, spec: SourceSpec, rowless: list[str]) -> Iterator[_Candidate]:
    """The layers of one file. `named`: as the job file has it, which may be a link to a file of any name."""
    if spec.pattern is not None:
        raise SourceError(f"source.pattern: {one_line(str(path))} is no folder", "leave `pattern` out")
    ending = _ending(named.name)
    if spec.is_raw and ending in KNOWN:
        raise _says_its_own(path, ending)
    if spec.is_raw or ending not in (*READERS, safetensors.INDEX):
        yield _Candidate(path.stem, path, partial(_alone, path, named.name, spec))
    else:
        yield from _several(path, named, "", rowless, spec)


def _in_folder(root: Path, spec: SourceSpec, rowless: list[str]) -> tuple[Iterator[_Candidate], list[str]]:
    """The layers below a folder, and a line on each sort of file that was left out."""
    if not spec.is_raw and any((root / name).exists() for name in unreadable.IN_STORES):
        raise unreadable.store(root)
    wanted = Wanted(None if spec.is_raw else (*KNOWN, *unreadable.SUFFIXES), spec.asks_below)
    entries = [entry for entry in files_below(root, wanted) if spec.looks_at(entry.relative)]
    if spec.is_raw:
        arrays = [entry for entry in entries if entry.suffix not in KNOWN]
    else:
        arrays = _of_one_format(entries, spec)
    if not arrays:
        raise _no_array(root, entries, spec.is_raw)
    others = Counter(entry.suffix for entry in entries if entry.suffix in KNOWN and _counts(entry, spec))
    left = sorted(set(others) - {entry.suffix for entry in arrays})
    return _candidates(root, arrays, spec, rowless), [_skipped(suffix, others[suffix], spec.is_raw) for suffix in left]


def _of_one_format(entries: list[Entry], spec: SourceSpec) -> list[Entry]:
    """Those of the first format that has a layer which is asked for, or else that is there at all."""
    for asked in (True, False):
        for suffixes in FORMATS:
            found = [entry for entry in entries if _ending(entry.relative) in suffixes]
            if any(not asked or _is_asked(entry, spec) for entry in found):
                return found
    return []


def _is_asked(entry: Entry, spec: SourceSpec) -> bool:
    return spec.asks_for(entry.stem) if entry.suffix == npy.SUFFIX else spec.asks_below(_stem(entry.relative))


def _counts(entry: Entry, spec: SourceSpec) -> bool:
    """Whether it is of interest that a file was left out."""
    return entry.problem is None and _is_asked(entry, spec)


def _candidates(root: Path, entries: list[Entry], spec: SourceSpec, rowless: list[str]) -> Iterator[_Candidate]:
    """What the files have that may be asked for; of files that have one array each, all, so that their names are known.
    What is wrong with a file that nobody asked for is of no interest."""
    alike = Counter(entry.stem for entry in entries)
    parts = set[str]() if spec.is_raw else _parts_of_indexes(root, entries, spec)
    for entry in entries:
        if spec.is_raw or entry.suffix == npy.SUFFIX:
            name = entry.relative if spec.is_raw and alike[entry.stem] > 1 else entry.stem
            yield _Candidate(name, entry.path, partial(_alone, entry.path, entry.relative, spec, entry.problem))
        elif entry.relative not in parts and _is_asked(entry, spec):
            if entry.problem is not None:
                raise entry.problem
            yield from _several(entry.path, root / entry.relative, f"{_stem(entry.relative)}/", rowless, spec)


def _several(path: Path, named: Path, prefix: str, rowless: list[str], spec: SourceSpec) -> Iterator[_Candidate]:
    """A layer for each array of a file that has several; `rowless` is told of those without rows."""
    ending = _ending(named.name)
    found = _indexed(path, named.parent) if ending == safetensors.INDEX else _members(path, READERS[ending])
    for name, array in found:
        if not isinstance(array, NoRows):
            yield _Candidate(f"{prefix}{name}", path, partial(_given, array))
        elif spec.asks_for(f"{prefix}{name}"):
            rowless.append(f"{prefix}{name}")


def _parts_of_indexes(root: Path, entries: list[Entry], spec: SourceSpec) -> set[str]:
    """The files of models in several files: their index has their tensors."""
    indexes = [entry for entry in entries if _ending(entry.relative) == safetensors.INDEX and _is_asked(entry, spec)]
    return {
        str(PurePosixPath(entry.relative).parent / name) for entry in indexes for name in _files_of_index(entry.path)
    }


def _ending(name: str) -> str:
    """What says of which format a file is."""
    is_index = name.lower().endswith(safetensors.INDEX)
    return safetensors.INDEX if is_index else PurePath(name).suffix.lower()


def _stem(relative: str) -> str:
    return relative[: -len(_ending(relative))]


def _skipped(suffix: str, count: int, raw: bool) -> str:
    said = f"skipped: {counted(count, f'{suffix} file')}, "
    if raw:
        return said + "which say their own dtype and shape; a job without `source.dtype` and `source.shape` has them"
    return said + f'as there are others; `source.pattern: "**/*{suffix}"` has them as layers'


def _no_array(root: Path, entries: list[Entry], raw: bool) -> SourceError:
    if raw and (known := next((entry.suffix for entry in entries if entry.suffix in KNOWN), "")):
        return _says_its_own(root, known)
    where = one_line(str(root))
    for entry in entries:
        if entry.suffix in unreadable.CHECKPOINTS:
            return unreadable.checkpoint(entry.path)
        if entry.suffix in unreadable.SUFFIXES:
            source = unreadable.SOURCES.get(entry.suffix, f'files: "**/*{entry.suffix}"')
            return unreadable.as_items(f"{where}: no array below this folder, but {entry.suffix}", source)
    hint = "save arrays there, or correct `source.path` and `source.pattern`"
    return SourceError(f"{where}: no {'file' if raw else 'array'} below this folder", hint)


# --- their names -------------------------------------------------------------------------------------------


def _by_name(root: Path, candidates: Iterator[_Candidate], spec: SourceSpec) -> dict[str, _Candidate]:
    found: dict[str, _Candidate] = {}
    for one in candidates:
        if not spec.asks_for(one.name):
            found.setdefault(one.name, one)  # known by its name where a glob matches none
            continue
        if _layer_name(one.name, one.path) in found:
            what = "arrays" if found[one.name].path == one.path else "files"
            raise SourceError(f"{one_line(str(root))}: two {what} give the layer {one.name}", "rename one of them")
        found[one.name] = one
    return found


def _layer_name(name: str, path: Path) -> str:
    if not names.is_layer(name):
        raise SourceError(
            f"{one_line(str(path))}: {name!r} cannot be a layer's name",
            "rename it: letters, digits, spaces and `_.+@=,-`, not ending in .npy, each part up to 128 characters; or"
            f" {_LEAVE_OUT}",
        )
    return name


def _chosen(layers: dict[str, _Candidate], globs: list[str]) -> dict[str, _Candidate]:
    """The layers that a glob matches; every glob must match one."""
    chosen: dict[str, _Candidate] = {}
    for i, glob in enumerate(globs):
        matched = {name: one for name, one in layers.items() if matches(name, glob)}
        if not matched:
            known = sorted(filter(names.is_layer, layers))
            near = nearest(glob, known)
            hint = f"did you mean `{near}`?" if near else f"layers here: {_listed(known)}"
            raise SourceError(f"source.layers[{i}]: {glob!r} matches no layer", hint)
        chosen |= matched
    return chosen


def _listed(known: list[str]) -> str:
    return ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")


# --- headers -----------------------------------------------------------------------------------------------


def _alone(path: Path, name: str, spec: SourceSpec, problem: SourceError | None = None) -> ArraySource:
    """The array of a file that has one. `name`: what the source calls it."""
    if problem is not None:
        raise problem

    def read(file: BinaryIO, size: int) -> Header:
        if spec.dtype is not None and spec.shape is not None:
            return _raw_header(path, size, spec.dtype, spec.shape)
        refused = unreadable.refusal(path, PurePath(name).name, file.read(8))
        file.seek(0)
        if refused is not None:
            raise refused
        return npy.read_header(file, size, one_line(str(path)))

    return _source(path, *_opened(path, read))


def _members(path: Path, read: Read) -> list[tuple[str, ArraySource | SourceError]]:
    """Each array of a file that has several, or why it can be no layer."""
    found, stamp = _opened(path, lambda file, size: read(file, size, one_line(str(path))))
    return [
        (one.name, one.header if isinstance(one.header, SourceError) else _source(path, one.header, stamp))
        for one in found
    ]


def _indexed(path: Path, folder: Path) -> Iterator[tuple[str, ArraySource | SourceError]]:
    """Each tensor of a model in several files, which lie in `folder`."""
    for name, tensors in _files_of_index(path).items():
        there = dict(_members(Path(os.path.realpath(folder / name)), safetensors.members))
        for tensor in tensors:
            lacks = SourceError(f"{one_line(str(path))}: {name} has no {one_line(tensor[:80])}", "copy the files again")
            yield tensor, there.get(tensor, lacks)


def _files_of_index(path: Path) -> dict[str, list[str]]:
    def read(file: BinaryIO, size: int) -> dict[str, list[str]]:
        return safetensors.files_of(file.read(safetensors.HEADER_LIMIT), one_line(str(path)))

    return _opened(path, read)[0]


def _given(found: ArraySource | SourceError) -> ArraySource:
    if isinstance(found, SourceError):
        raise found
    return found


def _opened(path: Path, read: Callable[[BinaryIO, int], T]) -> tuple[T, Stamp]:
    """What `read` makes of a file's header, and which file that was. Opened without waiting, so that a pipe named like
    an array cannot hold us."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise SourceError(f"{one_line(str(path))}: not a regular file", f"remove it, or {_LEAVE_OUT}")
            return read(file, status.st_size), stamp_of(status)
    except OSError as error:
        raise cannot_open(path, error) from None


def _source(path: Path, header: Header, stamp: Stamp) -> ArraySource:
    """The array as a kind gets it: what numpy has no numbers for is widened where it is read."""
    if header.dtype == BF16:
        return ArraySource(str(path), header.offset, "<f4", header.shape, stamp, BF16)
    return ArraySource(str(path), header.offset, header.dtype, header.shape, stamp)


def _raw_header(path: Path, size: int, dtype: str, shape: list[int]) -> Header:
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
    return Header(canonical, full, 0)
