"""The push thread: sends the bundles it is told to, delivers the answers, checks parts again. Decides nothing."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import cast

from agent.backoff import Backoff
from agent.links.channel import Channel, Link, greet
from agent.orders import Event, PartDamaged, Push, PushAnswered, PushDown, PushUp, Recheck
from agent.spool import Spool
from coordinator.protocol.messages import Accepted, Bye, Decoder, Offer, Refused, Rejected, Settled, ToPusher
from jobs.bundle import Bundle, Held, take
from jobs.errors import DamagedError, LinkError, MusterError
from jobs.parts import check_body, encode_index, read_index

ANSWER_SECONDS = 60.0  # to an offer
COMMIT_SECONDS = 600.0  # to a body: it is synced to a disk that may be busy

log = logging.getLogger("muster.push")
_decode = Decoder(ToPusher)


class Pushing:
    """`push` and `recheck` may be called from any thread; events come from this one's own."""

    def __init__(self, link: Link, spool: Spool, tell: Callable[[Event], None]) -> None:
        self._link = link
        self._spool = spool
        self._tell = tell
        self._orders: queue.SimpleQueue[Push | Recheck | None] = queue.SimpleQueue()
        self._channel: Channel | None = None
        self._lock = threading.Lock()  # over `_channel`
        self._stopping = threading.Event()
        self._backoff = Backoff()
        self._thread = threading.Thread(target=self._run, name="push", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def order(self, order: Push | Recheck) -> None:
        self._orders.put(order)

    def stop(self) -> None:
        self._stopping.set()
        self._orders.put(None)
        with self._lock:
            if self._channel is not None:
                self._channel.abort()
        self._thread.join()

    # --- the thread ---

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
            self._stopping.wait(self._backoff.dead(time.monotonic()))
            self._tell(PushUp())

    def _trouble(self, why: str) -> None:
        log.info("a bundle was not sent: %s", why)
        self._hang_up()
        self._tell(PushDown(why))

    def _bundle(self, push: Push) -> Bundle:
        held = [Held(self._spool.part(name), read_index(self._spool.part(name)), live) for name, live in push.pieces]
        return Bundle(take(held))

    def _send(self, push: Push, bundle: Bundle) -> Settled | Refused | Rejected:
        outputs = list(bundle.index.outputs)
        numbers = bundle.numbers.pairs()
        offer = Offer(push.session, push.layer, numbers, outputs, encode_index(bundle.index), bundle.nbytes)
        verdict = self._offer(offer)
        channel = self._channel
        if not isinstance(verdict, Accepted) or channel is None:
            return cast("Settled | Refused | Rejected", verdict)
        bundle.write_body(channel.send)
        return cast("Settled | Refused | Rejected", self._hear(channel, COMMIT_SECONDS))

    def _offer(self, offer: Offer) -> Accepted | Settled | Refused | Rejected:
        """The verdict. A channel kept from before may have ended meanwhile: then once more on a new one."""
        if self._channel is not None:
            try:
                return self._ask(self._channel, offer)
            except LinkError:
                self._hang_up()
        return self._ask(self._dial(), offer)

    def _ask(self, channel: Channel, offer: Offer) -> Accepted | Settled | Refused | Rejected:
        channel.say(offer)
        return self._hear(channel, ANSWER_SECONDS)

    def _hear(self, channel: Channel, seconds: float) -> Accepted | Settled | Refused | Rejected:
        answer = channel.hear(_decode, seconds)
        if isinstance(answer, Bye):
            raise LinkError(answer.reason)
        return cast("Accepted | Settled | Refused | Rejected", answer)

    def _dial(self) -> Channel:
        channel = self._link.open("push")
        with self._lock:
            self._channel = channel
        if self._stopping.is_set():
            channel.abort()
        greet(channel)
        return channel

    def _hang_up(self) -> None:
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

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
