"""What a session's client and its driver say to each other. Values: no I/O, no decisions. Behind some come bytes."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from muster.coordinator.api.values import Histogram
from muster.coordinator.protocol.values import Count, Digest, Message, Name, Short, Text

BATCH_BYTES = 8 << 20  # of a batch at most, as it is one message to the daemon; what is larger is laid out apart
Batches = Annotated[list[Count], Meta(max_length=65_536)]
Digests = Annotated[list[Digest], Meta(max_length=65_536)]

# --- what clients say ---------------------------------------------------------------------------------------


class OpenCalls(Message, frozen=True, tag="opencalls"):
    """Be the session's client, in place of an earlier line of the same one. The answer is `CallsOpened`."""

    client: Name
    awaited: Batches  # what it was sent and has not answered


class Blob(Message, frozen=True, tag="blob"):
    """So many bytes follow, which batches name by their digest until it is forgotten."""

    digest: Digest
    nbytes: Count


class CallBatch(Message, frozen=True, tag="callbatch"):
    """So many bytes follow, which say what to call. Beside them it reads `blobs`, one after the other."""

    number: Count  # the client's own; never used twice in a session
    nbytes: Annotated[int, Meta(ge=0, le=BATCH_BYTES)]
    calls: Count
    blobs: Digests = msgspec.field(default_factory=list)


class Withdraw(Message, frozen=True, tag="withdraw"):
    """Nobody waits for these any more."""

    batches: Batches


class ForgetBlobs(Message, frozen=True, tag="forgetblobs"):
    """No batch that comes reads these."""

    digests: Digests


class CallsTook(Message, frozen=True, tag="callstook"):
    """So long calls took that are done since the last word of it, from when they were submitted."""

    seconds: Histogram


class EndCalls(Message, frozen=True, tag="endcalls"):
    """There will be no more: the job ends, and with it the line, after `CallsOver`."""


# --- what the driver says -----------------------------------------------------------------------------------


class CallsOpened(Message, frozen=True, tag="callsopened"):
    known: Batches  # of those awaited: they are under way, or their results follow
    blobs: Digests
    slots: Count


class SlotsNow(Message, frozen=True, tag="slotsnow"):
    """So many batches the machines that are here run at once."""

    slots: Count


class Answered(Message, frozen=True, tag="answered"):
    """So many bytes follow: what came of a batch."""

    batch: Count
    machine: Short
    nbytes: Count


class BatchFailed(Message, frozen=True, tag="batchfailed"):
    """No machine is tried with a batch any more."""

    batch: Count
    code: Short
    why: Text
    machine: Short = ""
    evidence: Text = ""


class CallsOver(Message, frozen=True, tag="callsover"):
    """The job has ended, or ends now."""


FromClient = OpenCalls | Blob | CallBatch | Withdraw | ForgetBlobs | CallsTook | EndCalls
FromDriver = CallsOpened | SlotsNow | Answered | BatchFailed | CallsOver
