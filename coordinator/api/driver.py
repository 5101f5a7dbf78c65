"""What a job's driver asks of the daemon, and its answers. Values: no I/O, no decisions."""

from __future__ import annotations

from typing import Any

import msgspec

from muster.coordinator.api.status import Progress
from muster.coordinator.api.values import BundleFile, Created, Histogram, JobId, LayerName, Sheet
from muster.coordinator.protocol.control import Failure
from muster.coordinator.protocol.values import Count, Message, Ranges, Seconds, Short, Text

# --- questions of drivers ---------------------------------------------------------------------------------


class DriveOpen(Message, frozen=True, tag="driveopen"):
    """Become the driver of `job`; refused while another connection is. The answer is `DriveState` with every bundle's
    first page; the driver is one until its connection closes."""

    job: JobId
    goes_on: bool = False  # without shards of rounds that are given up: `DriveState` names them; else they halt the job


class DriveWait(Message, frozen=True, tag="drivewait"):
    """Answered with `DriveState` once there are bundles after `known`, the job has ended, or `wait` has passed."""

    job: JobId
    known: Count  # `DriveState.seen` of the last answer
    wait: Seconds = 0.0


class DriveGivenUp(Message, frozen=True, tag="drivegivenup"):
    """There is no going on, and another driver would find it so too: the job is halted. The answer is `Done`."""

    job: JobId
    why: Text


class DriveFailed(Message, frozen=True, tag="drivefailed"):
    """What came of a shard says that what it tried failed, with the evidence: it is kept with that of shards that
    failed, and counts against none. The answer is `Done`."""

    job: JobId
    agent: Short  # where it ran
    failure: Failure


class DriveDamaged(Message, frozen=True, tag="drivedamaged"):
    """A committed bundle cannot be read as its digests say: its shards run again. The answer is `Done`."""

    job: JobId
    bundle: BundleFile


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
    progress: Progress | None = None  # for people
    aside: bool = False  # these are beside the rounds: how long they take tells nothing of what a round's shards do
    near: Short = ""  # the machine that has what these read already: it gets them first
    took: Histogram | None = (
        None  # of what the driver's own clients had done since; None: how long shards take is measured
    )


class GivenUp(msgspec.Struct, frozen=True):
    """A shard that nobody is going to run again."""

    number: Count
    why: Text
    evidence: Text = ""
    code: Short = "lost"  # of its last failure, where it failed
    agent: Short = ""  # that failed there


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
    slots: Count = 0  # shards of this job that the machines now here run at once
    given_up: list[GivenUp] = msgspec.field(default_factory=list)  # of rounds, those that are not retired yet
    attempts: Count = 3  # at what may fail; this and the next as they are set now
    max_failures: Count = 1  # of what was given up, and the job halts
    retried: Seconds = 0.0  # when somebody last had what failed run again; 0 for never


class Advanced(Message, frozen=True, tag="advanced"):
    seq: Count  # the cursor now
    accepted: bool
