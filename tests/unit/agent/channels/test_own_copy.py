"""What a copy has of an input, and the pull that compares it with the server's: nothing of it is believed unchecked."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import xxhash

from muster.agent.channels import own_copy, pull
from muster.agent.channels.own_copy import OwnCopy, runs_of
from muster.agent.core.actions import Pull
from muster.agent.core.events import NotPulled, Pulled, PullUp
from muster.agent.spool.paths import Spool
from muster.coordinator.connect import serve_pull
from muster.coordinator.connect.serve_pull import ComparedRun
from muster.coordinator.protocol.control import Greeting
from muster.coordinator.protocol.frames import frame
from muster.coordinator.protocol.transfer import Fetch, Sending, Sent
from muster.coordinator.protocol.values import PROTOCOL, Decoder, Message, encode
from muster.jobs.contract.plan import ItemsWindow, Stamp, Window
from muster.jobs.sources.items import FileItem, write_list
from tests.unit.agent.channels.test_pull import LAYER, NAME, Bench, FakeChannel, FakeLink, Server

PIECE = 1000
SOURCE = os.urandom(7 * PIECE + 300)
HERE = "/data/sets/one/x.npy"
STAMP = Stamp(1, 2, 3, 4)
_said = Decoder(Sending | Sent)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pull, own_copy, serve_pull):
        monkeypatch.setattr(module, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(pull, "PIECES_MOST", 3)  # of an input of eight


def window(path: str = HERE, offset: int = 0, nbytes: int = len(SOURCE)) -> Window:
    return Window(path, offset, (nbytes,), "|u1", nbytes, STAMP)


def read(folder: Path, path: str, nbytes: int = 10, offset: int = 0) -> tuple[bytes, bool]:
    pieces = list(OwnCopy(folder).pieces(runs_of(window(path, offset, nbytes), b""), 0, nbytes))
    return b"".join(data for data, _ in pieces), any(is_here for _, is_here in pieces)


NOTHING = (bytes(10), False)


# --- which files it reads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["x.npy", "one/x.npy", "sets/one/x.npy", "data/sets/one/x.npy"])
def test_a_source_is_found_under_as_much_of_its_path_as_the_copy_has(tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_bytes(SOURCE)
    assert read(tmp_path, HERE) == (SOURCE[:10], True)


@pytest.mark.parametrize(
    "path",
    ["/../secret", "../secret", "/data/../../secret", "/a/./../secret", "/", "", "/.", "/secret\0", "/link",
     "/in/secret", "/loop", "/pipe", "/folder", "/zeros", "/" + "x" * 300, "/turns/secret"],
)  # fmt: skip
def test_no_path_of_the_server_leaves_the_folder_or_opens_what_is_no_file(tmp_path: Path, path: str) -> None:
    folder = tmp_path / "copy"
    (folder / "folder").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"not of the copy")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "in").symlink_to(tmp_path)
    (folder / "loop").symlink_to("loop")
    (folder / "turns").symlink_to("..")
    os.mkfifo(folder / "pipe")
    with suppress(PermissionError):
        os.mknod(folder / "zeros", stat.S_IFCHR | 0o600, os.makedev(1, 5))
    assert read(folder, path) == NOTHING


def test_a_copy_that_is_missing_or_shorter_has_nothing_or_less(tmp_path: Path) -> None:
    assert read(tmp_path / "nowhere", HERE) == NOTHING
    (tmp_path / "x.npy").write_bytes(b"1234")
    assert read(tmp_path, HERE) == (b"1234" + bytes(6), True)
    assert read(tmp_path, HERE, offset=4) == NOTHING
    assert read(tmp_path, HERE, offset=1 << 70) == NOTHING


def test_no_file_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(SOURCE)
    before = len(os.listdir("/proc/self/fd"))
    for path in (HERE, "/x.npy/y", "/none/x.npy", "/../..", "/"):
        read(tmp_path, path)
    assert len(os.listdir("/proc/self/fd")) == before


# --- compared with the server ------------------------------------------------------------------------------------


class Wire:
    """What serve_pull writes to."""

    def __init__(self) -> None:
        self.sent = bytearray()

    def read_frame(self) -> bytes | None:
        return None

    def write(self, data: bytes) -> None:
        self.sent += data

    def send(self, message: Message) -> None:
        self.sent += frame(encode(message))

    def send_file(self, fd: int, offset: int, nbytes: int) -> int:
        raise AssertionError("what is compared is read once, and no more")


asked: list[Fetch] = []


def serving(source: bytes = SOURCE, meanwhile: Callable[[], object] = lambda: None) -> Server:
    """The server's end, as its helper has it. `meanwhile`: done between a question and its answer."""

    def serve(message: Message) -> list[Message | bytes]:
        assert isinstance(message, Fetch)
        asked.append(message)
        meanwhile()
        data, wire = source[message.start :][: message.limit or len(source)], Wire()
        if message.digests:
            ComparedRun(wire, len(data), message.digests).write(data)
        return [Sending(len(data)), bytes(wire.sent) if message.digests else data, Sent(True)]

    return serve


