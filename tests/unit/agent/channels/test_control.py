"""The control thread against a link of the test's own: what ends an agent, what is tried again, and after how long."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from muster.agent.channels import control
from muster.agent.channels.control import Control
from muster.agent.core.actions import Say
from muster.agent.core.events import Event, Heard, LinkDown, LinkFailed, LinkUp
from muster.agent.links.base import Channel, Link, Role
from muster.coordinator.protocol.control import Greeting, Hello, News, Welcome
from muster.coordinator.protocol.frames import frame
from muster.coordinator.protocol.values import PROTOCOL, Message, encode
from muster.jobs.common.errors import AccessError, LinkError, MusterError, ProtocolError, VersionError
from tests.property.test_hostile_coordinator import Stream

FARM = "f" * 32
GREETING = Greeting(PROTOCOL, "0", FARM)
WELCOME = Welcome(FARM, 1, 7, 60.0, 5.0)
HELLO = Say(Hello(PROTOCOL, "1", "one", "s", "p", "h", 1, 1, 1, 1, {}, "x", "3"), 0.0)


class Places(Link):
    """Each opening is the next of these: why there is no way, or what a coordinator says."""

    def __init__(self, *places: MusterError | list[Message]) -> None:
        self.places = list(places)

    def open(self, role: Role) -> Channel:
        place = self.places.pop(0) if len(self.places) > 1 else self.places[0]
        if isinstance(place, MusterError):
            raise place
        return Stream(b"".join(frame(encode(message)) for message in place))

    def __str__(self) -> str:
        return "there"

    def close(self) -> None:
        return


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Starts a thread at these places; its events. What it waits for is short."""
    monkeypatch.setattr(control, "VERSION_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(control, "ACCESS_PAUSE_SECONDS", 0.01)
    made: list[Control] = []

    def start(*places: MusterError | list[Message]) -> queue.SimpleQueue[Event]:
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        made.append(Control(Places(*places), events.put))
        made[-1].start()
        start.control = made[-1]  # type: ignore[attr-defined]
        return events

    yield start
    for one in made:
        one.stop()


def test_a_refusal_at_the_door_is_the_end(at) -> None:  # type: ignore[no-untyped-def]
    events = at(AccessError("no key"))
    assert events.get(timeout=20) == LinkDown("no key")
    assert isinstance(events.get(timeout=20), LinkFailed)


def test_a_refusal_after_a_session_is_tried_again_and_said_with_its_hint(at) -> None:  # type: ignore[no-untyped-def]
    events = at([GREETING, WELCOME], AccessError("no key", "add it"), AccessError("no key", "add it"), [GREETING])
    assert events.get(timeout=20) == LinkUp(FARM)
    at.control.say(HELLO)
    assert events.get(timeout=20) == Heard(WELCOME)
    at.control.say(HELLO)
    assert isinstance(events.get(timeout=20), LinkDown)  # the channel has ended
    for _ in range(2):
        assert events.get(timeout=20) == LinkDown("no key; add it", lasting=True)
    assert events.get(timeout=20) == LinkUp(FARM)


def test_another_protocol_is_tried_again_from_the_start(at) -> None:  # type: ignore[no-untyped-def]
    events = at([Greeting(PROTOCOL + 1, "9", FARM)], VersionError("still", "upgrade"), [GREETING])
    first = events.get(timeout=20)
    assert isinstance(first, LinkDown) and first.lasting and "upgrade muster on this machine" in first.reason
    assert events.get(timeout=20) == LinkDown("still; upgrade", lasting=True)
    assert events.get(timeout=20) == LinkUp(FARM)


@pytest.mark.parametrize("error", [ProtocolError("noise"), LinkError("cut")])
def test_noise_before_any_session_is_the_end_and_a_cut_is_not(at, error: MusterError) -> None:  # type: ignore[no-untyped-def]
    events = at(error, [GREETING])
    assert events.get(timeout=20) == LinkDown(error.message)
    assert isinstance(events.get(timeout=20), LinkFailed if isinstance(error, ProtocolError) else LinkUp)


def test_an_answer_to_something_else_ends_the_channel(at) -> None:  # type: ignore[no-untyped-def]
    events = at([GREETING, News()])
    assert events.get(timeout=20) == LinkUp(FARM)
    at.control.say(HELLO)
    assert events.get(timeout=20) == LinkDown("a news is no answer to a hello")
