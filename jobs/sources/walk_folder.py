"""Which files lie below a folder that is a source, by their names. Opens none of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from muster.jobs.common import names
from muster.jobs.common.errors import SourceError
from muster.jobs.common.validation import one_line
from muster.jobs.sources.formats import npy, unreadable


class Entry(NamedTuple):
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


class Wanted(NamedTuple):
    """What a walk is to find."""

    suffixes: tuple[str, ...] | None  # of files; None: whatever they are called
    asks_below: Callable[[str], bool]  # whether something below this folder could be a layer that is wanted

    def is_file(self, name: str) -> bool:
        return self.suffixes is None or name.lower().endswith(self.suffixes)

    def refused_folder(self, path: Path, name: str) -> SourceError | None:
        """Why a folder is none of layers, by its name."""
        suffix = PurePosixPath(name).suffix.lower()
        if self.suffixes is not None and suffix == npy.SUFFIX:
            return SourceError(f"{one_line(str(path))}: a folder, named like an array", "rename it")
        return unreadable.store(path) if self.suffixes is not None and suffix == unreadable.STORE else None


def cannot_open(path: Path, error: OSError, hint: str | None = None) -> SourceError:
    return SourceError(
        f"{one_line(str(path))}: {error.strerror}", hint or "see that the file is there and that you may read it"
    )


def files_below(root: Path, wanted: Wanted) -> Iterator[Entry]:
    """Every file that may be an array. Names that start with a dot are passed over, as by a shell."""
    return _walk(root, "", frozenset(), wanted)


def _walk(folder: Path, prefix: str, above: frozenset[tuple[int, int]], wanted: Wanted) -> Iterator[Entry]:
    """`above` has the folders we came through. A folder that cannot be walked is passed over where no layer below it
    was asked for."""
    try:
        entries, here = _entries(folder, prefix, above)
    except SourceError:
        if wanted.asks_below(prefix.rstrip("/")):
            raise
        return
    for entry in entries:
        if not entry.name.startswith("."):
            yield from _visit(entry, folder, prefix, above | {here}, wanted)


def _entries(
    folder: Path, prefix: str, above: frozenset[tuple[int, int]]
) -> tuple[list[os.DirEntry[str]], tuple[int, int]]:
    """What is in a folder, and which one it is."""
    try:
        status = folder.stat()
        with os.scandir(folder) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except OSError as error:
        raise cannot_open(folder, error) from None
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
    entry: os.DirEntry[str], folder: Path, prefix: str, above: frozenset[tuple[int, int]], wanted: Wanted
) -> Iterator[Entry]:
    relative, path = f"{prefix}{entry.name}", folder / entry.name
    is_file = wanted.is_file(entry.name)
    if entry.is_symlink():  # stored resolved, so that a symlink that moves is another source only when planned again
        path = Path(os.path.realpath(path))
    try:
        is_folder = entry.is_dir()
    except OSError as error:  # a symlink to itself
        if is_file:
            yield Entry(relative, path, cannot_open(path, error))
        elif wanted.asks_below(relative):
            raise cannot_open(path, error) from None
        return
    if is_folder and (refused := wanted.refused_folder(path, entry.name)) is not None:
        yield Entry(relative, path, refused)
    elif is_folder:
        yield from _walk(path, f"{relative}/", above, wanted)
    elif is_file:
        yield Entry(relative, path)
