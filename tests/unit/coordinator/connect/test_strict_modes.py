"""What keeps sshd from reading authorized_keys is named, each with what mends it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.coordinator.connect.strict_modes import key_obstacles


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "my home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "authorized_keys").write_text("ssh-ed25519 AAAA lab3\n")
    for path, mode in ((home, 0o755), (home / ".ssh", 0o700), (home / ".ssh" / "authorized_keys", 0o600)):
        path.chmod(mode)
    return home


def test_a_home_as_it_should_be_is_not_spoken_of(home: Path) -> None:
    assert key_obstacles(home, os.getuid()) == []


@pytest.mark.parametrize("name", ["", ".ssh", ".ssh/authorized_keys"])
@pytest.mark.parametrize("bit", [0o020, 0o002])
def test_what_others_may_write_is_named(home: Path, name: str, bit: int) -> None:
    path = home / name
    path.chmod(path.stat().st_mode | bit)
    assert key_obstacles(home, os.getuid()) == [f"{path} is writable for others: `chmod go-w '{path}'`"]


def test_what_is_another_users_is_named(home: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(home / ".ssh", 12345, -1)
    assert key_obstacles(home, 0) == [f"{home}/.ssh is of another user: `sudo chown 0 '{home}/.ssh'`"]


def test_without_keys_there_is_nothing_to_say(home: Path) -> None:
    home.chmod(0o777)
    (home / ".ssh" / "authorized_keys").unlink()
    assert key_obstacles(home, os.getuid()) == []
