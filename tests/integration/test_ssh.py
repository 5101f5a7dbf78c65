"""Both ssh links through a real sshd: the way in, each thing that can be wrong, and a key that may do one thing."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import pytest

from muster.agent.links import Options, Ssh, open_link
from muster.agent.links.base import Channel, Link, Role, greet
from muster.agent.links.paramiko_ssh import known_hosts, transport
from muster.agent.links.paramiko_ssh.connection import Limits
from muster.agent.links.paramiko_ssh.keys import Keys
from muster.agent.links.paramiko_ssh.link import ParamikoLink
from muster.agent.links.ssh_config import Config
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.protocol.control import Greeting, Hello, Rejected, ToAgent, Welcome
from muster.coordinator.protocol.values import Decoder
from muster.jobs.common.errors import AccessError, LinkError, MusterError, NoCommandError, ProtocolError, SpaceError
from muster.jobs.common.locations import Host, parse
from tests.support import sshd
from tests.support.farm import FarmHarness, until
from tests.support.sshd import HOST, Sshd

BOTH: tuple[Ssh, ...] = ("paramiko", "openssh")
SOON = 20.0
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"  # where no `coordinator` is
REKEYS = 4000

ROOT = Path(__file__).parents[2]

both = pytest.mark.parametrize("ssh", BOTH)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """A root that nobody serves: its helper greets, and then says so."""
    return roots.prepare(tmp_path / "root")


@contextmanager
def linked(server: Sshd, ssh: Ssh, host: Host | None = None, **options: Any) -> Iterator[Link]:
    chosen = {"config": server.ssh_config(), **options}
    link = open_link(host or Host(HOST), Options(ssh, **chosen))
    try:
        yield link
    finally:
        link.close()


@contextmanager
def opened(link: Link, role: Role = "control") -> Iterator[Channel]:
    channel = link.open(role)
    try:
        yield channel
    finally:
        channel.close()


def greeting(server: Sshd, ssh: Ssh, host: Host | None = None, **options: Any) -> Greeting:
    with linked(server, ssh, host, **options) as link, opened(link) as channel:
        return greet(channel, SOON)


def failure(server: Sshd, ssh: Ssh, host: Host | None = None, **options: Any) -> MusterError:
    """What a join would end with."""
    with pytest.raises(MusterError) as caught:
        greeting(server, ssh, host, **options)
    assert caught.value.hint
    assert "\n" not in caught.value.message
    return caught.value


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# --- the way in -----------------------------------------------------------------------------------------------


@both
def test_a_root_named_in_where_is_the_one_that_greets(server: Sshd, ssh: Ssh, root: Root) -> None:
    assert greeting(server, ssh, Host(HOST, root=str(root.path))).farm == root.farm


@both
def test_each_form_of_where_leads_there(server: Sshd, ssh: Ssh, root: Root) -> None:
    trust = ("Host 127.0.0.1", f"IdentityFile {server.key}", f"UserKnownHostsFile {server.known_hosts}", "Host other")
    config = server.ssh_config(*trust, name="by_address")
    host = parse(f"ssh://{server.user}@127.0.0.1:{server.port}{root.path}")
    assert isinstance(host, Host)
    config.write_text(config.read_text().split("Host 127.0.0.1", 1)[1].join(["Host 127.0.0.1", ""]))
    assert greeting(server, ssh, host, config=config).farm == root.farm


@both
def test_a_launcher_in_the_root_is_found_where_path_has_nothing(odd: Callable[..., Sshd], ssh: Ssh, root: Root) -> None:
    server = odd(path=SYSTEM_PATH)
    assert greeting(server, ssh, Host(HOST, root=str(root.path))).farm == root.farm


@both
def test_a_launcher_can_be_named(odd: Callable[..., Sshd], ssh: Ssh, root: Root) -> None:
    server = odd(path=SYSTEM_PATH)
    assert greeting(server, ssh, command=str(root.launcher)).farm == root.farm


@both
@pytest.mark.parametrize("shell", ["bash", "dash", "fish", "tcsh"])
def test_any_shell_and_any_root(odd: Callable[..., Sshd], ssh: Ssh, shell: str, tmp_path: Path) -> None:
    """Not one character of the root means anything to a shell."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    strange = roots.prepare(tmp_path / 'it\'s a $(touch x) `root`; "with" ! * and \\ in it ~ #%&')
    server = odd(f'ForceCommand exec {program} -c "$SSH_ORIGINAL_COMMAND"')
    assert greeting(server, ssh, Host(HOST, root=str(strange.path))).farm == strange.farm


