"""The driver of a session of calls: what its client sends becomes shards, and what they gave goes back. It sees bytes
alone, and keeps nothing: after its death the client sends again what it has no answer to."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from queue import Empty, Queue

import msgspec

from muster.coordinator.api.calls import (
    BATCH_BYTES,
    Answered,
    BatchFailed,
    CallBatch,
    CallsOpened,
    CallsOver,
    CallsTook,
    EndCalls,
    OpenCalls,
    SlotsNow,
    Withdraw,
)
from muster.coordinator.api.driver import DriveState
from muster.coordinator.api.requests import problem_of
from muster.coordinator.drivers.calls.clients import Client, listen
from muster.coordinator.drivers.calls.sheets import CallSheets
from muster.coordinator.drivers.driver import Drive, Landed, run, states
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.protocol.values import Message
from muster.jobs.common.errors import LinkError, MusterError, ProtocolError, RefusedError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.kinds.calls import CallsParams

LOOK_SECONDS = 1.0  # without news, until machines are counted again
WAITING = 256  # things heard that nobody looked at yet: then whoever says more waits
LAST_SECONDS = 5.0  # for the last word to be sent

log = logging.getLogger("muster.driver")


def main() -> int:
    return run(_drive, goes_on=True)


def _drive(drive: Drive) -> None:
    CallsDriver(drive).run()


@dataclass(frozen=True)
class Heard:
    """A client said something; None: its line ended."""

    client: Client
    said: Message | None
    behind: bytes


Event = Heard | DriveState | MusterError


@dataclass
class Under:
    """A batch under way: its number with the client, and what it reads."""

    batch: int
    sheet: str


@dataclass
class Told:
    """What came of a batch while its client was away."""

    message: Answered | BatchFailed
    behind: bytes | memoryview = b""


@dataclass
class Arrived:
    """What was heard at once, and is acted upon together."""

    batches: dict[int, tuple[CallBatch, bytes]] = field(default_factory=dict)  # by number
    unwanted: list[int] = field(default_factory=list)  # shards


class CallsDriver:
    """One thread acts; those of clients and of the daemon's news only tell it."""

    def __init__(self, drive: Drive) -> None:
        self._drive = drive
        self._linger = msgspec.convert(drive.state.params, CallsParams).linger
        self._sheets = CallSheets(drive)
        self._events: Queue[Event] = Queue(WAITING)
        self._under: dict[int, Under] = {}  # by shard
        self._shards: dict[int, int] = {}  # batch → its shard
        self._kept: dict[int, Told] = {}  # batch → what came of it
        self._client: Client | None = None
        self._name = ""  # of the session's client
        self._slots = drive.state.slots
        self._took: Counter[int] = Counter()  # calls that its client had done, by how long they took; to be told
        self._alone_since = time.monotonic()

    def run(self) -> None:
        if self._drive.over:
            return
        listen(self._drive.place, self._sheets, lambda *heard: self._events.put(Heard(*heard)))
        threading.Thread(target=self._follow, name="news", daemon=True).start()
        while not self._drive.over and not self._is_forsaken():
            if self._act(self._next()):
                break
        self._end()

    def _follow(self) -> None:
        root = Root(self._drive.place.path.parents[1])
        try:
            for state in states(root, self._drive.job, LOOK_SECONDS):
                self._events.put(state)
        except MusterError as error:
            self._events.put(error)

    def _next(self) -> list[Event]:
        """All that has been heard, once there is something."""
        found: list[Event] = []
        try:
            found.append(self._events.get(timeout=LOOK_SECONDS))
            while len(found) < WAITING:
                found.append(self._events.get_nowait())
        except Empty:
            pass
        return found

    def _act(self, events: list[Event]) -> bool:
        """Whether the client wants no more."""
        arrived, ends = Arrived(), False
        for event in events:
            if isinstance(event, MusterError):
                raise event
            if isinstance(event, DriveState):
                self._heard_of(event, arrived)
            else:
                ends = self._said(event, arrived) or ends
        self._issue(arrived)
        return ends

    def _is_forsaken(self) -> bool:
        return self._client is None and time.monotonic() - self._alone_since > self._linger

    def _end(self) -> None:
        """No shard is wanted any more, and none will be made."""
        drive, client = self._drive, self._client
        if not drive.over:
            first = min([low for low, _ in drive.state.created], default=drive.next)
            made = RangeSet([(first, drive.next)]) if first < drive.next else RangeSet()
            drive.advance(drive.cursor, finish=True, retire=made, took=self._told_took())
        if client is not None:
            client.say(CallsOver())
            client.end()
            self._await_last(client)

    def _await_last(self, client: Client) -> None:
        deadline = time.monotonic() + LAST_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            try:
                event = self._events.get(timeout=left)
            except Empty:
                return
            if isinstance(event, Heard) and event.client is client and event.said is None:
                return

    # --- what the client says ---

    def _said(self, event: Heard, arrived: Arrived) -> bool:
        client, said = event.client, event.said
        if isinstance(said, OpenCalls):
            self._open(client, said, arrived)
        elif client is not self._client:
            if said is not None:
                client.end(problem_of(ProtocolError("a line that did not open the session")))
        elif said is None:
            self._client, self._alone_since = None, time.monotonic()
        elif isinstance(said, CallBatch):
            arrived.batches[said.number] = said, event.behind
        elif isinstance(said, Withdraw):
            for batch in said.batches:
                self._withdraw(batch, arrived)
        elif isinstance(said, CallsTook):
            self._took.update(said.seconds)
        elif isinstance(said, EndCalls):
            return True
        return False

    def _open(self, client: Client, said: OpenCalls, arrived: Arrived) -> None:
        """The cursor moves: a driver that died after this got on."""
        if self._name and said.client != self._name:
            why = RefusedError(f"{self._drive.job} has a client", "open a session of your own: farm.executor()")
            client.end(problem_of(why))
            return
        if self._client is not None:
            self._client.end()
        self._client, self._name = client, said.client
        self._drive.advance(self._drive.cursor + 1)
        known = [batch for batch in said.awaited if batch in self._shards or batch in self._kept]
        for batch in [*self._shards, *self._kept, *arrived.batches]:
            if batch not in known:
                self._withdraw(batch, arrived)
        client.say(CallsOpened(known, self._sheets.blobs, self._slots))
        for told in self._kept.values():
            client.say(told.message, told.behind)
        self._kept.clear()

    def _withdraw(self, batch: int, arrived: Arrived) -> None:
        self._kept.pop(batch, None)
        if (shard := self._shards.get(batch)) is not None:
            self._forget(shard)
            arrived.unwanted.append(shard)
        arrived.batches.pop(batch, None)

    def _forget(self, shard: int) -> int:
        """Its batch is not under way any more."""
        under = self._under.pop(shard)
        del self._shards[under.batch]
        if under.sheet:
            self._sheets.done(under.sheet)
        return under.batch

    # --- what came of shards ---

    def _heard_of(self, state: DriveState, arrived: Arrived) -> None:
        for landed in self._drive.heard(state):
            self._landed(landed)
        for one in state.given_up:
            if one.number in self._under:
                batch = self._forget(one.number)
                self._tell(Told(BatchFailed(batch, one.code, one.why, one.agent, one.evidence)))
                arrived.unwanted.append(one.number)
        if state.slots != self._slots:
            self._slots = state.slots
            if self._client is not None:
                self._client.say(SlotsNow(state.slots))

    def _landed(self, landed: Landed) -> None:
        for entry, pieces in landed.shards():
            if entry.number in self._under:
                out = pieces[1]  # behind the lengths, of which there is one
                self._tell(Told(Answered(self._forget(entry.number), entry.agent, len(out)), out))

    def _tell(self, told: Told) -> None:
        if self._client is not None:
            self._client.say(told.message, told.behind)
        else:
            self._kept[told.message.batch] = told

    # --- shards ---

    def _issue(self, arrived: Arrived) -> None:
        """Make shards of batches, those that read the same together; and take back what nobody waits for."""
        if self._drive.over:
            return
        by_sheet: dict[str, list[tuple[CallBatch, bytes]]] = {}
        for batch, payload in arrived.batches.values():
            if batch.number in self._shards:
                continue
            try:
                sheet = self._sheets.lay_out(tuple(batch.blobs))
            except ProtocolError as error:
                self._turn_away(error)
                return
            by_sheet.setdefault(sheet, []).append((batch, payload))
        unwanted = RangeSet.of(sorted(arrived.unwanted))
        for sheet, batches in by_sheet.items():
            for some in _messages(batches):
                self._make(sheet, some, unwanted)
                unwanted = RangeSet()
        if unwanted or self._took:
            self._make("", [], unwanted)

    def _turn_away(self, error: ProtocolError) -> None:
        if self._client is not None:
            self._client.end(problem_of(error))

    def _make(self, sheet: str, batches: list[tuple[CallBatch, bytes]], unwanted: RangeSet) -> None:
        drive = self._drive
        numbered = list(enumerate(batches, drive.next))
        create = [(number, payload) for number, (_, payload) in numbered]
        for number, (batch, _) in numbered:
            self._under[number] = Under(batch.number, sheet)
            self._shards[batch.number] = number
        took = self._told_took()
        if not drive.advance(drive.cursor, create, durable=False, sheet=sheet, retire=unwanted, took=took):
            raise LinkError("the job was moved on by somebody else")

    def _told_took(self) -> dict[int, int]:
        took, self._took = dict(self._took), Counter()
        return took


def _messages(batches: list[tuple[CallBatch, bytes]]) -> list[list[tuple[CallBatch, bytes]]]:
    """As many together as one message to the daemon holds."""
    found: list[list[tuple[CallBatch, bytes]]] = [[]]
    nbytes = 0
    for one in batches:
        if found[-1] and nbytes + len(one[1]) > BATCH_BYTES:
            found.append([])
            nbytes = 0
        found[-1].append(one)
        nbytes += len(one[1])
    return found
