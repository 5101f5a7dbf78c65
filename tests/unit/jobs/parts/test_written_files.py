"""Files that shards wrote: into a part, through bundles, into the result; names that collide or lead elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from muster.coordinator.commands.result import copy
from muster.coordinator.daemon.merge.publish import publish, withdraw
from muster.jobs.common.errors import DamagedError
from muster.jobs.contract.kind import ShardFailure, Written
from muster.jobs.contract.plan import Layer, Output
from muster.jobs.parts import written_files
from muster.jobs.parts.part_file import read_index
from muster.jobs.parts.written_files import NOBODY, WrittenFile, collected, decode_table, pack
from muster.jobs.results.bundle import Bundle
from muster.jobs.results.merge import DamagedBundle, merge_layer
from muster.jobs.results.open_result import WrittenFiles, open_result, verify_layer
from muster.jobs.results.outputs import settle
from muster.jobs.results.result_formats import Collision
from tests.support.odd_names import fill
from tests.support.shards import layer_of, store, write_part

FILES = (Output("files", "files", "|u1"),)


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def layer(shards: int) -> Layer:
    return layer_of(2 * shards, 2, FILES)


def shard(folder: Path, files: dict[str, bytes], names: list[str]) -> dict[str, Written]:
    return {"files": collected(write(folder, files), names)}


def merged(one: Layer, parts: list[Path], folder: Path) -> WrittenFiles:
    folder.mkdir()
    merge_layer(one, parts, folder, job="j.1")
    assert verify_layer(folder) == []
    found = open_result(folder).outputs["files"]
    assert isinstance(found, WrittenFiles)
    return found


# --- one shard ----------------------------------------------------------------------------------------------


def test_files_belong_to_the_item_they_are_named_after(tmp_path: Path) -> None:
    names = ["a.jpg", "a-b.jpg", "sub/a.jpg", "c"]
    files = ("a.png", "a.jpg", "a-b.txt", "a-b-2.txt", "a-x", "sub/a/1.txt", "sub/b", "c", "c.d", "ab", "z")
    found = collected(write(tmp_path / "out", dict.fromkeys(files, b"")), names)
    assert found.files == [
        (0, "a-x"),
        (0, "a.jpg"),
        (0, "a.png"),
        (1, "a-b-2.txt"),
        (1, "a-b.txt"),
        (2, "sub/a/1.txt"),
        (3, "c"),
        (3, "c.d"),
        (NOBODY, "ab"),
        (NOBODY, "sub/b"),
        (NOBODY, "z"),
    ]


def test_the_bytes_are_those_of_the_files_in_memory_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {"a": b"1", "empty": b"", "large": os.urandom(3 << 20)}
    found = collected(write(tmp_path / "out", contents), ["a"])
    held = pack(found)
    monkeypatch.setattr(written_files, "HELD_BYTES", 10)
    filed = pack(found)
    assert bytes(held.table) == bytes(filed.table) and bytes(held.contents) == bytes(filed.contents)
    assert bytes(held.contents) == b"".join(contents[name] for _, name in found.files)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize(("make", "what"), [(pipe, "not a regular file"), (link, "a symbolic link")])
def test_what_is_no_file_is_refused_by_name(tmp_path: Path, make: Callable[[Path], None], what: str) -> None:
    write(tmp_path / "out", {"a": b""})
    make(tmp_path / "out/b.png")
    with pytest.raises(ShardFailure, match=rf"it wrote 'b.png', which is {what}"):
        settle({"files": collected(tmp_path / "out", ["b.jpg"])}, None, 1)


def test_a_link_to_a_folder_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/away").symlink_to("/etc")
    with pytest.raises(ShardFailure, match="'away', which is a symbolic link"):
        pack(collected(tmp_path / "out", []))


def test_names_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "out") + b"/\xff")).touch()
    with pytest.raises(ShardFailure, match="not a name in UTF-8"):
        collected(tmp_path / "out", [])


@pytest.mark.parametrize(
    "file",
    [
        WrittenFile(0, "../x", 3, bytes(16)),
        WrittenFile(0, "/x", 3, bytes(16)),
        WrittenFile(0, "a/../../x", 3, bytes(16)),
        WrittenFile(0, "a\0", 3, bytes(16)),
        WrittenFile(0, "a//b", 3, bytes(16)),
        WrittenFile(0, "", 3, bytes(16)),
        WrittenFile(2, "a", 3, bytes(16)),
        WrittenFile(-2, "a", 3, bytes(16)),
        WrittenFile(0, "a", 4, bytes(16)),
        WrittenFile(0, "a", 3, bytes(15)),
    ],
)
def test_tables_that_cannot_be(file: WrittenFile, tmp_path: Path) -> None:
    raw = msgspec.msgpack.encode([file])
    with pytest.raises(DamagedError):
        decode_table(raw, 2, 3)


# --- merged -------------------------------------------------------------------------------------------------


def test_any_grouping_merges_to_the_same_files_and_table(tmp_path: Path) -> None:
    contents = fill(tmp_path / "all")
    names = sorted(contents, key=str.encode)
    pairs = [names[i : i + 2] for i in range(0, len(names), 2)]
    one = layer(len(pairs))
    results = [
        (n, shard(tmp_path / f"s{n}", {name: contents[name] for name in pair}, pair)) for n, pair in enumerate(pairs)
    ]
    whole = merged(one, [write_part(tmp_path / "whole", one, results).path], tmp_path / "a")
    halves = [write_part(tmp_path / f"p{i}", one, results[i::3]) for i in range(3)]
    bundles = [store(Bundle(halves[:2]), tmp_path / "b0"), store(Bundle(halves[2:]), tmp_path / "b1")]
    parts = merged(one, bundles, tmp_path / "b")
    assert {name: path.read_bytes() for name, path in whole.items()} == contents
    assert list(whole) == list(parts) == names and list(whole.rows()) == list(parts.rows())
    assert [row.item for row in whole.rows()] == list(range(len(names)))
    assert whole.table.read_bytes() == parts.table.read_bytes()
    assert {path.relative_to(whole.folder) for path in whole.folder.rglob("*")} == {
        path.relative_to(parts.folder) for path in parts.folder.rglob("*")
    }


def test_shards_without_files_and_a_name_that_is_not_there(tmp_path: Path) -> None:
    one = layer(2)
    results = [(0, shard(tmp_path / "s0", {}, [])), (1, shard(tmp_path / "s1", {"x": b"1"}, ["y"]))]
    found = merged(one, [write_part(tmp_path / "p", one, results).path], tmp_path / "out")
    assert len(found) == 1 and next(found.rows()).item is None
    for name in ("nothing", "../files.csv", "/etc/passwd", ""):
        assert name not in found


@pytest.mark.parametrize(("first", "second"), [("a", "a"), ("a", "a/b"), ("a/b", "a"), ("a/b/c", "a/b")])
def test_two_shards_that_write_one_name_do_not_merge(tmp_path: Path, first: str, second: str) -> None:
    one = layer(2)
    results = [(0, shard(tmp_path / "s0", {first: b"0"}, [])), (1, shard(tmp_path / "s1", {second: b"1"}, []))]
    part = write_part(tmp_path / "p", one, results)
    (tmp_path / "out").mkdir()
    with pytest.raises(Collision, match="output files: two items wrote 'a"):
        merge_layer(one, [part.path], tmp_path / "out", job="j.1")


@pytest.mark.parametrize("at", [3, -3])
def test_a_damaged_bundle_is_blamed_before_any_name_of_it_is_made(tmp_path: Path, at: int) -> None:
    one = layer(1)
    part = write_part(tmp_path / "p", one, [(0, shard(tmp_path / "s", {"name": b"content"}, ["name"]))])
    raw = bytearray(part.path.read_bytes())
    raw[at % read_index(part.path).body_bytes] ^= 1
    part.path.write_bytes(raw)
    (tmp_path / "out").mkdir()
    with pytest.raises(DamagedBundle):
        merge_layer(one, [part.path], tmp_path / "out", job="j.1")
    assert not list((tmp_path / "out/files").iterdir())


def test_damage_in_the_result_is_found(tmp_path: Path) -> None:
    one = layer(1)
    part = write_part(tmp_path / "p", one, [(0, shard(tmp_path / "s", {"a/b": b"content", "c": b"1"}, []))])
    found = merged(one, [part.path], tmp_path / "out")
    found["a/b"].write_bytes(b"CONTENT")
    found["c"].unlink()
    problems = verify_layer(tmp_path / "out")
    assert len(problems) == 2 and "a/b: its bytes do not match" in problems[0] and "No such file" in problems[1]


def test_a_result_is_published_over_what_a_kill_left_and_withdrawn(tmp_path: Path) -> None:
    one = layer(1)
    part = write_part(tmp_path / "p", one, [(0, shard(tmp_path / "s", {"a/b": b"1"}, ["a"]))])
    target = tmp_path / "result/items"
    write(target, {"files/stale": b"", "files.csv": b"", "other/layer/manifest.json": b""})
    merged(one, [part.path], tmp_path / "tmp")
    publish(tmp_path / "tmp", target)
    assert verify_layer(target) == []
    assert [path.name for path in (target / "files").rglob("*")] == ["a", "b"]
    copy(tmp_path / "result", tmp_path / "copy", ["items"])
    assert verify_layer(tmp_path / "copy/items") == []
    withdraw(target)
    assert [path.name for path in target.iterdir()] == ["other"]
