"""What every link must be: bytes each way, ends that are noticed, waits that end, nothing left behind."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from agent.links.channel import Channel, Link, greet
from agent.links.pipe import PipeLink
from coordinator.protocol.frames import frame
from coordinator.protocol.messages import PROTOCOL, Bye, Decoder, Greeting, News, encode
from jobs.errors import LinkError, ProtocolError

SOON = 20.0  # seconds no test should ever need
ECHO = "import sys, os\nwhile data := os.read(0, 65536): os.write(1, data)"

Make = Callable[[str], Link]


def pipe_link(script: str) -> Link:
    """A link whose other end runs a Python script."""
    return PipeLink(Path("/"), [sys.executable, "-S", "-E", "-c", script])


@pytest.fixture(params=[pipe_link])
def make(request: pytest.FixtureRequest) -> Make:
    """Each link there is."""
    made: Make = request.param
    return made


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No process outlives its channel."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert not left


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
    channel = open_channel(make, "import time; time.sleep(600)")
    with pytest.raises(LinkError, match="silent"):
        for _ in range(64):
            channel.send(bytes(1 << 20), 0.05)
    channel.abort()
    channel.close()


def test_an_abort_from_another_thread_ends_a_wait(make: Make) -> None:
    channel = open_channel(make, "import time; time.sleep(600)")
    threading.Timer(0.05, channel.abort).start()
    begun = time.monotonic()
    with pytest.raises(LinkError):
        channel.receive_exactly(1, SOON)
    assert time.monotonic() - begun < SOON
    channel.close()


def test_a_close_ends_a_helper_that_does_not_end_by_itself(make: Make) -> None:
    channel = open_channel(make, "import time; time.sleep(600)")
    channel.close()


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
