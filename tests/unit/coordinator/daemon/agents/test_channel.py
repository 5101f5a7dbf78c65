"""What renews a lease: bytes that were wanted, on a channel that may speak for the session."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from muster.coordinator.daemon.agents.channel import Channel
from muster.coordinator.daemon.agents.sessions import SESSIONS_PER_BOOT, Sessions
from muster.coordinator.daemon.agents.transfers import PullChannel, PushChannel
from muster.coordinator.daemon.connections import Connections
from muster.coordinator.protocol.transfer import Attach, Fetch, Moved, Offer, Refused
from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import events as e
from muster.jobs.common.ranges import RangeSet

LAYER = "a" * 32


class Engine:
    """One agent, b, in session 7, of which no bundle is wanted."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.jobs: dict[str, object] = {}
        self.connections: Connections[Any] = Connections(100)
        self.state = SimpleNamespace(damaged={})

    def agent_of(self, session: int) -> object:
        return SimpleNamespace(name="b", holdings={}) if session == 7 else None

    def open_layer(self, digest: str) -> None:
        return None

    def handle(self, event: object) -> list[object]:
        self.heard.append(event)
        return [c.RefuseOffer(7, "gone", RangeSet())] if isinstance(event, e.Offered) else []


class Wire:
    """Of which nobody reads."""

    limit = 0


def say(kind: type[Channel], *messages: object, pinned: str = "") -> tuple[Engine, list[Any]]:
    engine = Engine()
    channel = kind(cast(Any, engine), cast(Any, Wire()), Attach("push", pinned))

    async def talk() -> list[Any]:
        return [await channel._answer(cast(Any, one)) for one in messages]

    return engine, asyncio.run(talk())


def test_bytes_of_a_refused_offer_keep_no_session_alive() -> None:
    offer = Offer(7, LAYER, [(0, 1)], [], b"", 1 << 30, eager=True)
    engine, (refused, nothing) = say(PushChannel, offer, Moved(7))
    assert isinstance(refused, Refused) and nothing is None
    assert e.Moved(7) not in engine.heard


def test_whoever_moves_nothing_keeps_no_session_alive() -> None:
    for kind in (PushChannel, PullChannel):
        assert say(kind, Moved(7))[0].heard == []
    engine, _ = say(PullChannel, Fetch(7, LAYER, 0), Moved(7))
    assert engine.heard == []


def test_sessions_cannot_be_guessed_from_another() -> None:
    sessions = Sessions(3)
    numbers = [sessions.open()[0] for _ in range(64)]
    assert all(number // SESSIONS_PER_BOOT == 3 for number in numbers)
    assert len(set(numbers)) == 64
    assert sorted(numbers) != numbers
