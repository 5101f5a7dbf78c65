"""What the daemon has to say to one session, until it is asked. Gathers; decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from muster.coordinator.daemon.waiting import wait_until
from muster.coordinator.protocol.control import Committed, Drop, Grant, LayerInfo, News, Rejected, Welcome
from muster.coordinator.protocol.values import Ranges
from muster.jobs.common.ranges import RangeSet

SAID_AT_ONCE = 4_096  # drops, committed ranges and grants in one answer; the rest comes with the next


class Outbox:
    """Ordered: what settles or revokes is said before what is granted, so a grant is never taken back by old news. What
    settles or revokes what is not granted aloud yet takes it out of its grant, which would be heard after it.
    """

    def __init__(self) -> None:
        self.rejected: Rejected | None = None
        self.drain = False
        self._told: set[str] = set()  # layers whose info this session has
        self._changed: dict[str, LayerInfo] = {}  # those of them whose info is another by now
        self._grants: list[tuple[Grant, LayerInfo]] = []
        self._drops: list[Drop] = []
        self._committed: list[Committed] = []
        self._gone: list[str] = []
        self._differs: dict[str, str] | None = None  # None: nothing new
        self._something = asyncio.Event()

    def reject(self, rejected: Rejected) -> None:
        self.rejected = rejected
        self._something.set()

    def grant(self, grant: Grant, info: LayerInfo) -> None:
        self._grants.append((grant, info))
        self._something.set()

    def tell_again(self, infos: list[LayerInfo]) -> None:
        """Of the layers that this session knows."""
        changed = {info.layer.digest: info for info in infos if info.layer.digest in self._told}
        self._changed.update(changed)
        if changed:
            self._something.set()

    def _take_out(self, numbers: Ranges, of: Callable[[Grant], bool]) -> None:
        """From the grants that are not said yet."""
        less = RangeSet(numbers)
        left = [(_without(grant, less) if of(grant) else grant, info) for grant, info in self._grants]
        self._grants = [(grant, info) for grant, info in left if grant.numbers]

    def drop(self, drop: Drop) -> None:
        run = (drop.layer, drop.boot, drop.attempt)
        self._take_out(drop.numbers, lambda grant: (grant.layer, grant.boot, grant.attempt) == run)
        self._drops.append(drop)
        self._something.set()

    def committed(self, committed: Committed) -> None:
        self._take_out(committed.numbers, lambda grant: grant.layer == committed.layer)
        self._committed.append(committed)
        self._something.set()

    def gone(self, layer: str) -> None:
        self._grants = [(grant, info) for grant, info in self._grants if grant.layer != layer]
        self._gone.append(layer)
        self._told.discard(layer)
        self._something.set()

    def differ(self, kinds: dict[str, str]) -> None:
        self._differs = kinds
        self._something.set()

    def ask_to_drain(self) -> None:
        self.drain = True
        self._something.set()

    @property
    def has_news(self) -> bool:
        """Whether there is something to say."""
        return self._something.is_set()

    async def wait(self, seconds: float) -> None:
        """Until there is something to say, or the time is over."""
        if seconds > 0 and not self.has_news:
            await wait_until(self._something, seconds)

    def news(self) -> News:
        """All there is to say, taken out."""
        grants, self._grants = self._grants[:SAID_AT_ONCE], self._grants[SAID_AT_ONCE:]
        drops, self._drops = self._drops[:SAID_AT_ONCE], self._drops[SAID_AT_ONCE:]
        committed, self._committed = self._committed[:SAID_AT_ONCE], self._committed[SAID_AT_ONCE:]
        gone, self._gone = self._gone, []
        differs, self._differs = self._differs, None
        untold, self._changed = self._changed, {}
        untold |= {info.layer.digest: info for _, info in grants if info.layer.digest not in self._told}
        self._told.update(untold)
        if not (self._grants or self._drops or self._committed or self.rejected):
            self._something.clear()
        return News(
            layers=list(untold.values()),
            grants=[grant for grant, _ in grants],
            drops=drops,
            committed=committed,
            gone=gone,
            drain=self.drain,
            differs=differs,
        )

    def welcome(self, farm: str, boot: int, session: int, lease: float, heartbeat: float) -> Welcome:
        """The first answer: what is settled and revoked; grants wait for a sync."""
        drops, self._drops = self._drops, []
        committed, self._committed = self._committed, []
        gone, self._gone = self._gone, []
        differs, self._differs = self._differs, None
        return Welcome(
            farm=farm,
            boot=boot,
            session=session,
            lease=lease,
            heartbeat=heartbeat,
            drops=drops,
            committed=committed,
            gone=gone,
            differs=differs or {},
        )


def _without(grant: Grant, numbers: RangeSet) -> Grant:
    left = RangeSet(grant.numbers) - numbers
    payloads = {number: raw for number, raw in grant.payloads.items() if number in left}
    sheets = {digest: (RangeSet(those) & left).pairs() for digest, those in grant.sheets.items()}
    sheets = {digest: those for digest, those in sheets.items() if those}
    return msgspec.structs.replace(grant, numbers=left.pairs(), payloads=payloads, sheets=sheets)
