"""What is to be done, in the imperative. Values only; the daemon carries them out."""

from __future__ import annotations

from dataclasses import dataclass

from muster.coordinator.protocol.control import Failure, RejectionCode
from muster.coordinator.protocol.transfer import RefusalCode
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.states import JobState, LayerState


@dataclass(frozen=True)
class Reject:
    """Answer this session with a refusal."""

    session: int
    code: RejectionCode
    message: str
    hint: str


@dataclass(frozen=True)
class NoteMissing:
    """For people: an agent has had fewer shards of a layer than was believed, for longer than news may take."""

    agent: str
    layer: str
    believed: int
    said: int


@dataclass(frozen=True)
class LookAtSource:
    """An agent says that this layer's source is not what was planned: see whether that is so."""

    job: str
    layer: str
    agent: str


@dataclass(frozen=True)
class SendGrant:
    session: int
    job: str
    layer: str
    attempt: int
    numbers: RangeSet


@dataclass(frozen=True)
class SendDrop:
    session: int
    layer: str
    boot: int
    attempt: int
    numbers: RangeSet
    retired: bool = False  # nobody wants them any more, from whomever


@dataclass(frozen=True)
class SendCommitted:
    session: int
    layer: str
    numbers: RangeSet


@dataclass(frozen=True)
class SendGone:
    session: int
    layer: str


@dataclass(frozen=True)
class SendDrain:
    session: int


@dataclass(frozen=True)
class AcceptOffer:
    session: int
    job: str
    layer: str
    generation: int


@dataclass(frozen=True)
class RefuseOffer:
    session: int
    code: RefusalCode
    numbers: RangeSet
    why: str = ""


@dataclass(frozen=True)
class StoreFailure:
    """Remember a failure that counts, with its evidence; `quarantine` when it was the last one allowed."""

    job: str
    layer: str
    agent: str
    failure: Failure
    quarantine: bool


@dataclass(frozen=True)
class StoreQuarantine:
    """A shard is set aside for its losses; `why` is the evidence."""

    job: str
    layer: str
    number: int
    why: str


@dataclass(frozen=True)
class ForgetFailures:
    """These failures were the machine's, not the shards'; `agent` None: all of the job's, by a retry."""

    job: str
    agent: str | None
    shards: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class StoreJob:
    """The job's state changed."""

    job: str
    state: JobState
    why: str


@dataclass(frozen=True)
class StoreSuccess:
    """The job's first success: it may be granted without canaries from now on, after a restart too."""

    job: str


@dataclass(frozen=True)
class StoreLayer:
    """The layer's state changed."""

    job: str
    layer: str
    state: LayerState
    generation: int


@dataclass(frozen=True)
class RaiseHighWater:
    job: str
    layer: str
    value: int


@dataclass(frozen=True)
class DiscardLayer:
    """Take the layer's result and bundles away: it runs again under `generation`."""

    job: str
    layer: str
    generation: int


@dataclass(frozen=True)
class StartMerge:
    job: str
    layer: str
    generation: int


@dataclass(frozen=True)
class StoreAgent:
    """Whether this agent is expected back after a restart of the daemon."""

    agent: str
    live: bool


@dataclass(frozen=True)
class SendDiffers:
    """Of which kinds this session gets no work because its answers differ from those of machines alike, and how."""

    session: int
    kinds: dict[str, str]


@dataclass(frozen=True)
class StoreAnswers:
    """What machines answered to known problems, all of it: `State.answers`."""


Action = (
    Reject
    | NoteMissing
    | LookAtSource
    | SendGrant
    | SendDrop
    | SendCommitted
    | SendGone
    | SendDrain
    | AcceptOffer
    | RefuseOffer
    | StoreFailure
    | StoreQuarantine
    | ForgetFailures
    | StoreJob
    | StoreSuccess
    | StoreLayer
    | RaiseHighWater
    | DiscardLayer
    | StartMerge
    | StoreAgent
    | SendDiffers
    | StoreAnswers
)
