"""The pull helper: runs of bytes of the server's files to an agent, by sendfile. The daemon names each file, not we.

The daemon asks the plan which run a shard is; the stamp is compared before and after, so that a source that changed
under the transfer is told apart from what was planned. What a run of many files is, serve_items knows. An agent that
has a copy says digests of what it has, and is sent what differs.
"""

from __future__ import annotations

import os
import time
from typing import Protocol

import xxhash

from muster.coordinator.connect.serve_items import Changed, ItemsRun, ItemsTaker
from muster.coordinator.protocol.control import Bye, Rejected
from muster.coordinator.protocol.transfer import (
    Fetch,
    FetchCode,
    FromPuller,
    Moved,
    Probe,
    Readable,
    ReadableItems,
    Refused,
    Sending,
    Sent,
)
from muster.coordinator.protocol.values import PIECE_BYTES, Decoder, Message, encode
from muster.jobs.contract.plan import Stamp

CHUNK_BYTES = 4 << 20  # one sendfile; between two of them the daemon may hear a sign of life
MOVED_SECONDS = 1.0
NOISE_BYTES = 1 << 20  # said again and again: more than ssh could compress

_from_agent = Decoder(FromPuller)
_from_daemon = Decoder(Readable | ReadableItems | Probe | Refused | Rejected | Bye)


class RowsTaker(Protocol):
    """The agent's side."""

    def read_frame(self) -> bytes | None: ...
    def write(self, data: bytes) -> None: ...
    def send(self, message: Message) -> None: ...
    def send_file(self, fd: int, offset: int, nbytes: int) -> int: ...


class ComparedRun:
    """Takes a run as an agent does, and passes on those pieces of which the agent said another digest. Reads no byte
    twice, and holds one piece."""

    def __init__(self, agent: RowsTaker, nbytes: int, digests: list[str]) -> None:
        self._agent, self._left, self._digests = agent, nbytes, iter(digests)
        self._piece = bytearray()

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self._left:
            room = min(PIECE_BYTES, self._left) - len(self._piece)
            self._piece += view[:room]
            view = view[room:]
            if len(self._piece) == min(PIECE_BYTES, self._left):
                self._settle()

    def send_file(self, fd: int, offset: int, nbytes: int) -> int:
        data = os.pread(fd, min(nbytes, PIECE_BYTES), offset)
        self.write(data)
        return len(data)

    def _settle(self) -> None:
        is_there = xxhash.xxh3_128_hexdigest(self._piece) == next(self._digests, None)
        self._agent.send(Sending(0 if is_there else len(self._piece)))
        if not is_there:
            self._agent.write(bytes(self._piece))
        self._left -= len(self._piece)
        self._piece.clear()


class PullAsked(Protocol):
    """The daemon's side."""

    def ask(self, payload: bytes) -> bytes: ...
    def tell(self, payload: bytes) -> None: ...


def send_windows(agent: RowsTaker, daemon: PullAsked) -> None:
    """One fetch after another, until the agent closes."""
    while (payload := agent.read_frame()) is not None:
        wanted = _from_agent(payload)
        said = _from_daemon(daemon.ask(payload))
        if isinstance(said, Readable) and isinstance(wanted, Fetch | FetchCode):
            _send(agent, daemon, wanted, said)
        elif isinstance(said, ReadableItems) and isinstance(wanted, Fetch):
            _send_items(agent, daemon, wanted, said)
        elif isinstance(said, Probe):
            _send_noise(agent, said.nbytes)
        else:
            agent.send(said)


def _taker(agent: RowsTaker, nbytes: int, wanted: Fetch | FetchCode) -> ItemsTaker:
    digests = wanted.digests if isinstance(wanted, Fetch) else []
    return ComparedRun(agent, nbytes, digests) if digests else agent


def _send(agent: RowsTaker, daemon: PullAsked, wanted: Fetch | FetchCode, run: Readable) -> None:
    try:
        fd = os.open(run.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        agent.send(Refused("changed", [], f"{run.path}: {error.strerror}"))
        return
    try:
        if not _as_planned(fd, run.stamp):
            agent.send(Refused("changed", [], f"{run.path} is not what was planned"))
            return
        agent.send(Sending(run.nbytes))
        whole = _send_bytes(_taker(agent, run.nbytes, wanted), daemon, wanted.session, fd, run)
        agent.send(Sent(whole and _as_planned(fd, run.stamp)))
    finally:
        os.close(fd)


def _as_planned(fd: int, stamp: Stamp | None) -> bool:
    found = os.fstat(fd)
    return stamp is None or stamp == Stamp(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


def _send_bytes(agent: ItemsTaker, daemon: PullAsked, session: int, fd: int, run: Readable) -> bool:
    """All the bytes that were announced; a file that ends early is filled up with zeros, and False."""
    offset, end, said = run.offset, run.offset + run.nbytes, time.monotonic()
    while offset < end:
        sent = agent.send_file(fd, offset, min(end - offset, CHUNK_BYTES))
        if not sent:
            _fill(agent, bytes(min(end - offset, CHUNK_BYTES)), end - offset)
            return False
        offset += sent
        if time.monotonic() - said >= MOVED_SECONDS:
            said = time.monotonic()
            daemon.tell(encode(Moved(session)))
    return True


def _send_items(agent: RowsTaker, daemon: PullAsked, wanted: Fetch, run: ReadableItems) -> None:
    try:
        sending = ItemsRun(run)
    except Changed as error:
        agent.send(Refused("changed", [], str(error)))
        return
    agent.send(Sending(run.limit))
    said, whole, taker = time.monotonic(), True, _taker(agent, run.limit, wanted)
    try:
        for _ in sending.send(taker):
            if time.monotonic() - said >= MOVED_SECONDS:
                said = time.monotonic()
                daemon.tell(encode(Moved(wanted.session)))
    except Changed:
        whole = False
        _fill(taker, bytes(min(sending.missing, CHUNK_BYTES)), sending.missing)
    agent.send(Sent(whole))


def _send_noise(agent: RowsTaker, nbytes: int) -> None:
    """Nothing on the way can make less of it."""
    agent.send(Sending(nbytes))
    _fill(agent, os.urandom(min(nbytes, NOISE_BYTES)), nbytes)
    agent.send(Sent(True))


def _fill(agent: ItemsTaker, block: bytes, nbytes: int) -> None:
    while nbytes > 0:
        agent.write(block[:nbytes])
        nbytes -= min(nbytes, len(block))
