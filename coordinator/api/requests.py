"""What commands and drivers say to the daemon over ROOT/control.sock, and its answers. Values: no I/O, no decisions.

A strict loop of frames: one answer to each question; a connection may ask many. The first frame is the first question
(a helper's is `Attach`, see the protocol's messages). A `Problem` may answer anything. Jobs are named by their
full id. Everything is bounded by the layers of one job and the machines of the farm, never by the shards.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from muster.coordinator.protocol.values import Count, Message, Name, Ranges, Seconds, Short, Text
from muster.jobs.common.errors import MusterError

JobId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\.[1-9][0-9]{0,8}$")]
LayerName = Annotated[str, Meta(max_length=512)]
LayerNames = Annotated[list[LayerName], Meta(max_length=65_536)]
Created = Annotated[list[tuple[Count, bytes]], Meta(max_length=65_536)]  # shard number, payload
Submission = Annotated[str, Meta(pattern=r"^submit-[0-9a-f]{8,64}$")]
BundleFile = Annotated[str, Meta(pattern=r"^[0-9]{1,12}-[0-9]{1,12}\.part$")]
Weight = Annotated[int, Meta(ge=1, le=1000)]
Sheet = Annotated[str, Meta(pattern=r"\A([0-9a-f]{32})?\Z")]

JobState = Literal["running", "paused", "halted", "cancelled", "incomplete", "complete"]
LayerState = Literal["waiting", "open", "merging", "merged", "changed"]
AgentState = Literal["live", "draining", "gone", "left"]
ENDED: frozenset[JobState] = frozenset({"cancelled", "incomplete", "complete"})
DRIVER = "driver"  # a failure of this code is of a job's driver, and of no shard
MERGE = "merge"  # and one of this code of the merging of a layer
TRAINING = "train"  # the kind whose drivers have news for people
FAILURES_LIMIT = 500  # in one answer: with the evidence's own limit it stays below a frame's


# --- questions of commands --------------------------------------------------------------------------------


class Submit(Message, frozen=True, tag="submit"):
    """Take over ROOT/tmp/`folder`: job.yaml, plan.msgpack and perhaps code.pack. The answer is `Submitted`."""

    folder: Submission
    origin: JobId | None = None  # a job whose merged layers it takes over where they are the same


class StatusAsk(Message, frozen=True, tag="statusask"):
    """All jobs without their layers, or one job with them; the answer is `Status`."""

    job: JobId | None = None


class AgentsAsk(Message, frozen=True, tag="agentsask"):
    """The answer is `Agents`."""


class Cancel(Message, frozen=True, tag="cancel"):
    """The answer to this, and to every question down to `Stop` but two, is `Done`."""

    job: JobId


class Pause(Message, frozen=True, tag="pause"):
    job: JobId


class Resume(Message, frozen=True, tag="resume"):
    """Of a paused job; a halted one wants `Retry`."""

    job: JobId


class Priority(Message, frozen=True, tag="priority"):
    job: JobId
    priority: Weight


class Remove(Message, frozen=True, tag="remove"):
    """Forget an ended job and delete its folder."""

    job: JobId


class Retry(Message, frozen=True, tag="retry"):
    """Run quarantined shards again (a halted job: all of its failed ones), or all shards of the named layers."""

    job: JobId
    layers: LayerNames | None = None


class Drain(Message, frozen=True, tag="drain"):
    agent: Name


class Kick(Message, frozen=True, tag="kick"):
    """Give this shard up wherever it runs, and run it elsewhere."""

    job: JobId
    layer: LayerName
    number: Count


class ExplainAgent(Message, frozen=True, tag="explainagent"):
    """What it does, or why it does nothing; the answer to this and the next two is `Explained`."""

    agent: Name


class ExplainJob(Message, frozen=True, tag="explainjob"):
    job: JobId


class ExplainShard(Message, frozen=True, tag="explainshard"):
    job: JobId
    layer: LayerName
    number: Count


class FailuresAsk(Message, frozen=True, tag="failuresask"):
    """Newest first, at most `limit`; the answer is `Failures`."""

    job: JobId
    layer: LayerName | None = None
    number: Count | None = None  # of a shard of `layer`
    quarantined: bool = False  # only of shards that are
    limit: Annotated[int, Meta(ge=1, le=FAILURES_LIMIT)] = 50


class Usage(Message, frozen=True, tag="usage"):
    """What the daemon has promised of the root's disk; the answer is `Used`."""


