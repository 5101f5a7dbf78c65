"""The pull thread: brings inputs and code into the spool as it is told to. Decides nothing.

Orders are asked for ahead of their answers, so that small inputs do not wait a round trip each. An input that is cut
off half way stays, and is gone on with where it ended; its digest covers all of it.
"""

from __future__ import annotations

import logging
import os
import queue
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import xxhash

from muster.agent.channels.bandwidth import Bandwidth
from muster.agent.channels.base import Bulk
from muster.agent.channels.own_copy import OwnCopy, runs_of
from muster.agent.core.actions import Pull, PullCode
from muster.agent.core.events import Event, NotPulled, Pulled, PullUp, Why
from muster.agent.links.base import Channel, Link, Pace
from muster.agent.spool.paths import Spool
from muster.coordinator.protocol.control import Rejected
from muster.coordinator.protocol.transfer import Fetch, FetchCode, Refused, Sending, Sent, ToPuller
from muster.coordinator.protocol.values import PIECE_BYTES, PIECES_MOST, Decoder, Message
from muster.jobs.common.durable import is_full, write_all
from muster.jobs.common.errors import DamagedError, MusterError, ProtocolError
from muster.jobs.contract.plan import ItemsWindow
from muster.jobs.user_code.code_pack import PACK_LIMIT, unpack

CHUNK_BYTES = 1 << 20
BYTE_SECONDS = 60.0  # without any byte of an input that is on its way
NOTHING = "0" * 32  # the digest of a piece of which nothing is here
HALVES = 64  # digests of inputs cut off half way that are remembered

_CODES: dict[str, Why] = {"changed": "changed", "gone": "gone", "no-session": "no-session"}

log = logging.getLogger("muster.pull")


@dataclass
class Half:
    """What there is of an input: the first `have` bytes of the file."""

    have: int = 0
    digest: Any = field(default_factory=xxhash.xxh3_128)
    seconds: float = 0.0
    spared: int = 0  # of those bytes, what the user's own copy had


