"""A driver of a kind that makes its shards as results arrive: rounds in memory, or shards that are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.coordinator.scheduler import events as e
from muster.jobs.common.ranges import RangeSet
from tests.property.scheduler_model import DiskJob

if TYPE_CHECKING:
    from tests.simulator.server import Server

ROUNDS = 3
LOOK_SECONDS = 0.4


class Driver:
    """One life of one. What it made for rounds is retired when another begins."""

    def __init__(self, server: Server, job: DiskJob) -> None:
        self._server, self._job, self._life = server, job, server.life
        (self._layer,) = job.layers.values()
        self._waiting = RangeSet()  # what it made last
        self._storing = False
        self._killed = False  # while its answer was on its way
        self.sheets: dict[int, str] = {}  # number → what it reads beside its payload
        server.clock.after(LOOK_SECONDS, self._begin)

    def sheets_of(self, numbers: RangeSet) -> dict[str, list[tuple[int, int]]]:
        by_sheet: dict[str, RangeSet] = {}
        for number in numbers:
            if number in self.sheets:
                by_sheet.setdefault(self.sheets[number], RangeSet()).add(number, number + 1)
        return {sheet: those.pairs() for sheet, those in by_sheet.items()}

    @property
    def _alive(self) -> bool:
        server = self._server
        return server.life == self._life and server.drivers.get(self._job.id) is self

    def crash(self) -> None:
        """By kill -9; the daemon starts another, once it has done what this one asked for."""
        self._killed = self._storing
        if self._alive and not self._killed:
            server = self._server
            del server.drivers[self._job.id]
            server.do(self._forget_rounds)
            server.drive(self._job)

    def _forget_rounds(self) -> None:
        job = self._server.job(self._job.id)
        if self._layer.rounds and job is not None and not job.layers[0].closed:
            made = RangeSet([(job.layers[0].first, job.layers[0].count)])
            self._server.handle(e.Advanced(self._job.id, job.cursor, (), False, made))

    def _begin(self) -> None:
        if self._alive:
            job = self._server.job(self._job.id)
            if not self._layer.rounds and job is not None:
                self._waiting = RangeSet([(0, job.layers[0].count)])
            self._look()

    def _look(self) -> None:
        if self._alive:
            self._server.do(self._go_on)
            self._server.clock.after(LOOK_SECONDS, self._look)

    def _go_on(self) -> None:
        job = self._server.job(self._job.id)
        if not self._alive or job is None or job.ended or job.state == "halted" or job.layers[0].closed:
            return
        if not self._storing and not self._waiting - job.layers[0].committed:
            self._next(self._job.cursor + 1)

    def _next(self, round_: int) -> None:
        """One more round of one to four shards, or the end."""
        finish = round_ > ROUNDS
        count = 0 if finish else self._server.clock.random.randint(1, 4)
        self._storing = True
        self._server.keep(lambda: self._store(round_, finish, count), lambda _: self._stored(round_, finish, count))

    def _store(self, cursor: int, finish: bool, count: int) -> None:
        layer = self._layer
        self._job.cursor, layer.closed = cursor, finish
        if not layer.rounds:
            layer.payloads.update({layer.count + i: b"x" for i in range(count)})
            layer.count += count

    def _stored(self, cursor: int, finish: bool, count: int) -> None:
        job = self._server.job(self._job.id)
        if not self._alive or job is None:
            return
        self._storing = False
        first = job.layers[0].count
        create = tuple((first + i, b"x") for i in range(count))
        self._waiting = RangeSet([(first, first + count)]) if count else RangeSet()
        if self._layer.rounds:
            self.sheets = {number: f"sheet-{cursor}" for number, _ in create}
        self._server.handle(e.Advanced(self._job.id, cursor, create, finish))
        if self._killed:
            self.crash()
