"""known_hosts files, read and added to."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest

from muster.agent.links.paramiko_ssh import known_hosts
from muster.agent.links.paramiko_ssh.known_hosts import KnownKey, add, fingerprint, key_at, keys_of, name_of
from muster.jobs.common.errors import AccessError

BLOB = b"a key"
TEXT = base64.b64encode(BLOB).decode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / ".ssh" / "known_hosts"


def known(file: Path, line: str, name: str) -> bool:
    file.parent.mkdir(exist_ok=True)
    file.write_text(line + "\n")
    return bool(keys_of(name, [file]))


@pytest.mark.parametrize(
    ("names", "name", "found"),
    [
        ("host", "host", True),
        ("other,host", "host", True),
        ("HOST", "host", True),
        ("*.lab", "a.lab", True),
        ("*.lab,!b.lab", "b.lab", False),
        ("[host]:22022", "[host]:22022", True),
        ("[host]:22022", "host", False),
        ("host", "[host]:22022", False),
        ("[*]:22022", "[host]:22022", True),
        ("# host", "host", False),
        ("hos?", "host", True),
    ],
)
def test_names(file: Path, names: str, name: str, found: bool) -> None:
    assert known(file, f"{names} ssh-ed25519 {TEXT} comment", name) == found


def test_hashed_names(file: Path) -> None:
    salt = b"0123456789abcdefghij"
    digest = hmac.new(salt, b"host", hashlib.sha1).digest()
    names = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
    assert known(file, f"{names} ssh-ed25519 {TEXT}", "host")
    assert not known(file, f"{names} ssh-ed25519 {TEXT}", "other")


@pytest.mark.parametrize(
    "line", ["", "host", "host ssh-rsa", "host ssh-rsa !!!", "@revoked", "|1|x ssh-rsa AAAA", "\0"]
)
def test_broken_lines_are_passed_over(file: Path, line: str) -> None:
    assert not known(file, line, "host")


def test_markers_are_kept(file: Path) -> None:
    file.parent.mkdir()
    file.write_text(f"@revoked host ssh-ed25519 {TEXT}\n")
    assert keys_of("host", [file]) == [KnownKey("@revoked", "ssh-ed25519", BLOB, f"{file}:1")]


def test_a_key_is_added_and_found(file: Path) -> None:
    add(file, "host", "ssh-ed25519", BLOB)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert [key.blob for key in keys_of("host", [file])] == [BLOB]


def test_a_file_without_a_last_newline_is_not_spoilt(file: Path) -> None:
    file.parent.mkdir()
    file.write_text(f"first ssh-ed25519 {TEXT}")
    add(file, "second", "ssh-ed25519", BLOB)
    assert keys_of("first", [file])
    assert keys_of("second", [file])
    assert len(file.read_text().splitlines()) == 2


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AccessError, match="cannot be written"):
        add(tmp_path / "file" / "known_hosts", "host", "ssh-ed25519", BLOB)


def test_a_key_by_its_line(file: Path) -> None:
    file.parent.mkdir()
    file.write_text(f"# nothing\nhost ssh-ed25519 {TEXT}\n")
    found = key_at(f"{file}:2")
    assert found is not None
    assert found.fingerprint == fingerprint(BLOB)
    for where in ("3", "0", "x", ""):
        assert key_at(f"{file}:{where}") is None


def test_a_fingerprint_reads_as_ssh_keygen_shows_it() -> None:
    assert fingerprint(b"") == "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"


def test_the_port_is_part_of_the_name() -> None:
    assert name_of("Host", 22) == "host"
    assert name_of("Host", 2222) == "[host]:2222"
    assert known_hosts.SSH_PORT == 22
