"""What was measured of a job, as figures.sqlite keeps it and the daemon tells it. Values: no I/O.

Every field has a default: what an older version kept is read, and what a newer one kept beside is left out.
"""

from __future__ import annotations

import msgspec

from muster.coordinator.api.status import Tally
from muster.coordinator.protocol.control import JobAccount, MachineAccount
from muster.coordinator.protocol.values import Message

SLOWEST_KEPT = 10
TROUBLES_KEPT = 100
EVENTS_KEPT = 400


def spent_as(state: str) -> str:
    """Which of `JobFiguresKept` the seconds of a job in this state are counted in."""
    return state if state in ("running", "waiting") else "held"


class JobEvent(msgspec.Struct):
    """Something that became of a job or of its machines."""

    at: float = 0.0  # wall clock
    what: str = ""  # joined | left | gone | state | restart | uncommitted
    machine: str = ""
    said: str = ""


class Slowest(msgspec.Struct):
    seconds: float = 0.0
    layer: str = ""
    number: int = 0
    agent: str = ""


class Trouble(msgspec.Struct):
    """Attempts that failed alike: one code, and one message but for its numbers."""

    code: str = ""
    line: str = ""  # the message, with # in place of each number
    count: int = 0
    first: float = 0.0
    last: float = 0.0
    agents: list[str] = []
    layer: str = ""  # of the example, as the next four
    number: int = 0
    message: str = ""
    evidence: str = ""


class MachineFigures(msgspec.Struct):
    """What one machine did of one job."""

    agent: str = ""
    cpus: int = 0
    in_place: bool = True
    budget: int = 0  # bytes of memory that its shards may take; 0: not known
    accounted: bool = False  # whether it ever told where its time goes; older agents do not
    # core-seconds while it could work for the job, and the job ran; the states are of cores that ran nothing
    lent: float = 0.0
    elsewhere: float = 0.0  # busy for other jobs
    present: float = 0.0  # seconds
    cut_off: float = 0.0
    starting: float = 0.0
    memory: float = 0.0
    input: float = 0.0
    room: float = 0.0
    no_work: float = 0.0
    paused: float = 0.0
    # of this job alone
    busy: float = 0.0  # core-seconds, with those wasted
    wasted: float = 0.0
    processor: float = 0.0
    in_bytes: int = 0
    spared: int = 0
    in_seconds: float = 0.0
    out_bytes: int = 0
    out_seconds: float = 0.0
    disk_bytes: int = 0
    peak: int = 0  # bytes of memory, of its shards together
    shard_peak: int = 0  # bytes, of the largest shard
    committed: int = 0
    committed_bytes: int = 0
    rows: int = 0
    read_bytes: int = 0  # of input, by committed shards
    later: dict[int, int] = {}  # attempt of a shard → committed by that one; of the second and all after it
    failed: int = 0
    lost: int = 0
    kills: int = 0  # for memory
    bins: dict[str, bytes] = {}
    process: str = ""  # the agent's, of which these are the last totals
    last: MachineAccount | None = None  # without its jobs
    last_job: JobAccount | None = None
    at: float = 0.0  # when they came


class JobFiguresKept(msgspec.Struct):
    """What was measured of one job, but for its machines."""

    job: str = ""
    kind: str = ""
    state: str = "running"
    why: str = ""
    version: str = ""
    created: float = 0.0
    started: float | None = None  # the first grant
    ended: float | None = None
    first_commit: float | None = None
    first_layer: float | None = None
    last_commit: float | None = None
    running: float = 0.0  # seconds; of these four the last stretch, which is not over, is not in it
    waiting: float = 0.0  # for other jobs
    held: float = 0.0  # paused or halted
    away: float = 0.0  # without a coordinator
    since: float | None = None  # the last stretch's beginning
    at: float = 0.0  # when this was written
    restarts: int = 0
    measured: int = 0  # shards that are in `spread`: what was committed since the last word before a kill is not
    compute: float = 0.0
    spread: dict[int, int] = {}
    waits: dict[int, int] = {}  # of shards that a driver made, from then to their commit; of calls, from submit to done
    peaks: dict[int, int] = {}
    slowest: list[Slowest] = []
    troubles: list[Trouble] = []
    events: list[JobEvent] = []
    events_left_out: int = 0
    width: float = 1.0  # seconds of a bin
    totals: Tally = Tally()
    layers_total: int = 0
    layers_merged: int = 0
    failures: int = 0
    notes: list[str] = []


class JobLine(msgspec.Struct):
    """Of one job, what a table of jobs shows: those fields of `JobFiguresKept`, by the same names."""

    job: str = ""
    kind: str = ""
    state: str = "running"
    why: str = ""
    created: float = 0.0
    started: float | None = None
    ended: float | None = None
    at: float = 0.0
    totals: Tally = Tally()
    layers_total: int = 0
    layers_merged: int = 0
    failures: int = 0


class Figures(Message, frozen=True, tag="figures"):
    """What was measured of a job; None where nothing is kept of it."""

    job: JobFiguresKept | None
    machines: list[MachineFigures]
    trouble: str = ""  # why the file cannot be written, or was begun anew
