"""What every link must be: bytes each way, ends that are noticed, waits that end, nothing left behind."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from muster.agent.links import Options, Ssh, open_link
from muster.agent.links import base as channels
from muster.agent.links.base import Channel, Link, greet
from muster.agent.links.local import PipeLink
from muster.coordinator.protocol.control import Bye, Greeting, News
from muster.coordinator.protocol.frames import frame
from muster.coordinator.protocol.values import PROTOCOL, Decoder, encode
from muster.jobs.common.errors import LinkError, ProtocolError
from muster.jobs.common.locations import Host
from tests.support import sshd
from tests.support.farm import until
from tests.support.sshd import Sshd

SOON = 20.0  # seconds no test should ever need
BIG = 64 << 20
BYTES = bytes(range(256)) * 4096  # 1 MiB
WAIT = "import select; p = select.poll(); p.register(0, 0); p.poll()"  # until stdin is closed; reads nothing
ECHO = "import sys, os\nwhile data := os.read(0, 65536): os.write(1, data)"

Make = Callable[[str], Link]


def pipe_link(script: str) -> Link:
    """A link whose other end runs a Python script."""
    return PipeLink(Path("/"), [sys.executable, "-S", "-E", "-c", script])


class SshLinks:
    """Links to a script behind a real sshd, all closed at the end."""

    def __init__(self, server: Sshd, ssh: Ssh, folder: Path) -> None:
        self._server, self._ssh, self._folder = server, ssh, folder
        self._made: list[Link] = []

    def __call__(self, script: str) -> Link:
        launcher = self._folder / f"other end {len(self._made)}"
        launcher.write_text(f"#!/bin/sh\nexec {shlex.join([sys.executable, '-S', '-E', '-c', script])}\n")
        launcher.chmod(0o700)
        options = Options(self._ssh, command=str(launcher), config=self._server.ssh_config())
        self._made.append(open_link(Host(sshd.HOST), options))
        return self._made[-1]

    def close(self) -> None:
        for link in self._made:
            link.close()


@pytest.fixture(params=["pipe", "paramiko", "openssh"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Each link there is. No process outlives its channel, at neither end."""
    if request.param == "pipe":
        with nothing_left(psutil.Process().pid):
            yield pipe_link
        return
    server: Sshd = request.getfixturevalue("server")
    links = SshLinks(server, request.param, tmp_path)
    with nothing_left(psutil.Process().pid):
        yield links
        links.close()


@contextmanager
def nothing_left(pid: int) -> Iterator[None]:
    before = {child.pid for child in psutil.Process(pid).children(recursive=True)}
    yield
    until(lambda: {child.pid for child in psutil.Process(pid).children(recursive=True)} <= before, "processes to end")


def open_channel(make: Make, script: str) -> Channel:
    return make(script).open("control")


def printing(raw: bytes) -> str:
    return f"import os; os.write(1, {raw!r}); os.read(0, 1)"


def test_bytes_come_back_as_they_were_sent(make: Make) -> None:
    channel = open_channel(make, ECHO)
    sent = bytes(range(256)) * 64
    channel.send(sent)
    assert channel.receive_exactly(len(sent), SOON) == sent
    channel.close()


def test_more_than_any_buffer_goes_through(make: Make) -> None:
    """16 MiB out while the other end reads them and answers with their number."""
    script = "import os\nn = 0\nwhile n < 1 << 24: n += len(os.read(0, 65536))\nos.write(1, b'%d' % n)"
    channel = open_channel(make, script)
    for _ in range(16):
        channel.send(memoryview(bytes(1 << 20)), SOON)
    assert channel.receive_exactly(8, SOON) == b"16777216"
    channel.close()


def test_a_big_body_goes_out_and_another_comes_back(make: Make) -> None:
    """64 MiB each way, and nobody keeps them in memory."""
    script = f"""
import os
n = 0
while n < {BIG}: n += len(os.read(0, 1 << 20))
for _ in range({BIG >> 20}): os.write(1, bytes(range(256)) * 4096)
"""
    channel = open_channel(make, script)
    with bounded_memory(48 << 20):
        for _ in range(BIG >> 20):
            channel.send(BYTES, SOON)
        came = bytearray()
        seen = 0
        for piece in channel.pieces(BIG, SOON):
            came += piece
            while len(came) >= len(BYTES):
                assert came[: len(BYTES)] == BYTES
                del came[: len(BYTES)]
            seen += len(piece)
        assert seen == BIG
    channel.close()


