"""What the daemon tells of jobs, layers, machines and failures. Values: no I/O, no decisions."""

from __future__ import annotations

import msgspec

from muster.coordinator.api.values import JobId, LayerName
from muster.coordinator.protocol.values import Count, Message, Name, Ranges, Seconds, Short, Text
from muster.jobs.common.units import counted
from muster.jobs.contract.states import STANDING, AgentState, JobState, LayerState

# What to do about a source that changed: no retry takes it as it is now.
SUBMIT_AGAIN = "`coordinator submit --from {}` computes what changed as it is now, and takes over the rest"


class Progress(msgspec.Struct, frozen=True):
    """How far a job is in what its driver counts, as that says with each advance: all that others know of it."""

    done: Count
    total: Count
    unit: Short  # one of what is counted: "round"
    rate: float = 0.0  # of them a second; 0 while unknown
    left: Seconds | None = None  # until the end; None while nobody can tell
    left_text: Text = ""  # the same in words, where the time alone would not be true: "about 7.0 s to 0.95"
    took: Text = ""  # what the count took, in words: "3.0 s of training"
    facts: list[Text] = []  # in short, to stand in a line: "loss 0.4568"
    lines: list[Text] = []  # of the job's page, each with its label: "scores    loss 0.4568"
    numbers: dict[Short, float | None] = {}  # for programs


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
    bytes_in: Count = 0  # of all shards
    bytes_out: Count = 0  # of all shards where that is known, else 0
    bytes_committed: Count = 0  # bytes of output in committed bundles


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
    bytes_in: Count = 0  # an older coordinator has another name for it
    bytes_out: Count = 0
    seconds: Seconds = 0.0  # of compute per shard, a moving mean; 0 while unknown
    busy: Seconds = 0.0  # compute seconds in total


class Window(msgspec.Struct, frozen=True):
    """What happened to a job during the last `seconds` while it was running (not paused): the ETA's rates."""

    seconds: Seconds = 0.0  # 0: nothing measured yet
    finished: Count = 0  # shards reported finished
    committed: Count = 0  # shards
    bytes_in: Count = 0  # of the finished
    bytes_out: Count = 0  # of the committed
    rows: Count = 0  # of the finished


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
    bytes_merged: Count = 0  # output merged, in this life of the daemon
    merge_seconds: Seconds = 0.0  # that it took
    progress: Progress | None = None  # where its driver counts something else than shards
    slow: list[SlowShard] = []  # at most one a machine, the longest at work first
    notes: list[Text] = []  # lines for people: nobody is eligible and why, the root is full, a source changed
    plan: Short = ""  # the digest of its plan
    owner: Short = ""  # the second person whose job it is; "": whose farm it is
    of_submitter: Short = ""  # which function or command of its submitter it runs, as `Work` has it; "" for none

    def __repr__(self) -> str:
        return (
            f"<JobStatus {self.id}: {self.kind}, {self.state}, {self.totals.committed:,}/{self.totals.shards:,} shards>"
        )

    @property
    def is_over(self) -> bool:
        """Whether it will not go on by itself."""
        return self.state in STANDING


class Status(Message, frozen=True, tag="status"):
    now: Seconds  # the daemon's clock, to which all times compare
    version: Short
    agents: Count  # live ones
    jobs: list[JobStatus]  # oldest first
    notes: list[Text] = msgspec.field(default_factory=list)  # of the farm: the root is full, say
    silent: Seconds = 0.0  # for so long the daemon has not answered whoever repeats this
    left_out: Count = 0  # older ended jobs, of a brief answer


class AgentStatus(msgspec.Struct, frozen=True):
    name: Name
    host: Short
    state: AgentState
    last_seen: Seconds  # wall clock
    cpus: Count
    running: Count  # shards granted, unfinished
    finished: Count  # finished, not committed
    done: Count  # shards committed from it, of all jobs that are there
    bytes_in: Count = 0  # an older coordinator has another name for it
    bytes_out: Count = 0
    fingerprint: Text = ""
    version: Short = ""
    note: Text = ""
    ineligible: dict[JobId, Text] = {}  # running jobs it takes no part in, and why
    kinds: list[Name] = []  # those alone that it takes; []: all that it has
    no_code: bool = False  # it runs nothing that a submitter wrote
    in_place: bool = True  # it reads sources where they are; others pull them
    have: Short = ""  # the folder there with a copy of sources, where it has one
    bytes_pulled: Count = 0  # bytes of input that came over its link, for as long as it has had this copy, or none
    bytes_spared: Count = 0  # bytes that its copy had instead
    link_in: float = 0.0  # bytes of input a second that reach it, from its copy or over its link; 0: not measured
    link_out: float = 0.0  # bytes of results a second that it hands in; 0: not measured
    machine: Short = ""  # the same of all agents on one machine; "": not told
    cores: Count = 0  # processors that this machine has
    silent: Seconds = 0.0  # for how long nothing was heard of it, where that is long: it may be gone
    busy: float | None = (
        None  # of the cores it lends, over the last minute; as the next three None where it told nothing
    )
    processor: float | None = None  # cores that its shards really used
    in_rate: float | None = None  # bytes a second over its link
    out_rate: float | None = None
    memory_now: Count | None = None  # bytes that its shards take
    memory_budget: Count = 0  # bytes that they may take
    disk_now: Count | None = None  # bytes in its spool
    places: dict[Short, Count] = {}  # of a cluster, its nodes with slots, and how many

    def __repr__(self) -> str:
        doing = f"{self.state}, {counted(self.cpus, 'cpu')}, {self.running} running"
        return f"<AgentStatus {self.name[:40]} on {self.host[:20]}: {doing}>"


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

    def __repr__(self) -> str:
        return (
            f"<FailureRecord {self.layer[-30:]}/{self.number} on {self.agent[:20]}: {self.code}: {self.message[:40]!r}>"
        )


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


class MapRow(msgspec.Struct, frozen=True):
    """A layer, or some neighbours, in cells of as many shards each, but for the last. A cell's other shards wait."""

    name: Text
    shards: Count
    cell: Count  # shards of a cell
    committed: list[Count]  # by cell, as the next three
    finished: list[Count]
    running: list[Count]
    given_up: list[Count]


class ShardMap(Message, frozen=True, tag="shardmap"):
    """What the shards of a job are now, in their order. No larger for a million of them than for a thousand."""

    rows: list[MapRow]  # none where shards come in rounds


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
