"""The push helper: a bundle's body from the agent into `tmp/`, checked on the way, then into `bundles/`.

Order, each step safe to die after: header judged → body in tmp → fsync → rename into bundles → fsync of the folder →
the daemon's transaction → the acknowledgement. A file without a row is deleted at the daemon's next start. A bundle of
a round is written under its name at once and not synced: the daemon judges it, and keeps no row of it. An agent on this
machine may hand one over as a file: checked where it lies, and renamed.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from heapq import nlargest
from pathlib import Path
from typing import Protocol

from muster.coordinator.connect.pipe import IDLE_SECONDS
from muster.coordinator.figures.histogram import bucket_of_bytes, bucket_of_seconds, counted
from muster.coordinator.protocol.control import Bye, Rejected
from muster.coordinator.protocol.transfer import (
    NAMES_MOST,
    Accepted,
    BundleFigures,
    Failed,
    Moved,
    Offer,
    Refused,
    Settled,
    Stored,
    Take,
)
from muster.coordinator.protocol.values import Decoder, Message, encode
from muster.jobs.common import durable
from muster.jobs.common.errors import DamagedError, LinkError, ProtocolError, SpaceError
from muster.jobs.common.names import is_plain
from muster.jobs.common.ranges import RangeSet
from muster.jobs.parts.part_file import BodyCheck, Index, decode_index, tail_of

READ_BYTES = 1 << 18
OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR})  # what no folder is to blame for
SLOWEST = 3  # shards of a bundle that are named
SECONDS_MOST, COUNT_MOST = 1e9, 1 << 53  # that are told of a bundle
MOVED_SECONDS = 1.0  # between signs of life while a body is coming in
LEAST_RATE = 1 << 10  # bytes a second of a body: a modem has more, and room is kept for as long as it comes
RATE_SECONDS = (
    IDLE_SECONDS  # that it is measured over: a radio that is away for two minutes is no worse than an idle one
)

_from_agent = Decoder(Offer)
_from_daemon = Decoder(Take | Refused | Settled | Rejected | Bye)


class FolderFailed(Exception):
    """The folder of the bundle's job would not take it, while another job's may."""


class BundleStream(Protocol):
    """The agent's side."""

    def read_frame(self) -> bytes | None: ...
    def read_some(self, limit: int) -> bytes: ...
    def send(self, message: Message) -> None: ...


class PushAsked(Protocol):
    """The daemon's side."""

    def ask(self, payload: bytes) -> bytes: ...
    def tell(self, payload: bytes) -> None: ...


def receive_bundles(agent: BundleStream, daemon: PushAsked, farm: str, files: Path | None = None) -> None:
    """One offer after another, until the agent closes. `files`: where those handed over lie."""
    while (payload := agent.read_frame()) is not None:
        offer = _from_agent(payload)
        assert isinstance(offer, Offer)
        if offer.file and (files is None or not offer.eager or not is_plain(offer.file)):
            raise ProtocolError("a file where none can be")
        agent.send(_receive(agent, daemon, farm, offer, files / offer.file if files and offer.file else None))


def _receive(agent: BundleStream, daemon: PushAsked, farm: str, offer: Offer, given: Path | None) -> Message:
    """What to tell the agent of this bundle, once all is done."""
    try:
        index = _checked_index(offer, farm)
    except DamagedError as error:
        return _declined(agent, daemon, offer, Refused("corrupt", [], error.message))
    verdict = _ask(daemon, _header(offer, index))
    if not isinstance(verdict, Take):
        return _declined(agent, daemon, offer, verdict)
    wrong = _wrong_rows(index, verdict)
    if wrong:
        return _declined(agent, daemon, offer, _ask(daemon, Failed(verdict.token, "corrupt", wrong)))
    if not offer.eager:
        agent.send(Accepted(verdict.token))
    try:
        nbytes = _take_file(given, offer, index, verdict) if given else _take_body(agent, daemon, offer, index, verdict)
    except DamagedError as error:
        return _ask(daemon, Failed(verdict.token, "corrupt", error.message))
    except SpaceError as error:
        return _ask(daemon, Failed(verdict.token, "full", error.message))
    except FolderFailed as error:
        return _ask(daemon, Failed(verdict.token, "folder", str(error)))
    except OSError as error:
        return _ask(daemon, Failed(verdict.token, "disk", f"{verdict.tmp}: {error.strerror}"))
    return _ask(daemon, Stored(verdict.token, nbytes, figures_of(index)))