class Pulling(Bulk[Pull | PullCode]):
    """Each order is answered by exactly one event."""

    role = "pull"
    decode: ClassVar[Decoder] = Decoder(ToPuller)

    def __init__(
        self,
        link: Link,
        spool: Spool,
        bandwidth: Bandwidth,
        tell: Callable[[Event], None],
        copy: OwnCopy | None = None,
    ) -> None:
        super().__init__(link, bandwidth, tell)
        self._spool = spool
        self._copy = copy
        self._taken: deque[Pull | PullCode] = deque()  # not answered yet; the first is being served
        self._asked = 0  # how many of them the other end was asked for
        self._halves: dict[str, Half] = {}
        self._offered: dict[str, list[str]] = {}  # of inputs asked for: digests of the pieces laid out here
        self._partly: str | None = None  # the input of which less than the rest was asked for: nothing behind it is yet

    def _run(self) -> None:
        self._tell(PullUp())
        while self._take():
            kept = self._channel is not None  # from before: it may have ended meanwhile
            try:
                while self._taken and not self._stopping.is_set():
                    self._serve(self._channel or self._dial(), self._taken[0])
                    self._backoff.good()
                    kept = False
                    self._take_more()
            except (MusterError, OSError) as error:
                self._trouble(error, kept)
        self._hang_up()

    def _take(self) -> bool:
        """Wait for an order. False at the end."""
        order = self._orders.get()
        if order is None or self._stopping.is_set():
            return False
        self._taken.append(order)
        self._take_more()
        return True

    def _take_more(self) -> None:
        """All the orders there are now."""
        with suppress(queue.Empty):
            while order := self._orders.get_nowait():
                self._taken.append(order)

    def _trouble(self, error: MusterError | OSError, kept: bool) -> None:
        """Nothing more comes on this channel: what was ordered is not pulled."""
        why = error.message if isinstance(error, MusterError) else str(error)
        log.info("inputs do not come: %s", why)
        self._hang_up()
        self._asked, self._partly = 0, None
        self._offered.clear()
        self._take_more()
        while self._taken:
            self._tell(NotPulled(self._taken.popleft().name, "cut", why))
        if not kept:
            self._rest(error if isinstance(error, MusterError) else MusterError(why))
        self._tell(PullUp())

    # --- one order ---

    def _serve(self, channel: Channel, order: Pull | PullCode) -> None:
        """Ask for it unless that was done, and for those behind it; take what comes."""
        begun = time.monotonic()
        if self._bandwidth.rate is None:
            while self._asked < len(self._taken) and self._partly is None:
                channel.say(self._question(self._taken[self._asked]))
                self._asked += 1
        else:
            self._asked = 1
        event = self._code(channel, order) if isinstance(order, PullCode) else self._input(channel, order, begun)
        self._taken.popleft()
        self._asked -= 1
        self._tell(event)

    def _question(self, order: Pull | PullCode) -> Message:
        if isinstance(order, PullCode):
            return FetchCode(order.session, order.name)
        half, limit = self._half(order), self._bandwidth.piece or 0
        if order.model:
            return FetchCode(order.session, order.name, half.have, limit)
        if self._copy is None or self._greeting is None or not self._greeting.compares:
            return Fetch(order.session, order.layer, order.number, half.have, limit)
        return self._comparison(order, half, self._copy, limit)

    def _comparison(self, order: Pull, half: Half, copy: OwnCopy, limit: int) -> Fetch:
        """Ask for as much as one question can compare; of items first for the records, which name the files."""
        window, rest = order.window, order.nbytes - half.have
        listed = window.listed if isinstance(window, ItemsWindow) and window.folder else 0
        if half.have < listed:
            digests, asked = [], min(listed - half.have, limit or rest)
        else:
            digests = self._lay_out(order, half.have, listed, copy)
            asked = min(rest, len(digests) * PIECE_BYTES) if digests else limit or rest
        self._offered[order.name] = digests
        self._partly = order.name if asked < rest else None
        return Fetch(order.session, order.layer, order.number, half.have, asked, digests)

    def _lay_out(self, order: Pull, start: int, listed: int, copy: OwnCopy) -> list[str]:
        """Write what the copy has of an input where it belongs, and return the digest of each piece as it is written.
        Whether it is the source's, the answer tells. [] where nothing is there."""
        nbytes, is_any = min(order.nbytes - start, PIECES_MOST * PIECE_BYTES), False
        digests: list[str] = []
        if order.window is None:
            return []
        try:
            with self._file(order) as fd:
                runs = runs_of(order.window, os.pread(fd, listed, 0))
                for data, is_here in copy.pieces(runs, start, nbytes):
                    if is_here:
                        os.lseek(fd, start + len(digests) * PIECE_BYTES, os.SEEK_SET)
                        write_all(fd, data)
                    digests.append(xxhash.xxh3_128_hexdigest(data) if is_here else NOTHING)
                    is_any |= is_here
        except (OSError, DamagedError):  # what is wrong with this disk, or the records, the pull will say
            return []
        return digests if is_any else []

    def _answer(self, channel: Channel, order: Pull | PullCode, limit: int) -> Sending | NotPulled:
        """Whether bytes follow."""
        answer = self._hear(channel)
        if isinstance(answer, Sending) and answer.nbytes <= limit:
            return answer
        if isinstance(answer, Refused):
            return NotPulled(order.name, _CODES.get(answer.code, "refused"), answer.message)
        if isinstance(answer, Rejected):
            return NotPulled(order.name, "refused", answer.message)
        raise ProtocolError(f"{answer!r:.200} is no answer to a fetch of {limit} bytes")

    def _unchanged(self, channel: Channel) -> bool:
        answer = self._hear(channel)
        if not isinstance(answer, Sent):
            raise ProtocolError(f"{answer!r:.200} where the end of a run of bytes should be")
        return answer.unchanged

    def _bytes(self, channel: Channel, nbytes: int) -> Iterator[bytes]:
        """As they come, many at once."""
        pace, left = Pace(), nbytes
        while left:
            data = channel.receive_some(min(left, CHUNK_BYTES), BYTE_SECONDS)
            if not data:
                raise channel.ended(cut=True)
            left -= len(data)
            if left:
                pace.moved(len(data))
            yield data

    # --- inputs ---

    def _half(self, order: Pull) -> Half:
        """What there is of it; nothing if somebody deleted the file."""
        if order.name in self._halves and not self._spool.half(order.name).exists():
            del self._halves[order.name]
        return self._halves.get(order.name) or Half()

    def _input(self, channel: Channel, order: Pull, begun: float) -> Event:
        half = self._halves[order.name] = self._half(order)
        if len(self._halves) > HALVES:
            self._halves.pop(next(iter(self._halves)))
        asked = self._bandwidth.rate is None
        try:
            with self._file(order) as fd:
                while True:
                    if not asked:
                        self._ask_for_more(channel, order, half)
                    if problem := self._run_of_bytes(channel, order, half, fd):
                        return self._given_up(order, problem)
                    if half.have == order.nbytes:
                        break
                    asked = False
        except OSError as error:
            if not is_full(error):
                raise
            self._drop_channel(order)
            return self._given_up(order, NotPulled(order.name, "full", f"{self._spool.path}: {error.strerror}"))
        finally:
            half.seconds += time.monotonic() - begun
            self._offered.pop(order.name, None)
            if self._partly == order.name:
                self._partly = None
        return self._whole(order, half)

    def _ask_for_more(self, channel: Channel, order: Pull, half: Half) -> None:
        """The next question, once its answer may be moved; what is compared is paid for piece by piece."""
        question = self._question(order)
        if not self._offered.get(order.name):
            self._bandwidth.take(min(order.nbytes - half.have, self._bandwidth.piece or 0), self._stopping)
        channel.say(question)

    def _run_of_bytes(self, channel: Channel, order: Pull, half: Half, fd: int) -> NotPulled | None:
        """What one fetch brings."""
        answer = self._answer(channel, order, order.nbytes - half.have)
        if isinstance(answer, NotPulled):
            return answer
        if not answer.nbytes and half.have < order.nbytes:
            return NotPulled(order.name, "changed", "it is shorter than was planned")
        if digests := self._offered.pop(order.name, []):
            self._compare(channel, order, half, fd, answer.nbytes, digests)
        else:
            self._receive(channel, half, fd, answer.nbytes)
        if not self._unchanged(channel):
            return NotPulled(order.name, "changed", "its source changed while it was pulled")
        return None

    def _receive(self, channel: Channel, half: Half, fd: int, nbytes: int) -> None:
        for data in self._bytes(channel, nbytes):
            os.lseek(fd, half.have, os.SEEK_SET)
            write_all(fd, data)
            half.digest.update(data)
            half.have += len(data)

    def _compare(self, channel: Channel, order: Pull, half: Half, fd: int, nbytes: int, digests: list[str]) -> None:
        """Keep each piece laid out that the server has too, and take the others from it."""
        end = half.have + nbytes
        for digest in digests:
            size, answer = min(PIECE_BYTES, end - half.have), self._hear(channel)
            if not isinstance(answer, Sending) or answer.nbytes not in (0, size):
                raise ProtocolError(f"{answer!r:.200} is no answer to a piece of {size} bytes")
            if answer.nbytes:
                self._bandwidth.take(size, self._stopping)
                self._receive(channel, half, fd, size)
                continue
            data = os.pread(fd, size, half.have)
            if xxhash.xxh3_128_hexdigest(data) != digest:
                raise DamagedError(f"{self._spool.half(order.name)} is not what was written there")
            half.digest.update(data)
            half.have, half.spared = half.have + size, half.spared + size
        if half.have != end:
            raise ProtocolError(f"a run of {nbytes} bytes where {len(digests)} pieces were asked for")

    @contextmanager
    def _file(self, order: Pull) -> Iterator[int]:
        """What there is of it, at its full size: a disk that is too small says so at once."""
        fd = os.open(self._spool.half(order.name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if hasattr(os, "posix_fallocate") and order.nbytes:
                with _unless_unsupported():
                    os.posix_fallocate(fd, 0, order.nbytes)
            yield fd
        finally:
            os.close(fd)

    def _whole(self, order: Pull, half: Half) -> Event:
        digest = half.digest.digest()
        if order.model and digest.hex() != order.name:
            return self._given_up(order, NotPulled(order.name, "refused", "a model came that is not the job's"))
        del self._halves[order.name]
        self._spool.half(order.name).replace(self._spool.input(order.name, digest))
        return Pulled(order.name, digest, order.nbytes, half.seconds, half.spared)

    def _given_up(self, order: Pull, problem: NotPulled) -> NotPulled:
        """What there is of it is worth nothing."""
        self._halves.pop(order.name, None)
        self._spool.half(order.name).unlink(missing_ok=True)
        return problem

    def _drop_channel(self, order: Pull) -> None:
        """Bytes nobody takes are on it; the orders behind this one are asked for again on another."""
        self._hang_up()
        self._asked, self._partly = 1, None

    # --- code ---

    def _code(self, channel: Channel, order: PullCode) -> Event:
        if self._bandwidth.rate is not None:
            channel.say(self._question(order))
        answer = self._answer(channel, order, PACK_LIMIT)
        if isinstance(answer, NotPulled):
            return answer
        begun = time.monotonic()
        self._bandwidth.take(answer.nbytes, self._stopping)
        raw = b"".join(self._bytes(channel, answer.nbytes))
        self._unchanged(channel)
        try:
            unpack(raw, self._spool.code(order.name), order.name)
            self._spool.keep_pack(order.name, raw)
        except DamagedError as error:
            return NotPulled(order.name, "refused", error.message)
        except OSError as error:
            return NotPulled(order.name, "full" if is_full(error) else "refused", str(error))
        return Pulled(order.name, b"", len(raw), time.monotonic() - begun)


@contextmanager
def _unless_unsupported() -> Iterator[None]:
    """Some file systems cannot allocate ahead; that one is full is told."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise
