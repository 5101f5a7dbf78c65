"""What agent and coordinator say on the control channel, typed and bounded. Values only: no I/O, no decisions.

A strict loop: the agent asks (`Hello`, `Sync`, `Leave`), the daemon answers one message to each. Shard numbers travel
as sorted, disjoint, half-open ranges; an attempt is the (boot, attempt) pair a grant carries.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from muster.coordinator.protocol.values import (
    Count,
    Digest,
    Farm,
    Interval,
    Message,
    Name,
    Numbers,
    Ranges,
    Seconds,
    Short,
    Text,
    check_canonical,
)
from muster.jobs.contract.plan import Environment, Layer, Work

RejectionCode = Literal["protocol", "name-taken", "fenced", "no-session", "bad-message", "not-allowed", "stopping"]


Places = Annotated[dict[Short, Count], Meta(max_length=256)]


# --- what the helper says first, and last ---------------------------------------------------------------


class Greeting(Message, frozen=True, tag="greeting"):
    """The first frame of every channel, sent before the daemon is asked anything."""

    protocol: int
    version: Short
    farm: Farm
    control_bytes: Count = 0  # of one frame that the agent sends on the control channel, at most; 0: as any frame's
    compares: bool = False  # of a pull channel: whether a `Fetch` may name digests


class Bye(Message, frozen=True, tag="bye"):
    """The last frame: the helper exits now, and why."""

    reason: Text


class Rejected(Message, frozen=True, tag="rejected"):
    """An answer to anything: no. `code` is a RejectionCode, or a newer peer's."""

    code: Short
    message: Text
    hint: Text = ""


# --- control: agent → daemon ----------------------------------------------------------------------------


class Held(Message, frozen=True, tag="held"):
    """What an agent still has of one grant when it says hello."""

    job: Short
    layer: Digest
    boot: Count
    attempt: Count
    running: Ranges  # granted, not finished: started or waiting
    finished: Ranges  # committed locally, not acknowledged

    def __post_init__(self) -> None:
        check_canonical(self.running)
        check_canonical(self.finished)


class Failure(Message, frozen=True, tag="failure"):
    """One shard that failed here: `code` is one of `muster.jobs.contract.failure_codes`, or a newer peer's."""

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

    def __post_init__(self) -> None:
        check_canonical(self.numbers)


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

    def __post_init__(self) -> None:
        check_canonical(self.numbers)


class Returned(Message, frozen=True, tag="returned"):
    """Shards handed back unstarted: a drain, or no room for them."""

    layer: Digest
    boot: Count
    attempt: Count
    numbers: Ranges

    def __post_init__(self) -> None:
        check_canonical(self.numbers)


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
    kernels: Numbers  # kind → kernel version
    fingerprint: Text
    python: Short
    in_place: bool = False  # reads sources where they are: inputs take none of its disk
    held: list[Held] = []
    failures: list[Failure] = []
    losses: list[Loss] = []
    packages: Annotated[
        list[Short], Meta(max_length=1024)
    ] = []  # those of `muster.jobs.contract.requirements` that can be imported there
    gpus: Annotated[list[Short], Meta(max_length=1024)] = []  # labels of those it lends
    envs: Annotated[dict[Short, Environment], Meta(max_length=64)] = {}  # by name; "" is the agent's own
    kinds: Annotated[list[Name], Meta(max_length=256)] = []  # those alone that it takes; []: all of `kernels`
    no_code: bool = False  # it runs nothing that a submitter wrote
    names_rest: bool = False  # its parts' fingerprints name what `Work.rests_on` has; an older agent's do not
    unfit: Annotated[dict[Name, Text], Meta(max_length=256)] = {}  # kinds that it computes wrong → how that shows
    answers: Annotated[
        dict[Name, tuple[Digest, Digest]], Meta(max_length=256)
    ] = {}  # kind → digests of its problem with a known answer, and of the bits of the answer found here
    have: Short = ""  # the folder there with a copy of sources, for people
    machine: Short = ""  # the same of all agents on one machine, whichever users they are of; "": not told
    cores: Count = 0  # processors that this machine has, lent or not
    sets_variables: bool = False  # it gives users' code the `variables` of a job; an older agent leaves them out
    no_rounds: bool = False  # it is a cluster whose workers take calls alone, and so no jobs in rounds


class JobAccount(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job took of a machine since the agent's process began: totals, so that none is lost or counted twice."""

    job: Short
    busy: Seconds = 0.0  # core-seconds, of whatever came of it
    wasted: Seconds = 0.0  # core-seconds of what gave nothing that counts: it failed, was killed, or was overtaken
    processor: Seconds = 0.0  # that its processes used, as far as that was seen
    in_bytes: Count = 0  # inputs, model and code that came over the link
    spared: Count = 0  # bytes of input that a copy here had
    in_seconds: Seconds = 0.0  # that these took
    out_bytes: Count = 0  # results acknowledged
    out_seconds: Seconds = 0.0
    disk_bytes: Count = 0  # written to its spool: inputs and results
    peak: Count = 0  # bytes of memory, the most that its shards took here together


# Of cores that are lent and run nothing; the first that fits counts.
IDLE_STATES = ("cut_off", "starting", "memory", "input", "room", "no_work")


class MachineAccount(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the core-seconds of a machine went since the agent's process began. Each core that is lent is in one state,
    the first that fits; those that are not lent are paused."""

    seconds: Seconds = 0.0  # since then
    busy: Seconds = 0.0
    cut_off: Seconds = 0.0  # nothing to run, and no link to be given some
    starting: Seconds = 0.0  # the pool of workers was not up
    memory: Seconds = 0.0  # held back for the memory of what runs
    input: Seconds = 0.0  # shards waited for their inputs
    room: Seconds = 0.0  # shards waited for room on the disk
    no_work: Seconds = 0.0
    paused: Seconds = 0.0
    memory_now: Count = 0  # bytes that all shards here take
    disk_now: Count = 0  # bytes in its spool
    processor: Seconds = 0.0  # of all jobs together, as the next two
    in_bytes: Count = 0
    out_bytes: Count = 0
    jobs: Annotated[list[JobAccount], Meta(max_length=64)] = []  # those that changed


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
    pull_seconds: Seconds = 0.0  # that `pulled` and `spared` took
    spared: Count = 0  # bytes of input that a copy here had, beside `pulled`
    narrowed: Annotated[dict[Short, Text], Meta(max_length=16)] = {}  # job → why fewer shards run than are lent for it
    account: MachineAccount | None = None  # None: not said this time
    places: Places | None = None  # of a cluster, its nodes with slots, and how many; None: not said this time


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
    retired: bool = False  # nobody does them instead: what runs of them is in the way of other work


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
    differs: Annotated[dict[Name, Text], Meta(max_length=256)] = {}  # kinds that it gets no work of, as the bits of its
    #   answer are not those of machines alike → what differs


class News(Message, frozen=True, tag="news"):
    """What changed for this agent. Everything in it may be said twice without harm."""

    layers: list[LayerInfo] = []
    grants: list[Grant] = []
    drops: list[Drop] = []
    committed: list[Committed] = []
    gone: list[Digest] = []
    drain: bool = False  # hand back, finish, push, leave
    differs: Annotated[dict[Name, Text], Meta(max_length=256)] | None = None  # as in `Welcome`; None: as last said


FromAgent = Hello | Sync | Leave
ToAgent = Welcome | News | Rejected | Bye
