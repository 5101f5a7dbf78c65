"""The items a job file's source names: files by a pattern, the lines of a table. Writes the list; opens no file."""

from __future__ import annotations

import csv
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from muster.jobs.common.errors import SourceError
from muster.jobs.common.locations import located
from muster.jobs.common.validation import one_line
from muster.jobs.sources import globs
from muster.jobs.sources.discover import SourceSpec, stamp_of
from muster.jobs.sources.items import FileItem, Line, ListedItems, is_path, write_list

COLUMNS_LIMIT = 1000
COLUMN_LIMIT = 64  # characters of a column's name


class Found(NamedTuple):
    """The items of a source."""

    folder: str  # of files; "" for a table
    columns: tuple[str, ...]  # of a table
    listed: ListedItems


def find_items(spec: SourceSpec, base: Path, path: Path) -> Found:
    """List what the source names at `path`. A SourceError for what cannot be, or where there is nothing."""
    if spec.files is not None:
        return _files(spec.files, base, path)
    if spec.names is not None:
        return _named(located(base, spec.names), base, path)
    assert spec.table is not None, "the job file was checked"
    return _table(located(base, spec.table), path)


def _files(pattern: str, base: Path, path: Path) -> Found:
    start, parts = globs.split(pattern)
    folder = str(located(base, start))
    listed = write_list(path, globs.find(Path(folder), parts))
    if not len(listed):
        hint = "`*` stops at a `/`; `**/*.jpg` looks in all folders below"
        if located(base, pattern).is_dir():
            hint = f"it is a folder; did you mean `{pattern.rstrip('/')}/**/*`?"
        raise SourceError(f"source.files: {one_line(pattern)!r} matches no file", hint)
    return Found(folder, (), listed)


def _named(names: Path, base: Path, path: Path) -> Found:
    """The files of a list, in its order: names below `base`, ended by line breaks, or by NUL where there is one."""
    shown = one_line(str(names))
    try:
        text = names.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SourceError(f"{shown}: {why}", "correct `source.names`; it is relative to the job file") from None
    end = "\0" if "\0" in text else "\n"
    listed = write_list(path, _files_of(text.removesuffix(end).split(end) if text else [], base, shown))
    if not len(listed):
        raise SourceError(f"{shown}: no names", "write the name of a file into each line")
    return Found(str(base), (), listed)


def _files_of(names: list[str], base: Path, shown: str) -> Iterator[FileItem]:
    seen: set[str] = set()
    for name in names:
        if not is_path(name) or name in seen:
            wrong = "is there twice" if name in seen else "is no path below the job file's folder"
            raise SourceError(
                f"{shown}: {one_line(name)[:200]!r} {wrong}", "write relative names without `..`, each once"
            )
        seen.add(name)
        try:
            status = (base / name).stat()
        except OSError as error:
            raise SourceError(f"{shown}: {one_line(name)[:200]}: {error.strerror}", "take it off the list") from None
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(f"{shown}: {one_line(name)[:200]} is no file", "take it off the list")
        yield FileItem(name, stamp_of(status))


def _table(table: Path, path: Path) -> Found:
    shown = one_line(str(table))
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter="\t" if table.suffix.lower() == ".tsv" else ",", strict=True)
            columns = _columns(next(reader, []), shown)
            try:
                listed = write_list(path, _lines(reader, columns, shown))
            except csv.Error as error:
                raise SourceError(f"{shown}, line {reader.line_num}: {error}", _QUOTING) from None
    except csv.Error as error:
        raise SourceError(f"{shown}, line 1: {error}", _QUOTING) from None
    except UnicodeDecodeError as error:
        raise SourceError(f"{shown}: not UTF-8: {error.reason}", "save the table as UTF-8") from None
    except OSError as error:
        hint = "correct `source.table`; it is relative to the job file"
        raise SourceError(f"{shown}: {error.strerror}", hint) from None
    if not len(listed):
        raise SourceError(f"{shown}: a header and no lines", "each line below the first is an item")
    return Found("", columns, listed)


_QUOTING = 'a value with a comma, a quote or a line break is written in quotes: "5"" screen"'


def _columns(header: list[str], shown: str) -> tuple[str, ...]:
    columns = tuple(name.strip() for name in header)
    if not any(columns):
        raise SourceError(f"{shown}: no header", "its first line names the columns")
    for name in columns:
        if not name or not name.isprintable() or len(name) > COLUMN_LIMIT or set(name) & set("{}"):
            hint = f"1 to {COLUMN_LIMIT} characters without braces"
            raise SourceError(f"{shown}: {one_line(name)[:80]!r} cannot be a column's name", hint)
    if len(set(columns)) < len(columns) or len(columns) > COLUMNS_LIMIT:
        raise SourceError(f"{shown}: two columns of the same name, or more than {COLUMNS_LIMIT}", "rename one")
    return columns


def _lines(reader: Iterator[list[str]], columns: tuple[str, ...], shown: str) -> Iterator[Line]:
    for line in reader:
        if not line:  # an empty line, as a last one often is
            continue
        if len(line) != len(columns):
            at = getattr(reader, "line_num", "?")
            raise SourceError(
                f"{shown}, line {at}: {len(line)} values, the header has {len(columns)} columns", _QUOTING
            )
        if any("\0" in value for value in line):
            raise SourceError(f"{shown}, line {getattr(reader, 'line_num', '?')}: a NUL character", "remove it")
        yield line
