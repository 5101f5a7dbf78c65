"""Every shard this agent has to do with: held, finished and finished, or to be reported. No I/O, no clock.

A shard's way: granted → waiting ⇄ placed → finished (finished until settled) | failed | lost | returned | dropped.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.agent.core.events import Attempt
from muster.agent.core.finished_parts import FinishedParts, Part
from muster.agent.core.layers import HeldLayer
from muster.agent.core.reports import Reports, ReportSum
from muster.coordinator.protocol.control import Drop, Failure, Grant, Held, LayerInfo, Loss
from muster.jobs.common.ranges import RangeSet
from muster.jobs.workbench.batch import Mishap


class HeldShards:
    """Shards by layer. A number of a layer is held or finished, never both. `in_place`: sources are read where they
    are."""

    def __init__(self, in_place: bool = True) -> None:
        self.in_place = in_place
        self.farm = ""  # whose work this is; parts of other farms stay on the disk untouched
        self.holdings: dict[str, HeldLayer] = {}  # by layer; one may hold nothing and only know its layer
        self.unfit: dict[str, str] = {}  # kinds that a worker was seen to compute wrong, and how that showed
        self.finished_parts = FinishedParts()
        self.reports = Reports()
        self._offered = ""  # the layer of the bundle that was offered last
        self._anew = RangeSet()  # what was granted of it since then: the answer to the offer says nothing of these

    # --- what the coordinator says ---

    def learn(self, info: LayerInfo) -> None:
        layer = info.layer.digest
        if layer in self.holdings:
            self.holdings[layer].info = info
        else:
            here = set[str]() if info.layer.rounds and not self.in_place else None
            pulls = not self.in_place and not info.layer.made
            self.holdings[layer] = HeldLayer(info, pulls, here)

    def grant(self, grant: Grant, now: float) -> bool:
        """Hold what is granted; what is finished here already is said to be. False where the layer is unknown."""
        holding = self.holdings.get(grant.layer)
        if holding is None:
            return False
        numbers, attempt = RangeSet(grant.numbers), (grant.boot, grant.attempt)
        if grant.layer == self._offered:
            self._anew.update(numbers)
        done = self.finished_parts.regrant(self.farm, grant.layer, attempt, numbers)
        if done:
            self.reports.finish((grant.job, grant.layer, *attempt), done)
        sheets = {number: sheet for sheet, those in grant.sheets.items() for number in RangeSet(those) & numbers}
        holding.grant(attempt, numbers - done, grant.payloads, now, sheets)
        return True

    def drop(self, drop: Drop) -> None:
        """Forget them unless they are finished."""
        if drop.layer in self.holdings:
            self.holdings[drop.layer].forget(RangeSet(drop.numbers), (drop.boot, drop.attempt))

    def settle(self, layer: str, numbers: RangeSet) -> list[str]:
        """They are committed, by whomever. Returns the names of the parts that may go."""
        if layer in self.holdings:
            self.holdings[layer].forget(numbers)
        return self.finished_parts.settle(self.farm, layer, numbers)

    def gone(self, layer: str) -> list[str]:
        """No job wants this layer any more. Returns the names of the parts that may go."""
        self.holdings.pop(layer, None)
        self.reports.silent_on(layer)
        return self.finished_parts.settle(self.farm, layer, None)

    def offer(self, layer: str) -> None:
        """A bundle of this layer is offered."""
        self._offered, self._anew = layer, RangeSet()

    def answered(self, numbers: RangeSet) -> RangeSet:
        """Of `numbers`, those that an answer to the offer speaks of. It does not know of what was granted since: the
        layer may have been merged, and be open again for another job."""
        return numbers - self._anew

    @property
    def granted_anew(self) -> bool:
        """Whether the layer of the offer is open again, or open still, for all its answer may say."""
        return bool(self._anew)

    def move_to(self, farm: str) -> None:
        """Work for this farm. What was held of another is forgotten; what was finished for it stays on the disk."""
        if farm == self.farm:
            return
        if self.farm:  # else the reports are of the last process, for the farm it worked for
            self.holdings.clear()
            self.reports = Reports()
        self.farm = farm

    # --- what becomes of held shards ---

    def finish(self, layer: str, numbers: Iterable[int], part: str, nbytes: int, now: float) -> list[ReportSum]:
        """Those of a part's numbers that are held are finished. Returns the sums that report them, none if none are."""
        holding = self.holdings.get(layer)
        held = holding.forget(RangeSet.of(numbers)) if holding is not None else {}
        if not held or holding is None:
            return []
        self.finished_parts.add(Part(part, self.farm, layer, nbytes, {a: n.copy() for a, n in held.items()}, now))
        return [self.reports.finish((holding.info.job, layer, *a), n) for a, n in held.items()]

    def fail(self, holding: HeldLayer, mishap: Mishap, running: bool = True) -> None:
        """A held shard gave no result: it failed, or it was lost."""
        if mishap.lost:
            self.lose(holding, RangeSet.of([mishap.number]), running, mishap.message)
            return
        for boot, attempt in holding.forget(RangeSet.of([mishap.number])):
            info = holding.info
            failure = Failure(info.job, info.layer.digest, mishap.number, boot, attempt, mishap.code, mishap.message,
                              mishap.evidence, max(0.0, mishap.seconds), max(0, mishap.peak))  # fmt: skip
            self.reports.fail(failure)

    def lose(self, holding: HeldLayer, numbers: RangeSet, running: bool, reason: str) -> None:
        for (boot, attempt), held in holding.forget(numbers).items():
            info = holding.info
            self.reports.lose(Loss(info.job, info.layer.digest, boot, attempt, held.pairs(), running, reason))

    def give_back(self, holding: HeldLayer, numbers: RangeSet) -> None:
        """Hand them back unstarted."""
        for attempt, held in holding.forget(numbers).items():
            self.reports.give_back(holding.info.layer.digest, attempt, held)

    def give_back_waiting(self) -> None:
        for holding in self.holdings.values():
            self.give_back(holding, holding.waiting.copy())

    def damaged(self, name: str) -> None:
        """A part turned out to be no good: its shards were finished, and are lost."""
        part = self.finished_parts.remove(name)
        if part is None or part.farm != self.farm:
            return
        for (boot, attempt), numbers in part.attempts.items():
            job = self.job_of(part.layer)
            self.reports.lose(Loss(job, part.layer, boot, attempt, numbers.pairs(), False, "its part is damaged"))

    # --- what there is ---

    def job_of(self, layer: str) -> str:
        """ "" for what an earlier process finished, until the layer is heard of."""
        holding = self.holdings.get(layer)
        return holding.info.job if holding is not None else ""

    @property
    def jobs(self) -> set[str]:
        """Jobs of which something is held."""
        return {holding.info.job for holding in self.holdings.values() if holding.count}

    @property
    def unfinished(self) -> int:
        return sum(holding.count for holding in self.holdings.values())

    @property
    def waiting(self) -> int:
        return sum(len(holding.waiting) for holding in self.holdings.values())

    def quiet_layers(self) -> set[str]:
        """Layers finished of which nothing more is to come."""
        busy = {layer for layer, holding in self.holdings.items() if holding.count}
        return set(self.finished_parts.layers(self.farm)) - busy

    def growing_layers(self) -> set[str]:
        """Layers of rounds that go up as a whole, and of which more is to come."""
        return {layer for layer, one in self.holdings.items() if one.count and one.info.layer.rounds == "whole"}

    def has_rounds(self, layer: str) -> bool:
        holding = self.holdings.get(layer)
        return holding is not None and bool(holding.info.layer.rounds)

    def eager_layers(self) -> set[str]:
        """Layers of which each part goes up by itself."""
        return {layer for layer, one in self.holdings.items() if one.info.layer.rounds == "each"}

    def counts(self) -> dict[str, int]:
        """How many shards of each layer are held, or finished and not settled; none of a layer without any."""
        counts = {layer: holding.count for layer, holding in self.holdings.items() if holding.count}
        for layer in self.finished_parts.layers(self.farm):
            finished = sum(len(part.live) for part in self.finished_parts.of(self.farm, layer))
            counts[layer] = counts.get(layer, 0) + finished
        return counts

    def held(self) -> list[Held]:
        """All of it, as a hello names it."""
        named: list[Held] = []
        for layer in sorted({*self.holdings, *self.finished_parts.layers(self.farm)}):
            running = self.holdings[layer].attempts if layer in self.holdings else {}
            finished = self.finished_parts.held(self.farm, layer)
            named += [_held(self.job_of(layer), layer, a, running, finished) for a in sorted({*running, *finished})]
        return named

    def sanity_check(self) -> None:
        """Raise if the state contradicts itself. For tests."""
        for layer, holding in self.holdings.items():
            held = RangeSet()
            for numbers in holding.attempts.values():
                assert numbers and not held & numbers, "a number under two attempts, or an empty attempt"
                held.update(numbers)
            placed = RangeSet.of(sorted(holding.placed))
            assert not placed & holding.waiting, "a number both placed and waiting"
            assert not holding.ready - holding.waiting, "ready and not waiting"
            assert not set(holding.inputs) - {*held}, "an input of a number not held"
            assert placed | holding.waiting == held, "a number held but neither placed nor waiting"
            assert not held & self.finished_parts.live(self.farm, layer), "a number both held and finished"
        for layer in self.finished_parts.layers(self.farm):
            parts = [part.live for part in self.finished_parts.of(self.farm, layer)]
            assert all(parts), "a part without a live number"
            assert sum(map(len, parts)) == len(self.finished_parts.live(self.farm, layer)), "a number live in two parts"


def _held(
    job: str, layer: str, attempt: Attempt, running: dict[Attempt, RangeSet], finished: dict[Attempt, RangeSet]
) -> Held:
    none = RangeSet()
    return Held(job, layer, *attempt, running.get(attempt, none).pairs(), finished.get(attempt, none).pairs())
