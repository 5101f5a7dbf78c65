"""A confined key tried with everything ssh offers, and with the protocol itself: all refused, and all logged."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from docs.examples.own_sshd import LOOPBACK
from muster.agent.links.base import greet
from muster.coordinator.protocol import control, transfer, values
from tests.integration.test_ssh import Confined, hello, linked, opened
from tests.support import sshd
from tests.support.farm import FarmHarness, arrays, running, until
from tests.support.sshd import HOST, Sshd

SOON = 20.0
LETTER = b"a letter for nobody"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd.running(tmp_path_factory.mktemp("sshd"), "LogLevel DEBUG1") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    with running(tmp_path_factory.mktemp("farm")) as made:
        yield made


@pytest.fixture(scope="module")
def confined(farm: FarmHarness, server: Sshd, tmp_path_factory: pytest.TempPathFactory) -> Confined:
    forced = f"coordinator connect --root {farm.root.path} --as lab3"
    return Confined(farm, server, tmp_path_factory.mktemp("key"), forced)


@pytest.fixture
def logged(server: Sshd) -> Callable[[], str]:
    """What sshd has logged since the test began."""
    before = len(server.log())
    return lambda: server.log()[before:]


# --- ssh's own doors ---


@pytest.fixture
def secret() -> Iterator[int]:
    """A port of the server's that only it should reach; whoever does gets a letter."""
    with socket.create_server((LOOPBACK, 0)) as listening:
        listening.settimeout(0.05)
        port: int = listening.getsockname()[1]
        yield port
        with pytest.raises(TimeoutError):  # nobody ever did
            listening.accept()


@pytest.mark.parametrize("flag", ["-L", "-D"])
def test_it_reaches_no_port_of_the_server(
    confined: Confined, secret: int, flag: str, logged: Callable[[], str]
) -> None:
    """ssh listens here all the same; what comes in is refused there."""
    port = sshd.free_port()
    spec = f"{LOOPBACK}:{port}" if flag == "-D" else f"{LOOPBACK}:{port}:{LOOPBACK}:{secret}"
    command = ["ssh", "-F", str(confined.config), "-o", "BatchMode=yes", "-N", flag, spec, HOST]
    with held(command):
        until(lambda: answers(port), "ssh to listen")
        with socket.create_connection((LOOPBACK, port), timeout=SOON) as client:
            if flag == "-D":
                client.sendall(b"\5\1\0")
                assert client.recv(2) == b"\5\0"
                client.sendall(b"\5\1\0\1" + socket.inet_aton(LOOPBACK) + secret.to_bytes(2, "big"))
            client.sendall(b"hello")
            assert LETTER not in rest_of(client)
    assert "refused local port forward" in logged() or "prohibited" in logged()


def test_nobody_reaches_it_through_the_server(confined: Confined, logged: Callable[[], str]) -> None:
    port = sshd.free_port()
    spec = f"{LOOPBACK}:{port}:{LOOPBACK}:1"
    back = confined.ssh("-o", "ExitOnForwardFailure=yes", "-R", spec, "-N", HOST)
    assert back.returncode != 0
    assert not answers(port)
    assert f"tcpip-forward listen {LOOPBACK} port {port}" in logged()


def test_it_makes_no_tunnel_of_sockets(confined: Confined, tmp_path: Path, logged: Callable[[], str]) -> None:
    far = tmp_path / "far.sock"
    back = confined.ssh("-o", "ExitOnForwardFailure=yes", "-R", f"{far}:{LOOPBACK}:1", "-N", HOST)
    assert back.returncode != 0
    assert not far.exists()
    assert f"streamlocal-forward listen path {far}" in logged()


@pytest.mark.parametrize(
    "asked", [["-tt"], ["-T"], ["-tt", "sh"], ["-s", "sftp"], ["-s", "netconf"], ["; id"], ["$(id)"]]
)
def test_it_gets_no_shell_no_terminal_and_no_subsystem(
    confined: Confined, asked: list[str], logged: Callable[[], str]
) -> None:
    flags = [word for word in asked if word.startswith("-")]
    before = confined.refusals().count("\n")
    ended = confined.ssh(*flags, HOST, *[word for word in asked if word not in flags])
    assert ended.returncode != 0
    assert b"uid=" not in ended.stdout + ended.stderr
    assert ended.stdout == b""
    if "netconf" in asked:
        assert "subsystem not found" in logged()  # sshd has none of that name, and asks nobody
        return
    until(lambda: confined.refusals().count("\n") == before + 1, "the refusal to be logged")
    assert "key of lab3 from 127.0.0.1" in confined.refusals()


