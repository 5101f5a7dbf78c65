"""What is said on the channels that move bytes: push, pull, rounds, and helpers with the daemon. Values only.

Push is a strict loop: `Offer` → `Accepted` → the body's raw bytes → `Settled`, or a `Refused` at either step.

The raw bytes of a body are made by jobs/results/bundle.py, sent by agent/channels/push.py and taken by
connect/serve_push.py.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from muster.coordinator.protocol.control import Bye, Hello, Leave, Rejected, Sync
from muster.coordinator.protocol.values import (
    PIECES_MOST,
    Bucket,
    Count,
    Digest,
    Farm,
    Message,
    Ranges,
    Seconds,
    Short,
    Text,
)
from muster.jobs.contract.plan import Output, Stamp

RefusalCode = Literal[
    "coming",  # these shards are being received: to be offered again later
    "changed",  # of a pull: the source is not what was planned
    "committed",  # of a bundle: to be built again without `numbers`
    "corrupt",  # it is not what it says, or was never to be
    "disk",  # it could not be written
    "folder",  # its job's would not take it: of a helper to the daemon, which looks whether that job is damaged
    "full",  # there is no room for it
    "gone",  # nobody wants it, or has it, any more
    "kernels",  # the job's results are of other kernels
    "later",  # nobody takes it now, and somebody will: to be kept, and offered again
    "no-session",  # this session has ended
    "outputs",  # they are not what the layer's first ones were
    "sender",  # of a bundle: its header names another machine than sends it, or numerics that this one never told of
]

NAMES_MOST = 64  # agents that a bundle's header may name

# --- push ------------------------------------------------------------------------------------------------


class Offer(Message, frozen=True, tag="offer"):
    """A bundle's header, judged before its body. `index` is the encoded `muster.jobs.parts.part_file.Index`."""

    session: Count
    layer: Digest
    numbers: Ranges
    outputs: list[Output]
    index: bytes
    nbytes: Count  # of the body that will follow
    fingerprint: Text = ""  # of the index, as the helper read it there
    eager: bool = False  # the body follows at once, and the one answer comes after it
    file: Text = ""  # where body, index and tail lie instead, in the folder that the helper was started with; if eager
    agents: Annotated[list[Short], Meta(max_length=NAMES_MOST)] = []  # of the index, likewise


class Accepted(Message, frozen=True, tag="accepted"):
    """Send the body now."""

    token: Count


class Settled(Message, frozen=True, tag="settled"):
    """Committed and durable: the parts may go."""

    numbers: Ranges


class Refused(Message, frozen=True, tag="refused"):
    """No. `code` is a RefusalCode, or a newer peer's."""

    code: Short
    numbers: Ranges = []
    message: Text = ""


# --- pull ------------------------------------------------------------------------------------------------


class Fetch(Message, frozen=True, tag="fetch"):
    """The input of one shard, from byte `start` of it on; the answer is `Sending` or `Refused`."""

    session: Count
    layer: Digest
    number: Count
    start: Count = 0
    limit: Count = 0  # how many bytes at most, where not all the rest is wanted at once; 0: all
    digests: Annotated[list[Digest], Meta(max_length=PIECES_MOST)] = []  # xxh3_128 of what the agent has of each piece


class FetchCode(Message, frozen=True, tag="fetchcode"):
    """The pack of a user's files, or a model, for any job this session was told of."""

    session: Count
    code: Digest
    start: Count = 0
    limit: Count = 0  # as in `Fetch`


class Follow(Message, frozen=True, tag="follow"):
    """What do this session's shards of rounds read that it does not have? The answer is a `Sheet`, once there is one,
    or a `NotYet` before the heartbeat is over."""

    session: Count
    layer: Digest
    have: Annotated[list[Digest], Meta(max_length=256)] = []


class NotYet(Message, frozen=True, tag="notyet"):
    """Ask again."""


class Sheet(Message, frozen=True, tag="sheet"):
    """Exactly so many raw bytes follow: the sheet of that digest, or with `base` what makes it of that one."""

    sheet: Digest
    nbytes: Count
    base: Farm = ""


