"""What a search keeps on disk: its parameters once, a file for each commit, checkpoints by digest. Decides nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec
import xxhash

from muster.jobs.common.durable import make_folder, write_durably
from muster.jobs.common.errors import DamagedError, NotFoundError
from muster.jobs.tuning.params import SAME, TuneParams, stop_of
from muster.jobs.tuning.search import Search
from muster.jobs.tuning.trials import Segment

EARLIER = -1  # the place of what was added to a search that another goes on from
HEAD, SEGMENTS, STATE = "search.json", ".segments", ".state"


class SearchHead(msgspec.Struct, frozen=True):
    """What a search was begun with."""

    params: TuneParams
    attempts: int
    max_failures: int

    @property
    def search(self) -> Search:
        return Search(self.params, self.attempts, self.max_failures)


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
    """What a search has that goes on from that one: its segments, and the checkpoints that are left. Trials that ended
    because they had no more iterations go on, where there are more now and their checkpoint was kept."""
    before, journal = recalled(folder), Journal(folder)
    for name in SAME:
        if getattr(before.params, name) != getattr(params, name):
            raise DamagedError(
                f"params.{name} is not that of {params.extends}", "extend it with the same, or begin anew"
            )
    segments, states = [], journal.states()
    for segment in journal.segments():
        trial, most = before.table.trials[segment.trial], stop_of(params).iterations
        if segment.why == "iterations" and trial.iterations < most and trial.state in states:
            segment = msgspec.structs.replace(segment, why="")
        segments.append(msgspec.structs.replace(segment, score=None))
    added = [msgspec.structs.replace(one, queued=EARLIER, to=0) for one in segments if one.queued is not None]
    return [*added, *(one for one in segments if one.curve or one.why)], states


def recalled(folder: Path) -> Search:
    """A search as far as its journal has it, for whoever only looks."""
    try:
        search = msgspec.json.decode((folder / HEAD).read_bytes(), type=SearchHead).search
    except FileNotFoundError:
        raise NotFoundError(f"{folder.parent.name} has not begun", "wait until a machine works on it") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise DamagedError(f"{folder / HEAD}: {error}", "submit the search again") from None
    for segment in Journal(folder).segments():
        search.commit(segment)
    return search
