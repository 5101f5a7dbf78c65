"""The root folder: made private, refused where it is unsafe, reached however long its path is."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from muster.coordinator.farm_root import paths as roots
from muster.jobs.common import filesystems
from muster.jobs.common.errors import NoDaemonError, NotFoundError, RefusedError, UsageError


@pytest.fixture
def root(tmp_path: Path) -> roots.Root:
    return roots.prepare(tmp_path / "farm")


def test_it_is_made_private_and_keeps_its_identity(root: roots.Root) -> None:
    assert stat.S_IMODE(root.path.stat().st_mode) == 0o700
    assert len(root.farm) == 32
    assert roots.prepare(root.path).farm == root.farm
    assert [folder.is_dir() for folder in (root.tmp, root.jobs, root.code)] == [True] * 3


def test_the_default_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MUSTER_ROOT", str(tmp_path / "elsewhere"))
    assert roots.find(None).path == tmp_path / "elsewhere"
    monkeypatch.delenv("MUSTER_ROOT")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert roots.find(None).path == tmp_path / ".muster"


def test_a_world_writable_root_is_refused(root: roots.Root) -> None:
    root.path.chmod(0o777)
    for use in (roots.prepare, roots.existing):
        with pytest.raises(RefusedError, match="writable by everyone"):
            use(root.path)


def test_a_root_that_its_group_may_write_to_or_that_is_another_users_is_refused(
    root: roots.Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.path.chmod(0o770)
    for use in (roots.prepare, roots.existing):
        with pytest.raises(RefusedError, match="writable by its group") as caught:
            use(root.path)
        assert f"`chmod 700 {root.path}`" in caught.value.hint
    root.path.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: root.path.stat().st_uid + 1)
    for use in (roots.prepare, roots.existing):
        with pytest.raises(RefusedError, match="belongs to another user") as caught:
            use(root.path)
        assert f"chmod 700 {root.path}`" in caught.value.hint


def test_a_root_is_held_by_one_whatever_becomes_of_its_lock(root: roots.Root, tmp_path: Path) -> None:
    with roots.held(root) as held:
        for _ in range(2):
            assert not roots.is_free(root)
            with pytest.raises(RefusedError, match="is served already"), roots.held(root):
                pass
            root.lock.unlink()
        assert held.is_in_place
        root.path.rename(tmp_path / "moved")
        assert not held.is_in_place
        root.path.mkdir()
        assert not held.is_in_place and roots.is_free(root)
    assert roots.is_free(roots.Root(tmp_path / "moved"))


def test_the_last_start_is_noted(root: roots.Root) -> None:
    assert root.boot == 0
    farm = root.farm
    root.note_boot(7)
    assert (root.farm, root.boot) == (farm, 7)
    root.farm_file.write_text(json.dumps({"uuid": farm, "format": roots.FORMAT}))  # as older versions write it
    assert (root.farm, root.boot) == (farm, 0)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("chapter")
    with pytest.raises(RefusedError, match="full of something else"):
        roots.prepare(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_and_an_unusable_place_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RefusedError, match=r"cannot be used|not a folder"):
            roots.prepare(path)


def test_a_root_on_nfs_is_refused(root: roots.Root, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    where = str(root.path).replace(" ", "\\040")
    table.write_text(f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:30 / {where} rw shared:5 - nfs4 srv:/home rw\n")
    assert filesystems.file_system(root.path, table) == "nfs4"
    assert filesystems.file_system(root.path.parent, table) == "ext4"
    assert filesystems.file_system(Path(f"{root.path}2"), table) == "ext4"
    monkeypatch.setattr(filesystems, "file_system", lambda path: "nfs4")
    with pytest.raises(RefusedError, match="network file system"):
        roots.existing(root.path)


def test_the_mount_on_top_counts(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:3 / / rw - overlay none rw\n")
    assert filesystems.file_system(tmp_path, table) == "overlay"
    assert filesystems.file_system(tmp_path, tmp_path / "missing") == ""


def test_a_root_that_is_none_yet(tmp_path: Path) -> None:
    with pytest.raises(NoDaemonError) as caught:
        roots.existing(tmp_path)
    assert "coordinator serve" in caught.value.hint


@pytest.mark.parametrize("text", ["", "{}", '{"uuid": "a", "format": 99}', "[]"])
def test_a_damaged_or_foreign_farm_file(root: roots.Root, text: str) -> None:
    root.farm_file.write_text(text)
    with pytest.raises(RefusedError):
        roots.prepare(root.path)


def test_a_name_alone_is_the_latest_job(root: roots.Root) -> None:
    for job in ("weights.1", "weights.10", "weights.9", "weights-old.11", "weights.x"):
        (root.jobs / job).mkdir()
    assert roots.resolve_job(root, "weights") == "weights.10"
    assert roots.resolve_job(root, "weights.9") == "weights.9"
    for missing in ("weights.2", "other"):
        with pytest.raises(NotFoundError):
            roots.resolve_job(root, missing)
    for bad in ("../weights", "a/b", "x" * 300, "a\nb", ""):
        with pytest.raises(UsageError):
            roots.resolve_job(root, bad)


def test_a_socket_far_below_the_limit_of_paths(tmp_path: Path) -> None:
    deep = roots.prepare(tmp_path.joinpath(*["a-long-folder-name-in-the-way"] * 6))
    assert len(os.fsencode(deep.socket)) > roots.SOCKET_PATH_LIMIT
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        with roots.address(deep.socket) as where:
            server.bind(where)
        server.listen()
        with roots.address(deep.socket) as where:
            client.connect(where)
    assert deep.socket.exists()


def test_the_launcher_starts_our_program_from_any_folder(root: roots.Root, tmp_path: Path) -> None:
    (tmp_path / "coordinator.py").write_text("raise SystemExit('the wrong module')")
    done = subprocess.run([root.launcher, "--help"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: coordinator connect")
    assert json.loads(root.farm_file.read_text())["format"] == roots.FORMAT
