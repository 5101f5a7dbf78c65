"""The pull thread against a channel of the test's own."""

from __future__ import annotations

import errno
import os
import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import xxhash

from muster.agent.channels.bandwidth import Bandwidth
from muster.agent.channels.pull import Pulling
from muster.agent.core.actions import Pull, PullCode
from muster.agent.core.events import Event, NotPulled, Pulled, PullUp
from muster.agent.links.base import Channel, Link, Role
from muster.agent.spool.paths import Spool
from muster.coordinator.protocol.control import Bye, Greeting
from muster.coordinator.protocol.frames import FrameReader, frame
from muster.coordinator.protocol.transfer import Fetch, FetchCode, Refused, Sending, Sent
from muster.coordinator.protocol.values import PROTOCOL, Decoder, Message, encode
from muster.jobs.common.errors import LinkError
from muster.jobs.user_code.code_pack import CodeBundle, pack

CONTENT = bytes(range(256)) * 40
NAME, LAYER = "a" * 32, "b" * 32
_decode = Decoder(Fetch | FetchCode)

Server = Callable[[Message], list[Message | bytes]]


class FakeChannel(Channel):
    """The other end is a function: what is asked goes in, what is sent comes out."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._reader = FrameReader()
        self._sent = bytearray(frame(encode(Greeting(PROTOCOL, "0", "f" * 32))))

    def send(self, data: bytes | memoryview, seconds: float = 0.0) -> None:
        for payload in self._reader.feed(bytes(data)):
            for answer in self._server(_decode(payload)):
                self._sent += answer if isinstance(answer, bytes) else frame(encode(answer))

    def receive_some(self, limit: int, seconds: float) -> bytes:
        piece, self._sent = bytes(self._sent[: min(limit, 1000)]), self._sent[min(limit, 1000) :]
        return piece

    def abort(self) -> None:
        self._sent.clear()

    def close(self) -> None:
        return

    def last_words(self) -> str:
        return ""


class FakeLink(Link):
    """`servers`: one for each channel opened; the last serves all that follow."""

    def __init__(self, *servers: Server) -> None:
        self.servers = list(servers)

    def open(self, role: Role) -> Channel:
        assert role == "pull"
        return FakeChannel(self.servers.pop(0) if len(self.servers) > 1 else self.servers[0])

    def __str__(self) -> str:
        return "there"

    def close(self) -> None:
        return


class Bench:
    """A pull thread at work."""

    def __init__(self, spool: Spool, *servers: Server, rate: int | None = None) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.spool = spool
        self.pulling = Pulling(FakeLink(*servers), spool, Bandwidth(rate), self.events.put)
        self.pulling.start()
        assert self.next() == PullUp()

    def next(self) -> Event:
        return self.events.get(timeout=20)

    def pull(self, nbytes: int = len(CONTENT), name: str = NAME) -> Event:
        self.pulling.order(Pull(7, name, LAYER, 3, nbytes))
        return self.next()


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    made = Spool(tmp_path / "spool")
    made.take("one", "there")
    return made


@pytest.fixture
def start(spool: Spool) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def begin(*servers: Server, rate: int | None = None) -> Bench:
        made.append(Bench(spool, *servers, rate=rate))
        return made[-1]

    yield begin
    for bench in made:
        bench.pulling.stop()


asked: list[Fetch | FetchCode] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    asked.clear()


def serve(message: Message) -> list[Message | bytes]:
    assert isinstance(message, Fetch)
    asked.append(message)
    data = CONTENT[message.start :][: message.limit or len(CONTENT)]
    return [Sending(len(data)), data, Sent(True)]


def cut_at(count: int) -> Server:
    """Sends so much, and then no more."""

    def server(message: Message) -> list[Message | bytes]:
        sending, data, _ = serve(message)
        assert isinstance(data, bytes)
        return [sending, data[:count]]

    return server


def test_an_input_comes_whole_under_its_digest(start: Callable[..., Bench], spool: Spool) -> None:
    event = start(serve).pull()
    digest = xxhash.xxh3_128_digest(CONTENT)
    assert isinstance(event, Pulled)
    assert (event.name, event.digest, event.nbytes) == (NAME, digest, len(CONTENT))
    assert spool.input(NAME, digest).read_bytes() == CONTENT
    assert [file.name for file in spool.inputs.iterdir()] == [f"{NAME}-{digest.hex()}"]


def test_what_was_cut_off_is_gone_on_with(start: Callable[..., Bench], spool: Spool) -> None:
    bench = start(cut_at(5000), serve)
    event = bench.pull()
    assert isinstance(event, NotPulled) and event.code == "cut"
    assert bench.next() == PullUp()
    event = bench.pull()
    assert isinstance(event, Pulled) and event.digest == xxhash.xxh3_128_digest(CONTENT)
    assert [fetch.start for fetch in asked if isinstance(fetch, Fetch)] == [0, 5000]
    assert spool.input(NAME, event.digest).read_bytes() == CONTENT


def test_cut_off_before_the_verdict_the_verdict_is_asked_for(start: Callable[..., Bench]) -> None:
    bench = start(cut_at(len(CONTENT)), serve)
    assert isinstance(bench.pull(), NotPulled)
    assert bench.next() == PullUp()
    assert isinstance(bench.pull(), Pulled)
    assert asked[1].start == len(CONTENT)


def test_a_half_that_was_deleted_begins_anew(start: Callable[..., Bench], spool: Spool) -> None:
    bench = start(cut_at(5000), serve)
    bench.pull()
    assert bench.next() == PullUp()
    spool.half(NAME).unlink()
    event = bench.pull()
    assert isinstance(event, Pulled) and event.digest == xxhash.xxh3_128_digest(CONTENT)
    assert asked[1].start == 0


def test_a_source_that_changed_meanwhile_leaves_nothing(start: Callable[..., Bench], spool: Spool) -> None:
    event = start(lambda message: [*serve(message)[:2], Sent(False)]).pull()
    assert isinstance(event, NotPulled) and event.code == "changed"
    assert not list(spool.inputs.iterdir())


@pytest.mark.parametrize("code", ["changed", "gone", "no-session"])
def test_a_refusal_is_told_and_the_channel_goes_on(start: Callable[..., Bench], code: str) -> None:
    bench = start(lambda message: [Refused(code)] if message.number == 3 else serve(message))
    event = bench.pull()
    assert isinstance(event, NotPulled) and event.code == code
    bench.pulling.order(Pull(7, "c" * 32, LAYER, 4, len(CONTENT)))
    assert isinstance(bench.next(), Pulled)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_or_quota_is_told_and_the_next_is_pulled(
    start: Callable[..., Bench], spool: Spool, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def full(fd: int, start: int, nbytes: int) -> None:
        if nbytes > len(CONTENT):
            raise OSError(error, os.strerror(error))

    monkeypatch.setattr("os.posix_fallocate", full)
    bench = start(serve)
    event = bench.pull(len(CONTENT) + 1)
    assert isinstance(event, NotPulled) and event.code == "full" and os.strerror(error) in event.message
    assert not list(spool.inputs.iterdir())
    assert isinstance(bench.pull(), Pulled)


def test_more_than_was_asked_for_is_not_taken(start: Callable[..., Bench]) -> None:
    event = start(lambda message: [Sending(1 << 40)]).pull()
    assert isinstance(event, NotPulled) and event.code == "cut" and "no answer to a fetch" in event.message


def test_a_coordinator_that_is_gone_says_so(start: Callable[..., Bench]) -> None:
    event = start(lambda message: [Bye("stopped")], serve).pull()
    assert event == NotPulled(NAME, "cut", "stopped")


def test_no_way_there_is_told_for_each_order(start: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    def no_way(self: FakeLink, role: Role) -> Channel:
        raise LinkError("no route")

    monkeypatch.setattr(FakeLink, "open", no_way)
    assert start(serve).pull() == NotPulled(NAME, "cut", "no route")


def test_a_limit_is_asked_for_in_pieces(start: Callable[..., Bench]) -> None:
    event = start(serve, rate=64 << 10).pull()
    assert isinstance(event, Pulled) and event.digest == xxhash.xxh3_128_digest(CONTENT)
    assert [(fetch.start, fetch.limit) for fetch in asked if isinstance(fetch, Fetch)] == [(0, 8192), (8192, 8192)]


@pytest.mark.parametrize("rate", [None, 64 << 10])
def test_a_model_comes_by_its_digest_and_another_is_refused(
    start: Callable[..., Bench], spool: Spool, rate: int | None
) -> None:
    def server(message: Message) -> list[Message | bytes]:
        assert isinstance(message, FetchCode)
        data = CONTENT[message.start :][: message.limit or len(CONTENT)]
        return [Sending(len(data)), data, Sent(True)]

    digest = xxhash.xxh3_128_digest(CONTENT)
    bench = start(server, rate=rate)
    bench.pulling.order(Pull(7, digest.hex(), LAYER, 0, len(CONTENT), True))
    assert isinstance(bench.next(), Pulled)
    assert spool.input(digest.hex(), digest).read_bytes() == CONTENT
    bench.pulling.order(Pull(7, "e" * 32, LAYER, 0, len(CONTENT), True))
    event = bench.next()
    assert isinstance(event, NotPulled) and event.code == "refused" and "not the job's" in event.message


def test_code_is_unpacked_and_what_is_not_it_is_refused(start: Callable[..., Bench], spool: Spool) -> None:
    bundle = CodeBundle("work.py:f", {"work.py": b"def f(rows): ..."})
    raw = pack(bundle)
    bench = start(lambda message: [Sending(len(raw)), raw, Sent(True)])
    bench.pulling.order(PullCode(7, bundle.digest))
    event = bench.next()
    assert isinstance(event, Pulled) and (event.name, event.nbytes) == (bundle.digest, len(raw))
    assert (spool.code(bundle.digest) / "work.py").read_bytes() == b"def f(rows): ..."
    assert spool.pack(bundle.digest).read_bytes() == raw
    bench.pulling.order(PullCode(7, "d" * 32))
    event = bench.next()
    assert isinstance(event, NotPulled) and event.code == "refused" and "digest" in event.message
    assert spool.codes() == [bundle.digest]
