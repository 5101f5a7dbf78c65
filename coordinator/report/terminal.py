"""A report in a terminal, within 80 columns: one job on a screen, several in columns. Decides and fetches nothing."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from itertools import zip_longest

from muster.coordinator.display.agents import compact
from muster.coordinator.display.tables import moment, short, table
from muster.coordinator.report.gather import Gathered
from muster.coordinator.report.measures import WHY_IDLE, to_done
from muster.coordinator.report.values import JobReport, MachineBandwidth, MachineShare
from muster.jobs.common.units import counted, format_duration, format_size

LEAST_SHOWN, MOST_SHOWN = 10, 5  # machines, the least and the most occupied, where there are more than all of these
MACHINES_MOST = 20
TROUBLES_SHOWN = 3
WIDTH, INDENT = 80, 13  # columns; of the text beside a measure's name
NONE = "-"


def text(gathered: Gathered) -> str:
    """All of it."""
    if len(gathered.reports) == 1:
        return _page(gathered.reports[0], gathered)
    return "\n".join([_side_by_side(gathered.reports), *_own(gathered), *_advice(gathered.reports)])


def _page(report: JobReport, gathered: Gathered) -> str:
    lines = [f"{report.job}  {report.kind}, {report.state}    submitted {moment(report.created)}"]
    lines += _filled("", report.why) if report.why else []
    lines += [line for name, value in _measures(report) for line in _filled(name, value)]
    lines += _machines(report)
    lines += _troubles(report)
    return "\n".join([*lines, *_own(gathered), *_advice([report])])


def _filled(name: str, text: str) -> list[str]:
    """Beside its name, broken where a comma or a semicolon stands."""
    lines = [""]
    for piece in re.split(r"(?<=[,;]) ", text):
        if lines[-1] and len(lines[-1]) + 1 + len(piece) > WIDTH - INDENT:
            lines.append("")
        lines[-1] += f" {piece}" if lines[-1] else piece
    return [f"  {label:<{INDENT - 2}}{line}" for label, line in zip_longest([name], lines, fillvalue="")]


def seconds(value: float | None) -> str:
    return NONE if value is None else format_duration(value)


def size(value: float | None) -> str:
    return NONE if value is None else format_size(round(value))


def share(value: float | None) -> str:
    return NONE if value is None else f"{value:.0%}"


def number(value: float | None) -> str:
    return NONE if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def _measures(report: JobReport) -> list[tuple[str, str]]:
    """The five, a line or two each."""
    response, shard, memory = report.response, report.response.shard, report.memory
    layer = f", first layer {seconds(response.first_layer)}" if response.first_layer is not None else ""
    first = f"first result {seconds(response.first_result)}{layer}"
    still = (("{} for other jobs", report.waiting_seconds), ("{} paused or halted", report.held_seconds),
             ("{} without a coordinator", report.away_seconds))  # fmt: skip
    stood = ", ".join(said.format(seconds(spent)) for said, spent in still if spent)
    peak = max((one for one in memory.machines if one.peak), key=lambda one: one.peak or 0, default=None)
    most = f"{peak.name} {size(peak.peak)} of {size(peak.budget)} at most" if peak else "not seen"
    asked = size(memory.asked) if memory.asked else "nothing"
    least = report.fairness.least
    said = f"; least {least.name}, {share(least.share)}{': ' + least.why if least.why else ''}" if least else ""
    return [
        ("response", f"makespan {seconds(response.makespan)}, {first}, queued {seconds(response.queue)}"),
        *([("", f"it waited {stood}")] if stood else []),
        ("", f"a shard: p50 {seconds(shard.p50)}, p95 {seconds(shard.p95)}, p99 {seconds(shard.p99)}, "
         f"max {seconds(shard.max)} of {shard.count:,}"),
        *([("", f"{to_done(report)}: p50 {seconds(response.done.p50)}, p95 {seconds(response.done.p95)}, "
            f"p99 {seconds(response.done.p99)} of {response.done.count:,}")] if response.done else []),
        ("memory", f"{most} (a shard {size(memory.max)}); asked for: {asked}"),
        ("bandwidth", f"in {size(report.bandwidth.in_bytes)}, out {size(report.bandwidth.out_bytes)}; "
         f"committed {size(report.bandwidth.committed_bytes)}; written to disks there {size(_on_disks(report))}"),
        ("fairness", f"{_fair(report)}{said}"),
        ("effect", _effect(report)),
    ]  # fmt: skip


def _on_disks(report: JobReport) -> int | None:
    told = [one.disk for one in report.bandwidth.machines if one.disk is not None]
    return sum(told) if told else None


def _fair(report: JobReport) -> str:
    told = [one for one in report.fairness.machines if one.share is not None]
    if report.fairness.jain is None:
        return "not known yet"
    if len(told) == 1:
        return f"1, one machine, {share(report.fairness.occupancy)} occupied"
    return f"{report.fairness.jain:.2f} over {len(told)} machines, {share(report.fairness.occupancy)} occupied"


def _effect(report: JobReport) -> str:
    effect = report.effect
    said = [f"{number(effect.shards_per_second)} shards/s"]
    if effect.rows_per_second:
        said.append(f"{number(effect.rows_per_second)} rows/s")
    said.append(f"{share(effect.succeeded)} of attempts succeeded")
    said += [f"{share(effect.useful)} useful"] if effect.useful is not None else []
    return ", ".join([*said, *([f"{share(effect.computing)} computing"] if effect.computing is not None else [])])


def shown_machines(report: JobReport) -> tuple[list[MachineShare], int]:
    """Those that are worth a line, by their share, and how many there are beside."""
    rows = sorted(report.fairness.machines, key=lambda one: (one.share is None, one.share or 0.0, one.name))
    if len(rows) <= MACHINES_MOST:
        return sorted(rows, key=lambda one: one.name), 0
    return rows[:LEAST_SHOWN] + rows[-MOST_SHOWN:], len(rows) - LEAST_SHOWN - MOST_SHOWN


def machine_cells(one: MachineShare, way: MachineBandwidth, peak: int | None) -> tuple[str, ...]:
    """A machine's line, in the columns of MACHINE_HEADER."""
    offered, idle = one.offered or 0.0, one.idle
    held = sum(getattr(idle, name) for name in WHY_IDLE if name not in ("input", "no_work")) if idle else 0.0

    def part(value: float | None) -> str:
        return share(value / offered) if value is not None and offered else NONE

    return (
        short(one.name, 12),
        NONE if one.cores is None else str(one.cores),
        share(one.share),
        part(idle.input if idle else None),
        part(held if idle else None),
        part(idle.no_work if idle else None),
        compact(peak),
        "in place" if way.way == "folder" else f"{compact(way.input.mean)}/s" if way.input.mean else NONE,
        f"{compact(way.output.mean)}/s" if way.output.mean else NONE,
        f"{one.committed:,}",
    )


