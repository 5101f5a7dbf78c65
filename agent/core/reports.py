"""What the coordinator is still to be told, and what it was told but did not answer yet. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from muster.agent.core.events import Attempt
from muster.coordinator.protocol.control import Failure, Finished, Loss, Printed, Returned
from muster.coordinator.protocol.fitting import Room
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.text_limits import EVIDENCE_CHARS, MESSAGE_CHARS

FAILURES_AT_ONCE = 48
PRINTED_AT_ONCE = 64  # shards whose prints go with one message
PRINTED_KEPT = 1_024  # shards whose prints wait to be said; of more they are left out, and counted

Key = tuple[str, str, int, int]  # job, layer, boot, attempt
_K = TypeVar("_K")


@dataclass
class ReportSum:
    """Finished shards of one grant, added up."""

    numbers: RangeSet = field(default_factory=RangeSet)
    rows: int = 0
    compute: float = 0.0
    pull: float = 0.0
    in_bytes: int = 0
    out_bytes: int = 0
    peak: int = 0


@dataclass
class ReportBatch:
    """News on its way, or waiting to go."""

    finished: dict[Key, ReportSum] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    returned: dict[tuple[str, int, int], RangeSet] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    change: str = ""  # what it was, of the last of those
    busy: float = 0.0
    pushed: int = 0
    pulled: int = 0
    push_seconds: float = 0.0
    pull_seconds: float = 0.0
    spared: int = 0
    printed: list[Printed] = field(default_factory=list)
    unprinted: int = 0

    @property
    def pressing(self) -> bool:
        """Whether anybody waits for it; the counters alone can wait."""
        return bool(self.finished or self.failures or self.losses or self.returned or self.changed or self.printed)

    def without(self, layer: str) -> ReportBatch:
        return replace(
            self,
            finished={key: total for key, total in self.finished.items() if key[1] != layer},
            failures=[failure for failure in self.failures if failure.layer != layer],
            losses=[loss for loss in self.losses if loss.layer != layer],
            returned={key: numbers for key, numbers in self.returned.items() if key[0] != layer},
            changed=self.changed - {layer},
            printed=[one for one in self.printed if one.layer != layer],
        )

    def fields(self) -> dict[str, object]:
        """As a Sync has them."""
        return {
            "finished": [_finished(key, total) for key, total in self.finished.items()],
            "failures": self.failures,
            "losses": self.losses,
            "returned": [Returned(*key, numbers.pairs()) for key, numbers in self.returned.items()],
            "changed": sorted(self.changed),
            "change": self.change if self.changed else "",
            "busy": self.busy,
            "pushed": self.pushed,
            "pulled": self.pulled,
            "push_seconds": self.push_seconds,
            "pull_seconds": self.pull_seconds,
            "spared": self.spared,
            "printed": self.printed,
            "unprinted": self.unprinted,
        }


@dataclass
class Reports:
    """At most one letter is on its way."""

    next: ReportBatch = field(default_factory=ReportBatch)
    sent: ReportBatch | None = None

    @property
    def pending(self) -> bool:
        """Whether there is news that nobody has confirmed to have heard."""
        return self.next.pressing or (self.sent is not None and self.sent.pressing)

    def finish(self, key: Key, numbers: RangeSet) -> ReportSum:
        """Count `numbers` as finished; the caller adds what else it knows to the sum."""
        total = self.next.finished.setdefault(key, ReportSum())
        total.numbers.update(numbers)
        return total

    def fail(self, failure: Failure) -> None:
        short = msgspec.structs.replace(
            failure, message=failure.message[:MESSAGE_CHARS], evidence=failure.evidence[-EVIDENCE_CHARS:]
        )
        self.next.failures.append(short)

    def change(self, layer: str, why: str) -> None:
        """Its source is not what was planned."""
        self.next.changed.add(layer)
        self.next.change = why[:MESSAGE_CHARS]

    def print(self, printed: Printed | None, left_out: int = 0) -> None:
        """Tell what a shard's code printed, as far as there is room for it."""
        if printed is not None and len(self.next.printed) < PRINTED_KEPT:
            self.next.printed.append(printed)
        else:
            left_out += printed is not None
        self.next.unprinted += left_out

    def lose(self, loss: Loss) -> None:
        self.next.losses.append(msgspec.structs.replace(loss, reason=loss.reason[:MESSAGE_CHARS]))

    def give_back(self, layer: str, attempt: Attempt, numbers: RangeSet) -> None:
        self.next.returned.setdefault((layer, *attempt), RangeSet()).update(numbers)

    def silent_on(self, layer: str) -> None:
        """Nobody wants to hear of this layer any more."""
        self.next = self.next.without(layer)
        self.sent = self.sent and self.sent.without(layer)

    def post(self) -> ReportBatch:
        """What to say now; what does not go into one message, the next has. It is on its way until `answered` or
        `unanswered`."""
        letter, self.next = self.next, ReportBatch()
        room = Room()
        letter.finished, self.next.finished = _split_sums(letter.finished, room)
        letter.returned, self.next.returned = _split(letter.returned, room)
        losses = [(loss, room.part(len(loss.numbers))) for loss in letter.losses]
        self.next.losses = [_with(loss, loss.numbers[n:]) for loss, n in losses if n < len(loss.numbers)]
        letter.losses = [_with(loss, loss.numbers[:n]) for loss, n in losses if n]
        letter.failures, self.next.failures = letter.failures[:FAILURES_AT_ONCE], letter.failures[FAILURES_AT_ONCE:]
        letter.printed, self.next.printed = letter.printed[:PRINTED_AT_ONCE], letter.printed[PRINTED_AT_ONCE:]
        self.sent = letter
        return letter

    def post_hello(self) -> ReportBatch:
        """What a hello says: failures and losses. It names all that is held, and so says the rest by itself."""
        letter = self.next
        self.next = replace(letter, failures=[], losses=[], returned={})
        self.sent = ReportBatch(failures=letter.failures, losses=letter.losses)
        return self.sent

    def answered(self) -> None:
        self.sent = None

    def unanswered(self) -> None:
        """The link broke: nobody knows whether it was heard, and all of it may be said twice."""
        if self.sent is None:
            return
        self.next.failures[:0] = self.sent.failures
        self.next.losses[:0] = self.sent.losses
        self.next.changed |= self.sent.changed
        self.next.change = self.next.change or self.sent.change
        self.next.printed[:0] = self.sent.printed
        self.sent = None


