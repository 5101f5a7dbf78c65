"""What the push and the pull thread share: orders, one channel made when it is needed, an end. Moves nothing."""

from __future__ import annotations

import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar

from muster.agent.channels.backoff import Backoff
from muster.agent.channels.bandwidth import Bandwidth
from muster.agent.core.events import Event
from muster.agent.links.base import Channel, Link, Role, greet
from muster.coordinator.protocol.control import Bye, Greeting
from muster.coordinator.protocol.values import Decoder, Message
from muster.jobs.common.errors import MusterError, NoDaemonError

ANSWER_SECONDS = 60.0
log = logging.getLogger("muster.bulk")
_Order = TypeVar("_Order")


class Dialling:
    """What the threads that move bytes share. `_lock` is over `_channel`."""

    role: ClassVar[Role]

    def __init__(self, link: Link) -> None:
        self._link = link
        self._channel: Channel | None = None
        self._greeting: Greeting | None = None  # of the last channel that was opened
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def _dial(self) -> Channel:
        channel = self._link.open(self.role)
        with self._lock:
            self._channel = channel
        if self._stopping.is_set():
            channel.abort()
        self._greeting = greet(channel)
        return channel

    def _hang_up(self) -> None:
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _abort(self) -> None:
        """From any thread: what waits on the channel ends, and another that is made."""
        self._stopping.set()
        with self._lock:
            if self._channel is not None:
                self._channel.abort()


class Bulk(Dialling, ABC, Generic[_Order]):
    """`order` may be called from any thread; events come from this one's own."""

    decode: ClassVar[Decoder]

    def __init__(self, link: Link, bandwidth: Bandwidth, tell: Callable[[Event], None]) -> None:
        super().__init__(link)
        self._bandwidth = bandwidth
        self._tell = tell
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._backoff = Backoff()
        self._thread = threading.Thread(target=self._run, name=self.role, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def order(self, order: _Order) -> None:
        self._orders.put(order)

    def stop(self) -> None:
        self._abort()
        self._orders.put(None)
        if self._thread.is_alive():
            self._thread.join()

    # --- the thread ---

    @abstractmethod
    def _run(self) -> None:
        """Carry out orders until there is a None among them, or `_stopping`."""

    def _hear(self, channel: Channel, seconds: float = ANSWER_SECONDS) -> Message:
        answer = channel.hear(self.decode, seconds)
        if isinstance(answer, Bye):
            raise NoDaemonError(answer.reason)
        return answer

    def _rest(self, error: MusterError) -> None:
        """Wait before the next try."""
        gone = isinstance(error, NoDaemonError)
        self._stopping.wait(self._backoff.gone() if gone else self._backoff.dead(time.monotonic()))