@both
def test_a_banner_disturbs_nothing(odd: Callable[..., Sshd], ssh: Ssh, root: Root, tmp_path: Path) -> None:
    banner = tmp_path / "banner"
    banner.write_text("All activity may be monitored.\n" * 20)
    server = odd(f"Banner {banner}")
    assert greeting(server, ssh, Host(HOST, root=str(root.path))).farm == root.farm


@both
def test_a_jump_through_another_host(server: Sshd, ssh: Ssh, root: Root, odd: Callable[..., Sshd]) -> None:
    """Two of them, one behind the other; the last is known by an alias."""
    config = server.ssh_config(name="jumps")
    lines = config.read_text().replace(f"Host {HOST}\n", "Host first second far\n")
    known = server.known_hosts.read_text().split(" ", 1)[1]
    (server.folder / "known_alias").write_text(f"afar {known}")
    alias = f"HostKeyAlias afar\nUserKnownHostsFile {server.folder / 'known_alias'}\n"
    config.write_text(f"Host far\nProxyJump first,second\n{alias}{lines}")
    assert greeting(server, ssh, Host("far", root=str(root.path)), config=config).farm == root.farm
    assert server.log().count("to 127.0.0.1 port") or server.log()


@both
def test_a_proxy_command_carries_the_connection(server: Sshd, ssh: Ssh, root: Root, tmp_path: Path) -> None:
    nc = tmp_path / "nc.py"
    nc.write_text(PROXY)
    line = f"ProxyCommand {sys.executable} -S {nc} %h %p"
    config = server.ssh_config(line, name="proxied")
    assert greeting(server, ssh, Host(HOST, root=str(root.path)), config=config).farm == root.farm


PROXY = """
import os, select, socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
ends = {0: s.fileno(), s.fileno(): 1}
while True:
    for fd in select.select(list(ends), [], [])[0]:
        data = os.read(fd, 65536)
        if not data: sys.exit()
        while data: data = data[os.write(ends[fd], data):]
"""


@both
def test_a_key_of_the_ssh_agent_lets_in(server: Sshd, ssh: Ssh, root: Root, monkeypatch: pytest.MonkeyPatch,
                                        tmp_path: Path) -> None:  # fmt: skip
    with ssh_agent(tmp_path, monkeypatch, server.key):
        config = server.ssh_config(key=tmp_path / "missing", name="by_agent")
        config.write_text(re.sub("Identit(iesOnly|yAgent|yFile).*\n", "", config.read_text()))
        assert greeting(server, ssh, Host(HOST, root=str(root.path)), config=config).farm == root.farm


@contextmanager
def ssh_agent(folder: Path, monkeypatch: pytest.MonkeyPatch, *keys: Path) -> Iterator[None]:
    address = folder / "agent.sock"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(address)], stdout=subprocess.DEVNULL)
    try:
        until(address.exists, "the ssh-agent's socket")
        monkeypatch.setenv("SSH_AUTH_SOCK", str(address))
        subprocess.run(["ssh-add", *map(str, keys)], check=True, capture_output=True)
        yield
    finally:
        process.terminate()
        process.wait(SOON)


@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
def test_each_kind_of_key_lets_in(server: Sshd, root: Root, tmp_path: Path, kind: str) -> None:
    key = sshd.make_key(tmp_path / "key", kind=kind)
    server.authorize(key)
    config = server.ssh_config(key=key, name=f"with_{kind}")
    assert greeting(server, "paramiko", Host(HOST, root=str(root.path)), config=config).farm == root.farm


def test_a_passphrase_is_asked_for_once(server: Sshd, root: Root, tmp_path: Path) -> None:
    key = sshd.make_key(tmp_path / "locked", passphrase="open sesame")
    server.authorize(key)
    config = Config(server.ssh_config(key=key, name="locked"))
    link = ParamikoLink(Host(HOST, root=str(root.path)), config)
    asked: list[str] = []

    def ask(prompt: str = "", stream: TextIO | None = None) -> str:
        asked.append(prompt)
        return "wrong" if len(asked) == 1 else "open sesame"

    link._ask = ask
    link.prepare()
    assert len(asked) == 2
    assert str(key) in asked[0]
    for connection in link._living():
        link._drop(connection)
    with opened(link) as channel:
        assert greet(channel, SOON).farm == root.farm
    assert len(asked) == 2
    link.close()


