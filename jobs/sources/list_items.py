"""The items a job file's source names: files by a pattern, the lines of a table. Writes the list; opens no file."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from muster.jobs.common.errors import SourceError
from muster.jobs.common.locations import located
from muster.jobs.common.validation import one_line
from muster.jobs.sources import globs
from muster.jobs.sources.discover import SourceSpec
from muster.jobs.sources.items import Line, ListedItems, write_list

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
