"""What happened, in the past tense. Values only; the scheduler learns of the world through these and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

from muster.coordinator.protocol.control import Failure, Finished, Hello, Loss, Returned
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract import plan as p
from muster.jobs.contract.states import JobState, LayerState

Run = tuple[str, int, int]  # one run of a shard: on which agent, by which (boot, attempt)


@dataclass(frozen=True)
class LayerSeed:
    """A layer of the plan, with what the store remembers of it."""

    plan: p.Layer
    count: int  # those of the plan, or as many as were made
    out_bytes: int  # of a full shard, as far as is known
    state: LayerState = "waiting"
    generation: int = 0
    high_water: int = 0
    committed: RangeSet = field(default_factory=RangeSet)
    quarantined: RangeSet = field(default_factory=RangeSet)
    failures: dict[int, frozenset[Run]] = field(default_factory=dict)  # number → those that count
    closed: bool = False  # made layers: no more shards will be made
    first: int = 0  # the lowest number that shards of rounds can have in this life of the daemon


@dataclass(frozen=True)
class JobAdded:
    """A job was submitted, or read back from the store at start."""

    job: str
    plan: p.Plan
    priority: int
    layers: tuple[LayerSeed, ...]
    state: JobState = "running"
    why: str = ""
    succeeded: bool = False
    cursor: int = 0
    payloads: dict[int, bytes] = field(default_factory=dict)  # of the first layer's shards, where they are made
    kernels_fixed: str = ""  # the fingerprint of what is committed, where the job wants one alone


@dataclass(frozen=True)
class JobDamaged:
    """A job whose folder or rows cannot be used. `layers`: the digests of all its layers, as far as they are known."""

    job: str
    layers: tuple[str, ...]


@dataclass(frozen=True)
class Joined:
    """An agent said hello, and has this session from now on."""

    session: int
    hello: Hello
    names: frozenset[str] = frozenset()  # that its spool joined under before
    fingerprints: tuple[str, ...] = ()  # of its earlier hellos, the newest last


@dataclass(frozen=True)
class Synced:
    """An agent's news, and perhaps its wish for more work."""

    session: int
    room: int
    hungry: bool
    lent: int | None = None  # cpus it may use now, 0 while it is paused; None: as before
    finished: tuple[Finished, ...] = ()
    failures: tuple[Failure, ...] = ()
    losses: tuple[Loss, ...] = ()
    returned: tuple[Returned, ...] = ()
    changed: tuple[str, ...] = ()
    counts: dict[str, int] | None = None  # layer → how many shards of it the agent has, all this said
    link_out: float = 0.0  # bytes of results that it has handed in a second, lately; 0: not measured


@dataclass(frozen=True)
class Moved:
    """Bytes moved on some channel of a session."""

    session: int


@dataclass(frozen=True)
class HungUp:
    """An agent's control channel ended without a word: it may be back in a second, or never."""

    session: int


@dataclass(frozen=True)
class Departed:
    """An agent left in good order."""

    session: int


@dataclass(frozen=True)
class Offered:
    """A bundle's header came: is it wanted?"""

    session: int
    layer: str
    numbers: RangeSet
    fingerprint: str = ""
    agents: tuple[str, ...] = ()  # that its header names


@dataclass(frozen=True)
class BundleCommitted:
    """A bundle's rows are in the store; `agent` computed them."""

    job: str
    layer: str
    generation: int
    agent: str
    numbers: RangeSet
    nbytes: int
    fingerprint: str = ""


@dataclass(frozen=True)
class Uncommitted:
    """Committed shards whose bytes turned out damaged or missing: their rows are out of the store."""

    layer: str
    generation: int
    numbers: RangeSet
    payloads: dict[int, bytes] = field(default_factory=dict)  # of those that were made


@dataclass(frozen=True)
class LayerMerged:
    """A layer's files are in `result/` and its row says so."""

    job: str
    layer: str
    generation: int


@dataclass(frozen=True)
class SourceChanged:
    """We looked at a layer's source ourselves: it is not what was planned."""

    job: str
    layer: str


@dataclass(frozen=True)
class SourceKept:
    """It is what was planned, though an agent says otherwise."""

    job: str
    layer: str
    agent: str


@dataclass(frozen=True)
class HighWaterStored:
    """Fresh shards of the layer below `value` may be granted: the store will remember that they may have been."""

    job: str
    layer: str
    value: int


@dataclass(frozen=True)
class SpaceMeasured:
    """Bytes free on the root's disk."""

    free: int


@dataclass(frozen=True)
class Advanced:
    """A driver moved its job on; the cursor already matched. `retire`: shards of rounds that nobody wants any more.
    `aside`: what is made is no part of a round. `near`: the agent that should have it first."""

    job: str
    to_seq: int
    create: tuple[tuple[int, bytes], ...]
    finish: bool
    retire: RangeSet = field(default_factory=RangeSet)
    aside: bool = False
    near: str = ""


@dataclass(frozen=True)
class MergeRefused:
    """What a layer's shards gave does not fit together, and would not if it was merged again."""

    job: str
    layer: str
    generation: int
    why: str


@dataclass(frozen=True)
class DriverOpened:
    """A driver is there. `goes_on`: shards of rounds that are given up are its affair, and do not halt the job."""

    job: str
    goes_on: bool


@dataclass(frozen=True)
class DriverFailed:
    """A job's driver ends again and again, and gets nowhere."""

    job: str
    why: str


@dataclass(frozen=True)
class Cancelled:
    job: str


@dataclass(frozen=True)
class Paused:
    job: str


@dataclass(frozen=True)
class Resumed:
    job: str


@dataclass(frozen=True)
class Prioritised:
    job: str
    priority: int


@dataclass(frozen=True)
class Replanned:
    """What its shards may use or how often they may fail is another by now; its layers are the same."""

    job: str
    plan: p.Plan


@dataclass(frozen=True)
class Removed:
    job: str


@dataclass(frozen=True)
class Retried:
    """Quarantined shards get a new life; with `layers`, those layers are discarded and run again whole."""

    job: str
    layers: tuple[str, ...] = ()  # digests


@dataclass(frozen=True)
class DrainAsked:
    agent: str


@dataclass(frozen=True)
class AgentDropped:
    """Somebody says that a machine will not come back."""

    agent: str


@dataclass(frozen=True)
class Kicked:
    """Somebody wants this shard given up wherever it runs, and run elsewhere."""

    layer: str
    number: int


@dataclass(frozen=True)
class Ticked:
    """A second passed, or more if the daemon itself was stopped."""


Event = (
    JobAdded
    | JobDamaged
    | Joined
    | Synced
    | Moved
    | HungUp
    | Departed
    | Offered
    | BundleCommitted
    | Uncommitted
    | LayerMerged
    | SourceChanged
    | SourceKept
    | HighWaterStored
    | SpaceMeasured
    | Advanced
    | DriverOpened
    | DriverFailed
    | MergeRefused
    | Cancelled
    | Paused
    | Resumed
    | Prioritised
    | Replanned
    | Removed
    | Retried
    | DrainAsked
    | AgentDropped
    | Kicked
    | Ticked
)
