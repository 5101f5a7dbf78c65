"""A thread's one channel: made when it is needed, given up from any thread. Moves nothing, decides nothing."""

from __future__ import annotations

import threading
from typing import ClassVar

from muster.agent.links.base import Channel, Link, Role, greet


class Dialling:
    """What the threads that move bytes share. `_lock` is over `_channel`."""

    role: ClassVar[Role]

    def __init__(self, link: Link) -> None:
        self._link = link
        self._channel: Channel | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()

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

    def _abort(self) -> None:
        """From any thread: what waits on the channel ends, and another that is made."""
        self._stopping.set()
        with self._lock:
            if self._channel is not None:
                self._channel.abort()