def test_what_nobody_reads_stays_at_the_other_end(make: Make, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    script = f"""
import os
n = 0
try:
    while n < 1 << 30:
        n += os.write(1, bytes(1 << 16))
        open({str(progress)!r}, "w").write(str(n))
except OSError:
    pass
"""
    channel = open_channel(make, script)
    with bounded_memory(64 << 20):  # a window, twice
        assert channel.receive_exactly(1, SOON) == b"\0"
        until(lambda: is_quiet(progress), "the other end to stop")
    assert int(progress.read_text()) < 1 << 26
    channel.close()


def is_quiet(file: Path) -> bool:
    """Whether it was not written to for a moment."""
    return file.exists() and time.time() - file.stat().st_mtime > 0.5


@contextmanager
def bounded_memory(nbytes: int) -> Iterator[None]:
    """This process grows by no more than that meanwhile, looked at when it matters: at the end."""
    before = psutil.Process().memory_info().rss
    yield
    assert psutil.Process().memory_info().rss - before < nbytes


def test_all_that_was_sent_before_the_end_comes(make: Make) -> None:
    channel = open_channel(make, "import os\nfor _ in range(4): os.write(1, bytes(1 << 20))")
    assert len(channel.receive_exactly(4 << 20, SOON)) == 4 << 20
    assert channel.receive_some(1, SOON) == b""
    assert channel.receive_some(1, SOON) == b""
    channel.close()


def test_the_other_end_killed_within_a_body_is_noticed(make: Make) -> None:
    channel = open_channel(make, "import os; os.write(1, b'%8d' % os.getpid() + bytes(1000)); os.read(0, 1)")
    pid = int(channel.receive_exactly(8, SOON))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(LinkError):
        channel.receive_exactly(2000, SOON)
    channel.close()


def test_a_trickle_is_not_a_link(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, and yet it ends."""
    monkeypatch.setattr(channels, "PACE_SECONDS", 0.2)
    script = "import os, time\ntry:\n while True: os.write(1, b'x'); time.sleep(0.02)\nexcept OSError: pass"
    channel = open_channel(make, script)
    with pytest.raises(LinkError, match="bytes moved"):
        channel.receive_exactly(1 << 20, SOON)
    channel.close()


def test_a_trickle_the_other_way_is_none_either(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "PACE_SECONDS", 0.2)
    monkeypatch.setattr(channels, "PACE_BYTES", 1 << 30)
    channel = open_channel(make, "import os, time\nwhile os.read(0, 1 << 16): time.sleep(0.02)")
    with pytest.raises(LinkError, match="bytes moved"):
        channel.send(bytes(64 << 20), SOON)
    channel.close()


def test_channels_of_one_link_are_apart(make: Make) -> None:
    link = make(ECHO)
    some = [link.open(role) for role in ("control", "push", "pull")]
    for number, channel in enumerate(some):
        channel.send(b"%d" % number)
    some[1].abort()
    some[1].close()
    assert some[2].receive_exactly(1, SOON) == b"2"
    assert some[0].receive_exactly(1, SOON) == b"0"
    some[0].close()
    some[2].close()


def test_a_message_is_heard_however_it_is_cut(make: Make) -> None:
    raw = frame(encode(News(drain=True)))
    script = f"import os, time\nfor b in {raw!r}: os.write(1, bytes([b])); time.sleep(0.001)\nos.read(0, 1)"
    channel = open_channel(make, script)
    assert channel.hear(Decoder(News), SOON) == News(drain=True)
    channel.close()


def test_the_end_is_noticed_and_says_what_was_printed_last(make: Make) -> None:
    channel = open_channel(make, "import sys; sys.exit('sh: coordinator: not found')")
    with pytest.raises(LinkError, match="coordinator: not found"):
        greet(channel)
    channel.close()


def test_an_end_within_a_message_is_an_error(make: Make) -> None:
    channel = open_channel(make, f"import os; os.write(1, {frame(b'x' * 100)[:50]!r})")
    with pytest.raises(LinkError, match="within a message"):
        channel.hear(Decoder(News), SOON)
    channel.close()


def test_sending_to_a_dead_end_is_an_error(make: Make) -> None:
    channel = open_channel(make, "pass")
    with pytest.raises(LinkError):
        for _ in range(64):
            channel.send(bytes(1 << 20), SOON)
    channel.close()


def test_silence_ends(make: Make) -> None:
    channel = open_channel(make, "import os; os.read(0, 1)")
    with pytest.raises(LinkError, match="silent"):
        channel.receive_some(1, 0.05)
    channel.close()


def test_an_end_that_takes_nothing_is_noticed(make: Make) -> None:
    channel = open_channel(make, WAIT)
    with pytest.raises(LinkError, match="silent"):
        for _ in range(64):
            channel.send(bytes(1 << 20), 0.05)
    channel.abort()
    channel.close()


def test_an_abort_from_another_thread_ends_a_wait(make: Make) -> None:
    channel = open_channel(make, WAIT)
    threading.Timer(0.05, channel.abort).start()
    begun = time.monotonic()
    with pytest.raises(LinkError):
        channel.receive_exactly(1, SOON)
    assert time.monotonic() - begun < SOON
    channel.close()


def test_a_close_ends_a_helper(make: Make) -> None:
    """As the real one does, it ends when its stdin ends; only a child can be made to."""
    channel = open_channel(make, "import os; os.read(0, 1)")
    channel.close()


def test_a_close_ends_a_child_that_does_not_end_by_itself() -> None:
    with nothing_left(psutil.Process().pid):
        pipe_link("import time; time.sleep(600)").open("control").close()


def test_a_lot_of_noise_beside_the_protocol_stalls_nothing(make: Make) -> None:
    script = "import os\nfor _ in range(64): os.write(2, b'noise ' * 10000)\nos.write(1, b'done'); os.read(0, 1)"
    channel = open_channel(make, script)
    assert channel.receive_exactly(4, SOON) == b"done"
    channel.close()


def test_a_greeting_is_read(make: Make) -> None:
    hello = Greeting(PROTOCOL, "1.2.3", "f" * 32)
    channel = open_channel(make, printing(frame(encode(hello))))
    assert greet(channel) == hello
    channel.close()


def test_what_a_profile_prints_is_shown(make: Make) -> None:
    channel = open_channel(make, printing(b"Welcome to the server!\n"))
    with pytest.raises(ProtocolError, match="Welcome to the server!"):
        greet(channel)
    channel.close()


@pytest.mark.parametrize(
    ("there", "machine"), [(PROTOCOL + 1, "this machine"), (PROTOCOL - 1, "coordinator's machine")]
)
def test_another_protocol_is_refused_with_the_side_to_upgrade(make: Make, there: int, machine: str) -> None:
    channel = open_channel(make, printing(frame(encode(Greeting(there, "9", "")))))
    with pytest.raises(ProtocolError) as caught:
        greet(channel)
    assert machine in caught.value.hint
    channel.close()


def test_a_bye_instead_of_a_greeting_is_its_reason(make: Make) -> None:
    channel = open_channel(make, printing(frame(encode(Bye("no root here")))))
    with pytest.raises(LinkError, match="no root here"):
        greet(channel)
    channel.close()


def test_an_oversized_frame_is_refused_before_it_is_read(make: Make) -> None:
    channel = open_channel(make, printing(b"mus1" + b"\xff\xff\xff\xff"))
    with pytest.raises(ProtocolError, match="above the limit"):
        channel.hear(Decoder(News), SOON)
    channel.close()


def test_a_command_that_is_not_there_is_a_link_error() -> None:
    with pytest.raises(LinkError, match="cannot be started"):
        PipeLink(Path("/"), ["/nowhere/coordinator"]).open("control")


def test_a_helper_is_out_of_reach_of_the_terminal() -> None:
    """A Ctrl-C is for the agent: its helper has its own session."""
    channel = pipe_link("import os; os.write(1, b'%d\\n' % os.getsid(0)); os.read(0, 1)").open("control")
    said = channel.receive_some(64, SOON)
    assert int(said) != os.getsid(0)
    channel.close()