# --- the protocol ---


def test_it_says_no_others_name(confined: Confined) -> None:
    with linked(confined.server, "paramiko", config=confined.config) as link, opened(link) as channel:
        greet(channel, SOON)
        channel.say(hello("other"))
        answer = channel.hear(values.Decoder(control.ToAgent), SOON)
    assert isinstance(answer, control.Rejected) and answer.code == "not-allowed"
    assert "pinned to lab3 said hello as other: refused" in confined.farm.said()


def test_it_touches_no_other_job(confined: Confined) -> None:
    """Another machine's session, its shards, its results, and code of a job: nothing of it by this key."""
    farm = confined.farm
    farm.submit(arrays())
    honest = farm.agent("honest")
    honest.join()
    until(lambda: honest.sync(wait=0.05) and honest.compute(), "a finished shard")
    offer = honest.offer_of(honest.bundle_of(honest.parts[0]))
    layer, number = offer.layer, offer.numbers[0][0]
    with linked(confined.server, "paramiko", config=confined.config) as link, opened(link) as channel:
        greet(channel, SOON)
        channel.say(hello("lab3"))
        mine = channel.hear(values.Decoder(control.ToAgent), SOON)
        assert isinstance(mine, control.Welcome)
        channel.say(control.Sync(honest.session, 1))
        answer = channel.hear(values.Decoder(control.ToAgent), SOON)
        assert isinstance(answer, control.Rejected) and answer.code == "no-session"
        with opened(link, "pull") as pull:
            greet(pull, SOON)
            for session, code in ((honest.session, "no-session"), (mine.session, "gone")):
                pull.say(transfer.Fetch(session, layer, number))
                refused = pull.hear(values.Decoder(transfer.ToPuller), SOON)
                assert isinstance(refused, transfer.Refused) and refused.code == code
            pull.say(transfer.FetchCode(mine.session, "f" * 32))
            assert isinstance(pull.hear(values.Decoder(transfer.ToPuller), SOON), transfer.Refused)
        with opened(link, "push") as push:
            greet(push, SOON)
            push.say(offer)
            refused = push.hear(values.Decoder(transfer.ToPusher), SOON)
            assert isinstance(refused, transfer.Refused) and refused.code == "no-session"
    said = farm.said()
    assert "pinned to lab3 used a session of honest: refused" in said
    assert f"lab3 asked for shard {number} of {layer}, which it does not hold: refused" in said
    assert f"lab3 asked for the file {'f' * 32}, which no job has: refused" in said
    assert farm.agent_status("honest").state == "live"
    honest.die()
    farm.agents.remove(honest)


def test_it_gives_no_command_to_the_coordinator(confined: Confined) -> None:
    """What people may ask on the daemon's socket is nothing that comes through `connect`."""
    from muster.coordinator.api import requests

    for question in (requests.Stop(), requests.StatusAsk(), requests.Submit("submit-0")):
        with linked(confined.server, "paramiko", config=confined.config) as link, opened(link) as channel:
            greet(channel, SOON)
            channel.say(question)
            answer = channel.hear(values.Decoder(control.ToAgent), SOON)
        assert isinstance(answer, control.Rejected | control.Bye)
    assert confined.farm.daemon is not None and confined.farm.daemon.poll() is None
    assert confined.farm.jobs() is not None


class held:
    """An ssh that runs until the end of the block."""

    def __init__(self, command: list[str]) -> None:
        self._command = command

    def __enter__(self) -> None:
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(self._command, stdin=null, stdout=null, stderr=null)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(SOON)


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=SOON):
        return True
    return False


def rest_of(client: socket.socket) -> bytes:
    """All that comes, to its end."""
    came = b""
    with suppress(OSError):
        while data := client.recv(1 << 16):
            came += data
    return came