class Stop(Message, frozen=True, tag="stop"):
    """Answered with `Done` before the daemon goes."""


class CommitsAsk(Message, frozen=True, tag="commitsask"):
    """What was committed of a job after `after`, answered with `Commits` once there is something, the job has ended or
    is halted, or `wait` has passed."""

    job: JobId
    after: Count = 0  # `Commit.seq` of the last one known
    wait: Seconds = 0.0


# --- questions of drivers ---------------------------------------------------------------------------------


class DriveOpen(Message, frozen=True, tag="driveopen"):
    """Become the driver of `job`; refused while another connection is. The answer is `DriveState` with every bundle's
    first page; the driver is one until its connection closes."""

    job: JobId


class DriveWait(Message, frozen=True, tag="drivewait"):
    """Answered with `DriveState` once there are bundles after `known`, the job has ended, or `wait` has passed."""

    job: JobId
    known: Count  # `DriveState.seen` of the last answer
    wait: Seconds = 0.0


class DriveGivenUp(Message, frozen=True, tag="drivegivenup"):
    """There is no going on, and another driver would find it so too: the job is halted. The answer is `Done`."""

    job: JobId
    why: Text


class DriveDamaged(Message, frozen=True, tag="drivedamaged"):
    """A committed bundle cannot be read as its digests say: its shards run again. The answer is `Done`."""

    job: JobId
    bundle: BundleFile


class TrainNews(msgspec.Struct, frozen=True):
    """How far a training is, as its driver says with each advance."""

    round: Count
    rounds: Count  # in all
    loss: float | None = None  # of the last round; None before the first, and for what is no number
    accuracy: float | None = None  # the last score
    best: float | None = None
    target: float | None = None
    rate: float = 0.0  # rounds a second, evaluations left out
    seconds: Seconds = 0.0  # of training so far
    target_seconds: float | None = None  # until the target, as scores go; None while nobody can tell


class Advance(Message, frozen=True, tag="advance"):
    """Apply, at once, if and only if `from_seq` is the job's cursor; the answer is `Advanced`."""

    job: JobId
    from_seq: Count
    to_seq: Count
    create: Created = msgspec.field(default_factory=list)
    finish: bool = False  # no shard will be made after these
    durable: bool = True  # False, of a job of rounds: nothing is stored, and the cursor stays where it is
    sheet: Sheet = ""  # digest of a file below jobs/JOB/rounds/ that each of these reads, whole before this is said
    base: Sheet = ""  # a sheet that jobs/JOB/rounds/SHEET.patch makes this one of, for machines that have it
    retire: Ranges = msgspec.field(default_factory=list)  # shards of rounds that nobody wants any more
    news: TrainNews | None = None  # for people
    aside: bool = False  # these are beside the rounds: how long they take tells nothing of what a round's shards do


# --- answers ----------------------------------------------------------------------------------------------


class Problem(Message, frozen=True, tag="problem"):
    """No, and why; `exit_code` is that of a class in `muster.jobs.common.errors`."""

    message: Text
    hint: Text
    exit_code: Annotated[int, Meta(ge=1, le=255)]


class Done(Message, frozen=True, tag="done"):
    """It is so now. `said` is one line for people."""

    said: Text = ""


class Submitted(Message, frozen=True, tag="submitted"):
    job: JobId


LARGEST = 1 << 53  # of a Count
LONGEST = 1e10  # of Seconds
_S = TypeVar("_S", bound=msgspec.Struct)


