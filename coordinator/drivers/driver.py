"""A driver's side of its job: what has been committed, and `advance`. Does no numerics, decides nothing, keeps no state
that its bundles and the daemon's cursor do not have: a driver that dies is started again and goes on from those.

A kind has a driver by `driven = True` (jobs/contract/kind.py) and an entry point under `muster.drivers`, which names a
module with `main`: training/main.py is one.
"""

from __future__ import annotations

import logging
import mmap
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import xxhash

from muster.coordinator.api.driver import (
    Advance,
    Advanced,
    DriveDamaged,
    DriveFailed,
    DriveGivenUp,
    DriveOpen,
    DriveState,
    DriveWait,
    GivenUp,
)
from muster.coordinator.api.requests import Done
from muster.coordinator.api.status import Progress
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.protocol.control import Failure
from muster.jobs.common.durable import is_full, write_private
from muster.jobs.common.errors import DamagedError, MusterError, SpaceError, report
from muster.jobs.common.logs import open_log
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.text_limits import EVIDENCE_BYTES, MESSAGE_BYTES, kept, kept_line
from muster.jobs.parts.part_file import BodyCheck, Index, PartEntry, index_of, read_index

if TYPE_CHECKING:
    from typing_extensions import Buffer  # the type checker's; nothing to install

FULL_SECONDS = 1.0  # between tries while the disk is full
LONGEST_SECONDS = 1e9  # that a shard may say it took
WAIT_SECONDS = 20.0  # for one answer; `Drive.wait` asks again by itself
_T = TypeVar("_T")

log = logging.getLogger("muster.driver")


@dataclass(frozen=True)
class Landed:
    """One committed bundle, whole and checked."""

    index: Index
    body: bytes | memoryview

    def shards(self) -> Iterator[tuple[PartEntry, list[memoryview]]]:
        """Each shard with its segments: one per `rows` output, two per `ragged` one, in the declared order; then those
        of `sum` outputs, unless they were added up (`sums`)."""
        view = memoryview(self.body)
        for entry, offset, _ in self.index.spans():
            segments = []
            for size in entry.sizes:
                segments.append(view[offset : offset + size])
                offset += size
            yield entry, segments

    def sums(self) -> list[memoryview]:
        """Of `sum` outputs that were added up over all shards of the bundle, a segment each; none otherwise."""
        view, offset = memoryview(self.body), len(self.body) - sum(self.index.sum_sizes)
        segments = []
        for size in self.index.sum_sizes:
            segments.append(view[offset : offset + size])
            offset += size
        return segments


