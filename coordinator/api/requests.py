"""What commands ask of the daemon over the root's socket, and its plain answers. Values: no I/O, no decisions.

A strict loop of frames: one answer to each question; a connection may ask many. The first frame is the first question
(a helper's is `Attach`, see `muster.coordinator.protocol.transfer`). A `Problem` may answer anything. Jobs are named by
their full id. Everything is bounded by the layers of one job and the machines of the farm, never by the shards.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from muster.coordinator.api.driver import (
    Advance,
    Advanced,
    DriveDamaged,
    DriveFailed,
    DriveGivenUp,
    DriveOpen,
    DriveState,
    DriveWait,
)
from muster.coordinator.api.figures import Figures
from muster.coordinator.api.status import Agents, Commits, Explained, Failures, ShardMap, Status, Used
from muster.coordinator.api.values import FAILURES_LIMIT, JobId, LayerName, LayerNames, Submission, Weight
from muster.coordinator.protocol.values import Count, Message, Name, Seconds, Short, Text
from muster.jobs.common.errors import MusterError

# --- questions of commands --------------------------------------------------------------------------------


class Submit(Message, frozen=True, tag="submit"):
    """Take over ROOT/tmp/`folder`: job.yaml, plan.msgpack and perhaps code.pack. The answer is `Submitted`."""

    folder: Submission
    origin: JobId | None = None  # a job whose merged layers it takes over where they are the same


class StatusAsk(Message, frozen=True, tag="statusask"):
    """All jobs without their layers, or one job with them; the answer is `Status`."""

    job: JobId | None = None
    brief: bool = False  # of ended jobs the newest alone, without what each machine did; an older coordinator tells all
    rates: bool = True  # of a brief answer: with what each machine does of a job that runs, and keeps it from running


class AgentsAsk(Message, frozen=True, tag="agentsask"):
    """All machines, or one; the answer is `Agents`."""

    agent: Name | None = None
    brief: bool = False  # without what they compute as, and what they take nothing of while they are at work, which is
    #   most of it; an older coordinator tells all


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


class SetJob(Message, frozen=True, tag="setjob"):
    """Change what is named of a job that has not ended; a memory or timeout of 0 takes away what its file says."""

    job: JobId
    attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    max_failures: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    memory: Count | None = None  # bytes
    timeout: Seconds | None = None


class Remove(Message, frozen=True, tag="remove"):
    """Forget an ended job and delete its folder."""

    job: JobId


class Retry(Message, frozen=True, tag="retry"):
    """Run quarantined shards again (a halted job: all of its failed ones), or all shards of the named layers."""

    job: JobId
    layers: LayerNames | None = None


class Drain(Message, frozen=True, tag="drain"):
    agent: Name


class DropAgent(Message, frozen=True, tag="dropagent"):
    """A machine will not come back: what it has is waited for no longer. `force`: though it is heard of."""

    agent: Name
    force: bool = False


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
    evidence_of: Count = FAILURES_LIMIT  # of how many, the newest, the evidence is told


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


class ManifestsAsk(Message, frozen=True, tag="manifestsask"):
    """The digests of a job's manifests; the answer is `Manifests`."""

    job: JobId


class FiguresAsk(Message, frozen=True, tag="figuresask"):
    """What was measured of a job; the answer is `Figures`."""

    job: JobId


class MapAsk(Message, frozen=True, tag="mapask"):
    """What shards of a job are, from the first to the last; the answer is `ShardMap`."""

    job: JobId


LookQuestion = StatusAsk | AgentsAsk | ExplainAgent | ExplainJob | ExplainShard | FailuresAsk | FiguresAsk | MapAsk


class Look(Message, frozen=True, tag="look"):
    """A question of who goes on looking, and asks no oftener than the answer, which is `Looked`, allows."""

    question: LookQuestion


# --- answers ----------------------------------------------------------------------------------------------


class Problem(Message, frozen=True, tag="problem"):
    """No, and why; `exit_code` is that of a class in `muster.jobs.common.errors`."""

    message: Text
    hint: Text
    exit_code: Annotated[int, Meta(ge=1, le=255)]


class Looked(Message, frozen=True, tag="looked"):
    """What was asked, with what it took of the coordinator and what looking may take; seconds of processor time."""

    answer: msgspec.Raw
    took: Seconds
    rate: Seconds  # that all who look may take together, each second
    owed: float  # that they have taken beyond it; less than 0: as much may be taken at once


class Done(Message, frozen=True, tag="done"):
    """It is so now. `said` is one line for people."""

    said: Text = ""


class Submitted(Message, frozen=True, tag="submitted"):
    job: JobId


class Manifests(Message, frozen=True, tag="manifests"):
    """Layer's digest → its manifest's, of what is merged. Not of what was merged before they were kept."""

    layers: dict[Short, Short]


FromCommand = (
    Submit
    | StatusAsk
    | AgentsAsk
    | Cancel
    | Pause
    | Resume
    | Priority
    | SetJob
    | Remove
    | Retry
    | Drain
    | DropAgent
    | Kick
    | ExplainAgent
    | ExplainJob
    | ExplainShard
    | FailuresAsk
    | Usage
    | CommitsAsk
    | ManifestsAsk
    | FiguresAsk
    | MapAsk
    | Look
    | Stop
    | DriveOpen
    | DriveWait
    | DriveDamaged
    | DriveFailed
    | DriveGivenUp
    | Advance
)
ToCommand = (
    Problem
    | Done
    | Submitted
    | Status
    | Agents
    | Explained
    | Failures
    | Used
    | Commits
    | Manifests
    | Figures
    | ShardMap
    | Looked
    | DriveState
    | Advanced
)


def problem_of(error: MusterError) -> Problem:
    """How an error of ours goes to the one who asked."""
    return Problem(error.message[:4096], error.hint[:4096], error.exit_code)
