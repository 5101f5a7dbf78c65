"""What the agent's state machine is told, in the past tense. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from muster.coordinator.protocol.control import Bye, News, Rejected, Welcome
from muster.coordinator.protocol.transfer import Refused, Settled
from muster.jobs.common.errors import MusterError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import Environment
from muster.jobs.workbench.batch import Outcome

Attempt = tuple[int, int]  # (boot, attempt) of a grant; a later grant of a shard has a greater one
Why = Literal["cut", "full", "changed", "gone", "no-session", "refused"]


# --- of the pool ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Needs:
    """What a worker must be given for the batches of a job."""

    cpus: int = 1
    gpus: int = 0
    memory: int | None = None  # bytes; None: the job does not say


@dataclass(frozen=True)
class SlotUp:
    """A slot's worker said its first word: the slot may be used until its WorkerDied, its SlotGone, or a PoolLost."""

    slot: int
    place: str = ""  # the name of the machine it is on; "" for this one
    given: Needs | None = None  # what batches must need that it runs; None: whatever they do


@dataclass(frozen=True)
class PoolOpened:
    """Workers come as work is there for them: no slot is up, and any may be once something is held."""


@dataclass(frozen=True)
class PlaceRefused:
    """Nothing is run on a machine that the pool could have used, because it lacks something."""

    place: str
    why: str


@dataclass(frozen=True)
class SlotGone:
    """A slot has no worker, and there may not be another; nothing of these batches was run, nor will be: they may go
    elsewhere. A SlotUp may follow all the same."""

    slot: int
    why: str
    tickets: tuple[int, ...] = ()


@dataclass(frozen=True)
class PoolFellBack:
    """What was to start workers cannot; plain processes have all slots from now on."""

    why: str


@dataclass(frozen=True)
class PoolLost:
    """No slot works any more, until each has another SlotUp; a WorkerDied of each busy slot came before."""

    reason: str
    error: MusterError | None = None  # why another start would be no better; None where it may be


@dataclass(frozen=True)
class BatchEnded:
    """A batch ran to its end, whatever became of its shards."""

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
    """A slot's worker is gone; of its batches the first was running. Told after all that the worker said, and before
    another runs anything in that slot. Another takes its place by itself, and a SlotUp says when it is there."""

    slot: int
    tickets: tuple[int, ...]  # of the batches it had; others may wait for its successor already
    reason: str
    ours: bool  # whether we killed it
    # What the files it left say of its end:
    running: tuple[int, int, int] | None = None  # (number, boot, attempt) of the shard it was running, by its mark
    kept: Mapping[int, Kept] = field(default_factory=dict)  # by ticket
    short: bool = False  # whether the kernel took it because this machine's limit of memory was reached


PoolEvent = SlotUp | PoolOpened | PlaceRefused | SlotGone | PoolFellBack | PoolLost | BatchEnded | WorkerDied


# --- of all else ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ticked:
    """Nothing happened but time."""


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
class PackagesCame:
    """Packages were installed here since the last hello: all that there are now."""

    packages: tuple[str, ...]  # as in a hello
    envs: Mapping[str, Environment]


@dataclass(frozen=True)
class SlotView:
    """What was seen of a busy slot."""

    slot: int
    running: tuple[int, int, int] | None
    tree_bytes: int  # memory of its process tree
    processor_seconds: float = 0.0  # that the tree has used since its worker began


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
    spared: int = 0  # bytes of it that the user's own copy had, and the link did not bring


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
    gone: bool = False  # nobody knows it: its sheets were deleted


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
    PoolEvent
    | Ticked
    | LinkUp
    | LinkDown
    | Heard
    | PackagesCame
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


@dataclass(frozen=True)
class FoundPart:
    """A sound part that an earlier process left in the spool."""

    name: str
    farm: str
    layer: str
    nbytes: int
    attempts: dict[Attempt, RangeSet]  # its numbers by attempt