class NewerChannel(FakeChannel):
    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._sent = bytearray(frame(encode(Greeting(PROTOCOL, "0", "f" * 32, compares=True))))


class NewerLink(FakeLink):
    def open(self, role: str) -> FakeChannel:
        return NewerChannel(self.servers.pop(0) if len(self.servers) > 1 else self.servers[0])


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "x.npy").write_bytes(SOURCE)
    asked.clear()
    return folder


@pytest.fixture
def start(tmp_path: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bench]]:
    spool = Spool(tmp_path / "spool")
    spool.take("one", "there")
    made: list[Bench] = []

    def begin(*servers: Server, rate: int | None = None, link: type[FakeLink] = NewerLink) -> Bench:
        thread = pull.Pulling
        monkeypatch.setattr("tests.unit.agent.channels.test_pull.FakeLink", link)
        monkeypatch.setattr(
            "tests.unit.agent.channels.test_pull.Pulling",
            lambda link, spool, bandwidth, tell: thread(link, spool, bandwidth, tell, OwnCopy(copy)),
        )
        made.append(Bench(spool, *servers, rate=rate))
        return made[-1]

    yield begin
    for bench in made:
        bench.pulling.stop()


def pulled(
    bench: Bench, name: str = NAME, here: Window | ItemsWindow | None = None, nbytes: int = len(SOURCE)
) -> Pulled:
    bench.pulling.order(Pull(7, name, LAYER, 3, nbytes, window=here or window()))
    event = bench.next()
    assert isinstance(event, Pulled)
    return event


def is_right(bench: Bench, event: Pulled, source: bytes = SOURCE) -> bool:
    digest = xxhash.xxh3_128_digest(source)
    return event.digest == digest and bench.spool.input(event.name, digest).read_bytes() == source


@pytest.mark.parametrize("rate", [None, 1 << 20])
def test_of_a_copy_with_one_changed_byte_one_piece_is_sent(start: Callable[..., Bench], copy: Path, rate: int) -> None:
    (copy / "x.npy").write_bytes(SOURCE[:4567] + bytes([SOURCE[4567] ^ 1]) + SOURCE[4568:])
    bench = start(serving(), rate=rate)
    event = pulled(bench)
    assert is_right(bench, event)
    assert event.spared == len(SOURCE) - PIECE
    assert [(fetch.start, fetch.limit) for fetch in asked] == [(0, 3000), (3000, 3000), (6000, 1300)]


def test_a_copy_that_is_changed_once_it_was_read_is_of_no_account(start: Callable[..., Bench], copy: Path) -> None:
    bench = start(serving(meanwhile=lambda: (copy / "x.npy").write_bytes(os.urandom(len(SOURCE)))))
    assert is_right(bench, event := pulled(bench))
    assert event.spared == 3 * PIECE  # what was read before the change


@pytest.mark.parametrize("there", [None, b"", SOURCE[: 2 * PIECE + 5], SOURCE + b"more", bytes(len(SOURCE))])
def test_whatever_the_copy_is_the_input_is_the_servers(
    start: Callable[..., Bench], copy: Path, there: bytes | None
) -> None:
    (copy / "x.npy").unlink()
    if there is not None:
        (copy / "x.npy").write_bytes(there)
    bench = start(serving())
    assert is_right(bench, pulled(bench))


def test_inputs_ordered_together_each_come_whole(start: Callable[..., Bench]) -> None:
    bench = start(serving())
    names = [letter * 32 for letter in "abcdef"]
    for name in names:
        bench.pulling.order(Pull(7, name, LAYER, 3, len(SOURCE), window=window()))
    events = [bench.next() for _ in names]
    assert [event.name for event in events if isinstance(event, Pulled) and is_right(bench, event)] == names


def test_what_was_cut_off_is_gone_on_with(start: Callable[..., Bench], copy: Path) -> None:
    (copy / "x.npy").write_bytes(bytes(PIECE) + SOURCE[PIECE:])

    def cut(message: Message) -> list[Message | bytes]:
        sending, compared, _ = serving()(message)
        assert isinstance(compared, bytes)
        return [sending, compared[:-5]]

    bench = start(cut, serving())
    bench.pulling.order(Pull(7, NAME, LAYER, 3, len(SOURCE), window=window()))
    event = bench.next()
    assert isinstance(event, NotPulled) and event.code == "cut"
    assert bench.next() == PullUp()
    event = pulled(bench)
    assert is_right(bench, event)
    assert event.spared == len(SOURCE) - PIECE
    assert asked[1].start == 2 * PIECE