def bounded(value: _S) -> _S:
    """The same, no number of it beyond what the wire takes: machines report what they like, and it is added up."""
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    large: dict[str, float] = {name: LARGEST for name, n in fields.items() if isinstance(n, int) and n > LARGEST}
    large |= {name: LONGEST for name, n in fields.items() if isinstance(n, float) and n > LONGEST}
    return msgspec.structs.replace(value, **large) if large else value


class Tally(msgspec.Struct, frozen=True):
    """Shards counted by what they are now. shards = committed + finished + running + pending + quarantined."""

    shards: Count = 0
    committed: Count = 0
    finished: Count = 0  # on agents, not committed yet
    running: Count = 0  # granted: in a slot or waiting on its agent
    pending: Count = 0
    quarantined: Count = 0
    rows: Count = 0
    rows_committed: Count = 0
    in_bytes: Count = 0  # of all shards
    out_bytes: Count = 0  # of all shards where that is known, else 0
    out_committed: Count = 0  # bytes of output in committed bundles


class LayerStatus(msgspec.Struct, frozen=True):
    name: LayerName
    state: LayerState
    tally: Tally


class AgentRate(msgspec.Struct, frozen=True):
    """What one machine has done of one job, in this life of the daemon."""

    name: Name
    live: bool  # granted more of it if there is more: a live session, not draining, eligible
    slots: Count  # how many of its shards it can run at once
    running: Count  # granted to it, unfinished
    finished: Count  # finished on it, not committed
    shards: Count  # finished by it, in total
    rows: Count
    in_bytes: Count
    out_bytes: Count
    seconds: Seconds  # of compute per shard, a moving mean; 0 while unknown
    busy: Seconds  # compute seconds in total


class Window(msgspec.Struct, frozen=True):
    """What happened to a job during the last `seconds` while it was running (not paused): the ETA's rates."""

    seconds: Seconds = 0.0  # 0: nothing measured yet
    finished: Count = 0  # shards reported finished
    committed: Count = 0  # shards
    in_bytes: Count = 0  # of the finished
    out_bytes: Count = 0  # of the committed


class SlowShard(msgspec.Struct, frozen=True):
    """A shard that runs far longer than its job's finished ones, and that no timeout will end."""

    layer: LayerName
    number: Count
    agent: Name
    seconds: Seconds  # at work for so long, at least
    median: Seconds  # of the finished ones


class JobStatus(msgspec.Struct, frozen=True):
    id: JobId
    kind: Short
    state: JobState
    why: Text  # one line for any state but running and complete, else ""
    priority: int
    created: Seconds  # wall clock, since the epoch; so all times here
    started: Seconds | None  # the first grant
    ended: Seconds | None
    totals: Tally
    failures: Count  # stored attempts that failed
    layers: list[LayerStatus] = []  # only where one job was asked for
    layers_total: Count = 0
    layers_merged: Count = 0
    agents: list[AgentRate] = []
    recent: Window = Window()  # about the last minute
    whole: Window = Window()  # since the daemon started, or the job if later
    merged_bytes: Count = 0  # output merged, in this life of the daemon
    merge_seconds: Seconds = 0.0  # that it took
    training: TrainNews | None = None  # where it is one that has begun
    slow: list[SlowShard] = []  # at most one a machine, the longest at work first
    notes: list[Text] = []  # lines for people: nobody is eligible and why, the root is full, a source changed
    plan: Short = ""  # the digest of its plan

    @property
    def is_over(self) -> bool:
        """Whether it will not go on by itself."""
        return self.state in ENDED or self.state == "halted"


class Status(Message, frozen=True, tag="status"):
    now: Seconds  # the daemon's clock, to which all times compare
    version: Short
    agents: Count  # live ones
    jobs: list[JobStatus]  # oldest first
    notes: list[Text] = msgspec.field(default_factory=list)  # of the farm: the root is full, say


