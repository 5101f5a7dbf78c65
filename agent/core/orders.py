"""What the desk is told (events, past tense) and what it orders (commands). Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from muster.coordinator.protocol.messages import (
    Bye,
    Hello,
    LayerInfo,
    Leave,
    News,
    Refused,
    Rejected,
    Settled,
    Sync,
    Welcome,
)
from muster.jobs.common.errors import MusterError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.workbench.batch import Outcome

Attempt = tuple[int, int]  # (boot, attempt) of a grant; a later grant of a shard has a greater one


Why = Literal["cut", "full", "changed", "gone", "no-session", "refused"]


# --- events ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ticked:
    """Nothing happened but time."""


@dataclass(frozen=True)
class PoolStarted:
    """Batches may be submitted from now on."""


@dataclass(frozen=True)
class PoolLost:
    """No slot works any more, until a PoolStarted; a WorkerDied of each busy slot came before."""

    reason: str


@dataclass(frozen=True)
class LinkUp:
    """A control channel is open and its greeting was read."""

    farm: str


@dataclass(frozen=True)
class LinkDown:
    """There is no control channel any more, or there could be none made; nothing asked on it will be answered."""

    reason: str
    lasting: bool = False  # until a person does something about it


@dataclass(frozen=True)
class Heard:
    """The answer to what was last said."""

    message: Welcome | News | Rejected | Bye


@dataclass(frozen=True)
class BatchEnded:
    """A worker finished a call."""

    ticket: int
    outcome: Outcome


@dataclass(frozen=True)
class Kept:
    """What a dead worker's batch had committed locally before it died."""

    numbers: tuple[int, ...]
    rows: int
    nbytes: int


@dataclass(frozen=True)
class WorkerDied:
    """A slot's worker is gone; another takes its place by itself."""

    slot: int
    tickets: tuple[int, ...]  # of the batches it had; others may be in flight on its successor already
    running: tuple[int, int, int] | None  # (number, boot, attempt) of the shard it was running, by its mark
    ours: bool  # whether we killed it
    reason: str
    kept: dict[int, Kept] = field(default_factory=dict)  # by ticket


@dataclass(frozen=True)
class SlotView:
    """What was seen of a busy slot."""

    slot: int
    running: tuple[int, int, int] | None
    tree_bytes: int  # memory of its process tree


@dataclass(frozen=True)
class SlotsSeen:
    views: tuple[SlotView, ...]


@dataclass(frozen=True)
class SpaceSeen:
    """What the spool's file system has left for us."""

    free: int


@dataclass(frozen=True)
class PushUp:
    """A push channel is open and idle."""


@dataclass(frozen=True)
class PushDown:
    """There is no push channel; a bundle under way got no answer and may or may not have been committed."""

    reason: str


@dataclass(frozen=True)
class PushAnswered:
    """What became of the bundle under way."""

    answer: Settled | Refused | Rejected
    sent: RangeSet  # the shards it had
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class PullUp:
    """Inputs may be asked for."""


@dataclass(frozen=True)
class Pulled:
    """An input is in the spool, whole; or a pack of code is, unpacked."""

    name: str
    digest: bytes  # of an input
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class NotPulled:
    """What was asked for did not come. After `cut` nothing is asked for until a PullUp."""

    name: str
    code: Why
    message: str


@dataclass(frozen=True)
class PartDamaged:
    """A part's bytes are not what they were; it is deleted already."""

    name: str


@dataclass(frozen=True)
class SheetCame:
    """What a round laid out is in the spool, whole."""

    layer: str
    sheet: str
    nbytes: int


@dataclass(frozen=True)
class Unfollowed:
    """A layer of rounds is followed no more."""

    layer: str
    why: str


@dataclass(frozen=True)
class LinkFailed:
    """There is no way to the coordinator, and trying again would not make one."""

    error: MusterError


@dataclass(frozen=True)
class DrainAsked:
    """Hand back, finish, push, leave."""

    why: str


@dataclass(frozen=True)
class Lent:
    """So many processors may be used from now on; where none may, why."""

    cpus: int
    why: str = ""