def _declined(agent: BundleStream, daemon: PushAsked, offer: Offer, answer: Message) -> Message:
    """The same answer, once an eager body is out of the way."""
    if offer.eager and not offer.file:
        _Body(agent, daemon, offer).drain()
    return answer


def figures_of(index: Index) -> BundleFigures:
    """What the bundle's shards took: counted here, so that the daemon adds up bundles and never shards."""
    entries = index.entries
    seconds = [entry.seconds if 0 <= entry.seconds <= SECONDS_MOST else 0.0 for entry in entries]
    slowest = nlargest(SLOWEST, zip(seconds, (entry.number for entry in entries), strict=True))
    return BundleFigures(
        rows=min(COUNT_MOST, sum(entry.rows for entry in entries)),
        in_bytes=min(COUNT_MOST, sum(entry.in_bytes for entry in entries)),
        out_bytes=min(COUNT_MOST, index.body_bytes),
        seconds=min(SECONDS_MOST, sum(seconds)),
        peak=max((entry.peak for entry in entries), default=0),
        spread=counted(map(bucket_of_seconds, seconds)),
        peaks=counted(bucket_of_bytes(entry.peak) for entry in entries if entry.peak),
        slowest=[(number, took) for took, number in slowest],
    )


def _ask(daemon: PushAsked, message: Message) -> Message:
    return _from_daemon(daemon.ask(encode(message)))


def _header(offer: Offer, index: Index) -> Offer:
    """All that the daemon judges by."""
    agents = sorted({entry.agent for entry in index.entries})
    return Offer(
        offer.session, offer.layer, offer.numbers, offer.outputs, b"", offer.nbytes, index.fingerprint, agents=agents
    )


def _checked_index(offer: Offer, farm: str) -> Index:
    """The index, if it says the same as the offer's header."""
    index = decode_index(offer.index)
    numbers = RangeSet.of(entry.number for entry in index.entries)
    if index.farm != farm:
        raise DamagedError("a bundle of another farm")
    if (index.layer, list(index.outputs)) != (offer.layer, offer.outputs) or numbers.pairs() != offer.numbers:
        raise DamagedError("a bundle whose index and header differ")
    if len({entry.agent for entry in index.entries}) > NAMES_MOST:
        raise DamagedError(f"a bundle that names more than {NAMES_MOST} agents")
    if index.body_bytes != offer.nbytes:
        raise DamagedError(f"a body of {offer.nbytes} bytes where the index says {index.body_bytes}")
    return index


def _wrong_rows(index: Index, take: Take) -> str:
    for entry, count in zip(index.entries, take.counts, strict=False):
        if entry.rows != count:
            return f"shard {entry.number} has {entry.rows} items, the plan says {count}"
    if not take.rows:
        return ""
    for entry in index.entries:
        expected = min(take.shard_rows, take.rows - entry.number * take.shard_rows)
        if entry.rows != expected:
            return f"shard {entry.number} has {entry.rows} rows, the plan says {expected}"
    return ""