class AgentStatus(msgspec.Struct, frozen=True):
    name: Name
    host: Short
    state: AgentState
    last_seen: Seconds  # wall clock
    cpus: Count
    running: Count  # shards granted, unfinished
    finished: Count  # finished, not committed
    done: Count  # shards committed from it, in this life of the daemon
    in_bytes: Count
    out_bytes: Count
    fingerprint: Text
    version: Short
    note: Text = ""
    ineligible: dict[JobId, Text] = {}  # running jobs it takes no part in, and why


class Agents(Message, frozen=True, tag="agents"):
    now: Seconds
    agents: list[AgentStatus]  # by name


class FailureRecord(msgspec.Struct, frozen=True):
    """One attempt that failed, or a loss that quarantined."""

    layer: LayerName
    number: Count
    boot: Count
    attempt: Count
    agent: Short
    when: Seconds
    code: Short
    message: Text
    evidence: Text
    seconds: Seconds
    peak: Count
    quarantined: bool  # the shard is, now


class Happening(msgspec.Struct, frozen=True):
    """Something that became of a shard."""

    when: Seconds  # wall clock
    said: Text  # one line
    evidence: Text = ""


class Explained(Message, frozen=True, tag="explained"):
    """How things stand with a machine, a job or a shard, and how they came to."""

    about: Text
    lines: list[Text]
    happenings: list[Happening] = msgspec.field(default_factory=list)  # oldest first
    since: Seconds = 0.0  # before that, only failures and commits are remembered
    merged: bool = False  # the table beside the layer's result says who computed it


class Failures(Message, frozen=True, tag="failures"):
    total: Count  # that match; `items` may be fewer
    items: list[FailureRecord]


class Used(Message, frozen=True, tag="used"):
    free: Count  # bytes, of the root's file system
    reserved: Count  # bytes promised to open layers and not written yet


class Commit(msgspec.Struct, frozen=True):
    """Shards that were committed together."""

    seq: Count  # grows with every commit of the farm
    layer: LayerName
    file: Short  # their bundle, below jobs/JOB/bundles/ until the layer is merged
    numbers: Ranges


class Commits(Message, frozen=True, tag="commits"):
    items: list[Commit]  # in order of commit, at most a page
    over: bool  # there will be no more unless the job is retried


class DriveState(Message, frozen=True, tag="drivestate"):
    """All that a driver needs to go on from wherever the last one was."""

    kind: Short
    params: dict[str, Any]
    layer: LayerName
    cursor: Count
    created: Ranges  # shard numbers
    committed: Ranges
    quarantined: Ranges
    finished: bool  # no more shards will be made
    ended: bool  # the job was cancelled or has ended: the driver exits
    bundles: list[Text]  # files under jobs/JOB/bundles/, of rounds jobs/JOB/rounds/, after `known`, in order of commit
    seen: Count  # what to pass as `known`
    more: bool = False  # there are further bundles already
    next: Count = 0  # the number of the shard to be made next
    digest: Text = ""  # the layer's
    rounds: bool = False  # nothing that is made is stored, and bundles are the driver's to delete


class Advanced(Message, frozen=True, tag="advanced"):
    seq: Count  # the cursor now
    accepted: bool


FromCommand = (
    Submit
    | StatusAsk
    | AgentsAsk
    | Cancel
    | Pause
    | Resume
    | Priority
    | Remove
    | Retry
    | Drain
    | Kick
    | ExplainAgent
    | ExplainJob
    | ExplainShard
    | FailuresAsk
    | Usage
    | CommitsAsk
    | Stop
    | DriveOpen
    | DriveWait
    | DriveDamaged
    | DriveGivenUp
    | Advance
)
ToCommand = Problem | Done | Submitted | Status | Agents | Explained | Failures | Used | Commits | DriveState | Advanced


def problem_of(error: MusterError) -> Problem:
    """How an error of ours goes to the one who asked."""
    return Problem(error.message[:4096], error.hint[:4096], error.exit_code)