def test_an_older_server_is_asked_as_ever(start: Callable[..., Bench]) -> None:
    bench = start(serving(), link=FakeLink)
    event = pulled(bench)
    assert is_right(bench, event)
    assert (event.spared, [fetch.digests for fetch in asked]) == (0, [[]])


def test_files_are_compared_once_their_names_have_come(start: Callable[..., Bench], copy: Path, tmp_path: Path) -> None:
    files = {f"sub/{number}.bin": os.urandom(150) for number in range(30)}
    for name, data in files.items():
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_bytes(data)
    (copy / "sub/3.bin").unlink()
    (copy / "sub/3.bin").symlink_to("4.bin")
    listed = write_list(tmp_path / "list", [FileItem(name, Stamp(150, 0, 0, 0)) for name in files])
    records = listed.path.read_bytes()
    whole = records + b"".join(files.values())
    here = ItemsWindow("", "d" * 32, 0, len(records), 30, len(whole), "/data/pictures", ())
    bench = start(serving(whole))
    event = pulled(bench, here=here, nbytes=len(whole))
    assert is_right(bench, event, whole)
    assert asked[0].digests == [] and asked[0].limit == len(records)
    assert event.spared == len(whole) - len(records) - PIECE


def test_a_disk_that_does_not_keep_what_was_laid_out_is_noticed(start: Callable[..., Bench]) -> None:
    def spoil() -> None:
        path = bench.spool.half(NAME)
        path.write_bytes(bytes(len(SOURCE)))

    bench = start(serving(meanwhile=spoil), serving())
    bench.pulling.order(Pull(7, NAME, LAYER, 3, len(SOURCE), window=window()))
    event = bench.next()
    assert isinstance(event, NotPulled) and "not what was written" in event.message
    assert bench.next() == PullUp()
    assert is_right(bench, pulled(bench))


# --- the server's side ---------------------------------------------------------------------------------------------


def test_the_server_reads_each_byte_once_and_holds_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "source"
    path.write_bytes(SOURCE)
    reads: list[tuple[int, int]] = []
    pread = os.pread

    def counted(fd: int, nbytes: int, offset: int) -> bytes:
        reads.append((offset, nbytes))
        return pread(fd, nbytes, offset)

    monkeypatch.setattr(os, "pread", counted)
    digests = [xxhash.xxh3_128_hexdigest(SOURCE[at : at + PIECE]) for at in range(0, len(SOURCE), PIECE)]
    digests[2:] = ["0" * 32, *digests[3:5]]  # one that differs, and some that are not told
    wire, at = Wire(), 0
    run = ComparedRun(wire, len(SOURCE), digests)
    fd = os.open(path, os.O_RDONLY)
    while sent := run.send_file(fd, at, len(SOURCE) - at):
        at += sent
    os.close(fd)
    assert at == len(SOURCE)
    assert sum(min(nbytes, len(SOURCE) - offset) for offset, nbytes in reads) == len(SOURCE)
    assert max(nbytes for _, nbytes in reads) == PIECE
    sent_pieces = [SOURCE[2000:3000], None, None, SOURCE[5000:6000], SOURCE[6000:7000], SOURCE[7000:]]
    assert parsed(bytes(wire.sent)) == [None, None, *sent_pieces]


def parsed(raw: bytes) -> list[bytes | None]:
    """Each piece that was sent; None for one that was not."""
    pieces: list[bytes | None] = []
    while raw:
        size = int.from_bytes(raw[4:8], "big")
        said = _said(raw[8 : 8 + size])
        assert isinstance(said, Sending)
        pieces.append(raw[8 + size :][: said.nbytes] if said.nbytes else None)
        raw = raw[8 + size + said.nbytes :]
    return pieces


def test_an_older_agent_asks_without_digests_and_an_older_server_reads_over_them() -> None:
    older = msgspec.defstruct("Fetch", [("session", int), ("layer", str), ("number", int)], tag_field="t", tag="fetch")
    new = Fetch(7, LAYER, 3, digests=["0" * 32])
    assert msgspec.msgpack.decode(encode(new), type=older) == older(7, LAYER, 3)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(older(7, LAYER, 3)), type=Fetch) == Fetch(7, LAYER, 3)