def _take_body(agent: BundleStream, daemon: PushAsked, offer: Offer, index: Index, take: Take) -> int:
    """The body and the index as a durable file under its final name; its size."""
    body = _Body(agent, daemon, offer)
    tail = tail_of(offer.index)
    tmp, file = Path(take.tmp), Path(take.file)
    fd = -1
    try:
        with durable.naming_space(tmp):
            with nullcontext() if take.durable else _in_folder(file):
                fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            check = BodyCheck(index)
            for piece in body.pieces():
                durable.write_all(fd, piece)
                check.feed(piece)
            check.finish()
            durable.write_all(fd, tail)
            if take.durable:
                durable.fsync(fd)
            os.close(fd)
            fd = -1
            if take.durable:
                with _in_folder(file):
                    tmp.rename(file)
                    durable.fsync_folder(file.parent)
    except BaseException as error:
        if fd >= 0:
            os.close(fd)
        for path in (tmp, file):
            with suppress(OSError):
                path.unlink()
        if not isinstance(error, LinkError | ProtocolError):  # else there is nobody to wait for
            body.drain()
        raise
    return offer.nbytes + len(tail)


def _take_file(given: Path, offer: Offer, index: Index, take: Take) -> int:
    """The same of a file that is whole, of a round."""
    tail, file = tail_of(offer.index), Path(take.file)
    if take.durable:
        raise DamagedError("what is to be kept is not handed over")
    fd = os.open(given, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size != offer.nbytes + len(tail):
            raise DamagedError("a file that is not as long as its header says")
        whole = memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
        check = BodyCheck(index)
        check.feed(whole[: offer.nbytes])
        check.finish()
        if whole[offer.nbytes :] != tail:
            raise DamagedError("a file with another index than its header")
        with durable.naming_space(file), _in_folder(file):
            _move(given, file)
    finally:
        os.close(fd)
    return offer.nbytes + len(tail)


@contextmanager
def _in_folder(file: Path) -> Iterator[None]:
    """Within it, what does not work is for the job's own folder to answer for, if the disk is not full."""
    try:
        yield
    except OSError as error:
        if durable.is_full(error) or error.errno in OURS:
            raise
        raise FolderFailed(f"{file.parent}: {error.strerror}") from error


def _move(given: Path, file: Path) -> None:
    """By a rename, or onto another disk."""
    try:
        given.rename(file)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        try:
            shutil.copyfile(given, file)
        except BaseException:
            file.unlink(missing_ok=True)
            raise


class LeastRate:
    """Ends a sender that all but stalls. Only the time in which it was waited for counts, not what our disk takes."""

    def __init__(self) -> None:
        self._waited, self._came = 0.0, 0

    def note(self, waited: float, nbytes: int) -> None:
        """`nbytes` came after so many seconds; a LinkError where they were too few for too long."""
        self._waited, self._came = self._waited + waited, self._came + nbytes
        if self._waited < RATE_SECONDS:
            return
        if self._came < LEAST_RATE * self._waited:
            raise LinkError(f"{self._came} bytes of a bundle came within {self._waited:.0f} s: it is not waited for")
        self._waited, self._came = 0.0, 0


class _Body:
    """The raw bytes that follow an accepted offer. Whatever goes wrong they are read to their end: the next frame
    begins there."""

    def __init__(self, agent: BundleStream, daemon: PushAsked, offer: Offer) -> None:
        self._agent = agent
        self._daemon = daemon
        self._session = offer.session
        self._left = offer.nbytes
        self._said = time.monotonic()
        self._rate = LeastRate()

    def pieces(self) -> Iterator[bytes]:
        """To the end, as they come."""
        while self._left > 0:
            begun = time.monotonic()
            raw = self._agent.read_some(min(self._left, READ_BYTES))
            self._rate.note(time.monotonic() - begun, len(raw))
            if not raw:
                raise ProtocolError("the channel ended within a bundle")
            self._left -= len(raw)
            self._sign_of_life()
            yield raw

    def drain(self) -> None:
        for _ in self.pieces():
            continue

    def _sign_of_life(self) -> None:
        now = time.monotonic()
        if now - self._said >= MOVED_SECONDS:
            self._said = now
            self._daemon.tell(encode(Moved(self._session)))
