"""A coordinator whose agents say anything: an answer or a closed channel, bounded memory, no file but in its root."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.coordinator.connect.serve_pull import send_windows
from muster.coordinator.connect.serve_push import receive_bundles
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.protocol import control as talk
from muster.coordinator.protocol import transfer, values
from muster.coordinator.protocol.frames import FrameReader, frame
from muster.jobs.common.errors import MusterError
from muster.jobs.contract.plan import Output
from muster.jobs.parts.part_file import check_body, encode_index, read_index
from muster.jobs.results.bundle import Bundle
from tests.support import hostile
from tests.support.farm import FarmHarness, arrays, running
from tests.support.processes import peak_bytes
from tests.support.shards import layer_of, result_of, store, write_part

FARM = "f" * 32
MEMORY_BYTES = 200 << 20
RANGES = [(0, 3), (5, 6)]
SLOW = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    """A farm with a job under way, of which an agent holds some."""
    with running(tmp_path_factory.mktemp("target"), lease=2.0) as farm:
        farm.submit(arrays(2))
        yield farm


def samples(layer: str, job: str) -> dict[str, list[values.Message]]:
    """By role, what a good agent might say."""
    failure = talk.Failure(job, layer, 3, 1, 1, "exception", "no", "because", 0.5, 1)
    loss = talk.Loss(job, layer, 1, 1, RANGES, True, "killed")
    finished = talk.Finished(job, layer, 1, 1, RANGES, 4, 0.1, 0.2, 3, 4, 5)
    hello = talk.Hello(
        values.PROTOCOL,
        "0.1.0", "bad", "s" * 32, "p" * 32, "h", 7, 2, 1 << 30, 1 << 30, {"cluster": 1}, "fp", "3.11", True,
        [talk.Held(job, layer, 1, 1, RANGES, [(7, 8)])], [failure], [loss],
    )  # fmt: skip
    sync = talk.Sync(1, 1 << 30, 0.0, True, [finished], [failure], [loss], [talk.Returned(layer, 1, 1, RANGES)], [])
    offer = transfer.Offer(1, layer, RANGES, [Output("centers", "rows", "<f4", (4,))], b"index", 99)
    return {
        "control": [hello, sync, sync, talk.Leave(1)],
        "push": [offer, transfer.Stored(1, 99), transfer.Failed(1, "full", "no room"), transfer.Moved(1)],
        "pull": [transfer.Fetch(1, layer, 0), transfer.FetchCode(1, layer), transfer.Moved(1)],
        "round": [transfer.Follow(1, layer, [layer]), transfer.Moved(1)],
    }


class Peer:
    """A helper's connection to the daemon."""

    def __init__(self, farm: FarmHarness, role: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        with roots.address(farm.root.socket) as where:
            self.socket.connect(where)
        self._reader = FrameReader()
        self.say(values.encode(transfer.Attach(role)))

    def close(self) -> None:
        self.socket.close()

    def say(self, raw: bytes) -> None:
        self.socket.sendall(frame(raw))

    def ask(self, raw: bytes) -> Any:
        """The answer; None where the channel was closed."""
        try:
            self.say(raw)
            while True:
                data = self.socket.recv(1 << 16)
                if not data:
                    return None
                if frames := self._reader.feed(data):
                    return msgspec.msgpack.decode(frames[0])
        except ConnectionError:
            return None


@pytest.mark.parametrize("role", ["control", "push", "pull", "round"])
@SLOW
@given(data=st.data())
def test_the_daemon_outlives_whatever_an_agent_says(target: FarmHarness, role: str, data: st.DataObject) -> None:
    """In a session of its own, of work that there is; fields are drawn anew where the session is named."""
    [job] = [one.id for one in target.jobs()]
    layer = target.plan(job).layers[0].digest
    good = samples(layer, job)
    with closing(Peer(target, "control")) as control, closing(Peer(target, role)) as other:
        welcome = control.ask(values.encode(as_nobody_else(good["control"][0])))
        assert welcome["t"] == "welcome", welcome
        session = welcome["session"]
        sync = msgspec.structs.replace(good["control"][1], session=session, finished=[], failures=[], losses=[])
        control.ask(values.encode(sync))  # so that there is a grant
        peer = control if role == "control" else other
        known = {"session": [session], "layer": [layer], "boot": [1], "attempt": [1, 2], "job": [job]}
        spoken = hostile.spoilt(good[role]) | hostile.messages(tuple_of(good[role]), **known)
        for message in data.draw(st.lists(spoken, min_size=1, max_size=5)):
            if "session" in message and data.draw(st.integers(0, 3)):
                message["session"] = session
            if message["t"] == "moved":
                with suppress(ConnectionError):  # it was closed over the last one
                    peer.say(msgspec.msgpack.encode(message))
            elif "wait" in message and isinstance(message["wait"], float):
                message["wait"] = 0.0
            if message["t"] != "moved" and peer.ask(msgspec.msgpack.encode(message)) is None:
                break
    assert target.daemon is not None and target.daemon.poll() is None, target.said()
    assert target.jobs() is not None


def as_nobody_else(hello: values.Message) -> values.Message:
    """What was said in an earlier example may have fenced whoever says the same again."""
    return msgspec.structs.replace(hello, name=f"bad-{uuid4().hex}", spool=uuid4().hex, process=uuid4().hex)


def tuple_of(messages: list[values.Message]) -> Any:
    union: Any = type(messages[0])
    for one in messages[1:]:
        union = union | type(one)
    return union


@pytest.fixture(scope="module", autouse=True)
def only_in_its_root(target: FarmHarness) -> Iterator[None]:
    """At the end of it all: it is as it was, and only the root has more."""
    marks = [Path("/tmp/mark"), target.root.path.parent / "mark", target.folder.parent / "mark"]
    assert not any(path.exists() for path in marks)
    before = outside(target)
    assert target.daemon is not None
    peak = peak_bytes(target.daemon.pid)
    yield
    assert not any(path.exists() for path in marks)
    assert outside(target) == before
    assert peak_bytes(target.daemon.pid) - peak < MEMORY_BYTES
    assert "bug of ours" not in target.said() and "Traceback" not in target.said()
    agent = target.agent("good")
    assert isinstance(agent.join(), talk.Welcome) and isinstance(agent.sync(), talk.News), "a good one is not let in"


def outside(farm: FarmHarness) -> list[str]:
    """All files of the farm's folder beside its root, and names in its root but for what the daemon measures."""
    found = [path for path in farm.folder.rglob("*") if farm.root.path not in path.parents]
    found += [path for path in farm.root.path.iterdir() if not path.name.startswith(farm.root.figures.name)]
    return sorted(map(str, [*found, *farm.root.jobs.iterdir(), *farm.root.code.iterdir()]))


# --- the helpers, between the two ---


class Agent:
    """The agent's side of a helper: bytes that came, and what is said to it."""

    def __init__(self, raw: bytes) -> None:
        self._in = io.BytesIO(raw)
        self.said: list[values.Message] = []

    def read_frame(self) -> bytes | None:
        from muster.coordinator.protocol.frames import HEAD, payload_size

        head = self._in.read(HEAD.size)
        if not head:
            return None
        if len(head) < HEAD.size:
            raise MusterError("cut")
        size = payload_size(head)
        payload = self._in.read(size)
        if len(payload) < size:
            raise MusterError("cut")
        return payload

    def read_some(self, limit: int) -> bytes:
        return self._in.read(limit)

    def send(self, message: values.Message) -> None:
        self.said.append(message)

    def write(self, data: bytes) -> None:
        return

    def send_file(self, fd: int, offset: int, nbytes: int) -> int:
        return nbytes


class Daemon:
    """Says yes to all."""

    def __init__(self, folder: Path, durable: bool = True) -> None:
        self._folder, self._durable = folder, durable

    def ask(self, payload: bytes) -> bytes:
        said = values.Decoder(transfer.FromHelper)(payload)
        if isinstance(said, transfer.Offer):
            take = transfer.Take(1, str(self._folder / "tmp"), str(self._folder / "file"), 100, 10, [], self._durable)
            return values.encode(take)
        if isinstance(said, transfer.Fetch | transfer.FetchCode):
            return values.encode(transfer.Readable(str(self._folder / "source"), 0, 10, None))
        return values.encode(
            transfer.Settled([(0, 1)]) if isinstance(said, transfer.Stored) else transfer.Refused("corrupt")
        )

    def tell(self, payload: bytes) -> None:
        values.Decoder(transfer.Moved)(payload)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """What comes on a push or a pull channel: good frames, spoilt ones, raw bytes, in any order."""
    good = samples("0" * 32, "j.1")
    spoken = hostile.spoilt([*good["push"][:1], *good["pull"][:2]]).map(msgspec.msgpack.encode).map(frame)
    return b"".join(draw(st.lists(spoken | st.binary(max_size=60), max_size=4)))


@SLOW
@given(raw=streams())
def test_a_helper_ends_with_an_answer_or_an_error(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "source").write_bytes(bytes(10))
    for serve in (lambda a, d: receive_bundles(a, d, FARM, tmp_path), send_windows):
        agent = Agent(raw)
        try:
            serve(agent, Daemon(tmp_path))
        except MusterError as error:
            assert "\n" not in error.message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
    assert threading.active_count() < 50


def handed(folder: Path, change: str) -> tuple[list[values.Message], Path]:
    """What a helper says of a bundle handed over as a file, after some mischief; and where it would be."""
    files, rounds = folder / "files", folder / "rounds"
    for one in (files, rounds):
        one.mkdir()
    layer = layer_of(100, 10)
    bundle = Bundle([write_part(folder / "part", layer, [(0, result_of(0, 10)), (1, result_of(1, 10))])])
    file = store(bundle, files / "handed")
    raw = bytearray(file.read_bytes())
    if change == "bits":
        raw[3] ^= 1
    file.write_bytes(raw[:-1] if change == "short" else raw)
    if change == "link":
        file.rename(folder / "elsewhere")
        file.symlink_to(folder / "elsewhere")
    name = {"above": "../files/handed", "missing": "other"}.get(change, "handed")
    outputs, eager = list(bundle.index.outputs), change != "asked"
    offer = transfer.Offer(
        1, layer.digest, [(0, 2)], outputs, encode_index(bundle.index), bundle.nbytes, "", eager, name
    )
    agent = Agent(frame(values.encode(offer)))
    receive_bundles(agent, Daemon(rounds, change == "kept"), "farm", None if change == "far" else files)
    return agent.said, rounds / "file"


def test_a_bundle_handed_over_as_a_file_is_checked_and_renamed(tmp_path: Path) -> None:
    said, file = handed(tmp_path, "")
    assert said == [transfer.Settled([(0, 1)])]
    index = read_index(file)
    check_body(file, index)
    assert [entry.number for entry in index.entries] == [0, 1]
    assert not (tmp_path / "files" / "handed").exists()


@pytest.mark.parametrize("change", ["bits", "short", "link", "missing", "kept"])
def test_a_file_that_is_not_what_its_header_says_is_not_taken(tmp_path: Path, change: str) -> None:
    said, file = handed(tmp_path, change)
    assert said == [transfer.Refused("corrupt")]
    assert not file.exists()


@pytest.mark.parametrize("change", ["above", "far", "asked"])
def test_a_file_is_taken_from_the_folder_of_an_agent_on_this_machine_alone(tmp_path: Path, change: str) -> None:
    with pytest.raises(MusterError, match="a file where none can be"):
        handed(tmp_path, change)