@both
def test_a_passphrase_can_be_typed_on_a_terminal(server: Sshd, ssh: Ssh, root: Root, tmp_path: Path) -> None:
    typist = shutil.which("script")
    if typist is None:
        pytest.skip("there is no `script` to make a terminal with")
    key = sshd.make_key(tmp_path / "locked", passphrase="open sesame")
    server.authorize(key)
    config = server.ssh_config(key=key, name="typed")
    program = tmp_path / "program.py"
    program.write_text(TYPED.format(ssh=ssh, config=str(config), root=str(root.path)))
    command = [typist, "-qec", shlex.join([sys.executable, str(program)]), os.devnull]
    terminal = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert terminal.stdin and terminal.stdout
    said = b""
    while b"passphrase" not in said:
        said += os.read(terminal.stdout.fileno(), 1000)
    terminal.stdin.write(b"open sesame\n")
    terminal.stdin.flush()
    rest, _ = terminal.communicate(timeout=SOON)
    assert root.farm.encode() in rest


TYPED = """
from pathlib import Path
from muster.agent.links import Options, open_link
from muster.agent.links.base import greet
from muster.jobs.common.locations import Host
link = open_link(Host("farm", root={root!r}), Options({ssh!r}, config=Path({config!r}), interactive=True))
link.prepare()
channel = link.open("control")
print(greet(channel).farm)
channel.close()
link.close()
"""


def test_fast_ciphers_come_first(server: Sshd) -> None:
    link = ParamikoLink(Host(HOST), Config(server.ssh_config()))
    link.prepare()
    assert link._living()[0].transport.remote_cipher == "aes128-gcm@openssh.com"  # type: ignore[attr-defined]
    link.close()


# --- host keys ------------------------------------------------------------------------------------------------


@both
def test_an_unknown_host_key_is_shown_and_refused(server: Sshd, ssh: Ssh, tmp_path: Path) -> None:
    error = failure(server, ssh, config=knowing(server, tmp_path / "empty"))
    assert isinstance(error, AccessError)
    assert not error.retryable
    assert fingerprint_of(server.host_key) in error.message
    assert "--accept-new-host-key" in error.hint
    assert not (tmp_path / "empty").exists()


@both
def test_an_unknown_host_key_can_be_accepted_once(server: Sshd, ssh: Ssh, root: Root, tmp_path: Path) -> None:
    file = tmp_path / "ssh" / "known"
    if ssh == "openssh":
        file.parent.mkdir()
    config, host = knowing(server, file), Host(HOST, root=str(root.path))
    assert greeting(server, ssh, host, config=config, accept_new_host_key=True).farm == root.farm
    assert ssh == "openssh" or stat.S_IMODE(file.stat().st_mode) == 0o600
    once = file.read_text()
    assert greeting(server, ssh, host, config=config, accept_new_host_key=True).farm == root.farm
    assert greeting(server, ssh, host, config=config).farm == root.farm
    assert file.read_text() == once


@both
@pytest.mark.parametrize("accept", [False, True])
def test_a_changed_host_key_is_always_refused(server: Sshd, ssh: Ssh, tmp_path: Path, accept: bool) -> None:
    other = sshd.make_key(tmp_path / "other")
    known = tmp_path / "known"
    known.write_text(f"[127.0.0.1]:{server.port} {sshd.public_line(other)}\n")
    error = failure(server, ssh, config=knowing(server, known), accept_new_host_key=accept)
    assert isinstance(error, AccessError)
    assert not error.retryable
    assert fingerprint_of(server.host_key) in error.message
    assert fingerprint_of(other) in error.message
    assert str(known) in error.hint


def test_another_kind_of_key_than_the_known_one_is_a_changed_one(server: Sshd, tmp_path: Path) -> None:
    other = sshd.make_key(tmp_path / "other", kind="ecdsa")
    known = tmp_path / "known"
    known.write_text(f"[127.0.0.1]:{server.port} {sshd.public_line(other)}\n")
    error = failure(server, "paramiko", config=knowing(server, known), accept_new_host_key=True)
    assert "has changed" in error.message