class Drive:
    """One job, driven by this process alone for as long as its line to the daemon is open."""

    def __init__(self, root: Root, line: ask_daemon.DaemonConnection, job: str, goes_on: bool = False) -> None:
        """`goes_on`: without shards of rounds that are given up, which `take_given_up` tells of. Otherwise the first of
        them halts the job."""
        self.job = job
        self.place = root.job(job)
        self._line = line
        self._named: list[str] = []  # bundles told of and not taken yet
        self._take_in(line.ask(DriveOpen(job, goes_on), DriveState))
        self.cursor = self.state.cursor
        self.next = self.state.next  # the number of the shard to be made next
        if self.state.rounds:
            shutil.rmtree(self.place.rounds, ignore_errors=True)  # of another driver, or another life of the daemon
            self.place.rounds.mkdir(mode=0o700)

    def _take_in(self, state: DriveState) -> None:
        self.state = state
        self._seen = state.seen
        self._named += state.bundles

    @property
    def over(self) -> bool:
        """Nothing is left for a driver to do: the job has ended, or no more shards will be made."""
        return self.state.ended or self.state.finished

    def take(self) -> list[Landed]:
        """Every bundle that was committed and not taken before, in order of commit."""
        while self.state.more:
            self._ask(0.0)
        names, self._named = self._named, []
        return [landed for name in names if (landed := self._read(name)) is not None]

    def heard(self, state: DriveState) -> list[Landed]:
        """The bundles of a state that came by `states`. Whoever listens there neither waits nor takes here."""
        self._take_in(state)
        names, self._named = self._named, []
        return [landed for name in names if (landed := self._read(name)) is not None]

    def take_given_up(self) -> list[GivenUp]:
        """Every shard of a round that was given up and not taken before. It is retired."""
        found = self.state.given_up
        if found:
            self.state = msgspec.structs.replace(self.state, given_up=[])
            self.advance(self.cursor, durable=False, retire=RangeSet.of(sorted(one.number for one in found)))
        return found

    def _read(self, name: str) -> Landed | None:
        """None of a damaged one, which is reported: its shards run again, and come in another."""
        if self.state.rounds:
            return self._read_and_delete(self.place.rounds / name)
        try:
            return read_bundle(self.place.bundles / name)
        except (DamagedError, FileNotFoundError) as error:
            print(f"bundle {name}: {error}", file=sys.stderr, flush=True)
            self._line.ask(DriveDamaged(self.job, name), Done)
            return None

    def _read_and_delete(self, path: Path) -> Landed:
        """Of a round: nobody else wants it."""
        with path.open("rb") as file:
            index = index_of(file, os.fstat(file.fileno()).st_size)
            body = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)  # its digests were compared a moment ago
        path.unlink()
        return Landed(index, memoryview(body)[: index.body_bytes])

    def wait(self, seconds: float | None = None) -> None:
        """Until there is something to take, a shard is given up, the job has ended, or so long."""
        while not (self._named or self.state.given_up or self.state.ended):
            self._ask(WAIT_SECONDS if seconds is None else seconds)
            if seconds is not None:
                return

    def _ask(self, seconds: float) -> None:
        self._take_in(self._line.ask(DriveWait(self.job, self._seen, seconds), DriveState, wait=seconds))

    def advance(
        self, to_seq: int, create: Sequence[tuple[int, bytes]] = (), finish: bool = False, durable: bool = True,
        sheet: str = "", base: str = "", retire: RangeSet | None = None, progress: Progress | None = None,
        aside: bool = False, near: str = "", took: dict[int, int] | None = None,
    ) -> bool:  # fmt: skip
        """Make shards and move the cursor, at once, from where this driver knows it to be. False: it is elsewhere.

        Of a job of rounds: `sheet` is what `lay_out` gave, for each of these shards, `base` that of which there is a
        patch; `retire`: nobody wants those any more; `aside`: these shards are beside the rounds; `near`: the machine
        that gets them first, as it has what they read; `took`: see `Advance`; and where it is `durable`, the cursor
        alone is stored; it moves then only."""
        retired = retire.pairs() if retire is not None else []
        asked = Advance(
            self.job, self.cursor, to_seq, list(create), finish, durable, sheet, base, retired, progress, aside, near,
            took,
        )  # fmt: skip
        answer = self._line.ask(asked, Advanced)
        self.cursor = answer.seq
        if answer.accepted:
            self.next += len(create)
        return answer.accepted

    def lay_out(self, data: Buffer, patch: bytes = b"") -> str:
        """Bytes that shards of a round read beside their payloads, each machine once; the digest they go by. They stay
        until `take_away`. `patch`: what the kind's `patched` makes them of, from an earlier sheet."""
        digest = xxhash.xxh3_128_hexdigest(data)
        if patch:
            self.place.patch(digest).write_bytes(patch)
        write_private(self.place.sheet(digest), data)
        return digest

    def patiently(self, write: Callable[[], _T]) -> _T:
        """What `write` gives, tried again each second while the root's disk is full: a driver goes on once there is
        room, and ends with its daemon meanwhile as at any other time."""
        while True:
            try:
                return write()
            except (SpaceError, OSError) as error:
                if not (isinstance(error, SpaceError) or is_full(error)):
                    raise
                print(f"{error}; trying again", file=sys.stderr, flush=True)
            self._ask(FULL_SECONDS)

    def tell_failed(self, shard: PartEntry, code: str, message: str, evidence: str) -> None:
        """What came of this shard is that what it tried failed: `coordinator logs` has the evidence."""
        seconds = shard.seconds if 0 <= shard.seconds < LONGEST_SECONDS else 0.0  # as that machine says
        text, more = kept_line(message, MESSAGE_BYTES), kept(evidence, EVIDENCE_BYTES)
        grant = shard.number, shard.boot, shard.attempt
        failure = Failure(self.job, self.state.digest, *grant, code, text, more, seconds, shard.peak)
        self._line.ask(DriveFailed(self.job, shard.agent, failure), Done)

    def give_up(self, why: str) -> None:
        """There is no going on: the job is halted, and no other driver is started."""
        self._line.ask(DriveGivenUp(self.job, why), Done)

    def take_away(self, sheet: str) -> None:
        for path in (self.place.sheet(sheet), self.place.patch(sheet)):
            path.unlink(missing_ok=True)


def states(root: Root, job: str, seconds: float) -> Iterator[DriveState]:
    """How the job stands, each time that something came of it, and after so many seconds without; by a line of its own,
    beside the driver's."""
    seen = 0
    with ask_daemon.line(root) as line:
        while True:
            state = line.ask(DriveWait(job, seen, seconds), DriveState, wait=seconds)
            seen = state.seen
            yield state


@contextmanager
def driving(root: Root, job: str, goes_on: bool = False) -> Iterator[Drive]:
    """Become the driver of `job`; refused while another process is."""
    with ask_daemon.line(root) as line:
        yield Drive(root, line, job, goes_on)


def run(drive: Callable[[Drive], None], goes_on: bool = False) -> int:
    """The `main` of a driver that the daemon started with its root and job as arguments; the exit code. `goes_on`: see
    `Drive`."""
    path, job = sys.argv[1:]
    try:
        root = roots.existing(Path(path))
        open_log(root.log)
        with driving(root, job, goes_on) as opened:
            drive(opened)
    except MusterError as error:
        return report(error)
    except Exception:
        log.exception("the driver of %s ended with an exception", job)
        raise
    return 0


def read_bundle(path: Path) -> Landed:
    """A bundle from the disk, every digest compared."""
    index = read_index(path)
    with path.open("rb") as file:
        body = file.read(index.body_bytes)
    check = BodyCheck(index)
    try:
        check.feed(body)
        check.finish()
    except DamagedError as error:
        raise DamagedError(f"{path.name}: {error.message}") from None
    return Landed(index, body)
