"""What ssh links decide before anything is connected: configuration, command line, diagnosis, imports."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paramiko.buffered_pipe import PipeTimeout

from muster.agent.links import Options, client_for, errors
from muster.agent.links.far_command import command_line, programs
from muster.agent.links.paramiko_ssh.transport import ArrivedData
from muster.agent.links.ssh_config import Config, Target
from muster.jobs.common.errors import AccessError, LinkError, MusterError, NoCommandError, SpaceError, UsageError
from muster.jobs.common.locations import Host
from muster.jobs.common.ssh import quote


def target(tmp_path: Path, text: str, host: Host | None = None) -> Target:
    file = tmp_path / "config"
    file.write_text(text)
    return Config(file).target(host or Host("lab"))


def test_what_the_configuration_says(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("")
    found = target(
        tmp_path,
        f"""
        Host lab
            HostName lab.example.org
            Port 2022
            User ann
            IdentityFile {tmp_path}/key
            IdentityFile {tmp_path}/missing
            IdentitiesOnly yes
            UserKnownHostsFile {tmp_path}/known ~/.ssh/more
            GlobalKnownHostsFile none
            ConnectTimeout 5
            HostKeyAlias the-lab
        """,
    )
    assert (found.host, found.port, found.user, found.connect_seconds) == ("lab.example.org", 2022, "ann", 5.0)
    assert found.keys == (tmp_path / "key",)
    assert found.only_these
    assert found.known_hosts == (tmp_path / "known", Path.home() / ".ssh" / "more")
    assert found.key_name == "the-lab"
    assert found.notes == ()
    assert str(found) == "lab (lab.example.org port 2022)"


def test_where_comes_before_the_configuration(tmp_path: Path) -> None:
    found = target(tmp_path, "Host *\n Port 2022\n User ann\n", Host("lab", "bob", 23))
    assert (found.user, found.port) == ("bob", 23)


def test_jumps_in_their_order(tmp_path: Path) -> None:
    found = target(tmp_path, "Host lab\n ProxyJump ann@a:2022,ssh://b,c\n ProxyCommand nc %h %p\n")
    assert found.jumps == (Host("a", "ann", 2022), Host("b"), Host("c"))
    assert found.proxy is None


def test_what_all_jump_through_does_not_jump_itself(tmp_path: Path) -> None:
    text = "Host *\n ProxyJump bastion\n"
    assert target(tmp_path, text, Host("bastion")).jumps == ()
    assert target(tmp_path, text).jumps == (Host("bastion"),)


def test_a_proxy_command_with_its_tokens(tmp_path: Path) -> None:
    assert target(tmp_path, "Host lab\n ProxyCommand nc %h %p\n").proxy == "nc lab 22"
    assert target(tmp_path, "Host lab\n ProxyCommand none\n").proxy is None


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("ControlPath ~/x", "ControlMaster"),
        ("GSSAPIAuthentication yes", "kerberos"),
        ("CertificateFile x", "certificates"),
    ],
)
def test_what_only_the_systems_ssh_does_is_noted(tmp_path: Path, line: str, note: str) -> None:
    assert target(tmp_path, f"{line}\nHost lab\n").notes == (note,)


@pytest.mark.parametrize("text", ["Port many", "Match exec\n", "Host lab\n ConnectTimeout soon", "just-one-word"])
def test_what_cannot_be_read_is_one_error(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError) as caught:
        target(tmp_path, text)
    assert f"correct {tmp_path}/config" in caught.value.hint
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        target(tmp_path, text)
    assert "--ssh openssh" in caught.value.hint


def test_a_host_of_an_include_or_a_match_is_the_one_that_ssh_reaches(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host lab\n HostName lab.example.org\n")
    text = f'Include {tmp_path}/more\nMatch originalhost lab exec "true"\n Port 2022\n ProxyCommand nc %h %p\n'
    found = target(tmp_path, text)
    assert (found.host, found.port, found.proxy) == ("lab.example.org", 2022, "nc lab.example.org 2022")
    assert found.notes == ()


def test_without_an_ssh_what_only_it_reads_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert target(tmp_path, "Include other\nHost lab\n Port 23\n").notes == ("Include",)


@pytest.mark.parametrize(
    ("line", "client"),
    [("", "paramiko"), ("CertificateFile x", "openssh"), ("KnownHostsCommand /bin/keys", "openssh")],
)
def test_the_system_s_ssh_connects_where_the_configuration_wants_what_ours_cannot(
    tmp_path: Path, line: str, client: str
) -> None:
    (tmp_path / "config").write_text(f"{line}\nHost other\n CertificateFile y\n")
    assert client_for(Host("lab"), Options(config=tmp_path / "config")) == client
    assert client_for(Host("other"), Options(config=tmp_path / "config")) == "openssh"
    assert client_for(Host("other"), Options("paramiko", config=tmp_path / "config")) == "paramiko"


def test_a_missing_configuration_is_none_but_for_a_named_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.agent.links.ssh_config.USER_CONFIG", tmp_path / "missing")
    assert Config().target(Host("lab")).host == "lab"
    with pytest.raises(UsageError, match="cannot be read"):
        Config(tmp_path / "missing")


# --- the command there ---


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "fish", "tcsh"])
@settings(deadline=None, max_examples=50)
@given(word=st.text(st.characters(exclude_characters="\0\n\r", exclude_categories=["Cs"]), max_size=40))
def test_a_word_is_a_word_in_any_shell(shell: str, word: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    if shell == "tcsh" and not word.isascii():
        return  # it goes by the locale, and knows no UTF-8 in C
    ended = subprocess.run([program, "-c", f"printf %s/ {quote(word)} {quote(word)}"], capture_output=True, check=False)
    assert ended.stdout.decode() == f"{word}/{word}/"


def test_plain_words_stay_readable() -> None:
    line = command_line("coordinator", "pull", "/data/farm")
    assert line == "coordinator connect --role pull --root /data/farm"


def test_where_the_program_may_be() -> None:
    assert programs(Host("lab"), None) == ["coordinator", ".muster/connect"]
    assert programs(Host("lab", root="/data/farm/"), None) == ["coordinator", "/data/farm/connect"]
    assert programs(Host("lab", root="/data"), "/opt/c") == ["/opt/c"]


# --- diagnosis ---


@pytest.mark.parametrize(
    ("status", "words", "kind", "shown"),
    [
        (127, "bash: line 1: coordinator: command not found", NoCommandError, "coordinator"),
        (127, "sh: 1: coordinator: not found", NoCommandError, "coordinator"),
        (1, "coordinator: Command not found.", NoCommandError, "coordinator"),
        (127, "fish: Unknown command: coordinator", NoCommandError, "coordinator"),
        (126, "x: Permission denied", NoCommandError, "Permission denied"),
        (1, "OSError: [Errno 28] No space left on device", SpaceError, "No space left"),
        (1, "OSError: [Errno 122] Disk quota exceeded", SpaceError, "quota exceeded"),
        (1, "Traceback\nKeyError: 1", LinkError, "KeyError: 1"),
        (0, "", LinkError, "closed the channel"),
        (None, "", LinkError, "closed the channel"),
        (-9, "", LinkError, "signal 9"),
        (9, "error: what is wrong\nhint: what to do", LinkError, "what is wrong"),
        (7, "error: what is wrong\nhint: what to do", AccessError, "what is wrong"),
    ],
)
def test_an_end_is_explained(status: int | None, words: str, kind: type[MusterError], shown: str) -> None:
    error = errors.ended("lab", "coordinator", status, words, cut=False)
    assert type(error) is kind
    assert shown in error.message
    assert error.hint


def test_an_end_within_a_message_says_so() -> None:
    assert "within a message" in errors.ended("lab", "coordinator", None, "", cut=True).message


def test_what_may_be_tried_again() -> None:
    final = [
        errors.unknown_key("lab", "ssh-rsa", "SHA256:x"),
        errors.not_let_in("lab", "ann", []),
        errors.locked_key("lab", "key"),
        errors.noisy("lab", "This account is currently not available."),
    ]
    assert not any(error.retryable for error in final)
    passing = [errors.no_such_host("lab", "x"), errors.closed_early("lab", ""), errors.refused_port("lab")]
    assert all(error.retryable for error in passing)


# --- imports ---


@pytest.mark.parametrize("where", ["Folder(Path('/tmp'))", "Host('lab')"])
def test_paramiko_is_imported_for_its_own_link_alone(where: str) -> None:
    code = f"""
