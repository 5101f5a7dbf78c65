"""Every message between an agent and the coordinator, typed and bounded. Values only: no I/O, no decisions.

Control is a strict loop: the agent asks (`Hello`, `Sync`, `Leave`), the daemon answers one message to each.
Push is one too: `Offer` → `Accepted` → the body's raw bytes → `Settled`, or a `Refused` at either step.
Shard numbers travel as sorted, disjoint, half-open ranges; an attempt is the (boot, attempt) pair a grant carries.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from muster.jobs.common.errors import ProtocolError
from muster.jobs.common.validation import one_line
from muster.jobs.contract.plan import Environment, Layer, Output, Stamp, Work

PROTOCOL = 1
PROBE_LIMIT = 64 << 20  # bytes one `Probe` may ask for

Count = Annotated[int, Meta(ge=0, le=1 << 53)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e10)]
Short = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=16_384)]
Interval = Annotated[float, Meta(gt=0.0, le=86_400.0)]  # seconds; each is waited for, so none may be without end
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]  # `$` would let a newline follow
Farm = Annotated[str, Meta(pattern=r"\A([0-9a-f]{32})?\Z")]  # uuid of a root, "" where there is none yet
Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]
Range = tuple[Count, Count]
Ranges = Annotated[list[Range], Meta(max_length=65_536)]


class Message(msgspec.Struct, frozen=True, tag_field="t", tag="message"):
    """One message. Each class gives its tag itself: what goes over the wire stays whatever classes are called."""


# --- what the helper says first, and last ---------------------------------------------------------------


class Greeting(Message, frozen=True, tag="greeting"):
    """The first frame of every channel, sent before the daemon is asked anything."""

    protocol: int
    version: Short
    farm: Farm


class Bye(Message, frozen=True, tag="bye"):
    """The last frame: the helper exits now, and why."""

    reason: Text


class Rejected(Message, frozen=True, tag="rejected"):
    """An answer to anything: no. `code` is one of REJECTIONS."""

    code: Short
    message: Text
    hint: Text = ""


REJECTIONS = frozenset({"protocol", "name-taken", "fenced", "no-session", "bad-message", "not-allowed", "stopping"})


# --- control: agent → daemon ----------------------------------------------------------------------------


class Held(Message, frozen=True, tag="held"):
    """What an agent still has of one grant when it says hello."""

    job: Short
    layer: Digest
    boot: Count
    attempt: Count
    running: Ranges  # granted, not finished: started or waiting
    finished: Ranges  # committed locally, not acknowledged


class Failure(Message, frozen=True, tag="failure"):
    """One shard that failed here: `code` is exception, exit, signal, timeout, memory or output."""

    job: Short
    layer: Digest
    number: Count
    boot: Count
    attempt: Count
    code: Short
    message: Text  # one line
    evidence: Text  # traceback and the last lines of output
    seconds: Seconds
    peak: Count  # bytes


class Loss(Message, frozen=True, tag="loss"):
    """Shards an agent lost through no fault shown to be theirs."""

    job: Short
    layer: Digest
    boot: Count
    attempt: Count
    numbers: Ranges
    running: bool  # whether they were really running, and so may be to blame
    reason: Text


class Finished(Message, frozen=True, tag="finished"):
    """Shards of one grant committed locally, with what the report needs, summed over them."""

    job: Short
    layer: Digest
    boot: Count
    attempt: Count
    numbers: Ranges
    rows: Count
    compute: Seconds
    pull: Seconds
    in_bytes: Count
    out_bytes: Count
    peak: Count  # bytes, the largest


class Returned(Message, frozen=True, tag="returned"):
    """Shards handed back unstarted: a drain, or no room for them."""

    layer: Digest
    boot: Count
    attempt: Count
    numbers: Ranges


class Printed(msgspec.Struct, frozen=True):
    """What the user's code printed for a shard that is finished, cut to size."""

    layer: Digest
    number: Count
    boot: Count
    attempt: Count
    text: Text


class Hello(Message, frozen=True, tag="hello"):
    """Says who this is and all that it holds; the answer is `Welcome`. What a hello does not name is not held."""

    protocol: int
    version: Short
    name: Name
    spool: Short  # uuid of the spool
    process: Short  # uuid of this process; the same on every reconnection
    host: Short
    pid: Count
    cpus: Annotated[int, Meta(ge=1, le=4096)]
    memory: Count  # bytes its shards may use
    disk: Count  # bytes its spool may use
    kernels: dict[Name, Count]  # kind → kernel version
    fingerprint: Text
    python: Short
    in_place: bool = False  # reads sources where they are: inputs take none of its disk
    held: list[Held] = []
    failures: list[Failure] = []
    losses: list[Loss] = []
    packages: list[Short] = []  # those of `muster.jobs.contract.resources` that can be imported there
    gpus: Annotated[list[Short], Meta(max_length=1024)] = []  # labels of those it lends
    envs: Annotated[dict[Short, Environment], Meta(max_length=64)] = {}  # by name; "" is the agent's own