MACHINE_HEADER = ("MACHINE", "CORES", "BUSY", "INPUT", "HELD", "IDLE", "PEAK", "IN", "OUT", "SHARDS")


def _machines(report: JobReport) -> list[str]:
    shown, more = shown_machines(report)
    if not shown:
        return ["  no machine has worked on it yet"]
    ways = {one.name: one for one in report.bandwidth.machines}
    peaks = {one.name: one.peak for one in report.memory.machines}
    rows = [machine_cells(one, ways[one.name], peaks[one.name]) for one in shown]
    found = [f"  {line}" for line in table(MACHINE_HEADER, rows, " rrrrrrrrr").splitlines()]
    return [*found, f"  … and {more:,} more; --json has all"] if more else found


def _troubles(report: JobReport) -> list[str]:
    found = []
    for one in report.troubles[:TROUBLES_SHOWN]:
        head, where = f"  {counted(one.count, 'failure')} ({one.code})", f", such as {one.layer}/{one.number}"
        found.append(f"{head}: {one.line[: max(20, WIDTH - len(head) - len(where) - 2)]}{where}")
    more = len(report.troubles) - TROUBLES_SHOWN
    return [*found, f"  … and {more} more kinds of failures"] if more > 0 else found


def _own(gathered: Gathered) -> list[str]:
    own = gathered.own
    if own is None:
        return [f"  {gathered.why_not}"] if gathered.why_not else []
    if not own.header:
        return []
    rows = [(short(one.job), *cells) for one, cells in zip(gathered.reports, own.rows, strict=True)]
    beside = table(("job", *own.header), rows, f".{own.right}")
    if len(beside.partition("\n")[0]) > WIDTH:  # then a line for each of its columns
        beside = table(("", *(row[0] for row in rows)), list(zip(*(("", *own.header), *rows), strict=True))[1:])
    return ["", beside, *own.below]


def _advice(reports: Sequence[JobReport]) -> list[str]:
    return [line for report in reports for said in [*report.notes, *report.advice] for line in wrap(said)]


def wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


# --- several jobs ---------------------------------------------------------------------------------------------

Shown = tuple[str, Callable[[JobReport], float | None], Callable[[float | None], str]]
COMPARED: Sequence[Shown] = (
    ("makespan", lambda one: one.response.makespan, seconds),
    ("queued", lambda one: one.response.queue, seconds),
    ("first result", lambda one: one.response.first_result, seconds),
    ("shard p50", lambda one: one.response.shard.p50, seconds),
    ("shard p95", lambda one: one.response.shard.p95, seconds),
    ("shard p99", lambda one: one.response.shard.p99, seconds),
    ("to done p95", lambda one: one.response.done.p95 if one.response.done else None, seconds),
    ("peak memory", lambda one: max((m.peak or 0 for m in one.memory.machines), default=0) or None, size),
    ("in", lambda one: float(one.bandwidth.in_bytes), size),
    ("out", lambda one: float(one.bandwidth.out_bytes), size),
    ("fairness", lambda one: one.fairness.jain, number),
    ("occupancy", lambda one: one.fairness.occupancy, share),
    ("shards/s", lambda one: one.effect.shards_per_second, number),
    ("rows/s", lambda one: one.effect.rows_per_second, number),
    ("succeeded", lambda one: one.effect.succeeded, share),
    ("useful", lambda one: one.effect.useful, share),
)


def compared(reports: Sequence[JobReport]) -> list[tuple[str, ...]]:
    """A row a measure, a column a job, each but the first with how much more or less it is than that."""
    rows: list[tuple[str, ...]] = [("state", *(one.state for one in reports))]
    for name, value, shown in COMPARED:
        first = value(reports[0])
        cells = [shown(first), *(f"{shown(value(one))}{_difference(first, value(one))}" for one in reports[1:])]
        rows.append((name, *cells))
    return rows


def _difference(first: float | None, other: float | None) -> str:
    return f" ({other / first - 1:+.0%})" if first and other is not None else ""


def _side_by_side(reports: Sequence[JobReport]) -> str:
    header = ("", *(short(one.job, 22) for one in reports))
    return table(header, compared(reports), "." + "r" * len(reports))
