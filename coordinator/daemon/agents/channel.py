"""One connection of an agent, for as long as it lasts: each message goes to the one handler of the channel's role."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Any, ClassVar

from muster.coordinator.daemon.connection import Wire
from muster.coordinator.daemon.engine import Engine
from muster.coordinator.protocol.control import Bye, Rejected
from muster.coordinator.protocol.frames import AGENT_LIMIT
from muster.coordinator.protocol.transfer import Attach, Moved
from muster.coordinator.protocol.values import Message
from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.entities import Agent
from muster.jobs.common.logs import PEER

log = logging.getLogger("muster.daemon")

HELLO_SECONDS = 600.0  # until an agent's first message is whole: it may be long, and its link thin; see `Pipe`
Answer = Message | None
Answers = Mapping[type[Message], Callable[[Any, Any], Answer | Awaitable[Answer]]]  # of a channel and a message


class Channel:
    """What the roles have in common; `answers` is what sets them apart."""

    answers: ClassVar[Answers] = {}  # of a role that there is not

    def __init__(self, engine: Engine, wire: Wire, attach: Attach) -> None:
        self._engine = engine
        self._wire = wire
        wire.limit = AGENT_LIMIT
        self._role = attach.role
        self._pinned = attach.pinned
        self._moving = 0  # the session whose bytes go through here, since they were wanted; 0: none do
        wire.cleared_up = self.clear_up
        if self._pinned:
            self.take_place(self._pinned)

    async def serve(self) -> None:
        """Answer until the other end goes away."""
        try:
            within: float | None = HELLO_SECONDS
            while (message := await self._wire.receive(within)) is not None:
                within = None
                answer = await self._answer(message)
                if answer is not None:
                    await self._wire.send(answer)
                if isinstance(answer, Bye):
                    return
        finally:
            self.clear_up()

    def clear_up(self) -> None:
        """What a helper that died in the middle left behind. Done twice it does no harm."""

    def take_place(self, agent: str, kind: str = "") -> None:
        """This is a channel of that agent; its older one of the same kind, which it forgot or lost, ends."""
        PEER.set(agent)
        for older in self._engine.connections.name(self._wire, agent, kind):
            log.info("a channel of %s ended for a newer one", agent)
            older.hang_up()

    async def _answer(self, message: Message) -> Answer:
        handler = self.answers.get(type(message))
        if handler is None:
            return Rejected("bad-message", f"{type(message).__name__} does not belong on a {self._role} channel")
        answer = handler(self, message)
        return await answer if isawaitable(answer) else answer

    def moved(self, moved: Moved) -> None:
        """A sign of life, where it is of bytes that were wanted: what was refused goes on without one."""
        if moved.session == self._moving and self.agent_of(moved.session) is not None:
            self._engine.handle(e.Moved(moved.session))

    def other_name(self) -> Rejected:
        return Rejected("not-allowed", f"this key may only join as {self._pinned}", f"use --name {self._pinned}")

    def agent_of(self, session: int) -> Agent | None:
        """Whose session that is, if this channel's key may speak for it."""
        agent = self._engine.agent_of(session)
        if agent is not None and self._pinned and agent.name != self._pinned:
            log.warning("a key pinned to %s used a session of %s: refused", self._pinned, agent.name)
            return None
        return agent
