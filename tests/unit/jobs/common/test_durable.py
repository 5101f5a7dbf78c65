"""The order of a durable commit, and what a full disk or a failed fsync leaves behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.jobs.common import durable
from muster.jobs.common.errors import SpaceError


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every fsync and rename, in order."""
    seen: list[str] = []
    fsync, replace = os.fsync, os.replace

    def told_fsync(fd: int) -> None:
        seen.append(f"fsync {Path(f'/proc/self/fd/{fd}').readlink().name}")
        fsync(fd)

    def told_replace(old: str | Path, new: str | Path) -> None:
        seen.append(f"rename {Path(old).name} {Path(new).name}")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", told_fsync)
    monkeypatch.setattr(os, "replace", told_replace)
    monkeypatch.setattr(Path, "replace", told_replace)
    return seen


def failing(monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> list[int]:
    """Make a function of os fail; how often it was asked."""
    asked: list[int] = []

    def fail(*_: object) -> None:
        asked.append(1)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, name, fail)
    return asked


def test_write_durably_syncs_the_file_then_renames_then_syncs_the_folder(tmp_path: Path, calls: list[str]) -> None:
    durable.write_durably(tmp_path / "a", b"text", tmp_path / "tmp")
    assert calls == ["fsync tmp", "rename tmp a", f"fsync {tmp_path.name}"]
    assert (tmp_path / "a").read_bytes() == b"text" and os.listdir(tmp_path) == ["a"]


def test_write_durably_takes_chunks_and_replaces(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    pieces: list[bytes | memoryview | bytearray] = [b"ab", memoryview(b"cd"), bytearray(3 << 20)]
    durable.write_durably(tmp_path / "a", iter(pieces))
    assert (tmp_path / "a").read_bytes() == b"abcd" + bytes(3 << 20) and os.listdir(tmp_path) == ["a"]


def test_publish_is_the_same_for_a_file_written_by_another(tmp_path: Path, calls: list[str]) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "tmp").write_bytes(b"x")
    durable.publish(tmp_path / "tmp", tmp_path / "final" / "b")
    assert calls == ["fsync tmp", "rename tmp b", "fsync final"]


def test_local_commit_is_a_rename_alone(tmp_path: Path, calls: list[str]) -> None:
    (tmp_path / "tmp").write_bytes(b"x")
    durable.local_commit(tmp_path / "tmp", tmp_path / "done")
    assert calls == ["rename tmp done"]


def test_what_is_private_is_renamed_alone_and_for_us_alone(tmp_path: Path, calls: list[str]) -> None:
    (tmp_path / "a").write_bytes(b"old")
    durable.write_private(tmp_path / "a", memoryview(b"text"))
    assert calls == [f"rename .a.{os.getpid()}.tmp a"]
    assert (tmp_path / "a").read_bytes() == b"text" and os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("raw", "said"), [(b"[1,2]", [1, 2]), (b"[1,", None), (b'{"a": 1}', None), (b"", None)])
def test_a_small_file_that_cannot_be_read_says_nothing(tmp_path: Path, raw: bytes, said: list[int] | None) -> None:
    assert durable.read_json(tmp_path / "a", list[int]) is None
    (tmp_path / "a").write_bytes(raw)
    assert durable.read_json(tmp_path / "a", list[int]) == said


def test_make_folder_makes_each_name_durable(tmp_path: Path, calls: list[str]) -> None:
    durable.make_folder(tmp_path / "a" / "b")
    assert calls == [f"fsync {tmp_path.name}", "fsync a"]
    durable.make_folder(tmp_path / "a" / "b")
    assert len(calls) == 2


def saving(folder: Path) -> None:
    durable.write_durably(folder / "a", b"new", folder / "tmp")


def publishing(folder: Path) -> None:
    (folder / "tmp").write_bytes(b"new")
    durable.publish(folder / "tmp", folder / "a")


@pytest.mark.parametrize("act", [saving, publishing])
def test_after_a_failed_fsync_the_tmp_is_gone_and_never_synced_again(
    act: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"old")
    asked = failing(monkeypatch, "fsync", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        act(tmp_path)
    assert len(asked) == 1 and os.listdir(tmp_path) == ["a"] and (tmp_path / "a").read_bytes() == b"old"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_or_quota_is_said_with_the_path(
    call: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, call, code)
    with pytest.raises(SpaceError, match=str(tmp_path / "a")):
        saving(tmp_path)
    assert os.listdir(tmp_path) == []


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    saving(tmp_path)
    durable.write_durably(tmp_path / "b", b"0123456789")
    assert (tmp_path / "b").read_bytes() == b"0123456789"


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_folder_takes_anothers_name_and_leaves_it_its_own(
    exchanges: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchanges:
        monkeypatch.setattr(durable, "_exchange", lambda *_: False)
    made, final = tmp_path / "made", tmp_path / "final"
    for number in (1, 2, 3):
        made.mkdir(exist_ok=True)
        (made / "file").write_text(str(number))
        durable.replace_folder(made, final)
        assert (final / "file").read_text() == str(number)
        assert made.exists() is (number > 1) and (number == 1 or (made / "file").read_text() == str(number - 1))
    assert sorted(os.listdir(tmp_path)) == ["final", "made"]


def test_a_folder_whose_name_cannot_be_had_stays_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    with pytest.raises(FileNotFoundError):
        durable.replace_folder(tmp_path / "made", tmp_path / "gone" / "final")
    assert (tmp_path / "made").is_dir()
