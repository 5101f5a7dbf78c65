"""What a training's driver has out on the farm, and what comes of it, clamped to what machines can have given."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from muster.coordinator.api.status import Progress
from muster.coordinator.drivers.driver import Drive, Landed
from muster.jobs.common.errors import TrainingError
from muster.jobs.kinds.train import RoundOrder
from muster.jobs.parts.part_file import PartEntry
from muster.jobs.training.aggregation import contribution, fixed_point
from muster.jobs.training.aggregation.contribution import Contribution, ContributionTally, RoundHeader
from muster.jobs.training.aggregation.fixed_point import BadValues
from muster.jobs.training.aggregation.weights_delta import Update, patch_of
from muster.jobs.training.params import TrainParams
from muster.jobs.training.steps.learner import Score, digest_of

Array = np.ndarray[Any, Any]
Shards = list[tuple[PartEntry, memoryview]]
Told = Callable[[], Progress]

WRONG_MOST = 20  # bundles that cannot be, before there is no going on
SHEETS_AHEAD = 3  # kept beside those that stale work may still want

_encode = msgspec.msgpack.Encoder().encode


class Ended(Exception):
    """The job was cancelled: nobody waits for anything."""


@dataclass(frozen=True)
class Arrival:
    """Contributions that came as one sum, all under one header."""

    header: RoundHeader
    workers: tuple[int, ...]
    part: Contribution
    machine: str  # that computed them
    fingerprint: str  # of its kernels


@dataclass
class Arrived:
    """All that has come since the last time."""

    sums: list[Arrival] = field(default_factory=list)
    scores: list[tuple[int, Score]] = field(default_factory=list)  # iteration, and how its weights do
    wrong: list[int] = field(default_factory=list)  # virtual workers of whom nonsense came, to be asked again
    misjudged: list[int] = field(default_factory=list)  # iterations of which nonsense was said, likewise


class Participants:
    """Every machine that works on one training, through its job."""

    def __init__(self, drive: Drive, params: TrainParams) -> None:
        self._drive, self._params = drive, params
        self._out: dict[int, tuple[RoundHeader, int]] = {}  # shard → its header and virtual worker
        self._judged: dict[int, tuple[int, Array]] = {}  # shard → the iteration whose weights it scores, and those
        self._sheets: list[str] = []  # laid out, the newest last
        self._patch = ("", "", b"")  # the newest: leads to, from, and how
        self._wrong = 0

    @property
    def busy(self) -> bool:
        return bool(self._out)

    @property
    def judging(self) -> bool:
        return bool(self._judged)

    # --- out ---

    def moved(self, base: str, digest: str, update: Update, stepped: int) -> None:
        """How weights to come are made of others: for machines that have those."""
        if update.bits < 32:
            self._patch = digest, base, patch_of(update, stepped)

    def issue(self, orders: Sequence[RoundOrder], weights: Array, digest: str, told: Told) -> None:
        """A shard for each order, at these weights."""
        for number, order in self._made(orders, weights, digest, told):
            assert order.header is not None
            self._out[number] = order.header, order.worker

    def judge(self, at: int, weights: Array, told: Told) -> None:
        """Have the weights of an iteration scored."""
        ((number, _),) = self._made([RoundOrder(-1)], weights, digest_of(weights), told, aside=True)
        self._judged[number] = at, weights

    def _made(
        self, orders: Sequence[RoundOrder], weights: Array, digest: str, told: Told, aside: bool = False
    ) -> list[tuple[int, RoundOrder]]:
        self._lay_out(weights, digest)
        drive = self._drive
        numbered = list(enumerate(orders, drive.next))
        create = [(number, _encode(order)) for number, order in numbered]
        base = self._patch[1] if self._patch[0] == digest else ""
        cursor = drive.cursor
        if not drive.advance(cursor, create, durable=False, sheet=digest, base=base, progress=told(), aside=aside):
            raise RuntimeError("the job was moved on by somebody else")
        return numbered

    def _lay_out(self, weights: Array, digest: str) -> None:
        if digest in self._sheets:
            return
        patch = self._patch[2] if self._patch[0] == digest else b""
        laid = self._drive.patiently(lambda: self._drive.lay_out(np.ascontiguousarray(weights, "<f4").data, patch))
        if laid != digest:
            raise RuntimeError("weights that are not those of their digest")
        self._sheets.append(digest)
        wanted = {header.weights for header, _ in self._out.values()}
        wanted |= {digest_of(weights) for _, weights in self._judged.values()}
        for old in [one for one in self._sheets[:-SHEETS_AHEAD] if one not in wanted]:
            self._drive.take_away(old)
            self._sheets.remove(old)

    # --- in ---

    def take(self) -> Arrived:
        """Wait for something, and take in all that has come."""
        self._drive.wait()
        if self._drive.state.ended:
            raise Ended
        arrived = Arrived()
        for landed in self._drive.take():
            self._sort(landed, arrived)
        return arrived

    def _sort(self, landed: Landed, arrived: Arrived) -> None:
        """A bundle has contributions and, in the same sum but adding nothing to it, scores."""
        shards = [(entry, segments[0]) for entry, segments in landed.shards()]
        mine = [(entry, row) for entry, row in shards if entry.number in self._out]
        scores = [(entry, row) for entry, row in shards if entry.number in self._judged]
        for entry, row in scores:
            self._score(entry, row, arrived)
        if not mine:
            return
        taken = [self._out.pop(entry.number) for entry, _ in mine]
        workers = tuple(worker for _, worker in taken)
        try:
            if len({header for header, _ in taken}) > 1 or len(mine) + len(scores) < len(shards):
                raise BadValues("contributions of different rounds in one sum")
            part = self._sum(landed, mine)
            arrived.sums.append(Arrival(taken[0][0], workers, part, mine[0][0].agent, landed.index.fingerprint))
        except (BadValues, ValueError, IndexError, TypeError) as error:
            self._refuse(mine[0][0].agent, str(error))
            arrived.wrong += workers

    def _sum(self, landed: Landed, shards: Shards) -> Contribution:
        """BadValues for what so many virtual workers cannot have given."""
        values = np.frombuffer(landed.sums()[0], fixed_point.DTYPES[self._params.bits])
        fixed_point.check(values, self._params.limit * len(shards))
        return Contribution(values, self._tally(shards))

    def _tally(self, shards: Shards) -> ContributionTally:
        total = contribution.NOTHING
        for _, row in shards:
            one = ContributionTally(*np.frombuffer(row, "<i8").tolist())
            contribution.check(one, self._params, 1)
            total = total.plus(one)
        return total

    def _refuse(self, agent: str, why: str) -> None:
        self._wrong += 1
        print(f"{agent} sent what cannot be: {why}", file=sys.stderr, flush=True)
        if self._wrong > WRONG_MOST:
            raise TrainingError(f"{agent} sends what cannot be: {why}", "look after that machine, then retry the job")

    def _score(self, entry: PartEntry, row: memoryview, arrived: Arrived) -> None:
        at, _ = self._judged.pop(entry.number)
        right, rows, loss, *_ = np.frombuffer(row, "<i8").tolist()
        facts = self._params.facts
        if facts is None or rows != facts.test_rows or not 0 <= right <= rows or loss < 0:
            self._refuse(entry.agent, f"{right} of {rows} rows of the test set")
            arrived.misjudged.append(at)
            return
        arrived.scores.append((at, Score(right, rows, loss)))
