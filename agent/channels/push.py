"""The push thread: sends the bundles it is told to, delivers the answers, checks parts again. Decides nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import ClassVar, cast

import msgspec

from muster.agent.channels.bandwidth import Bandwidth
from muster.agent.channels.base import Bulk
from muster.agent.core.actions import Push, Recheck
from muster.agent.core.events import Event, PartDamaged, PushAnswered, PushDown, PushUp
from muster.agent.links.base import Channel, Link
from muster.agent.spool.paths import Spool
from muster.coordinator.protocol.control import Rejected
from muster.coordinator.protocol.transfer import Accepted, Offer, Refused, Settled, ToPusher
from muster.coordinator.protocol.values import Decoder
from muster.jobs.common.durable import write_all
from muster.jobs.common.errors import DamagedError, LinkError, MusterError, NoDaemonError, ProtocolError
from muster.jobs.parts.part_file import check_body, encode_index, read_index, tail_of
from muster.jobs.results.bundle import Bundle, HeldPart, take

HANDED = "handed"  # in the spool's tmp; there is one at a time
COMMIT_SECONDS = 600.0  # to a body: it is synced to a disk that may be busy

log = logging.getLogger("muster.push")


class Pushing(Bulk[Push | Recheck]):
    """Each Push is answered by exactly one event."""

    role = "push"
    decode: ClassVar[Decoder] = Decoder(ToPusher)

    def __init__(self, link: Link, spool: Spool, bandwidth: Bandwidth, tell: Callable[[Event], None]) -> None:
        super().__init__(link, bandwidth, tell)
        self._spool = spool

    def _run(self) -> None:
        self._tell(PushUp())
        while (order := self._orders.get()) is not None:
            if isinstance(order, Recheck):
                self._check(order.names)
            else:
                self._push(order)
        self._hang_up()

    def _push(self, push: Push) -> None:
        """One bundle, answered or not. After a trouble the channel is made anew for the next."""
        try:
            bundle = self._bundle(push)
            begun = time.monotonic()
            answer = self._send(push, bundle)
            self._backoff.good()
            self._tell(PushAnswered(answer, bundle.numbers, bundle.nbytes, time.monotonic() - begun))
        except (DamagedError, OSError) as error:
            self._trouble(f"{error}")
            self._check(name for name, _ in push.pieces)
            self._tell(PushUp())
        except MusterError as error:
            self._trouble(error.message)
            self._rest(error)
            self._tell(PushUp())

    def _trouble(self, why: str) -> None:
        log.info("a bundle was not sent: %s", why)
        self._hang_up()
        self._tell(PushDown(why))

    def _bundle(self, push: Push) -> Bundle:
        held = [
            HeldPart(self._spool.part(name), read_index(self._spool.part(name)), live) for name, live in push.pieces
        ]
        return Bundle(take(held))

    def _send(self, push: Push, bundle: Bundle) -> Settled | Refused | Rejected:
        outputs = list(bundle.index.outputs)
        numbers = bundle.numbers.pairs()
        offer = Offer(push.session, push.layer, numbers, outputs, encode_index(bundle.index), bundle.nbytes)
        if push.eager:
            return self._send_at_once(msgspec.structs.replace(offer, eager=True), bundle)
        verdict = self._offer(offer)
        channel = self._channel
        if not isinstance(verdict, Accepted) or channel is None:
            return cast("Settled | Refused | Rejected", verdict)
        bundle.write_body(partial(self._send_body, channel))
        settled = self._hear(channel, COMMIT_SECONDS)
        if isinstance(settled, Accepted):
            raise ProtocolError("a bundle was accepted a second time")
        return cast("Settled | Refused | Rejected", settled)

    def _send_at_once(self, offer: Offer, bundle: Bundle) -> Settled | Refused | Rejected:
        """Header and body, then the one answer; once more on a new channel where one kept from before has ended."""
        if self._channel is not None:
            try:
                return self._exchange(self._channel, offer, bundle)
            except (LinkError, NoDaemonError):
                self._hang_up()
        return self._exchange(self._dial(), offer, bundle)

    def _exchange(self, channel: Channel, offer: Offer, bundle: Bundle) -> Settled | Refused | Rejected:
        path = self._spool.tmp / HANDED
        if channel.takes_files and self._bandwidth.rate is None and _laid_out(path, offer, bundle):
            try:
                channel.say(msgspec.structs.replace(offer, file=HANDED))
                return self._settled(channel)
            finally:
                path.unlink(missing_ok=True)
        channel.say(offer)
        bundle.write_body(partial(self._send_body, channel))
        return self._settled(channel)

    def _settled(self, channel: Channel) -> Settled | Refused | Rejected:
        settled = self._hear(channel, COMMIT_SECONDS)
        if isinstance(settled, Accepted):
            raise ProtocolError("a bundle that came with its header was accepted")
        return cast("Settled | Refused | Rejected", settled)

    def _send_body(self, channel: Channel, data: bytes | memoryview) -> None:
        view = memoryview(data)
        piece = self._bandwidth.piece or max(1, len(view))
        for start in range(0, len(view), piece):
            self._bandwidth.take(len(view[start : start + piece]), self._stopping)
            channel.send(view[start : start + piece])

    def _offer(self, offer: Offer) -> Accepted | Settled | Refused | Rejected:
        """The verdict. A channel kept from before may have ended meanwhile: then once more on a new one."""
        if self._channel is not None:
            try:
                return self._ask(self._channel, offer)
            except (LinkError, NoDaemonError):
                self._hang_up()
        return self._ask(self._dial(), offer)

    def _ask(self, channel: Channel, offer: Offer) -> Accepted | Settled | Refused | Rejected:
        channel.say(offer)
        return cast("Accepted | Settled | Refused | Rejected", self._hear(channel))

    def _check(self, names: Iterable[str]) -> None:
        """Read parts again; what is not what it was is deleted."""
        for name in names:
            path = self._spool.part(name)
            try:
                check_body(path, read_index(path))
            except (DamagedError, OSError) as error:
                log.warning("a part is damaged and was deleted: %s", error)
                path.unlink(missing_ok=True)
                self._tell(PartDamaged(name))


def _laid_out(path: Path, offer: Offer, bundle: Bundle) -> bool:
    """To be handed over: a file is made once and renamed, where a pipe would copy it twice. False: there is no room."""
    try:
        with path.open("wb", buffering=0) as file:
            bundle.write_body(partial(write_all, file.fileno()))
            write_all(file.fileno(), tail_of(offer.index))
    except OSError:
        path.unlink(missing_ok=True)
        return False
    return True
