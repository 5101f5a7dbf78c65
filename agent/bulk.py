"""What the push and the pull thread share: orders, one channel made when it is needed, an end. Moves nothing."""

from __future__ import annotations

import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Generic, Literal, TypeVar

from agent.backoff import Backoff
from agent.bandwidth import Bandwidth
from agent.links.channel import Channel, Link, greet
from agent.orders import Event
from coordinator.protocol.messages import Bye, Decoder, Message
from jobs.errors import MusterError, NoDaemonError

ANSWER_SECONDS = 60.0

log = logging.getLogger("muster.bulk")
_Order = TypeVar("_Order")


class Bulk(ABC, Generic[_Order]):
    """`order` may be called from any thread; events come from this one's own."""

    role: ClassVar[Literal["push", "pull"]]
    decode: ClassVar[Decoder]

    def __init__(self, link: Link, bandwidth: Bandwidth, tell: Callable[[Event], None]) -> None:
        self._link = link
        self._bandwidth = bandwidth
        self._tell = tell
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._channel: Channel | None = None
        self._lock = threading.Lock()  # over `_channel`
        self._stopping = threading.Event()
        self._backoff = Backoff()
        self._thread = threading.Thread(target=self._run, name=self.role, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def order(self, order: _Order) -> None:
        self._orders.put(order)

    def stop(self) -> None:
        self._stopping.set()
        self._orders.put(None)
        with self._lock:
            if self._channel is not None:
                self._channel.abort()
        if self._thread.is_alive():
            self._thread.join()

    # --- the thread ---

    @abstractmethod
    def _run(self) -> None:
        """Carry out orders until there is a None among them, or `_stopping`."""

    def _dial(self) -> Channel:
        channel = self._link.open(self.role)
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

    def _hear(self, channel: Channel, seconds: float = ANSWER_SECONDS) -> Message:
        answer = channel.hear(self.decode, seconds)
        if isinstance(answer, Bye):
            raise NoDaemonError(answer.reason)
        return answer

    def _rest(self, error: MusterError) -> None:
        """Wait before the next try."""
        gone = isinstance(error, NoDaemonError)
        self._stopping.wait(self._backoff.gone() if gone else self._backoff.dead(time.monotonic()))
