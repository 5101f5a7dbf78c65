"""What the agent's state machine orders, in the imperative. Values only; the process carries them out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from muster.coordinator.protocol.control import Hello, LayerInfo, Leave, Sync
from muster.jobs.common.errors import MusterError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import ItemsWindow, Window

# --- values ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Copy:
    """A shard's input in the spool, whole."""

    name: str  # says which run of bytes of which file it is
    nbytes: int
    digest: bytes


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
    farm: str  # whose work it is
    info: LayerInfo
    part: str  # name of the part it makes
    items: tuple[tuple[int, int, int], ...]  # (number, boot, attempt), by number
    payloads: dict[int, bytes]
    inputs: dict[int, Copy] = field(default_factory=dict)  # by number, where they were pulled
    sheets: dict[int, str] = field(default_factory=dict)  # by number, the digest of what its round laid out
    gpus: tuple[str, ...] | None = None  # for this slot alone; None: there are none here
    keeps: int = 0  # bytes of each shard's that may be kept for later ones to read


KillReason = Literal["timeout", "memory", "crowded", "dropped", "drain"]


@dataclass(frozen=True)
class Kill:
    """Kill a slot's worker, and all that it runs; a WorkerDied follows."""

    slot: int
    why: KillReason


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
    window: Window | ItemsWindow | None = None  # where the input lies, for who has a copy of it


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
class KeepSheet:
    """A shard here made it, and later ones may read it: it need not come."""

    layer: str
    sheet: str


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


Action = (
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
    | KeepSheet
    | DropSheet
    | StopFollowing
    | Delete
    | Discard
    | Recheck
    | Tell
    | Quit
)
