"""The control thread: keeps a channel open, says what it is told to, delivers the answers. Decides nothing."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import TypeAlias, cast

from muster.agent.channels.backoff import Backoff
from muster.agent.core.actions import Redial, Say
from muster.agent.core.events import Event, Heard, LinkDown, LinkFailed, LinkUp
from muster.agent.links.base import Channel, Link, greet
from muster.coordinator.protocol.checks import AnswerChecks
from muster.coordinator.protocol.control import Bye, News, Rejected, ToAgent, Welcome
from muster.coordinator.protocol.values import Decoder
from muster.jobs.common.errors import AccessError, MusterError, ProtocolError, VersionError

ANSWER_SECONDS = 30.0  # beyond what the other end may hold its answer: then the channel is dead
VERSION_PAUSE_SECONDS = 60.0
ACCESS_PAUSE_SECONDS = 60.0  # once we were let in: a key, an account or a home may be missing for a while
FIRST_SECONDS = 20.0  # to find a way there; longer only once there was one

log = logging.getLogger("muster.control")
_decode = Decoder(ToAgent)
Answer: TypeAlias = Welcome | News | Rejected | Bye


class Control:
    """`say` and `redial` may be called from any thread; events come from this one's own."""

    def __init__(self, link: Link, tell: Callable[[Event], None]) -> None:
        self._link = link
        self._tell = tell
        self._orders: queue.SimpleQueue[Say | Redial | None] = queue.SimpleQueue()
        self._channel: Channel | None = None
        self._lock = threading.Lock()  # over `_channel`
        self._stopping = threading.Event()
        self._opened = False  # whether there ever was a channel
        self._ever = False  # whether there ever was a session
        self._backoff = Backoff()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def say(self, say: Say) -> None:
        self._orders.put(say)

    def redial(self, redial: Redial) -> None:
        self._orders.put(redial)
        self._abort()

    def stop(self) -> None:
        self._stopping.set()
        self._orders.put(None)
        self._abort()
        self._thread.join()

    def _abort(self) -> None:
        with self._lock:
            if self._channel is not None:
                self._channel.abort()

    # --- the thread ---

    def _run(self) -> None:
        started = time.monotonic()
        while not self._stopping.is_set():
            try:
                pause = self._one_channel()
            except VersionError as error:
                self._down(f"{error.message}; {error.hint}", lasting=True)
                pause = VERSION_PAUSE_SECONDS
            except MusterError as error:
                final = self._is_final(error, time.monotonic() - started)
                shut_out = isinstance(error, AccessError) and not final
                self._down(f"{error.message}; {error.hint}" if shut_out else error.message, lasting=shut_out)
                if final:
                    self._tell(LinkFailed(error))
                    return
                pause = ACCESS_PAUSE_SECONDS if shut_out else self._backoff.dead(time.monotonic())
                pause = self._asked_for(pause)
            self._stopping.wait(pause)

    def _is_final(self, error: MusterError, seconds: float) -> bool:
        """A way in that was there once is noisy, closed or missing for a while only; one that never was shall not be
        waited for longer than a crowd at the door takes."""
        if isinstance(error, (ProtocolError, AccessError)):
            return not self._ever
        return not error.retryable or (not self._ever and not self._opened and seconds > FIRST_SECONDS)

    def _one_channel(self) -> float:
        """From its opening to its end; how long to wait before the next."""
        channel = self._link.open("control")
        self._opened = True
        with self._lock:
            self._channel = channel
        try:
            greeting = greet(channel)
            self._asked_for(0.0)  # what was to be said on an earlier channel is void
            self._tell(LinkUp(greeting.farm))
            return self._converse(channel)
        finally:
            with self._lock:
                self._channel = None
            channel.close()

    def _converse(self, channel: Channel) -> float:
        answer_checks = AnswerChecks()
        while (order := self._orders.get()) is not None:
            if isinstance(order, Redial):
                self._down("closed")
                return max(order.pause, self._backoff.gone()) if order.pause else 0.0
            channel.say(order.message)
            answer = cast(Answer, channel.hear(_decode, order.wait + ANSWER_SECONDS))
            answer_checks.check(order.message, answer)
            if isinstance(answer, Welcome):
                self._ever = True
                self._backoff.good()
            self._tell(Heard(answer))
        return 0.0

    def _down(self, reason: str, lasting: bool = False) -> None:
        log.info("no link: %s", reason)
        self._tell(LinkDown(reason, lasting))

    def _asked_for(self, pause: float) -> float:
        """Empty the queue. The pause of the last redial in it, else `pause`."""
        while not self._orders.empty():
            order = self._orders.get()
            if isinstance(order, Redial):
                pause = order.pause
        return pause
