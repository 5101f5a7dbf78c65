"""A job in this life of the daemon: its plan, what was measured of it, and its rounds. Nobody else writes into it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping

import msgspec

from muster.coordinator.api.driver import Advance, GivenUp
from muster.coordinator.api.status import Progress
from muster.coordinator.daemon.jobs.settings import JobSettings
from muster.coordinator.daemon.measures import JobFigures
from muster.coordinator.daemon.notify.conditions import NEWS
from muster.coordinator.daemon.waiting import Signal
from muster.coordinator.farm_root.paths import JobFolder
from muster.coordinator.protocol.control import LayerInfo
from muster.coordinator.scheduler.entities import Agent
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import Layer, Output, Plan, Work
from muster.jobs.contract.states import ENDED, JobState

MAKERS_KEPT = 4096
BASES_KEPT = 16


class LiveJob:
    """One job that is served."""

    def __init__(
        self,
        folder: JobFolder,
        plan: Plan,
        digest: str,
        created: float,
        started: float | None = None,
        ended: float | None = None,
        failures: int = 0,
        news: bytes | None = None,
        bundles: Iterable[str] = (),
        outputs: Mapping[str, tuple[Output, ...]] | None = None,
        settings: JobSettings = JobSettings(),  # noqa: B008 it is frozen
        untold: float | None = None,
        retried: float | None = None,
    ) -> None:
        """From `news` on it is what the store has of an earlier life or, of outputs, another job."""
        self.folder = folder
        self.settings = settings
        self.plan = settings.applied(plan)
        self.digest = digest  # of the plan's file
        self.layers: dict[str, Layer] = {layer.digest: layer for layer in plan.layers}
        declared = {layer.digest: layer.outputs for layer in plan.layers if layer.outputs is not None}
        self.outputs: dict[str, tuple[Output, ...]] = {**declared, **(outputs or {})}
        self.created, self.started, self.ended = created, started, ended
        self.untold = untold  # when it came to its state, until who wants to be told of that was
        self.retried = retried or 0.0  # when somebody last had what failed of it run again; 0 for never
        self.figures = JobFigures(failures=failures)
        self._looks: dict[str, float] = {}  # layer → when somebody last looked at its source; inf while it goes on
        self.changes: dict[str, str] = {}  # layer whose source changed → who says so, and of which file
        self.moved = Signal()  # a bundle is committed, or the job's state changed
        self.driver: object | None = None  # the connection that drives it
        self.driver_kept = asyncio.Lock()  # held by the task that starts its driver again and again
        begun = Progress(0, *plan.counted) if plan.counted else None
        self.progress = recalled(news) or begun  # what its driver last said of it
        self.bundles = list(bundles)  # files in order of commit, where a driver reads them; "" for a damaged one
        self.taken = 0  # bundles of rounds that came before those: drivers count by places
        self.sheets: dict[int, str] = {}  # shard of a round not committed yet → the digest of its sheet
        self.bases: dict[str, str] = {}  # sheet → base sheet of its patch; the last few
        self.makers: dict[str, str] = {}  # sheet → the agent that made what is on it, and may have kept it
        self.given_up: dict[int, GivenUp] = {}  # shards of rounds, until they are retired
        self.sheets_granted = Signal()
        self._made: dict[int, float] = {}  # shard that its driver made, until it is committed or retired → when

    @property
    def work(self) -> Work:
        return self.plan.work

    def name_of(self, layer: str, number: int) -> str:
        """A shard's name, without its job's."""
        return f"{self.layers[layer].name}/{number}"

    def layer_info(self, job: str, digest: str) -> LayerInfo:
        layer = msgspec.structs.replace(self.layers[digest], only=None)  # a grant says which, and the list may be long
        return LayerInfo(job, layer, self.plan.work_of(layer))

    def start(self) -> bool:
        """True at the first grant of the job's life."""
        first = self.started is None
        self.started = self.started or time.time()
        return first

    def change_state(self, state: JobState) -> None:
        now = time.time()
        self.ended = now if state in ENDED else None
        self.untold = now if state in NEWS and self.plan.notify else None
        self.moved.give()

    def retry(self) -> float:
        """When, which is now."""
        self.retried = time.time()
        return self.retried

    def told(self, at: float) -> None:
        """Of the state that it came to then."""
        if self.untold == at:
            self.untold = None

    def change_settings(self, settings: JobSettings) -> None:
        self.settings = settings
        self.plan = settings.applied(self.plan)

    def looked_at(self, layer: str) -> float:
        """When its source was last looked at; inf while it is."""
        return self._looks.get(layer, float("-inf"))

    def looks_at(self, layer: str, when: float) -> None:
        self._looks[layer] = when

    def source_changed(self, layer: str, why: str) -> None:
        self.changes[layer] = why

    # --- what a layer's shards give -----------------------------------------------------------------------

    def fix_outputs(self, layer: str, outputs: tuple[Output, ...]) -> tuple[Output, ...]:
        """The layer's outputs: those of its first commit, where none are declared."""
        return self.outputs.setdefault(layer, outputs)

    def free_outputs(self, layer: str) -> None:
        """The layer runs again: its next commit fixes its outputs anew."""
        self.outputs.pop(layer, None)
        if (declared := self.layers[layer].outputs) is not None:
            self.outputs[layer] = declared

    # --- what a driver is told ----------------------------------------------------------------------------

    def commit(self, agent: str, numbers: RangeSet, nbytes: int, file: str) -> list[float]:
        """When those of them were made that a driver made in this life of the daemon."""
        self.figures.committed(agent, len(numbers), nbytes)
        if self.plan.driven:
            self.bundles.append(file)
        self._forget_sheets(numbers)
        return self._forget_made(numbers)

    def made(self, numbers: Iterable[int]) -> None:
        """By its driver, now."""
        self._made.update(dict.fromkeys(numbers, time.time()))

    def _forget_made(self, numbers: RangeSet) -> list[float]:
        return [self._made.pop(number) for number in numbers if number in self._made] if self._made else []

    def bundle_damaged(self, file: str) -> None:
        """Its place stays: drivers count by places."""
        self.bundles = ["" if one == file else one for one in self.bundles]

    def driven_by(self, connection: object | None) -> None:
        self.driver = connection

    def drop_taken(self, known: int) -> None:
        """A driver of rounds has the first `known` bundles: their names are of no use any more."""
        count = min(max(0, known - self.taken), len(self.bundles))
        del self.bundles[:count]
        self.taken += count

    # --- rounds -------------------------------------------------------------------------------------------

    def advance(self, asked: Advance, retired: RangeSet) -> None:
        """Keep what a driver of rounds says of the shards that it makes."""
        self.progress = asked.progress or self.progress
        self._forget_sheets(retired)
        self._forget_made(retired)
        self.given_up = {number: one for number, one in self.given_up.items() if number not in retired}
        if asked.sheet:
            self.sheets.update(dict.fromkeys((number for number, _ in asked.create), asked.sheet))
        if asked.sheet and asked.near:
            self.makers[asked.sheet] = asked.near
            while len(self.makers) > MAKERS_KEPT:
                del self.makers[next(iter(self.makers))]
        if asked.sheet and asked.base:
            self.bases[asked.sheet] = asked.base
            while len(self.bases) > BASES_KEPT:
                del self.bases[next(iter(self.bases))]

    def forget_rounds(self) -> None:
        """Rounds end with their driver: the next one knows nothing of what was made for this one."""
        self.drop_taken(self.taken + len(self.bundles))
        self.sheets.clear()
        self.bases.clear()
        self.makers.clear()
        self.given_up.clear()
        self._made.clear()

    def give_up(self, shard: GivenUp) -> None:
        """Nobody is going to run that shard of a round again, and the driver goes on without it: it is told."""
        self.given_up[shard.number] = shard
        self.moved.give()

    def sheets_of(self, numbers: RangeSet) -> dict[str, list[tuple[int, int]]]:
        """Which of `numbers` read which sheet."""
        by_sheet: dict[str, RangeSet] = {}
        for number in numbers if self.sheets else ():
            if sheet := self.sheets.get(number):
                by_sheet.setdefault(sheet, RangeSet()).add(number, number + 1)
        return {sheet: those.pairs() for sheet, those in by_sheet.items()}

    def sheet_for(self, agent: Agent, layer: str, have: set[str]) -> str:
        """One that shards this agent has to run want, and it does not have; "" for none."""
        for holding in agent.holdings.values():
            if holding.layer == layer:
                for number in holding.open:
                    if (sheet := self.sheets.get(number, "")) and sheet not in have:
                        return sheet
        return ""

    def _forget_sheets(self, numbers: RangeSet) -> None:
        if self.sheets:
            for number in numbers:
                self.sheets.pop(number, None)


def recalled(news: bytes | None) -> Progress | None:
    """What the store has of a driver's progress: None where there is nothing, or nothing that can be read."""
    if news is None:
        return None
    try:
        found = msgspec.msgpack.decode(news)
        if "rounds" in found:  # by 0.1.0, which knew one kind that counts, and stored its numbers alone
            found = {"done": found["round"], "total": found["rounds"], "unit": "round", "numbers": found}
        return msgspec.convert(found, Progress)
    except (msgspec.MsgspecError, KeyError, TypeError):
        return None