class Laid(Message, frozen=True, tag="laid"):
    """The daemon's answer to a helper's `Follow`: the file that it may send."""

    path: Text
    sheet: Digest
    base: Farm = ""


class Probe(Message, frozen=True, tag="probe"):
    """How fast is the link, and does the coordinator answer: so many bytes that mean nothing, as with `Fetch`. Wants no
    session. `name`: who would join, if it is to be known whether this key may speak for it. Between helper and daemon
    the answer is a `Probe` of as many bytes as may be sent."""

    nbytes: Count = 0
    name: Short = ""


class Sending(Message, frozen=True, tag="sending"):
    """Exactly so many raw bytes follow, and then a `Sent`. Of a `Fetch` with digests they come piece by piece, each
    behind a `Sending` of its own, which says 0 where the agent has the piece already."""

    nbytes: Count


class Sent(Message, frozen=True, tag="sent"):
    """Whether the file was, before and after, what the plan says it is; else what came is worth nothing."""

    unchanged: bool


# --- push helper → daemon --------------------------------------------------------------------------------


class Attach(Message, frozen=True, tag="attach"):
    """First frame of a helper on the daemon's socket: what it is, and the name sshd's forced command pins it to."""

    role: Short  # control | push | pull | round
    pinned: Short = ""


class BundleFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a bundle's index says of its shards, added up; `coordinator/figures/histogram.py` has the buckets."""

    rows: Count = 0
    in_bytes: Count = 0
    out_bytes: Count = 0
    seconds: Seconds = 0.0  # of compute
    peak: Count = 0  # bytes of memory, the largest
    spread: Annotated[dict[Bucket, Count], Meta(max_length=1024)] = {}  # seconds of a shard → shards
    peaks: Annotated[dict[Bucket, Count], Meta(max_length=1024)] = {}  # bytes of memory → shards
    slowest: Annotated[list[tuple[Count, Seconds]], Meta(max_length=10)] = []  # number and seconds, the slowest first


class Stored(Message, frozen=True, tag="stored"):
    """The bundle of `token` is in `bundles/`, synced; its rows may be inserted."""

    token: Count
    nbytes: Count  # of the file
    figures: BundleFigures | None = None  # None: of a helper that makes none


class Failed(Message, frozen=True, tag="failed"):
    """The bundle of `token` did not arrive whole, or could not be written; by code "folder", as the job's folder would
    not take it."""

    token: Count
    code: Short
    message: Text


class Take(Message, frozen=True, tag="take"):
    """The daemon's answer to a helper's `Offer`: write the body to `tmp`, rename it to `file`, say `Stored`."""

    token: Count
    tmp: Text
    file: Text
    rows: Count  # of the layer; 0 where shards are made
    shard_rows: Count
    counts: list[Count] = []  # rows of each shard offered, where they follow no rule
    durable: bool = True  # else written as `file` at once, and never synced


class Readable(Message, frozen=True, tag="readable"):
    """The daemon's answer to a helper's `Fetch`: the run of bytes it may send."""

    path: Text
    offset: Count
    nbytes: Count
    stamp: Stamp | None  # None: a file of ours, which nobody changes


class ReadableItems(Message, frozen=True, tag="readableitems"):
    """The same where it is items: records of the list, then the files below `folder` that they name; of all of that
    `limit` bytes from byte `start` on."""

    path: Text  # of the list
    offset: Count
    listed: Count  # bytes of the records
    nbytes: Count  # of everything
    folder: Text  # "" for lines of a table
    start: Count
    limit: Count


class Moved(Message, frozen=True, tag="moved"):
    """Bytes are still moving on this session's bulk channel; no answer."""

    session: Count


FromFollower = Follow
ToFollower = Sheet | NotYet | Refused | Rejected | Bye
FromPuller = Fetch | FetchCode | Probe
ToPuller = Sending | Sent | Refused | Rejected | Bye
ToPusher = Accepted | Settled | Refused | Rejected | Bye
FromHelper = Attach | Hello | Sync | Leave | Offer | Stored | Failed | Moved | Fetch | FetchCode | Probe | Follow
