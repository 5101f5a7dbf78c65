"""Frames over an asyncio stream, and the set of messages each end may send. Bounded; decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from muster.coordinator.protocol.frames import FRAME_LIMIT, HEAD, frame, payload_size
from muster.coordinator.protocol.values import Decoder, Message, encode
from muster.jobs.common.errors import ProtocolError


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, decode: Decoder) -> None:
        self._reader = reader
        self._writer = writer
        self._decode = decode
        self.heard: float | None = None  # when the last message came, by the loop's clock
        self.cleared_up: Callable[[], None] = lambda: None  # what is to be done at once where we end it
        self.limit = FRAME_LIMIT  # bytes of what is received

    async def receive(self, within: float | None = None) -> Message | None:
        """The next message; None when the other end is gone, or said none `within` seconds: it is then. Half a frame is
        the other end's bug."""
        loop = asyncio.get_running_loop()
        late = loop.call_later(within, self.hang_up) if within is not None else None
        try:
            message = await self._next()
        finally:
            if late is not None:
                late.cancel()
        self.heard = loop.time()
        return message

    async def _next(self) -> Message | None:
        try:
            head = await self._reader.readexactly(HEAD.size)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise ProtocolError("the connection ended within a frame") from None
            return None
        except ConnectionError:
            return None
        return self._decode(await self._reader.readexactly(payload_size(head, self.limit)))

    async def send(self, message: Message) -> None:
        self._writer.write(frame(encode(message)))
        await self._writer.drain()

    def hang_up(self) -> None:
        """End it; whoever waits for its next message finds it gone."""
        self.cleared_up()
        self._writer.transport.abort()  # what it does not read would keep it open

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return
