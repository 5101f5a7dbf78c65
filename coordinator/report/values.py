"""What a report says of a job, as `coordinator report --json` prints it. Values: no I/O, no decisions.

Seconds, bytes, core-seconds, and times since the epoch; None where nothing is known, never 0. docs/report.md has each.
"""

from __future__ import annotations

from typing import Any

import msgspec

from muster.coordinator.api.figures import JobEvent, Slowest, Trouble
from muster.coordinator.api.status import Tally


class ShardSeconds(msgspec.Struct):
    """Of committed shards: of compute, or from when their driver made them."""

    count: int = 0
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


class Response(msgspec.Struct):
    queue: float | None = None  # until the first grant
    first_result: float | None = None
    first_layer: float | None = None
    makespan: float | None = None
    shard: ShardSeconds = msgspec.field(default_factory=ShardSeconds)
    done: ShardSeconds | None = None  # from when a driver made them to their commit, or of calls from submit to done
    slowest: list[Slowest] = []
    spread: list[tuple[float, int]] = []  # seconds, and how many shards took about so long: to 4.4%


class MachineMemory(msgspec.Struct):
    name: str
    budget: int | None
    peak: int | None  # of its shards together
    shard_peak: int | None
    kills: int  # shards that were ended for want of memory


class Memory(msgspec.Struct):
    asked: int | None = None  # of each shard, by the job file
    p50: int | None = None  # of a shard
    p95: int | None = None
    max: int | None = None
    spread: list[tuple[float, int]] = []  # bytes, and how many shards took about so many
    machines: list[MachineMemory] = []


class Way(msgspec.Struct):
    """Bytes in one direction."""

    bytes: int | None
    seconds: float | None  # in which some moved
    moving: float | None  # bytes a second while any moved
    mean: float | None  # bytes a second while it was there
    peak: float | None  # bytes a second in the busiest bin


class MachineBandwidth(msgspec.Struct):
    name: str
    way: str  # "link", or "folder" where it reads in place
    read: int  # bytes of input that its committed shards read
    spared: int  # of input, by a copy there
    disk: int | None  # written to its spool
    input: Way
    output: Way


class Bandwidth(msgspec.Struct):
    in_bytes: int = 0
    out_bytes: int = 0
    committed_bytes: int = 0
    machines: list[MachineBandwidth] = []


class IdleSeconds(msgspec.Struct):
    """Core-seconds that were lent and ran nothing, by what they waited for."""

    input: float
    room: float
    memory: float
    cut_off: float
    starting: float
    no_work: float


class MachineShare(msgspec.Struct):
    name: str
    committed: int
    attempts: list[tuple[int, int]]  # which attempt at a shard, and how many were committed by it
    failed: int
    lost: int
    cores: int | None = None
    lent: float | None = None
    offered: float | None = None  # of what was lent, what no other job had
    busy: float | None = None
    wasted: float | None = None
    elsewhere: float | None = None
    paused: float | None = None
    present: float | None = None  # seconds
    share: float | None = None  # busy of offered
    idle: IdleSeconds | None = None


class Least(msgspec.Struct):
    name: str
    share: float
    why: str  # the largest of its idle states


class Fairness(msgspec.Struct):
    jain: float | None = None
    occupancy: float | None = None
    least: Least | None = None
    machines: list[MachineShare] = []


class Effect(msgspec.Struct):
    shards_per_second: float | None = None
    rows_per_second: float | None = None
    in_bytes_per_second: float | None = None
    succeeded: float | None = None  # of all attempts that came to an end
    useful: float | None = None  # of busy core-seconds, those not wasted
    computing: float | None = None  # processor seconds of busy core-seconds, at least
    of_kind: Any = None  # what the kind says of its own


class TimelineRow(msgspec.Struct):
    """Per bin: core-seconds, bytes, shards; memory is the most that was seen."""

    name: str
    lent: list[float]
    busy: list[float]
    waiting: list[float]
    paused: list[float]
    in_bytes: list[float]
    out_bytes: list[float]
    committed: list[float]
    failed: list[float]
    memory: list[float]


class Timeline(msgspec.Struct):
    begin: float
    width: float  # seconds of a bin
    columns: int
    machines: list[TimelineRow]


class JobReport(msgspec.Struct):
    job: str
    kind: str
    state: str
    why: str
    created: float
    started: float | None
    ended: float | None
    as_of: float  # when this was so
    version: str | None = None
    running_seconds: float | None = None
    waiting_seconds: float | None = None  # for other jobs
    held_seconds: float | None = None  # paused or halted
    away_seconds: float | None = None
    restarts: int | None = None
    shards: Tally | None = None
    layers_total: int = 0
    layers_merged: int = 0
    failures: int = 0
    response: Response = msgspec.field(default_factory=Response)
    memory: Memory = msgspec.field(default_factory=Memory)
    bandwidth: Bandwidth = msgspec.field(default_factory=Bandwidth)
    fairness: Fairness = msgspec.field(default_factory=Fairness)
    effect: Effect = msgspec.field(default_factory=Effect)
    troubles: list[Trouble] = []
    advice: list[str] = []
    events: list[JobEvent] = []
    events_left_out: int = 0
    notes: list[str] = []
    timeline: Timeline | None = None