import sys
from pathlib import Path
from muster.agent.links import Options, open_link
from muster.jobs.common.locations import Folder, Host
open_link({where}, Options("openssh"))
print(*{{"paramiko", "cryptography"}} & set(sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == []


# --- what arrived on a channel ---


def test_what_arrived_is_read_in_order_whatever_the_pieces() -> None:
    arrived = ArrivedData()
    for piece in (b"abc", b"defgh", b"i"):
        arrived.feed(piece)
    assert len(arrived) == 9 and arrived.read_ready()
    assert [arrived.read(4), arrived.read(2), arrived.read(100)] == [b"abcd", b"ef", b"ghi"]
    assert not len(arrived) and not arrived.read_ready()


def test_what_arrived_before_the_end_can_still_be_read() -> None:
    arrived = ArrivedData()
    arrived.feed(b"last")
    arrived.close()
    assert [arrived.read(10), arrived.read(10)] == [b"last", b""]


def test_nothing_that_arrives_is_an_error_in_time() -> None:
    with pytest.raises(PipeTimeout):
        ArrivedData().read(1, timeout=0.0)


def test_a_reader_that_waits_is_woken_by_what_arrives() -> None:
    arrived, found = ArrivedData(), list[bytes]()
    reader = threading.Thread(target=lambda: found.append(arrived.read(10, timeout=60.0)))
    reader.start()
    arrived.feed(b"now")
    reader.join(60.0)
    assert found == [b"now"]
