"""Inputs as bytes to take along: the same that a copy has, and never of a file that is not the planned one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from muster.jobs.contract.plan import ItemsWindow, Window
from muster.jobs.sources.carried import carried, is_here
from muster.jobs.sources.discover import stamp_of
from muster.jobs.sources.items import FileItem, records, write_list
from muster.jobs.sources.read_rows import SourceChanged, new_buffer, read_window
from muster.jobs.sources.stage_files import LaidOut


@pytest.fixture
def rows(tmp_path: Path) -> Window:
    path = tmp_path / "rows.bin"
    path.write_bytes(bytes(16) + np.arange(40, dtype="<f4").tobytes())
    return Window(str(path), 16 + 32, (4, 8), "<f4", 128, stamp_of(path.stat()))


@pytest.fixture
def files(tmp_path: Path) -> ItemsWindow:
    folder = tmp_path / "files"
    folder.mkdir()
    for name, raw in (("a", b"first"), ("b", b""), ("c", b"third")):
        (folder / name).write_bytes(raw)
    listed = write_list(
        tmp_path / "list", [FileItem(name, stamp_of((folder / name).stat())) for name in ("a", "b", "c")]
    )
    return ItemsWindow(str(listed.path), listed.digest, 0, listed.ends[-1], 3, listed.ends[-1] + 10, str(folder), ())


def test_rows_are_the_same_from_a_copy(rows: Window, tmp_path: Path) -> None:
    found, digest = read_window(rows)
    copy = tmp_path / "copy"
    copy.write_bytes(carried(rows, new_buffer(1 << 10)).tobytes())
    again, same = read_window(rows.copied(str(copy), b""))
    assert is_here(rows) and (again == found).all() and same == digest


@pytest.mark.parametrize("digested", [True, False])
def test_files_are_the_same_from_a_copy(files: ItemsWindow, tmp_path: Path, digested: bool) -> None:
    """One that came with its batch has no digest to be compared with."""
    copy = tmp_path / "copy"
    copy.write_bytes(carried(files).tobytes())
    assert is_here(files) and copy.stat().st_size == files.nbytes
    with_files = LaidOut(files, tmp_path / "there")
    digest = with_files.digest
    with_files.close()
    moved = files.copied(str(copy), digest if digested else b"")
    laid = LaidOut(moved, tmp_path / "laid")
    assert laid.digest == digest
    assert [(laid.items.folder / name).read_bytes() for name in "abc"] == [b"first", b"", b"third"]
    assert carried(moved).tobytes() == copy.read_bytes() and records(moved) == records(files)


def test_another_file_is_not_carried(rows: Window, files: ItemsWindow) -> None:
    Path(rows.path).write_bytes(bytes(176))
    os.truncate(f"{files.folder}/a", 0)
    for window in (rows, files):
        assert not is_here(window)
        with pytest.raises(SourceChanged):
            carried(window)
