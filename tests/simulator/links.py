"""What lies between an agent and its coordinator: channels that are late, cut, or open at one end alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulator.clock import Clock

if TYPE_CHECKING:
    from tests.simulator.machine import Machine
    from tests.simulator.server import Server


class Channel:
    """One connection of one role. What is sent over a channel that ended never arrives."""

    def __init__(self, clock: Clock, machine: Machine, server: Server, role: str) -> None:
        self.clock, self.machine, self.server, self.role = clock, machine, server, role
        self.open = True
        self.session = 0  # of the hello that came over it
        self._life = server.life
        self._machine_life = machine.life

    def ask(self, do: Callable[[], None]) -> None:
        """Let the server do this once it arrives there."""
        self.clock.after(self.machine.latency(), lambda: self._at_server(do))

    def answer(self, do: Callable[[], None]) -> None:
        self.clock.after(self.machine.latency(), lambda: self._at_machine(do))

    def cut(self, machine_hears: float, server_hears: float) -> None:
        """It ends. Each end hears of it after so many seconds."""
        if not self.open:
            return
        self.open = False
        self.clock.after(machine_hears, self._machine_hears)
        self.clock.after(server_hears, self._server_hears)

    def _at_server(self, do: Callable[[], None]) -> None:
        if self.open and self.server.life == self._life:
            self.server.do(lambda: do() if self.open else None)

    def _at_machine(self, do: Callable[[], None]) -> None:
        if self.open and self.machine.life == self._machine_life:
            self.machine.do(do)

    def _machine_hears(self) -> None:
        if self.machine.life == self._machine_life:
            self.machine.do(lambda: self.machine.lost(self))

    def _server_hears(self) -> None:
        if self.server.life == self._life:
            self.server.do(lambda: self.server.lost(self))
