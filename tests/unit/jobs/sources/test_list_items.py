"""Which files a pattern names and which lines a table has, in which order, and what is refused."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from muster.jobs.common.errors import SourceError
from muster.jobs.contract.plan import CUT, ItemsWindow
from muster.jobs.sources import items
from muster.jobs.sources.discover import SourceSpec
from muster.jobs.sources.globs import split
from muster.jobs.sources.items import FileItem
from muster.jobs.sources.list_items import Found, find_items
from tests.support.odd_names import fill


def found(base: Path, **source: Any) -> Found:
    return find_items(SourceSpec(**source), base, base / f"list-{len(list(base.glob('list-*')))}")


def listed(one: Found) -> list[FileItem] | list[list[str]]:
    size = one.listed.path.stat().st_size
    window = ItemsWindow(str(one.listed.path), "", 0, size, len(one.listed), 0, one.folder, one.columns)
    raw = items.records(window)
    return items.lines_in(raw) if one.columns else items.files_in(raw)


def names(base: Path, pattern: str) -> list[str]:
    return [file.name for file in listed(found(base, files=pattern)) if isinstance(file, FileItem)]


def refused(base: Path, **source: Any) -> SourceError:
    with pytest.raises(SourceError) as caught:
        found(base, **source)
    assert caught.value.hint and caught.value.message.isprintable()
    return caught.value


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("img/a.jpg", "img/b.png", "img/x/a.jpg", "img/x/y/c.jpg", "img/x.jpg", "img/.d/e.jpg", "img/.f.jpg"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("img/**/*.jpg", ["a.jpg", "x.jpg", "x/a.jpg", "x/y/c.jpg"]),
        ("img/*.jpg", ["a.jpg", "x.jpg"]),
        ("img/*", ["a.jpg", "b.png", "x.jpg"]),
        ("img/**", ["a.jpg", "b.png", "x.jpg", "x/a.jpg", "x/y/c.jpg"]),
        ("img/*/*.jpg", ["x/a.jpg"]),
        ("img/x/**/c.jpg", ["y/c.jpg"]),
        ("./img//x/*.jpg", ["a.jpg"]),
        ("**/y/**/*.jpg", ["img/x/y/c.jpg"]),
        ("img/a.jpg", ["a.jpg"]),
        ("img/.*.jpg", [".f.jpg"]),
        ("img/.d/*", ["e.jpg"]),
        ("img/[ab].???", ["a.jpg", "b.png"]),
    ],
)
def test_patterns_are_those_of_a_shell(tree: Path, pattern: str, expected: list[str]) -> None:
    assert names(tree, pattern) == expected


def test_a_pattern_may_start_anywhere(tree: Path) -> None:
    assert names(tree / "img/x", "../x/*.jpg") == ["a.jpg"]
    assert names(tree / "img/x", f"{tree}/img/*.png") == ["b.png"]
    assert split("/*.jpg") == ("/", ("*.jpg",)) and split("a") == (".", ("a",))


def test_names_are_sorted_by_their_bytes_whatever_they_are(tmp_path: Path) -> None:
    contents = fill(tmp_path / "in")
    expected = sorted((name for name in contents if "/." not in name), key=str.encode)
    assert names(tmp_path, "in/**/*") == expected


def test_links_are_followed_but_for_folders_below_a_double_star(tree: Path) -> None:
    (tree / "img/loop").symlink_to(tree / "img")
    (tree / "img/link.jpg").symlink_to(tree / "img/x/a.jpg")
    assert names(tree, "img/**/*.jpg") == ["a.jpg", "link.jpg", "x.jpg", "x/a.jpg", "x/y/c.jpg"]
    assert names(tree, "img/loop/x/*.jpg") == ["a.jpg"]
    assert names(tree, "img/*/x/*.jpg") == ["loop/x/a.jpg"]


def test_what_cannot_be_an_item_is_refused_by_name(tree: Path) -> None:
    assert "matches no file" in refused(tree, files="img/*.gif").message
    assert refused(tree, files="img").hint == "it is a folder; did you mean `img/**/*`?"
    assert "No such file" in refused(tree, files="gone/*.jpg").message
    os.mkfifo(tree / "img/pipe.jpg")
    assert "pipe.jpg: not a regular file" in refused(tree, files="img/*.jpg").message
    (tree / "img/pipe.jpg").unlink()
    (tree / "img/dead.jpg").symlink_to(tree / "nowhere")
    assert "dead.jpg: No such file" in refused(tree, files="img/*.jpg").message
    (tree / "img/dead.jpg").unlink()
    Path(os.fsdecode(os.fsencode(tree) + b"/img/\xff.jpg")).touch()
    assert "not a name in UTF-8" in refused(tree, files="img/*.jpg").message


def test_a_tree_that_is_too_deep_ends(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=fd)
        fd, old = os.open("d", os.O_RDONLY, dir_fd=fd), fd
        os.close(old)
    os.close(fd)
    assert "too deep" in refused(tmp_path, files="**/*").message


def test_the_list_changes_with_any_file(tree: Path) -> None:
    digest = found(tree, files="img/**/*.jpg").listed.digest
    assert found(tree, files="img/**/*.jpg").listed.digest == digest
    (tree / "img/a.jpg").write_text("other")
    assert found(tree, files="img/**/*.jpg").listed.digest != digest


# --- cutting ----------------------------------------------------------------------------------------------


def shards(one: items.ListedItems, count: int, nbytes: int) -> list[int]:
    """Items per shard."""
    cuts, most, _ = items.cut(one, count, nbytes)
    firsts = [cut[0] for cut in CUT.iter_unpack(cuts)]
    counts = [after - before for before, after in pairwise(firsts)]
    assert most == max(counts)
    return counts


def test_shards_by_files_and_by_size(tmp_path: Path) -> None:
    for i, size in enumerate([10, 10, 50, 1, 1, 1, 0]):
        (tmp_path / f"f{i}").write_bytes(bytes(size))
    one = found(tmp_path, files="f*").listed
    assert shards(one, 3, 1 << 60) == [3, 3, 1]
    assert shards(one, 100, 20) == [2, 1, 4]
    assert shards(one, 100, 1) == [1, 1, 1, 1, 1, 2]
    assert shards(one, 2, 20) == [2, 1, 2, 2]
    cuts, _, most = items.cut(one, 3, 1 << 60)
    ends = [cut[2] for cut in CUT.iter_unpack(cuts)]
    assert ends[-1] == 73 + one.path.stat().st_size
    assert most == max(after - before for before, after in pairwise(ends))


# --- tables -----------------------------------------------------------------------------------------------


def table(base: Path, text: str, name: str = "t.csv") -> Path:
    (base / name).write_bytes(text.encode())
    return base


def test_a_line_is_an_item(tmp_path: Path) -> None:
    text = '\ufeffalpha, beta ,gamma\r\n1,"a, ""b""\nc",ü\r\n\r\n2,,"  "\n'
    one = found(table(tmp_path, text), table="t.csv")
    assert (one.folder, one.columns) == ("", ("alpha", "beta", "gamma"))
    assert listed(one) == [["1", 'a, "b"\nc', "ü"], ["2", "", "  "]]
    assert listed(found(table(tmp_path, "a\tb\n1,2\t3\n", "t.tsv"), table="t.tsv")) == [["1,2", "3"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no header"),
        ("\n1,2\n", "no header"),
        ("a,b\n", "a header and no lines"),
        ("a,a\n1,2\n", "two columns of the same name"),
        ("a,\n1,2\n", "'' cannot be a column's name"),
        ("a,b{}\n1,2\n", "'b{}' cannot be a column's name"),
        ("a,b\n1,2\n1,2,3\n", "line 3: 3 values, the header has 2 columns"),
        ('a,b\n1,"2\n', "unexpected end of data"),
        ('a,b\n1,"2"x\n', "line 2: "),
        ("a,b\n1,\0\n", "line 2: "),
    ],
)
def test_what_a_table_cannot_be(tmp_path: Path, text: str, message: str) -> None:
    assert message in refused(table(tmp_path, text), table="t.csv").message


def test_a_table_that_cannot_be_read(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path, table="gone.csv").message
    assert "Is a directory" in refused(tmp_path, table=".").message
    (tmp_path / "t.csv").write_bytes(b"a,b\n\xff\xfe,1\n")
    assert "not UTF-8" in refused(tmp_path, table="t.csv").message


def test_a_list_names_files_in_its_own_order(tree: Path) -> None:
    for text in ("img/x.jpg\nimg/a.jpg\n", "img/x.jpg\0img/a.jpg\0", "img/x.jpg\nimg/a.jpg"):
        (tree / "some").write_text(text)
        one = found(tree, names="some")
        assert [file.name for file in listed(one) if isinstance(file, FileItem)] == ["img/x.jpg", "img/a.jpg"]
        assert one.folder == str(tree)


@pytest.mark.parametrize(
    "text", ["", "img/a.jpg\nimg/a.jpg\n", "../a\n", "/etc/passwd\n", "img\n", "img/none\n", "\n", "\udcff"]
)
def test_a_list_that_cannot_be_is_refused(tree: Path, text: str) -> None:
    (tree / "some").write_bytes(text.encode(errors="surrogateescape"))
    refused(tree, names="some")
    refused(tree, names="none")
