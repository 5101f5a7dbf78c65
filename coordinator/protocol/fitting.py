"""How much one message of the control channel may say, and what is left out of one that says more. Pure.

All that one may say fits into a frame of `AGENT_LIMIT` bytes. Nothing hangs on what is left out: a result counts once
it is pushed, and a hello settles what is held. So an agent never says more, the helper cuts what an older one says, and
the daemon cuts before it looks at anything.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import TypeVar

from msgspec.structs import replace

from muster.coordinator.protocol.control import Failure, Finished, Held, Hello, Loss, Printed, Returned, Sync
from muster.coordinator.protocol.values import Message
from muster.jobs.contract.plan import Environment
from muster.jobs.contract.text_limits import EVIDENCE_BYTES, LINE_BYTES, MESSAGE_BYTES, PRINTED_BYTES, kept, kept_line

ENTRIES = 1_024  # reports and claims in one message
RANGES = 4_096  # of all of them
SMALL = 64  # so many entries of so many ranges are within both
FAILURES = 128
CHANGED = 64  # layers
COUNTED = 4_096  # layers
PLACES = 256  # nodes of a cluster
TEXT_BYTES = 384 << 10  # of all texts; each is cut to its share
PACKAGES = 8_192  # of all environments

_T = TypeVar("_T", Held, Finished, Loss, Returned)


class Room:
    """What is left of one message: entries and ranges."""

    def __init__(self) -> None:
        self._entries, self._ranges = ENTRIES, RANGES

    def part(self, ranges: int) -> int:
        """How many ranges of another entry go into the message: all, or the first of them."""
        taken = min(ranges, self._ranges) if self._entries else 0
        self._entries -= bool(taken)
        self._ranges -= taken
        return taken

    def of(self, entries: Sequence[_T]) -> list[_T]:
        """What of them goes into it."""
        cut = [(entry, self.part(_ranges_in(entry))) for entry in entries]
        return [entry if count == _ranges_in(entry) else _first(entry, count) for entry, count in cut if count]


def fitted(message: Message) -> Message:
    """The same message with what one may say, where it is one that may say much."""
    match message:
        case Hello():
            return fitted_hello(message)
        case Sync():
            return fitted_sync(message)
    return message


def fitted_hello(hello: Hello) -> Hello:
    room = Room()
    share = _share(hello.failures, hello.losses, hello.unfit)
    return replace(
        hello,
        version=kept_line(hello.version),
        spool=kept_line(hello.spool),
        process=kept_line(hello.process),
        host=kept_line(hello.host),
        fingerprint=kept_line(hello.fingerprint, MESSAGE_BYTES * 4),
        python=kept_line(hello.python),
        held=room.of(hello.held),
        failures=_failures(hello.failures, share),
        losses=_losses(room.of(hello.losses), share),
        envs=_environments(hello),
        have=kept_line(hello.have),
        machine=kept_line(hello.machine),
        unfit={kind: kept_line(why, min(LINE_BYTES, share)) for kind, why in hello.unfit.items()},
    )


def fitted_sync(sync: Sync) -> Sync:
    if _is_small(sync):
        return sync
    room = Room()
    share = _share(sync.failures, sync.losses, sync.printed)
    return replace(
        sync,
        finished=room.of(sync.finished),
        failures=_failures(sync.failures, share),
        losses=_losses(room.of(sync.losses), share),
        returned=room.of(sync.returned),
        changed=sync.changed[:CHANGED],
        change=kept_line(sync.change, MESSAGE_BYTES),
        note=kept_line(sync.note, LINE_BYTES),
        narrowed={kept_line(job): kept_line(why, LINE_BYTES) for job, why in sync.narrowed.items()},
        printed=[_printed(one, share) for one in sync.printed] if sync.printed else [],
        counts=sync.counts if sync.counts is None or len(sync.counts) <= COUNTED else None,
        places=sync.places and {kept_line(place): slots for place, slots in list(sync.places.items())[:PLACES]},
    )


def _is_small(sync: Sync) -> bool:
    """Most are: nothing of it could be cut."""
    if sync.failures or sync.losses or sync.returned or sync.changed or sync.change or sync.printed or sync.places:
        return False
    few = len(sync.finished) <= SMALL and (sync.counts is None or len(sync.counts) <= COUNTED)
    return few and not (sync.note or sync.narrowed) and all(len(one.numbers) <= SMALL for one in sync.finished)


def _ranges_in(entry: Held | Finished | Loss | Returned) -> int:
    return len(entry.running) + len(entry.finished) if isinstance(entry, Held) else len(entry.numbers)


def _first(entry: _T, count: int) -> _T:
    if isinstance(entry, Held):
        finished = entry.finished[:count]
        return replace(entry, finished=finished, running=entry.running[: count - len(finished)])
    return replace(entry, numbers=entry.numbers[:count])


def _share(*texts: Sized) -> int:
    return TEXT_BYTES // max(1, sum(map(len, texts)))


def _failures(failures: list[Failure], share: int) -> list[Failure]:
    return [
        replace(
            one,
            job=kept_line(one.job),
            code=kept_line(one.code),
            message=kept_line(one.message, min(MESSAGE_BYTES, share // 2)),
            evidence=kept(one.evidence, min(EVIDENCE_BYTES, share), end=True),
        )
        for one in failures[:FAILURES]
    ]


def _losses(losses: list[Loss], share: int) -> list[Loss]:
    return [replace(one, reason=kept_line(one.reason, min(MESSAGE_BYTES, share))) for one in losses]


def _printed(one: Printed, share: int) -> Printed:
    return replace(one, text=kept(one.text, min(PRINTED_BYTES, share)))


def _environments(hello: Hello) -> dict[str, Environment]:
    """The first ones, our own before all others."""
    left = PACKAGES
    envs: dict[str, Environment] = {}
    for name, one in sorted(hello.envs.items()):
        if len(one.packages) <= left:
            left -= len(one.packages)
            envs[name] = one
    return envs