class Sync(Message, frozen=True, tag="sync"):
    """News since the last one, and a question for more work; the answer is `News`."""

    session: Count
    room: Count  # bytes of the disk budget not used and not reserved
    wait: Seconds = 0.0  # how long the daemon may hold its answer while it has nothing to say
    hungry: bool = True  # whether grants are wanted now
    finished: list[Finished] = []
    failures: list[Failure] = []
    losses: list[Loss] = []
    returned: list[Returned] = []
    changed: list[Digest] = []  # layers whose source is not what was planned
    change: Text = ""  # which file it was, of one of those
    busy: Seconds = 0.0  # core-seconds of work since the last one
    pushed: Count = 0  # bytes acknowledged since the last one
    pulled: Count = 0
    push_seconds: Seconds = 0.0
    note: Text = ""  # one line for people: why it takes no work, say
    printed: Annotated[list[Printed], Meta(max_length=1024)] = []
    unprinted: Count = 0  # shards whose prints are left out: there was too much to say
    lent: Annotated[int, Meta(ge=-1, le=4096)] = -1  # cpus that may be used now; 0: it is paused; -1: as its hello said
    counts: dict[Digest, Count] | None = None  # layer → how many shards of it are here, after what this says of them,
    # held or finished and not acknowledged; None: not said this time


class Leave(Message, frozen=True, tag="leave"):
    """Nothing is held any more, and no more is wanted; the answer is `Bye`."""

    session: Count


# --- control: daemon → agent ----------------------------------------------------------------------------


class LayerInfo(Message, frozen=True, tag="layerinfo"):
    """All an agent needs to run shards of a layer. Sent once per session, before its first grant."""

    job: Short
    layer: Layer
    work: Work


class Grant(Message, frozen=True, tag="grant"):
    """Run these. `payloads` has an entry per shard for layers whose shards are made."""

    job: Short
    layer: Digest
    boot: Count
    attempt: Count
    numbers: Ranges
    payloads: dict[int, bytes] = {}
    sheets: dict[Digest, Ranges] = {}  # what shards of rounds read beside their payloads: digest → which


class Drop(Message, frozen=True, tag="drop"):
    """Forget these of that attempt unless they are finished: revoked, cancelled or superseded."""

    layer: Digest
    boot: Count
    attempt: Count
    numbers: Ranges


class Committed(Message, frozen=True, tag="committed"):
    """These are committed, by whomever: their parts may go."""

    layer: Digest
    numbers: Ranges


class Welcome(Message, frozen=True, tag="welcome"):
    """The session's number and its timing; then the same news a `Sync` would get."""

    farm: Farm
    boot: Count
    session: Count
    lease: Interval
    heartbeat: Interval
    drops: list[Drop] = []
    committed: list[Committed] = []
    gone: list[Digest] = []  # layers of no job any more: whatever is held of them may go


class News(Message, frozen=True, tag="news"):
    """What changed for this agent. Everything in it may be said twice without harm."""

    layers: list[LayerInfo] = []
    grants: list[Grant] = []
    drops: list[Drop] = []
    committed: list[Committed] = []
    gone: list[Digest] = []
    drain: bool = False  # hand back, finish, push, leave


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


class Accepted(Message, frozen=True, tag="accepted"):
    """Send the body now."""

    token: Count


class Settled(Message, frozen=True, tag="settled"):
    """Committed and durable: the parts may go."""

    numbers: Ranges


class Refused(Message, frozen=True, tag="refused"):
    """No. `code`: committed (rebuild without `numbers`), gone, full, outputs, kernels, corrupt, no-session; changed
    (of a pull: the source is not what was planned)."""

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
    """Exactly so many raw bytes follow, and then a `Sent`."""

    nbytes: Count


class Sent(Message, frozen=True, tag="sent"):
    """Whether the file was, before and after, what the plan says it is; else what came is worth nothing."""

    unchanged: bool


# --- push helper → daemon --------------------------------------------------------------------------------


class Attach(Message, frozen=True, tag="attach"):
    """First frame of a helper on the daemon's socket: what it is, and the name sshd's forced command pins it to."""

    role: Short  # control | push | pull | round
    pinned: Short = ""


class Stored(Message, frozen=True, tag="stored"):
    """The bundle of `token` is in `bundles/`, synced; its rows may be inserted."""

    token: Count
    nbytes: Count  # of the file


class Failed(Message, frozen=True, tag="failed"):
    """The bundle of `token` did not arrive whole, or could not be written."""

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


FromAgent = Hello | Sync | Leave
ToAgent = Welcome | News | Rejected | Bye
FromPusher = Offer
FromFollower = Follow
ToFollower = Sheet | NotYet | Refused | Rejected | Bye
FromPuller = Fetch | FetchCode | Probe
ToPuller = Sending | Sent | Refused | Rejected | Bye
ToPusher = Accepted | Settled | Refused | Rejected | Bye
FromHelper = Attach | Hello | Sync | Leave | Offer | Stored | Failed | Moved | Fetch | FetchCode | Probe | Follow

_encoder = msgspec.msgpack.Encoder()
_T = TypeVar("_T")


def encode(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message)


class Decoder:
    """Decodes one closed set of messages; anything else is a ProtocolError of one line."""

    def __init__(self, types: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(types)

    def __call__(self, payload: bytes) -> Message:
        try:
            return self._decoder.decode(payload)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise ProtocolError(f"a message that is not of the protocol: {one_line(str(error))}") from None
