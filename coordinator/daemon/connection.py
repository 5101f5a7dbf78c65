"""Frames over an asyncio stream, and the set of messages each end may send. Bounded; decides nothing."""

from __future__ import annotations

import asyncio

from muster.coordinator.protocol.frames import HEAD, frame, payload_size
from muster.coordinator.protocol.values import Decoder, Message, encode
from muster.jobs.common.errors import ProtocolError


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, decode: Decoder) -> None:
        self._reader = reader
        self._writer = writer
        self._decode = decode

    async def receive(self) -> Message | None:
        """The next message; None when the other end is gone. Half a frame is the other end's bug."""
        try:
            head = await self._reader.readexactly(HEAD.size)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise ProtocolError("the connection ended within a frame") from None
            return None
        except ConnectionError:
            return None
        return self._decode(await self._reader.readexactly(payload_size(head)))

    async def send(self, message: Message) -> None:
        self._writer.write(frame(encode(message)))
        await self._writer.drain()

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return
