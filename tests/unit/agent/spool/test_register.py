"""What a user's agents on one machine know of each other, wherever their spools are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from muster.agent.host.cpu_shares import CpuShare
from muster.agent.spool import owner as owners
from muster.agent.spool import register
from muster.agent.spool.paths import Spool


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return tmp_path / "home"


def joined(path: Path, name: str) -> Spool:
    """A spool that this process has, as an agent would."""
    spool = Spool(path)
    spool.take(name, "/farm")
    register.note(path, name, "/farm", ["/farm", "--cpus", "2"])
    return spool


def test_an_agent_is_found_under_whatever_spool_and_state_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    joined(owners.base() / "one", "one")
    joined(tmp_path / "elsewhere", "two")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert sorted(owner.name for _, owner in register.running(None)) == ["one", "two"]
    assert register.the_one(None, "two")[0] == tmp_path / "elsewhere"


def test_a_spool_is_remembered_once_as_it_was_last_used(tmp_path: Path) -> None:
    for args in (["/old"], ["/new", "--nice", "3"]):
        register.note(tmp_path, "desk", args[0], args, detached=args[0] == "/new")
    (entry,) = register.entries()
    assert (entry.where, entry.args, entry.detached, entry.cwd) == ("/new", ["/new", "--nice", "3"], True, os.getcwd())


def test_a_spool_that_was_deleted_is_forgotten_with_the_next_join(tmp_path: Path) -> None:
    joined(tmp_path / "a", "a").release()
    shutil.rmtree(tmp_path / "a")
    assert register.spools() == []
    joined(tmp_path / "b", "b")
    assert [entry.name for entry in register.entries()] == ["b"]


def test_with_the_last_spool_that_is_forgotten_nothing_is_left(home: Path, tmp_path: Path) -> None:
    joined(tmp_path / "a", "a")
    joined(tmp_path / "b", "b")
    CpuShare(owners.cpu_shares(), "a").take("a", 1, 1)
    register.forget(tmp_path / "a")
    assert [entry.name for entry in register.entries()] == ["b"] and owners.cpu_shares().is_dir()
    register.forget(tmp_path / "b")
    assert not [path for path in home.rglob("*") if path.is_file() or path.suffix in (".agents", ".cpus")]


def test_the_register_of_another_user_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    joined(tmp_path / "a", "a")
    assert register.entries()
    monkeypatch.setattr("os.getuid", lambda: 4242)
    assert register.entries() == []


def test_where_nothing_can_be_written_an_agent_joins_all_the_same(home: Path, tmp_path: Path) -> None:
    home.touch()
    register.note(tmp_path, "desk", "/farm", ["/farm"])
    assert register.entries() == []
