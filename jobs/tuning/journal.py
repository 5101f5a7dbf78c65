"""What a search keeps on disk: its parameters once, a file for each commit, checkpoints by digest. Decides nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import msgspec
import xxhash

from muster.jobs.common.durable import make_folder, write_durably
from muster.jobs.common.errors import DamagedError, NotFoundError
from muster.jobs.tuning.params import TuneParams, unlike
from muster.jobs.tuning.search import Search
from muster.jobs.tuning.stopping import Judge, Why
from muster.jobs.tuning.trials import Segment, Trial

EARLIER = -1  # the place of what was added to a search that another goes on from
HEAD, SEGMENTS, STATE = "search.json", ".segments", ".state"


class SearchHead(msgspec.Struct, frozen=True):
    """What a search was begun with."""

    params: TuneParams
    cpus: int = 1  # of a trial

    @property
    def search(self) -> Search:
        return Search(self.params, self.cpus)


class Journal:
    """The order of the files is that of the commits; what is there is whole and durable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._states = {path.stem for path in folder.glob(f"*{STATE}")}
        self._next = 1 + max((int(path.stem) for path in folder.glob(f"*{SEGMENTS}")), default=-1)

    def __len__(self) -> int:
        """How many commits there were."""
        return self._next

    def begin(self, head: SearchHead) -> None:
        make_folder(self.folder)
        if not (self.folder / HEAD).exists():
            write_durably(self.folder / HEAD, msgspec.json.encode(head))

    def append(self, segments: Sequence[Segment], states: Mapping[str, bytes]) -> None:
        """Checkpoints first: what a segment names is there."""
        for digest, state in states.items():
            write_durably(self._state(digest), state)
            self._states.add(digest)
        write_durably(self.folder / f"{self._next:08}{SEGMENTS}", msgspec.msgpack.encode(segments))
        self._next += 1

    def segments(self) -> list[Segment]:
        found: list[Segment] = []
        for path in sorted(self.folder.glob(f"*{SEGMENTS}")):
            try:
                found += msgspec.msgpack.decode(path.read_bytes(), type=list[Segment])
            except (msgspec.MsgspecError, ValueError) as error:
                raise DamagedError(f"{path}: {error}", "submit the search again") from None
        return found

    def state(self, digest: str) -> bytes:
        """A checkpoint, compared with its digest."""
        path = self._state(digest)
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            raise DamagedError(f"{path}: there is no such checkpoint", "submit the search again") from None
        if xxhash.xxh3_128_hexdigest(raw) != digest:
            raise DamagedError(f"{path}: its bytes do not match its name", "submit the search again")
        return raw

    def states(self) -> dict[str, bytes]:
        """Every checkpoint there is."""
        return {digest: self.state(digest) for digest in self._states}

    def keep(self, digests: Collection[str]) -> None:
        """Remove every other checkpoint."""
        for digest in self._states.difference(digests):
            self._state(digest).unlink(missing_ok=True)
        self._states.intersection_update(digests)

    def _state(self, digest: str) -> Path:
        return self.folder / f"{digest}{STATE}"


def adopted(folder: Path, params: TuneParams) -> tuple[list[Segment], dict[str, bytes]]:
    """What a search has that goes on from that one: its segments, and the checkpoints that are left. Each trial is
    judged anew, by what ends it now: one that would not have ended goes on, if its checkpoint was kept. What failed is
    tried again."""
    before, journal = recalled(folder), Journal(folder)
    if wrong := unlike(before.params, params):
        raise DamagedError(wrong, "extend it with the same, or begin anew")
    table, states, segments = before.table, journal.states(), journal.segments()
    added = [msgspec.structs.replace(one, queued=EARLIER, to=0) for one in segments if one.queued is not None]
    done = [one for one in segments if one.curve or one.why]
    last = {one.trial: at for at, one in enumerate(done) if one.why != "failed"}
    kept = []
    for at, segment in enumerate(done):
        if (trial := table.trials.get(segment.trial)) is None:
            continue
        goes_on = not trial.curve or trial.state in states
        if segment.why == "failed" and (goes_on or trial.why != "failed"):
            continue
        if last.get(segment.trial) == at and trial.why != "failed":
            segment = msgspec.structs.replace(segment, why=_why_now(trial, params, goes_on))
        kept.append(segment)
    return [*added, *kept], states


def _why_now(trial: Trial, params: TuneParams, goes_on: bool) -> Why:
    """Why a trial has ended, by `stop` as it is now. One that cannot go on has done all that it will."""
    judge, spent = Judge(params), accumulate(trial.seconds)
    verdicts = (judge.after(at, *done) for at, done in enumerate(zip(trial.curve, spent, strict=True), 1))
    return next(filter(None, verdicts), "" if goes_on else "iterations")


def recalled(folder: Path) -> Search:
    """A search as far as its journal has it, for whoever only looks."""
    search = head_of(folder).search
    for segment in Journal(folder).segments():
        search.commit(segment)
    return search


def head_of(folder: Path) -> SearchHead:
    """What a search was begun with; a NotFoundError before it was."""
    try:
        return msgspec.json.decode((folder / HEAD).read_bytes(), type=SearchHead)
    except FileNotFoundError:
        raise NotFoundError(f"{folder.parent.name} has not begun", "wait until a machine works on it") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise DamagedError(f"{folder / HEAD}: {error}", "submit the search again") from None
