"""What would have made a job faster or cheaper, in at most three lines, the costliest first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from muster.coordinator.figures import histogram
from muster.coordinator.report.measures import WHY_IDLE
from muster.coordinator.report.values import JobReport
from muster.jobs.common.units import format_duration, format_size

LINES_MOST = 3
WORTH = 0.05  # of what was offered: less is not worth a line
TAIL_TIMES = 8.0  # p95 over p50, from which the shards are too unlike
SHORT_SECONDS = 0.05  # of a shard: below it, what it takes to hand one out counts
WAITS = ("room", "cut_off", "memory")  # beside inputs, what a machine's user can do something about
MEMORY_TIMES = 2.0  # asked for, over the largest that was seen


def advice(report: JobReport, spread: Mapping[int, int], is_cut: bool) -> list[str]:
    """`spread`: buckets of seconds → shards; `is_cut`: whether how large they are is for the job file to say."""
    shards = list(_shards(report, spread)) if is_cut else []
    lines = sorted([*_machines(report), *_memory(report), *shards], key=lambda pair: -pair[0])
    return [line for worth, line in lines if worth >= WORTH][:LINES_MOST]


def _machines(report: JobReport) -> Iterator[tuple[float, str]]:
    """What machines waited for, each with its part of all that was offered."""
    whole = sum(one.offered or 0.0 for one in report.fairness.machines)
    links = {one.name: one.input for one in report.bandwidth.machines}
    for one in report.fairness.machines:
        if not whole or one.idle is None or not one.offered:
            continue
        waited, pulled = one.idle.input, links[one.name].mean
        if waited > 0:
            more = f"; {format_size(round(pulled * (1 + waited / one.busy)))}/s would have kept it busy" if (
                pulled and one.busy
            ) else ""  # fmt: skip
            yield waited / whole, f"{one.name} waited for inputs {waited / one.offered:.0%} of its time{more}"
        for name in WAITS:
            seconds = getattr(one.idle, name)
            yield seconds / whole, f"{one.name}: {WHY_IDLE[name]} {seconds / one.offered:.0%} of its time"


def _memory(report: JobReport) -> Iterator[tuple[float, str]]:
    asked, most = report.memory.asked, report.memory.max
    if asked and most and asked > MEMORY_TIMES * most:
        idle = 1 - (report.fairness.occupancy or 1.0)
        fit = f"{asked / most:.0f} times as many would fit"
        yield idle, f"`memory` is {format_size(asked)}, no shard took over {format_size(most)}: {fit}"


def _shards(report: JobReport, spread: Mapping[int, int]) -> Iterator[tuple[float, str]]:
    seconds, idle = report.response.shard, 1 - (report.fairness.occupancy or 1.0)
    short = histogram.share_below(spread, SHORT_SECONDS)
    if short > 0.5:
        yield idle, f"{short:.0%} of the shards took under {format_duration(SHORT_SECONDS)}: larger ones cost less"
    elif seconds.p50 and seconds.p95 and seconds.p95 > TAIL_TIMES * seconds.p50 and report.state == "complete":
        yield idle, f"p95 is {seconds.p95 / seconds.p50:.0f} times p50: smaller shards would end together"