def test_a_revoked_host_key_is_refused(server: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known"
    line = f"[127.0.0.1]:{server.port} {sshd.public_line(server.host_key)}\n"
    known.write_text(f"{line}@revoked {line}")
    error = failure(server, "paramiko", config=knowing(server, known), accept_new_host_key=True)
    assert "revoked" in error.message


def test_hashed_names_are_known(server: Sshd, root: Root, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_text(server.known_hosts.read_text())
    subprocess.run(["ssh-keygen", "-H", "-f", str(known)], check=True, capture_output=True)
    assert "127.0.0.1" not in known.read_text()
    host = Host(HOST, root=str(root.path))
    assert greeting(server, "paramiko", host, config=knowing(server, known)).farm == root.farm


def knowing(server: Sshd, file: Path) -> Path:
    """A configuration with another known_hosts."""
    return server.ssh_config(f"UserKnownHostsFile {file}", name=f"config_{file.name}")


def fingerprint_of(key: Path) -> str:
    return known_hosts.fingerprint(sshd_blob(key))


def sshd_blob(key: Path) -> bytes:
    import base64

    return base64.b64decode(sshd.public_line(key).split()[1])


# --- what can be wrong ----------------------------------------------------------------------------------------


@both
def test_no_such_host(server: Sshd, ssh: Ssh) -> None:
    config = server.ssh_config("HostName no-such-host.invalid", name="nowhere")
    error = failure(server, ssh, config=config)
    assert isinstance(error, LinkError)
    assert error.retryable
    assert "there is no host" in error.message


@both
def test_a_refused_port(server: Sshd, ssh: Ssh) -> None:
    config = server.ssh_config(f"Port {sshd.free_port()}", name="refused")
    error = failure(server, ssh, config=config)
    assert error.retryable
    assert "refused" in error.message


@both
def test_a_refused_key_says_what_was_tried(server: Sshd, ssh: Ssh, tmp_path: Path) -> None:
    stranger = sshd.make_key(tmp_path / "stranger")
    error = failure(server, ssh, config=server.ssh_config(key=stranger, name="stranger"))
    assert isinstance(error, AccessError)
    assert not error.retryable
    assert str(stranger) in error.message
    assert "authorized_keys" in error.hint


def test_what_only_openssh_knows_is_named_where_it_may_matter(server: Sshd, tmp_path: Path) -> None:
    stranger = sshd.make_key(tmp_path / "stranger_sk")
    config = server.ssh_config("ControlPath ~/.ssh/%C", key=stranger, name="only_openssh")
    error = failure(server, "paramiko", config=config)
    for word in ("--ssh openssh", "ControlMaster", "security keys"):
        assert word in error.hint


@both
def test_a_passphrase_without_a_terminal(server: Sshd, ssh: Ssh, tmp_path: Path) -> None:
    locked = sshd.make_key(tmp_path / "locked", passphrase="open sesame")
    server.authorize(locked)
    error = failure(server, ssh, config=server.ssh_config(key=locked, name="no_terminal"))
    assert isinstance(error, AccessError)
    assert not error.retryable
    assert str(locked) in error.message
    if ssh == "paramiko":
        assert "ssh-add" in error.hint


@both
def test_too_many_keys(odd: Callable[..., Sshd], ssh: Ssh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = odd("MaxAuthTries 2")
    keys = [sshd.make_key(tmp_path / f"key{i}") for i in range(4)]
    config = server.ssh_config(*[f"IdentityFile {key}" for key in keys], name="many")
    error = failure(server, ssh, config=config)
    assert isinstance(error, AccessError)
    assert "IdentitiesOnly" in error.hint


@both
def test_a_second_factor(odd: Callable[..., Sshd], ssh: Ssh) -> None:
    server = odd("AuthenticationMethods publickey,publickey")
    error = failure(server, ssh)
    assert isinstance(error, AccessError)
    assert not error.retryable
    if ssh == "paramiko":
        assert "--ssh openssh" in error.hint


@both
def test_no_coordinator_there(odd: Callable[..., Sshd], ssh: Ssh, tmp_path: Path) -> None:
    server = odd(path=SYSTEM_PATH)
    error = failure(server, ssh, Host(HOST, root=str(tmp_path / "no root")))
    assert isinstance(error, NoCommandError)
    assert "'coordinator'" in error.message
    assert "--command" in error.hint


@both
@pytest.mark.parametrize("shell", ["dash", "fish", "tcsh"])
def test_no_coordinator_in_the_words_of_any_shell(odd: Callable[..., Sshd], ssh: Ssh, shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    server = odd(f'ForceCommand exec {program} -c "$SSH_ORIGINAL_COMMAND"', path=SYSTEM_PATH)
    assert isinstance(failure(server, ssh, command="nowhere"), NoCommandError)


@both
def test_a_profile_that_prints(odd: Callable[..., Sshd], ssh: Ssh, root: Root) -> None:
    server = odd('ForceCommand echo "Hello, it is a fine day"; echo more; eval "$SSH_ORIGINAL_COMMAND"')
    error = failure(server, ssh, Host(HOST, root=str(root.path)))
    assert isinstance(error, ProtocolError)
    assert "'Hello, it is a fine day'" in error.message
    assert ".bashrc" in error.hint


@both
def test_an_account_without_a_shell(odd: Callable[..., Sshd], ssh: Ssh) -> None:
    error = failure(odd("ForceCommand echo This account is currently not available.; exit 1"), ssh)
    assert isinstance(error, AccessError)
    assert not error.retryable
    assert "account" in error.message


@both
def test_a_shell_that_ends_without_a_word(odd: Callable[..., Sshd], ssh: Ssh) -> None:
    error = failure(odd("ForceCommand false"), ssh, command="coordinator")
    assert isinstance(error, LinkError)
    assert "exit status 1" in error.message


@both
def test_a_full_disk_there(odd: Callable[..., Sshd], ssh: Ssh) -> None:
    error = failure(odd("ForceCommand echo 'cannot write: No space left on device' >&2; exit 1"), ssh)
    assert isinstance(error, SpaceError)
    assert error.retryable


@both
def test_one_session_per_connection_is_enough(odd: Callable[..., Sshd], ssh: Ssh, farm: FarmHarness) -> None:
    server = odd("MaxSessions 1")
    with linked(server, ssh, Host(HOST, root=str(farm.root.path))) as link:
        roles: Sequence[Role] = ("control", "push", "pull")
        some = [link.open(role) for role in roles]
        for channel in some:
            assert greet(channel, SOON).farm == farm.root.farm
        if isinstance(link, ParamikoLink):
            assert link.connections == 3
        for channel in some:
            channel.close()
        if isinstance(link, ParamikoLink):
            assert link.connections == 1


def test_many_channels_share_one_connection(server: Sshd, root: Root) -> None:
    with linked(server, "paramiko", Host(HOST, root=str(root.path))) as link:
        some = [link.open(role) for role in ("control", "push", "pull")]
        assert isinstance(link, ParamikoLink)
        assert link.connections == 1
        for channel in some:
            channel.close()


def test_no_sessions_at_all(odd: Callable[..., Sshd]) -> None:
    error = failure(odd("MaxSessions 0"), "paramiko")
    assert isinstance(error, AccessError)
    assert "MaxSessions" in error.hint


@both
def test_a_server_that_sheds_connections(odd: Callable[..., Sshd], ssh: Ssh) -> None:
    """MaxStartups 1, and one that has not logged in is there already."""
    server = odd("MaxStartups 1")
    with socket.create_connection(("127.0.0.1", server.port)) as first:
        assert first.recv(4) == b"SSH-"
        error = failure(server, ssh)
    assert isinstance(error, LinkError)
    assert error.retryable
    assert "MaxStartups" in error.hint


@both
def test_something_that_is_not_ssh(ssh: Ssh, server: Sshd) -> None:
    with listener(lambda client: client.sendall(b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n<html>" * 40)) as port:
        config = server.ssh_config(f"Port {port}", name="http")
        assert isinstance(failure(server, ssh, config=config), LinkError)


def test_a_server_that_says_nothing(server: Sshd) -> None:
    with listener(lambda client: client.recv(1 << 20) and client.recv(1)) as port:
        config = Config(server.ssh_config(f"Port {port}", name="mute"))
        link = ParamikoLink(Host(HOST), config, limits=Limits(handshake_seconds=0.5))
        with pytest.raises(LinkError, match="did not say its ssh banner"):
            link.prepare()


def test_a_banner_that_trickles(server: Sshd) -> None:
    """Each byte comes in time, and yet it ends."""

    def trickle(client: socket.socket) -> None:
        while True:
            client.sendall(b"x")
            threading.Event().wait(0.02)

    with listener(trickle) as port:
        config = Config(server.ssh_config(f"Port {port}", name="trickling"))
        link = ParamikoLink(Host(HOST), config, limits=Limits(handshake_seconds=0.5))
        with pytest.raises(LinkError):
            link.prepare()


@contextmanager
def listener(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """A server of ours; each client has a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def one(client: socket.socket) -> None:
            with client, suppress(OSError):
                serve(client)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    threading.Thread(target=one, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        port: int = listening.getsockname()[1]
        yield port
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)


@both
def test_a_half_open_connection_ends_a_wait(server: Sshd, ssh: Ssh, farm: FarmHarness) -> None:
    """sshd and all of its children stand still; nothing on the wire says so."""
    with linked(server, ssh, command=str(farm.root.launcher)) as link:
        with opened(link) as channel:
            greet(channel, SOON)
            with stopped(server), pytest.raises(LinkError, match="silent"):
                channel.hear(Decoder(ToAgent), 0.5)
            if isinstance(link, ParamikoLink):
                assert link.connections == 0
        assert greeting_on(link).farm == farm.root.farm


@both
def test_a_server_that_takes_nothing_ends_a_push(server: Sshd, ssh: Ssh, farm: FarmHarness) -> None:
    with linked(server, ssh, command=str(farm.root.launcher)) as link:
        with opened(link, "push") as channel:
            greet(channel, SOON)
            with stopped(server), pytest.raises(LinkError, match=r"silent|broke"):
                channel.send(bytes(64 << 20), 0.5)
        assert greeting_on(link).farm == farm.root.farm


def greeting_on(link: Link) -> Greeting:
    with opened(link) as channel:
        return greet(channel, SOON)


@contextmanager
def stopped(server: Sshd) -> Iterator[None]:
    sessions = server.sessions()
    for process in sessions:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in sessions:
            process.send_signal(signal.SIGCONT)


@both
def test_a_server_killed_within_a_session(odd: Callable[..., Sshd], ssh: Ssh, root: Root) -> None:
    server = odd()
    with linked(server, ssh, Host(HOST, root=str(root.path))) as link, opened(link) as channel:
        greet(channel, SOON)
        server.stop()
        with pytest.raises(LinkError):
            channel.hear(Decoder(ToAgent), SOON) and channel.hear(Decoder(ToAgent), SOON)


def test_a_link_that_is_closed_opens_nothing_more(server: Sshd) -> None:
    with linked(server, "paramiko") as link:
        link.close()
        with pytest.raises(LinkError, match="was closed"):
            link.open("control")


def test_a_close_ends_an_open_under_way(server: Sshd) -> None:
    reached = threading.Event()

    def mute(client: socket.socket) -> None:
        client.recv(1)
        reached.set()
        while client.recv(1 << 16):
            pass

    with listener(mute) as port:
        link = ParamikoLink(Host(HOST), Config(server.ssh_config(f"Port {port}", name="under_way")))
        closing = threading.Thread(target=lambda: (reached.wait(SOON), link.close()))  # type: ignore[func-returns-value]
        closing.start()
        with pytest.raises(LinkError):
            link.open("control")
        closing.join()


# --- rekeying -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("theirs", "wanted"), [("64K", REKEYS), ("default", REKEYS // 8)])
def test_thousands_of_rekeys_in_one_session(
    odd: Callable[..., Sshd], theirs: str, wanted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes go both ways meanwhile, on three channels, one of which is closed and opened again and again."""
    rekeys = count_rekeys(monkeypatch)
    server = odd(f"RekeyLimit {theirs}")
    echo = script(tmp_path / "echo", f"exec {sys.executable} -S -E -c '{ECHO}'")
    limits = Limits(rekey_bytes=48 << 10)
    link = ParamikoLink(Host(HOST), Config(server.ssh_config()), str(echo), limits=limits)
    with opened(link, "control") as control, opened(link, "pull") as pull:
        body, number = bytes(range(256)) * 256, 0
        while len(rekeys) < wanted:
            pull.send(body)
            control.send(b"%8d" % number)
            if number % 16 == 0:
                with opened(link, "push") as push:
                    push.send(body)
            assert control.receive_exactly(8, SOON) == b"%8d" % number
            assert pull.receive_exactly(len(body), SOON) == body
            number += 1
    assert link.connections == 1
    link.close()


ECHO = "import os\nwhile data := os.read(0, 65536):\n    while data: data = data[os.write(1, data):]"


def count_rekeys(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for each exchange of keys."""
    done: list[int] = []
    real = transport.Transport._parse_newkeys

    def counted(self: transport.Transport, m: object) -> None:
        done.append(1)
        real(self, m)

    monkeypatch.setattr(transport.Transport, "_parse_newkeys", counted)
    return done


# --- a confined key -------------------------------------------------------------------------------------------


class Confined:
    """A farm behind an sshd where a key may be one agent and nothing else."""

    def __init__(self, farm: FarmHarness, server: Sshd, folder: Path, forced: str) -> None:
        self.farm, self.server = farm, server
        self.key = sshd.make_key(folder / "confined_key")
        server.authorize(self.key, f'restrict,command="{forced}"')
        self.config = server.ssh_config(key=self.key, name="confined")

    def ssh(self, *args: str) -> subprocess.CompletedProcess[bytes]:
        command = ["ssh", "-F", str(self.config), "-o", "BatchMode=yes", *args]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SOON * 2, check=False)

    def refusals(self) -> str:
        log = self.farm.root.path / "refused.log"
        return log.read_text() if log.exists() else ""


@pytest.fixture
def confined(farm: FarmHarness, server: Sshd, tmp_path: Path) -> Confined:
    return Confined(farm, server, tmp_path, f"coordinator connect --root {farm.root.path} --as lab3")


@both
def test_a_confined_key_is_its_agent(confined: Confined, ssh: Ssh) -> None:
    with linked(confined.server, ssh, config=confined.config) as link, opened(link) as channel:
        assert greet(channel, SOON).farm == confined.farm.root.farm
        channel.say(hello("lab3"))
        assert isinstance(channel.hear(Decoder(ToAgent), SOON), Welcome)


@both
def test_a_confined_key_is_nobody_else(confined: Confined, ssh: Ssh) -> None:
    with linked(confined.server, ssh, config=confined.config) as link, opened(link) as channel:
        greet(channel, SOON)
        channel.say(hello("other"))
        answer = channel.hear(Decoder(ToAgent), SOON)
        assert isinstance(answer, Rejected)
        assert answer.code == "not-allowed"
    assert "said hello as other: refused" in confined.farm.said()


def test_a_confined_key_by_the_launcher(farm: FarmHarness, server: Sshd, tmp_path: Path) -> None:
    confined = Confined(farm, server, tmp_path, f"{farm.root.launcher} --as lab3")
    host = Host(HOST, root=str(farm.root.path))
    assert greeting(server, "paramiko", host, config=confined.config).farm == farm.root.farm


def test_a_confined_key_to_another_root_is_refused_with_the_reason(confined: Confined) -> None:
    error = failure(confined.server, "paramiko", Host(HOST, root="/somewhere"), config=confined.config)
    assert isinstance(error, AccessError)
    assert "root" in error.message


@pytest.mark.parametrize(
    "asked",
    [
        (),
        ("id",),
        ("coordinator connect --role control; id > {mark}",),
        ("coordinator connect --role control;id>{mark}",),
        ("coordinator connect --role $(id>{mark})",),
        ("coordinator connect --role `id>{mark}`",),
        ("coordinator connect --role control && touch {mark}",),
        ("coordinator connect --role control | tee {mark}",),
        ("coordinator connect --role control > {mark}",),
        ("coordinator connect --role control\nid > {mark}",),
        ("coordinator connect --role nobody",),
        ("coordinator connect --role control --as other",),
        ("coordinator connect --role control --as=lab3",),
        ("coordinator connect --role control --root /",),
        ("coordinator connect --role 'unclosed",),
        ("coordinator connect --help",),
        ("coordinator serve --root {mark}",),
        ("coordinator submit job.yaml",),
        ("/bin/sh -c 'coordinator connect --role control'",),
        ("python3 connect --role control",),
        ("x" * 100_000,),
        ("\u202e\x1b[2J",),
    ],
    ids=lambda asked: " ".join(asked)[:50] or "a shell",
)
def test_a_confined_key_does_nothing_else(confined: Confined, asked: tuple[str, ...], tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    ended = confined.ssh(HOST, *[word.format(mark=mark) for word in asked])
    assert ended.returncode != 0
    assert ended.stdout == b""
    assert b"uid=" not in ended.stderr
    assert not mark.exists()
    refusals = confined.refusals()
    assert refusals.count("\n") == 1
    assert "key of lab3 from 127.0.0.1" in refusals
    assert len(refusals) < 1000
    assert refusals.isprintable() or refusals.rstrip("\n").isprintable()


def test_a_confined_key_gets_no_terminal(confined: Confined) -> None:
    for flag in ("-t", "-tt"):
        ended = confined.ssh(flag, HOST)
        assert ended.returncode != 0
        assert ended.stdout == b""
    assert b"PTY allocation request failed" in ended.stderr


def test_a_confined_key_gets_no_files(confined: Confined, tmp_path: Path) -> None:
    for subsystem in ([f"sftp://{HOST}/etc/hostname"], [f"{HOST}:/etc/hostname", str(tmp_path)]):
        ended = subprocess.run(
            ["sftp", "-F", str(confined.config), "-o", "BatchMode=yes", *subsystem],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=SOON * 2, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert ended.returncode != 0
        assert not (tmp_path / "hostname").exists()
    scp = ["scp", "-F", str(confined.config), "-O", "-o", "BatchMode=yes", f"{HOST}:/etc/hostname", str(tmp_path)]
    assert subprocess.run(scp, capture_output=True, timeout=SOON * 2, check=False).returncode != 0
    assert not (tmp_path / "hostname").exists()
    assert "sftp-server" in confined.refusals() or "internal-sftp" in confined.refusals()
    assert "scp -f /etc/hostname" in confined.refusals()


def test_a_confined_key_forwards_nothing(confined: Confined) -> None:
    """Neither from here to there, nor back, nor an agent, nor by a jump."""
    port = sshd.free_port()
    back = confined.ssh("-o", "ExitOnForwardFailure=yes", "-R", f"127.0.0.1:{port}:127.0.0.1:1", "-N", HOST)
    assert back.returncode != 0
    jumped = confined.ssh("-W", f"127.0.0.1:{confined.server.port}", HOST)
    assert b"SSH-" not in jumped.stdout
    assert jumped.returncode != 0
    assert b"prohibited" in jumped.stderr


def test_a_forced_role_is_the_only_one(farm: FarmHarness, server: Sshd, tmp_path: Path) -> None:
    forced = f"coordinator connect --role control --root {farm.root.path} --as lab3"
    confined = Confined(farm, server, tmp_path, forced)
    with linked(server, "paramiko", config=confined.config) as link:
        with opened(link, "control") as channel:
            assert greet(channel, SOON).farm == farm.root.farm
        with pytest.raises(AccessError, match="--role control alone"), opened(link, "pull") as channel:
            greet(channel, SOON)


def hello(name: str) -> Hello:
    from muster.coordinator.protocol.values import PROTOCOL

    return Hello(PROTOCOL, "1", name, "s" * 32, "p" * 32, "host", 1, 1, 1 << 30, 1 << 30, {}, "x", "3.11")


# --- nothing is left, nothing listens -------------------------------------------------------------------------


def test_nothing_of_ours_listens_elsewhere(server: Sshd, root: Root) -> None:
    import psutil

    with linked(server, "paramiko", Host(HOST, root=str(root.path))) as link, opened(link) as channel:
        greet(channel, SOON)
        ours = {os.getpid(), server.pid, *(process.pid for process in server.sessions())}
        found = [c for c in psutil.net_connections("inet") if c.pid in ours and c.status == psutil.CONN_LISTEN]
        assert {c.laddr.ip for c in found} == {"127.0.0.1"}


def test_keys_in_use_are_shown_first_when_coming_back(server: Sshd, root: Root, tmp_path: Path) -> None:
    """After a reconnection sshd counts no failures: what let us in last is shown first."""
    stranger = sshd.make_key(tmp_path / "stranger")
    target = Config(server.ssh_config(f"IdentityFile {stranger}", name="two_keys")).target(Host(HOST))
    keys = Keys(target)
    assert next(keys._in_order([], [])).name.endswith("stranger")
    keys._good = sshd_blob(server.key)
    assert next(keys._in_order([], [])).name.endswith("client_key")
