"""authorized_keys: one line a machine between marks, and everything else as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.deploy import keys
from muster.deploy.inventory import ServerAddress
from muster.jobs.common.errors import RefusedError

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKpYFF79AgXCiwAMg8j4pZZVG5BKJLyHghPB9C0Q8qBV"
OWN = "# mine\nssh-rsa AAAAB3NzaC1yc2E= me@desk"  # without a newline at its end


def line(name: str) -> str:
    return keys.confined(KEY, name, Path("/home/me/.muster/connect"))


def test_a_line_goes_in_and_out_and_the_rest_stays() -> None:
    one = keys.with_line(OWN, "f", "lab3", line("lab3"))
    two = keys.with_line(one, "f", "gpu1", line("gpu1"))
    assert two.startswith(OWN + "\n") and keys.line_of(two, "f", "lab3") == line("lab3")
    assert keys.with_line(two, "f", "gpu1", None) == one
    assert keys.with_line(one, "f", "lab3", None) == OWN + "\n"


def test_a_name_has_one_line_and_a_farm_its_own_marks() -> None:
    one = keys.with_line(keys.with_line("", "f", "lab3", line("lab3")), "other", "lab3", line("lab3"))
    again = keys.with_line(one, "f", "lab3", line("lab3").replace("AAAAC3", "AAAAC4"))
    assert again.count("AAAAC4") == 1 and again.count("AAAAC3") == 1
    assert keys.line_of(again, "other", "lab3") == line("lab3")


def test_what_sshd_reads_as_one_line_stays_one_and_every_byte_as_it_was(tmp_path: Path) -> None:
    """A person's comment may have what Python takes for the end of a line, and sshd does not."""
    own = b"ssh-rsa AAAA a\x0cb\x0bc\x1cd\xc2\x85e\xe2\x80\xa8f\xff\r\n# \r\rssh-rsa AAAA x\n"
    file = tmp_path / "authorized_keys"
    file.write_bytes(own)
    held = keys.AuthorizedKeys(str(file), "f")
    held.put("lab3", line("lab3"))
    assert file.read_bytes().startswith(own) and file.read_bytes().count(b"\n") == own.count(b"\n") + 3
    held.put("lab3", None)
    assert file.read_bytes() == own


def test_farms_of_one_account_change_the_file_at_once_and_none_loses_a_line(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from muster.deploy import keys; "
        "held = keys.AuthorizedKeys(sys.argv[1], sys.argv[2]); "
        f"[held.put(f'm{{n}}', keys.confined({KEY!r}, f'm{{n}}', Path('/c'))) for n in range(20)]"
    )
    file = tmp_path / "authorized_keys"
    farms = [subprocess.Popen([sys.executable, "-c", code, str(file), farm], cwd="/") for farm in "abc"]
    assert [one.wait(60.0) for one in farms] == [0, 0, 0]
    text = file.read_text()
    assert all(keys.line_of(text, farm, f"m{n}") for farm in "abc" for n in range(20))
    assert os.listdir(tmp_path) == ["authorized_keys"]


def test_what_follows_the_marks_stays_behind_them() -> None:
    text = keys.with_line(OWN, "f", "lab3", line("lab3")) + "ssh-rsa LATER\n"
    assert keys.with_line(text, "f", "gpu1", line("gpu1")).endswith("ssh-rsa LATER\n")


def test_marks_that_do_not_match_are_left_to_their_user() -> None:
    text = keys.with_line("", "f", "lab3", line("lab3"))
    for broken in (text.rpartition("# end")[0], text + text):
        with pytest.raises(RefusedError, match="do not match"):
            keys.with_line(broken, "f", "gpu1", line("gpu1"))


def test_what_is_no_key_is_never_written() -> None:
    assert keys.public_key(f"{KEY} lab3\n") == KEY
    for text in ("", 'command="id" ' + KEY, f"{KEY}\nssh-rsa AAAA", "ssh-ed25519 short x", f"{KEY} a\nb"):
        assert keys.public_key(text) is None


def test_a_path_is_quoted_for_the_shell_and_for_sshd(tmp_path: Path) -> None:
    made = keys.confined(KEY, "lab3", Path('/a b/c"d/connect'))
    assert made == rf"""restrict,command="'/a b/c\"d/connect' --as lab3" {KEY} lab3"""
    (tmp_path / "keys").write_text(made + "\n")
    said = subprocess.run(["ssh-keygen", "-lf", tmp_path / "keys"], capture_output=True, text=True, check=True).stdout
    assert "lab3 (ED25519)" in said


def test_the_file_keeps_its_mode_and_is_never_half(tmp_path: Path) -> None:
    file = tmp_path / "ssh" / "authorized_keys"
    assert keys.AuthorizedKeys(str(file), "f").put("lab3", line("lab3"))
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    file.chmod(0o640)
    before = file.stat().st_ino
    held = keys.AuthorizedKeys(str(file), "f")
    assert not held.put("lab3", line("lab3")) and file.stat().st_ino == before
    assert held.put("gpu1", line("gpu1")) and held.line_of("gpu1") == line("gpu1")
    assert file.stat().st_mode & 0o777 == 0o640 and file.stat().st_ino != before
    assert sorted(os.listdir(file.parent)) == ["authorized_keys"]


def test_a_link_to_the_file_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_text(OWN)
    (tmp_path / "link").symlink_to("real")
    keys.AuthorizedKeys(str(tmp_path / "link"), "f").put("lab3", line("lab3"))
    assert (tmp_path / "link").is_symlink() and "lab3" in (tmp_path / "real").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "authorized_keys"
    file.write_text(OWN)
    os.chown(file, 65534, 65534)
    with pytest.raises(RefusedError, match="belongs to another user"):
        keys.AuthorizedKeys(str(file), "f").put("lab3", line("lab3"))
    assert file.read_text() == OWN


def test_a_server_is_known_by_its_own_files(tmp_path: Path) -> None:
    (tmp_path / "a.pub").write_text(f"{KEY} root@server\n")
    (tmp_path / "b.pub").write_text("nonsense\n")
    pattern = str(tmp_path / "*.pub")
    assert keys.known_hosts(ServerAddress("me@Server.lab", host_keys=pattern)) == f"server.lab {KEY}\n"
    assert keys.known_hosts(ServerAddress("ssh://me@[::1]:2222", host_keys=pattern)) == f"[::1]:2222 {KEY}\n"
    with pytest.raises(RefusedError, match="no host key"):
        keys.known_hosts(ServerAddress("server", host_keys=str(tmp_path / "none*")))