Event = (
    Ticked
    | PoolStarted
    | PoolLost
    | LinkUp
    | LinkDown
    | Heard
    | BatchEnded
    | WorkerDied
    | SlotsSeen
    | SpaceSeen
    | PushUp
    | PushDown
    | PushAnswered
    | PullUp
    | Pulled
    | NotPulled
    | PartDamaged
    | SheetCame
    | Unfollowed
    | LinkFailed
    | DrainAsked
    | Lent
)


# --- values ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Copy:
    """A shard's input in the spool, whole."""

    name: str  # says which run of bytes of which file it is
    nbytes: int
    digest: bytes


@dataclass(frozen=True)
class FoundPart:
    """A sound part that an earlier process left in the spool."""

    name: str
    farm: str
    layer: str
    nbytes: int
    attempts: dict[Attempt, RangeSet]  # its numbers by attempt


# --- commands -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Say:
    """Send this on the control channel; exactly one Heard or LinkDown follows."""

    message: Hello | Sync | Leave
    wait: float  # seconds the other end may hold its answer


@dataclass(frozen=True)
class Redial:
    """Close the control channel and open another one, `pause` seconds later at the soonest."""

    pause: float


@dataclass(frozen=True)
class Run:
    """Submit a batch to a slot; exactly one BatchEnded with its ticket, or WorkerDied of its slot, follows."""

    ticket: int
    slot: int
    info: LayerInfo
    part: str  # name of the part it makes
    items: tuple[tuple[int, int, int], ...]  # (number, boot, attempt), by number
    payloads: dict[int, bytes]
    inputs: dict[int, Copy] = field(default_factory=dict)  # by number, where they were pulled
    sheets: dict[int, str] = field(default_factory=dict)  # by number, the digest of what its round laid out
    gpus: tuple[str, ...] | None = None  # for this slot alone; None: there are none here


@dataclass(frozen=True)
class Kill:
    """Kill a slot's worker, and all that it runs; a WorkerDied follows."""

    slot: int
    why: str


@dataclass(frozen=True)
class Freeze:
    """Stop a slot's runner where it is, with all it has in memory; what has none ends by itself."""

    slot: int


@dataclass(frozen=True)
class Thaw:
    """Let it go on."""

    slot: int


@dataclass(frozen=True)
class Push:
    """Offer a bundle of these; exactly one PushAnswered or PushDown follows."""

    session: int
    layer: str
    pieces: tuple[tuple[str, RangeSet], ...]  # name of a part, which of its shards
    eager: bool = False  # the body goes along: there is no time to ask first


@dataclass(frozen=True)
class Delete:
    """Delete a part from the disk: nobody needs it."""

    name: str


@dataclass(frozen=True)
class Pull:
    """Bring a shard's input, or a model, into the spool; exactly one Pulled or NotPulled with its name follows."""

    session: int
    name: str  # of a model: its digest
    layer: str
    number: int
    nbytes: int
    model: bool = False  # then of all shards of the layer, and of others


@dataclass(frozen=True)
class PullCode:
    """Bring a user's files into the spool; exactly one Pulled or NotPulled with the digest for its name follows."""

    session: int
    name: str


@dataclass(frozen=True)
class Discard:
    """Delete an input, or what there is of one that did not come whole (None)."""

    name: str
    digest: bytes | None


@dataclass(frozen=True)
class FollowRounds:
    """Bring whatever shards of this layer want into the spool as it is laid out: a SheetCame for each, and an
    Unfollowed at the end. `have`: what is there already."""

    session: int
    info: LayerInfo
    have: tuple[str, ...]
    heartbeat: float


@dataclass(frozen=True)
class DropSheet:
    """Nobody here reads it any more."""

    layer: str
    sheet: str


@dataclass(frozen=True)
class StopFollowing:
    """Nothing of this layer is wanted any more."""

    layer: str


@dataclass(frozen=True)
class Recheck:
    """Read these parts again; a PartDamaged follows for each that is not what it was."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Tell:
    """One line for people."""

    line: str


@dataclass(frozen=True)
class Quit:
    """The end: exit, with this error if there is one."""

    error: MusterError | None


Command = (
    Say
    | Redial
    | Run
    | Kill
    | Freeze
    | Thaw
    | Push
    | Pull
    | PullCode
    | FollowRounds
    | DropSheet
    | StopFollowing
    | Delete
    | Discard
    | Recheck
    | Tell
    | Quit
)
