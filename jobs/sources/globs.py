"""What a pattern names: layers by their names; files, folder by folder, in order of the bytes. Opens none of them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from fnmatch import translate
from functools import lru_cache
from pathlib import Path

from muster.jobs.common.errors import SourceError
from muster.jobs.common.validation import one_line
from muster.jobs.contract.plan import Stamp
from muster.jobs.sources.items import NAME_BYTES, FileItem

ANY = "**"  # any number of folders, none that a symbolic link leads to
DEPTH_LIMIT = 200  # folders below each other
_WILD = re.compile(r"[*?[]")
_NARROW = "remove it, or write a pattern that leaves it out"

Places = frozenset[int]  # how many parts of the pattern the name so far may have used up


def split(pattern: str) -> tuple[str, tuple[str, ...]]:
    """The folder that a pattern starts in, and the parts that follow; the last one is of files."""
    parts = pattern.split("/")
    wild = next((i for i, part in enumerate(parts) if _WILD.search(part)), len(parts))
    fixed = min(wild, len(parts) - 1)
    folder = "/".join(parts[:fixed]) or ("/" if pattern.startswith("/") and fixed else ".")
    wanted = [part for part in parts[fixed:] if part not in ("", ".")]
    if not wanted or wanted[-1] == ANY:
        wanted += [*([] if wanted else [ANY]), "*"]
    return folder, tuple(wanted)


def find(folder: Path, pattern: tuple[str, ...]) -> Iterator[FileItem]:
    """Every regular file below `folder` that matches, by the bytes of its name. Memory: the largest folder's names."""
    yield from _Tree(pattern).files(str(folder), "", _closed(frozenset([0]), pattern))


def matches(name: str, glob: str) -> bool:
    """Whether a layer's name is one of a pattern's, dots and all.

    Part by part, so `*` stops at a `/`; `**` is any number of parts. Never more than parts times globs steps.
    """
    parts = name.split("/")
    reached = {0}  # how many parts the globs so far may have used up
    for piece in glob.split("/"):
        if piece == ANY:
            reached = set(range(min(reached), len(parts) + 1))
        else:
            reached = {i + 1 for i in reached if i < len(parts) and _compiled(piece).match(parts[i])}
        if not reached:
            return False
    return len(parts) in reached


def leads_into(folder: str, glob: str) -> bool:
    """Whether the name of a layer below `folder` could be one of a pattern's."""
    parts = folder.split("/")
    for at, piece in enumerate(glob.split("/")):
        if piece == ANY or at == len(parts):
            return True
        if not _compiled(piece).match(parts[at]):
            return False
    return False


def _closed(places: Places, pattern: tuple[str, ...]) -> Places:
    """With those where a `**` stands for no folder at all."""
    found = set(places)
    for place in sorted(places):
        while place < len(pattern) and pattern[place] == ANY:
            place += 1
            found.add(place)
    return frozenset(found)


class _Tree:
    """One walk."""

    def __init__(self, pattern: tuple[str, ...]) -> None:
        self._pattern = pattern
        self._next = lru_cache(maxsize=4096)(self._next_places)

    def files(self, folder: str, prefix: str, places: Places) -> Iterator[FileItem]:
        if prefix.count("/") > DEPTH_LIMIT:
            raise SourceError(f"{one_line(folder)}: too deep below the source", "start the pattern further down")
        for entry, reached in self._entries(folder, places):
            name = f"{prefix}{entry.name}"
            if reached is None:
                yield _file(entry, name)
            else:
                yield from self.files(entry.path, f"{name}/", reached)

    def _entries(self, folder: str, places: Places) -> list[tuple[os.DirEntry[str], Places | None]]:
        """What matches, sorted so that all names below come in order: a folder sorts as its name with a slash."""
        found: list[tuple[str, os.DirEntry[str], Places | None]] = []
        try:
            with os.scandir(folder) as scan:
                for entry in scan:
                    if entry.is_dir():
                        if reached := self._folder(entry, places):
                            found.append((f"{entry.name}/", entry, reached))
                    elif self._is_wanted(entry.name, places):
                        found.append((entry.name, entry, None))
        except OSError as error:
            hint = "see that it is there and that you may read it; paths are relative to the job file"
            raise SourceError(f"{one_line(folder)}: {error.strerror}", hint) from None
        found.sort(key=lambda one: one[0])
        return [(entry, reached) for _, entry, reached in found]

    def _is_wanted(self, name: str, places: Places) -> bool:
        last = len(self._pattern) - 1
        return last in places and _matches(name, self._pattern[last])

    def _folder(self, entry: os.DirEntry[str], places: Places) -> Places:
        """Where a folder leads; nowhere if empty."""
        reached = set()
        for place in places:
            part = self._pattern[place] if place < len(self._pattern) else None
            if part == ANY:
                if not entry.name.startswith(".") and not entry.is_symlink():
                    reached.add(place)
            elif part is not None and place < len(self._pattern) - 1 and _matches(entry.name, part):
                reached.add(place + 1)
        return self._next(frozenset(reached)) if reached else frozenset()

    def _next_places(self, places: Places) -> Places:
        return _closed(places, self._pattern)


@lru_cache(maxsize=256)
def _compiled(part: str) -> re.Pattern[str]:
    return re.compile(translate(part), re.DOTALL)


def _matches(name: str, part: str) -> bool:
    """As a shell does: what starts with a dot is matched by what does."""
    return (not name.startswith(".") or part.startswith(".")) and _compiled(part).match(name) is not None


def _file(entry: os.DirEntry[str], name: str) -> FileItem:
    try:
        if len(name.encode()) > NAME_BYTES:
            raise SourceError(f"{one_line(entry.path)}: the name is too long", f"{NAME_BYTES} bytes are allowed")
        found = entry.stat()
    except UnicodeEncodeError:
        shown = os.fsencode(entry.path).decode(errors="backslashreplace")
        raise SourceError(f"{one_line(shown)}: not a name in UTF-8", "rename it") from None
    except OSError as error:
        raise SourceError(f"{one_line(entry.path)}: {error.strerror}", _NARROW) from None
    if not stat.S_ISREG(found.st_mode):
        raise SourceError(f"{one_line(entry.path)}: not a regular file", _NARROW)
    return FileItem(name, Stamp(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino))
