"""A shard's files where user code finds them, in place and from a copy, and the run of bytes that a copy is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.connect.serve_items import Changed, ItemsRun
from muster.coordinator.protocol.transfer import ReadableItems
from muster.jobs.contract.plan import ITEMS_LIST, ItemsSource, ItemsWindow, Stamp
from muster.jobs.sources import items
from muster.jobs.sources.discover import SourceSpec
from muster.jobs.sources.items import ListedItems, located
from muster.jobs.sources.list_items import find_items
from muster.jobs.sources.read_rows import SourceChanged
from muster.jobs.sources.stage_files import LaidOut, input_digest
from tests.support.odd_names import fill


class Taker:
    """What an agent would get. `before` is called ahead of each write."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.before: Callable[[], None] = lambda: None

    def write(self, data: bytes) -> None:
        self.before()
        self.got += data

    def send_file(self, fd: int, offset: int, nbytes: int) -> int:
        self.before()
        raw = os.pread(fd, min(nbytes, 70_000), offset)
        self.got += raw
        return len(raw)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Odd names, and one file that is sent by itself."""
    fill(tmp_path / "in")
    (tmp_path / "in/large").write_bytes(os.urandom(300_000))
    return tmp_path


def window_of(base: Path, **source: Any) -> ItemsWindow:
    """All of a source as one shard."""
    folder, columns, listed = find_items(SourceSpec(**source), base, base / ITEMS_LIST)
    return located(ItemsSource(folder, columns, listed.digest, cuts_of(listed)).window(0), listed.path)


def cuts_of(listed: ListedItems) -> bytes:
    return items.cut(listed, len(listed), 1 << 60)[0]


def run_of(window: ItemsWindow, start: int = 0, limit: int | None = None) -> ReadableItems:
    rest = window.nbytes - start if limit is None else limit
    return ReadableItems(window.path, window.offset, window.listed, window.nbytes, window.folder or "", start, rest)


def sent(run: ReadableItems) -> bytes:
    taker = Taker()
    for _ in ItemsRun(run).send(taker):
        continue
    return bytes(taker.got)


def contents(laid: LaidOut) -> dict[str, bytes]:
    return {name: (laid.items.folder / name).read_bytes() for name in laid.items.names}


def test_a_copy_gives_the_files_and_the_digest_of_those_in_place(base: Path) -> None:
    window = window_of(base, files="in/**/*")
    here = LaidOut(window, base / "here")
    raw = sent(run_of(window))
    assert len(raw) == window.nbytes
    (base / "copy").write_bytes(raw)
    there = LaidOut(window.copied(str(base / "copy"), here.digest), base / "there")
    originals = {name: (base / "in" / name).read_bytes() for name in here.items.names}
    assert len(originals) > 20 and contents(here) == contents(there) == originals
    assert here.digest == there.digest == input_digest(window)
    for laid in (here, there):
        laid.check()
        laid.close()
        assert not laid.items.folder.exists()


def test_a_run_may_begin_and_end_at_any_byte(base: Path) -> None:
    window = window_of(base, files="in/**/*")
    whole = sent(run_of(window))
    for start in (0, 1, window.listed - 1, window.listed, window.listed + 3, window.nbytes - 7, window.nbytes):
        for limit in (0, 1, 5, 100_000):
            limit = min(limit, window.nbytes - start)
            assert sent(run_of(window, start, limit)) == whole[start : start + limit]


def test_lines_are_mappings_in_order(base: Path) -> None:
    (base / "t.csv").write_text('a,b\n1,"x y"\n2,\n')
    window = window_of(base, table="t.csv")
    laid = LaidOut(window, base / "here")
    assert laid.items.lines == [{"a": "1", "b": "x y"}, {"a": "2", "b": ""}] and len(laid.items) == 2
    assert sent(run_of(window)) == Path(window.path).read_bytes() and laid.digest == input_digest(window)


def change(path: Path, how: str) -> None:
    if how == "gone":
        path.unlink()
    elif how == "longer":
        with path.open("ab") as file:
            file.write(b"!")
    elif how == "replaced":
        path.with_name("new").write_bytes(path.read_bytes())
        path.with_name("new").rename(path)
    else:
        os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("how", ["gone", "longer", "replaced", "touched"])
def test_a_file_that_changed_is_named(base: Path, how: str) -> None:
    window = window_of(base, files="in/**/*")
    laid = LaidOut(window, base / "here")
    change(base / "in/Case", how)
    with pytest.raises(SourceChanged, match="in/Case"):
        laid.check()
    with pytest.raises(SourceChanged, match="in/Case"):
        LaidOut(window, base / "here")
    with pytest.raises(Changed, match="in/Case"):
        ItemsRun(run_of(window))


@pytest.mark.parametrize("how", ["gone", "longer"])
def test_a_file_that_changes_under_the_transfer_ends_it(base: Path, how: str) -> None:
    window = window_of(base, files="in/**/*")
    run, taker = ItemsRun(run_of(window)), Taker()
    taker.before = lambda: change(base / "in/tab\there", how) if not taker.got else None
    with pytest.raises(Changed):
        for _ in run.send(taker):
            continue
    assert len(taker.got) + run.missing == window.nbytes


def test_of_a_file_that_took_another_s_place_after_the_look_nothing_is_sent(base: Path) -> None:
    (base / "in").mkdir(exist_ok=True)
    (base / "secret").write_bytes(b"secret" * 10)
    window = window_of(base, files="in/**/*")
    run, taker = ItemsRun(run_of(window)), Taker()
    for path in [path for path in (base / "in").rglob("*") if path.is_file()]:
        path.unlink()
        path.symlink_to(base / "secret")
    with pytest.raises(Changed, match="is not what was planned"):
        for _ in run.send(taker):
            continue
    assert b"secret" not in taker.got + run._held


def test_a_copy_that_is_not_what_was_pulled(base: Path) -> None:
    window = window_of(base, files="in/**/*")
    raw = bytearray(sent(run_of(window)))
    digest = input_digest(window)
    for spoil in (lambda: raw.__setitem__(-1, raw[-1] ^ 1), raw.pop, lambda: raw.__delitem__(slice(9, None))):
        spoil()
        (base / "copy").write_bytes(raw)
        with pytest.raises(SourceChanged):
            LaidOut(window.copied(str(base / "copy"), digest), base / "there")


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "a/../../b", "", ".", "a//b", "a\0b", "y" * 256])
def test_a_list_cannot_lead_elsewhere(base: Path, name: str) -> None:
    item = items.FileItem(name, Stamp(0, 0, 0, 0))
    listed = items.write_list(base / ITEMS_LIST, [item])
    window = located(ItemsSource("/", (), listed.digest, cuts_of(listed)).window(0), listed.path)
    with pytest.raises(SourceChanged, match="a list with a file called"):
        LaidOut(window, base / "here")
    with pytest.raises(Changed, match="a list with a file called"):
        ItemsRun(run_of(window))
