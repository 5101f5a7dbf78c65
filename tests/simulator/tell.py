"""One world, told to people: each event and each action, with its time, at both ends. Changes nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from muster.agent.core import events as a
from muster.coordinator.scheduler import events as e
from tests.simulator.machine import Machine
from tests.simulator.server import Server
from tests.simulator.world import World

QUIET = (e.Ticked, e.SpaceMeasured, a.Ticked, a.SpaceSeen)
LONGEST = 400  # characters of a line


def tell(seed: int) -> int:
    """Print its story, and how it ends."""
    with (
        mock.patch.object(Server, "handle", _told("server <-", Server.handle)),
        mock.patch.object(Server, "_obey", _told("server ->", Server._obey)),
        mock.patch.object(Machine, "tell", _told("{} <-", Machine.tell)),
        mock.patch.object(Machine, "_obey", _told("{} ->", Machine._obey)),
    ):
        world = World(seed)
        try:
            print(world.run())
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
            return 1
        finally:
            print(f"faults: {dict(world.faults.done)}")
    return 0


def _told(who: str, method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def telling(self: Any, what: Any) -> Any:
        if not isinstance(what, QUIET):
            name = who.format(self.make.name if isinstance(self, Machine) else "")
            print(f"{self.clock.now:10.3f} {name} {what}"[:LONGEST])
        return method(self, what)

    return telling
