"""The measures of a job, from what was kept of it: one function each, which says what it means. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from muster.coordinator.api.figures import JobFiguresKept, MachineFigures, spent_as
from muster.coordinator.figures import fairness, histogram
from muster.coordinator.figures.bins import LARGEST, SUMS, Row
from muster.coordinator.report.values import (
    Bandwidth,
    Effect,
    Fairness,
    IdleSeconds,
    JobReport,
    Least,
    MachineBandwidth,
    MachineMemory,
    MachineShare,
    Memory,
    Response,
    ShardSeconds,
    Timeline,
    TimelineRow,
    Way,
)
from muster.jobs.contract.states import ENDED

WHY_IDLE = {  # a core that runs nothing: its state → in words, in the order in which all show them
    "input": "waiting for inputs",
    "room": "no room on its disk",
    "memory": "held back for memory",
    "cut_off": "cut off",
    "starting": "starting its workers",
    "no_work": "no work",
}
TO_DONE = {"calls": "a call, submit to done"}  # by kind: what its `done` is of
DEFINITIONS = {  # of each measure, as the report explains it
    "queue": "from submit to the first shard that a machine was given",
    "first result": "from submit to the first committed shard",
    "makespan": "from submit to the end; of a job that goes on, until now",
    "p50, p95, p99": "of the compute seconds of committed shards; right to 2.2%",
    "made to done": "from when the job's driver made a shard to its commit, where a driver makes them as results come",
    "submit to done": "of a session's calls: from when the client submitted one to when it had what came of it",
    "attempt": "which one at a shard it was, after failures and losses at work; failed and lost ones are beside it",
    "memory": "the most that a machine's shards took together, weighed once a second; or the largest shard, if more",
    "bandwidth": "bytes over the link; moving: over the seconds in which some moved; mean: over the time it was there",
    "offered": "core-seconds that a machine lent while the job ran, less those that other jobs had",
    "fairness": "Jain's index over busy ÷ offered of each machine: 1 where all are used alike, 1/n where one is",
    "occupancy": "busy ÷ offered of all together: fairness alone would call an idle farm fair",
    "succeeded": "committed shards of all attempts that came to an end: committed, failed or lost at work",
    "useful": "of busy core-seconds, those whose shards counted",
    "computing": "processor seconds ÷ busy core-seconds; at least, as short-lived processes are missed",
}


def to_done(report: JobReport) -> str:
    """What its `done` is called."""
    return TO_DONE.get(report.kind, "made to done")


def report_of(
    record: JobFiguresKept, machines: Sequence[MachineFigures], asked_memory: int | None, timeline: bool
) -> JobReport:
    """All that is measured of the job."""
    running = seconds_spent(record, "running")
    measured = {
        "as_of": record.at,
        "version": record.version or None,
        "running_seconds": running,
        "waiting_seconds": seconds_spent(record, "waiting"),
        "held_seconds": seconds_spent(record, "held"),
        "away_seconds": record.away,
        "shards": record.totals,
        "response": response(record),
        "memory": memory(record, machines, asked_memory),
        "bandwidth": bandwidth(record, machines),
        "fairness": fairness_of(machines),
        "effect": effect(record, machines, running),
        "troubles": sorted(record.troubles, key=lambda one: -one.count),
        "notes": list(record.notes),
        "timeline": timeline_of(record, machines) if timeline else None,
    }
    return JobReport(**{**_same(record, JobReport), **measured})


def _same(kept: msgspec.Struct, wanted: type[msgspec.Struct]) -> dict[str, Any]:
    """What goes by one name in both is the same."""
    return {name: getattr(kept, name) for name in wanted.__struct_fields__ if name in kept.__struct_fields__}


def seconds_spent(record: JobFiguresKept, name: str) -> float:
    """Running, waiting or held, with those since the job came into its state, or was served again."""
    known = float(getattr(record, name))
    if record.since is None or record.state in ENDED or spent_as(record.state) != name:
        return known
    return known + max(0.0, record.at - record.since)


def response(record: JobFiguresKept) -> Response:
    """How long things took, from the submit on."""

    def since_submit(when: float | None) -> float | None:
        return None if when is None else max(0.0, when - record.created)

    seconds = _seconds(record.spread, record.slowest[0].seconds if record.slowest else None)
    if record.measured:
        seconds.mean = record.compute / record.measured
    return Response(
        queue=since_submit(record.started),
        first_result=since_submit(record.first_commit),
        first_layer=since_submit(record.first_layer),
        makespan=since_submit(record.ended or record.at),
        shard=seconds,
        done=_seconds(record.waits, None) if record.waits else None,
        slowest=record.slowest,
        spread=_spread(record.spread),
    )


def _seconds(counts: Mapping[int, int], most: float | None) -> ShardSeconds:
    """`most`: the largest, where it is known exactly."""
    most = histogram.quantile(counts, 1.0) if most is None else most
    p50, p95, p99 = (_quantile(counts, share, most) for share in (0.5, 0.95, 0.99))
    return ShardSeconds(sum(counts.values()), None, p50, p95, p99, most)


def _spread(buckets: Mapping[int, int]) -> list[tuple[float, int]]:
    return [(float(f"{histogram.value_of(bucket):.4g}"), count) for bucket, count in sorted(buckets.items())]


def memory(record: JobFiguresKept, machines: Sequence[MachineFigures], asked: int | None) -> Memory:
    found = Memory(asked=asked, spread=_spread(record.peaks))
    found.max = max((one.shard_peak for one in machines), default=0) or None
    found.p50, found.p95 = (_whole(_quantile(record.peaks, q, found.max)) for q in (0.5, 0.95))
    found.machines = [
        MachineMemory(
            one.agent, one.budget or None, max(one.peak, one.shard_peak) or None, one.shard_peak or None, one.kills
        )
        for one in machines
    ]
    return found


def _quantile(counts: Mapping[int, int], share: float, most: float | None) -> float | None:
    """No more than the largest, which is known exactly."""
    value = histogram.quantile(counts, share)
    return value if value is None or most is None else min(value, most)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def bandwidth(record: JobFiguresKept, machines: Sequence[MachineFigures]) -> Bandwidth:
    rows = [_machine_bandwidth(record, one) for one in machines]
    return Bandwidth(
        in_bytes=sum(one.in_bytes for one in machines),
        out_bytes=sum(one.out_bytes for one in machines),
        committed_bytes=record.totals.bytes_committed or sum(one.committed_bytes for one in machines),
        machines=rows,
    )


def _machine_bandwidth(record: JobFiguresKept, one: MachineFigures) -> MachineBandwidth:
    bins, told = Row(one.bins).values, one.accounted
    coming = _way(
        told and not one.in_place, one.in_bytes, one.in_seconds, one.present, bins.get("in_bytes", ()), record
    )
    going = _way(told, one.out_bytes, one.out_seconds, one.present, bins.get("out_bytes", ()), record)
    way = "folder" if one.in_place else "link"
    return MachineBandwidth(one.agent, way, one.read_bytes, one.spared, one.disk_bytes if told else None, coming, going)


def _way(told: bool, nbytes: int, seconds: float, present: float, bins: Sequence[float], record: JobFiguresKept) -> Way:
    if not told:
        return Way(None, None, None, None, None)
    return Way(
        bytes=nbytes,
        seconds=seconds,
        moving=nbytes / seconds if seconds > 0 and nbytes else None,
        mean=nbytes / present if present > 0 and nbytes else None,
        peak=max(bins) / record.width if bins else None,
    )


def fairness_of(machines: Sequence[MachineFigures]) -> Fairness:
    """How evenly the machines were put to use, and how much of them."""
    rows = [_share(one) for one in machines]
    shares = [row.share for row in rows if row.share is not None]
    told = [(row.busy or 0.0, row.offered or 0.0) for row in rows if row.share is not None]
    least = min((row for row in rows if row.share is not None), key=lambda row: row.share or 0.0, default=None)
    return Fairness(
        jain=fairness.jain(shares),
        occupancy=fairness.occupancy(told),
        least=Least(least.name, least.share, _why_idle(least)) if least and least.share is not None else None,
        machines=rows,
    )


def _share(one: MachineFigures) -> MachineShare:
    first = max(0, one.committed - sum(one.later.values()))
    attempts = [(1, first), *sorted(one.later.items())] if one.committed else []
    if not one.accounted:
        return MachineShare(one.agent, one.committed, attempts, one.failed, one.lost)
    offered = max(0.0, one.lent - one.elsewhere)
    measured: dict[str, Any] = {"cores": one.cpus, "offered": offered, "share": fairness.share(one.busy, offered)}
    idle = IdleSeconds(**_same(one, IdleSeconds))
    return MachineShare(one.agent, attempts=attempts, idle=idle, **measured, **_same(one, MachineShare))


def _why_idle(row: MachineShare) -> str:
    """What most of its idle core-seconds waited for; "" where there are hardly any."""
    idle: Mapping[str, float] = msgspec.structs.asdict(row.idle) if row.idle else {}
    largest = max(idle, key=lambda name: idle[name], default=None)
    return WHY_IDLE[largest] if largest and idle[largest] >= 0.01 * (row.offered or 1.0) else ""


def effect(record: JobFiguresKept, machines: Sequence[MachineFigures], running: float) -> Effect:
    """What the time and the cores came to."""
    committed = record.totals.committed or sum(one.committed for one in machines)
    rows = record.totals.rows_committed or sum(one.rows for one in machines)
    read = sum(one.read_bytes for one in machines)
    ended = committed + sum(one.failed + one.lost for one in machines)
    busy, wasted = sum(one.busy for one in machines), sum(one.wasted for one in machines)
    processor = sum(one.processor for one in machines)
    return Effect(
        shards_per_second=committed / running if running > 0 else None,
        rows_per_second=rows / running if running > 0 else None,
        in_bytes_per_second=read / running if running > 0 else None,
        succeeded=committed / ended if ended else None,
        useful=1 - wasted / busy if busy > 0 else None,
        computing=processor / busy if busy > 0 and processor > 0 else None,
    )


def timeline_of(record: JobFiguresKept, machines: Sequence[MachineFigures]) -> Timeline | None:
    """What each machine did, bin by bin; None before the first grant."""
    if record.started is None:
        return None
    rows = {one.agent: Row(one.bins).values for one in machines}
    columns = max((len(values) for row in rows.values() for values in row.values()), default=0)
    filled = [
        TimelineRow(name, **{kind: _filled(row.get(kind, ()), columns) for kind in SUMS + LARGEST})
        for name, row in rows.items()
    ]
    return Timeline(record.started, record.width, columns, filled)


def _filled(values: Sequence[float], columns: int) -> list[float]:
    return [*(float(f"{value:.6g}") for value in values), *([0.0] * (columns - len(values)))]