def _split(entries: dict[_K, RangeSet], room: Room) -> tuple[dict[_K, RangeSet], dict[_K, RangeSet]]:
    """What goes into the message, and what is left."""
    mine: dict[_K, RangeSet] = {}
    left: dict[_K, RangeSet] = {}
    for key, numbers in entries.items():
        pairs = numbers.pairs()
        count = room.part(len(pairs))
        for place, part in ((mine, pairs[:count]), (left, pairs[count:])):
            if part:
                place[key] = RangeSet.canonical(part)
    return mine, left


def _split_sums(sums: dict[Key, ReportSum], room: Room) -> tuple[dict[Key, ReportSum], dict[Key, ReportSum]]:
    """The same; what was added up goes with the first numbers of each."""
    mine, left = _split({key: total.numbers for key, total in sums.items()}, room)
    return (
        {key: replace(sums[key], numbers=numbers) for key, numbers in mine.items()},
        {key: replace(ReportSum() if key in mine else sums[key], numbers=n) for key, n in left.items()},
    )


def _with(loss: Loss, numbers: list[tuple[int, int]]) -> Loss:
    return msgspec.structs.replace(loss, numbers=numbers)


def _finished(key: Key, total: ReportSum) -> Finished:
    job, layer, boot, attempt = key
    return Finished(
        job,
        layer,
        boot,
        attempt,
        total.numbers.pairs(),
        total.rows,
        total.compute,
        total.pull,
        total.in_bytes,
        total.out_bytes,
        total.peak,
    )
