"""The threads that follow rounds, one a layer: what their shards read comes into the spool as it is laid out. Decide
nothing; a channel each, so that a wait for the next round keeps nothing else waiting."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec
import xxhash

from muster.agent.channels.bandwidth import Bandwidth
from muster.agent.channels.base import Dialling
from muster.agent.core.actions import DropSheet, FollowRounds, KeepSheet, StopFollowing
from muster.agent.core.events import Event, SheetCame, Unfollowed
from muster.agent.links.base import Channel, Link
from muster.agent.spool.paths import Spool
from muster.coordinator.protocol.transfer import Follow, NotYet, Refused, Sheet, ToFollower
from muster.coordinator.protocol.values import Decoder
from muster.jobs.common.durable import write_private
from muster.jobs.common.errors import MusterError, ProtocolError
from muster.jobs.kinds import registry

ANSWER_SECONDS = 60.0  # beyond the heartbeat
BYTE_SECONDS = 60.0  # without any byte of a sheet that is on its way
SHEET_LIMIT = 16 << 30

_decode = Decoder(ToFollower)
log = logging.getLogger("muster.rounds")


class Following:
    """`obey` and `stop` are for the main thread; events come from the threads."""

    def __init__(self, link: Link, spool: Spool, bandwidth: Bandwidth, tell: Callable[[Event], None]) -> None:
        self._link, self._spool, self._bandwidth, self._tell = link, spool, bandwidth, tell
        self._followers: dict[str, Follower] = {}

    def obey(self, order: FollowRounds | KeepSheet | DropSheet | StopFollowing) -> None:
        if isinstance(order, FollowRounds):
            layer = order.info.layer.digest
            self._end(layer, keep=True)
            self._followers[layer] = Follower(self._link, self._spool, self._bandwidth, self._tell, order)
            self._followers[layer].start()
        elif isinstance(order, StopFollowing):
            self._end(order.layer)
        elif isinstance(order, KeepSheet):
            if follower := self._followers.get(order.layer):
                follower.keep(order.sheet)
        else:
            if follower := self._followers.get(order.layer):
                follower.drop(order.sheet)
            self._spool.sheet(order.layer, order.sheet).unlink(missing_ok=True)

    def _end(self, layer: str, keep: bool = False) -> None:
        """`keep`: its sheets stay; there may be some of a layer that nobody follows."""
        if (follower := self._followers.pop(layer, None)) is not None:
            follower.stop()
        if not keep:
            shutil.rmtree(self._spool.sheets / layer, ignore_errors=True)

    def stop(self) -> None:
        for layer in list(self._followers):
            self._end(layer)
        shutil.rmtree(self._spool.sheets, ignore_errors=True)


class Follower(Dialling):
    """One layer's. Its sheets outlive it: another finds them."""

    role = "round"

    def __init__(
        self, link: Link, spool: Spool, bandwidth: Bandwidth, tell: Callable[[Event], None], order: FollowRounds
    ) -> None:
        super().__init__(link)
        self._bandwidth, self._tell, self._order = bandwidth, tell, order
        self._layer = order.info.layer.digest
        self._folder = spool.sheets / self._layer
        self._path = partial(spool.sheet, self._layer)
        self._have: list[str] = []  # under `_lock`, too
        self._gone = False  # the coordinator knows nothing of the layer
        self._thread = threading.Thread(target=self._run, name="round", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._abort()
        self._thread.join()

    def keep(self, sheet: str) -> None:
        """It is here, and did not come by this way."""
        with self._lock:
            if sheet not in self._have:
                self._have.append(sheet)

    def drop(self, sheet: str) -> None:
        with self._lock, suppress(ValueError):
            self._have.remove(sheet)

    # --- the thread ---

    def _run(self) -> None:
        why = "stopped"
        try:
            self._look_around()
            channel = self._dial()
            while not self._stopping.is_set():
                why = self._ask(channel)
                if why:
                    break
        except (MusterError, OSError) as error:
            why = error.message if isinstance(error, MusterError) else str(error)
        finally:
            self._hang_up()
        if not self._stopping.is_set():
            log.info("the rounds of %s are not followed: %s", self._layer, why)
            self._tell(Unfollowed(self._layer, why, self._gone))

    def _look_around(self) -> None:
        """What is here from when the channel was cut: workers may be reading it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(self._folder.glob("*.sheet"), key=lambda path: path.stat().st_mtime_ns):
            self.keep(path.stem)
            self._tell(SheetCame(self._layer, path.stem, 0))

    def _ask(self, channel: Channel) -> str:
        """One question, and what it brings; why there can be no other, or ""."""
        with self._lock:
            have = list(self._have)
        channel.say(Follow(self._order.session, self._layer, have))
        answer = channel.hear(_decode, self._order.heartbeat + ANSWER_SECONDS)
        if isinstance(answer, NotYet):
            return ""
        if isinstance(answer, Refused) and answer.code == "gone":
            shutil.rmtree(self._folder, ignore_errors=True)
            self._gone = True
        if not isinstance(answer, Sheet):
            return getattr(answer, "message", "") or type(answer).__name__.lower()
        raw = self._received(channel, answer, have)
        if self._stopping.is_set():
            return ""
        self._keep(answer.sheet, raw)
        self._tell(SheetCame(self._layer, answer.sheet, answer.nbytes))
        return ""

    def _received(self, channel: Channel, sheet: Sheet, have: list[str]) -> bytes:
        """`have`: what the question said is here. More may be by now."""
        if sheet.nbytes > SHEET_LIMIT or sheet.sheet in have:
            raise ProtocolError(f"a sheet of {sheet.nbytes} bytes that nobody asked for")
        self._bandwidth.take(sheet.nbytes, self._stopping)
        raw = b"".join(channel.pieces(sheet.nbytes, BYTE_SECONDS))
        if sheet.base:
            raw = self._patched(sheet.base, raw)
        if xxhash.xxh3_128_hexdigest(raw) != sheet.sheet:
            raise ProtocolError("a sheet that is not what its digest says")
        return raw

    def _patched(self, base: str, patch: bytes) -> bytes:
        if base not in self._have:
            raise ProtocolError("a patch of a sheet that is not here")
        work = self._order.info.work
        kind = registry.load(work.kind)
        try:
            return kind.patched(msgspec.convert(work.params, kind.Params), self._path(base).read_bytes(), patch)
        except (ValueError, MemoryError) as error:
            raise ProtocolError(f"a patch that does not fit: {error}") from None

    def _keep(self, sheet: str, raw: bytes) -> None:
        write_private(self._path(sheet), raw)
        self.keep(sheet)
