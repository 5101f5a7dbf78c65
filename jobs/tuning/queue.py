"""Configurations that people add to a search while it runs: a file for each in the search's folder, in the order in
which they came. The last one says that no more are taken, for the search is over or is to be. Knows no trial."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import msgspec

from muster.jobs.common.durable import write_once
from muster.jobs.common.errors import DamagedError, NotFoundError, RefusedError
from muster.jobs.tuning.space import Config

QUEUED = ".queued"
QUEUED_MOST = 10_000


class Queued(msgspec.Struct, frozen=True, omit_defaults=True):
    """What somebody wants tried, by a name that is the same however often it is sent."""

    name: str = ""
    config: Config = {}
    closed: bool = False  # this is the end: the search is over
    asked: bool = False  # for somebody wants it to be


class Queue:
    """Many may add to it at once: each place is taken by one of them, and for good."""

    def __init__(self, folder: Path) -> None:
        """`folder`: where the search's driver keeps its journal."""
        self._folder = folder

    def since(self, place: int) -> list[Queued]:
        """What stands at that place and behind it."""
        found: list[Queued] = []
        for at in count(place):
            path = self._path(at)
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=Queued))
            except FileNotFoundError:
                return found
            except (msgspec.MsgspecError, ValueError) as error:
                raise DamagedError(f"{path}: {error}", "submit the search again") from None
        raise AssertionError("places have no end")

    def add(self, queued: Queued, is_over: bool = False) -> int:
        """Its place, once it is durable. What is there under its name already is not added again. `is_over`: the search
        is known to have ended."""
        job = self._folder.parent.name
        self._make_folder(job)
        place = 0
        while True:
            for known in self.since(place):
                if known.closed:
                    raise _over(job)
                if known.name == queued.name:
                    return self._again(place, known, queued)
                place += 1
            if is_over:
                raise _over(job)
            if place >= QUEUED_MOST:
                raise RefusedError(f"{job}: {place:,} configurations were enqueued", "begin another search")
            if write_once(self._path(place), msgspec.json.encode(queued)):
                return place

    def close(self, place: int) -> bool:
        """Take no more from now on; False where something stands at that place that is to be tried."""
        write_once(self._path(place), msgspec.json.encode(Queued(closed=True)))
        return self.since(place)[0].closed

    def end(self) -> bool:
        """Have the search end, behind what was added; False where it has, or is to already."""
        self._make_folder(self._folder.parent.name)
        place = 0
        while True:
            known = self.since(place)
            if known and known[-1].closed:
                return False
            place += len(known)
            if write_once(self._path(place), msgspec.json.encode(Queued(closed=True, asked=True))):
                return True

    def _again(self, place: int, known: Queued, queued: Queued) -> int:
        if known.config != queued.config:
            raise RefusedError(
                f"{self._folder.parent.name}: {known.name!r} was enqueued with another configuration", "use another id"
            )
        write_once(self._path(place), msgspec.json.encode(queued))  # it is there; by then durably, whoever wrote it
        return place

    def _make_folder(self, job: str) -> None:
        try:
            self._folder.mkdir(exist_ok=True)
        except FileNotFoundError:
            raise NotFoundError(f"{job} has no folder any more") from None

    def _path(self, place: int) -> Path:
        return self._folder / f"{place:08}{QUEUED}"


def _over(job: str) -> RefusedError:
    hint = f"go on from it: `coordinator submit --from {job} --set trials=N`"
    return RefusedError(f"{job}: the search has ended", hint)
