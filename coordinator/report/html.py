"""A report as one HTML file: no script, nothing fetched, and readable where even its style sheet is blocked.

Every figure that a picture shows stands in a table, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import log2

from markupsafe import Markup

from muster import VERSION
from muster.coordinator.display.tables import moment, short
from muster.coordinator.report import drawing, terminal
from muster.coordinator.report.drawing import GREEN, ORANGE, PINK, SKY, VERMILION, StripRow
from muster.coordinator.report.gather import Gathered, Made
from muster.coordinator.report.markup import Content, joined, tag
from muster.coordinator.report.measures import DEFINITIONS, WHY_IDLE, to_done
from muster.coordinator.report.ticks import time_ticks
from muster.coordinator.report.values import JobReport, Timeline, TimelineRow
from muster.jobs.common.units import counted, format_duration, format_size
from muster.jobs.contract.pictures import Histogram, TextTable

ROWS_MOST = 40  # of a strip: beyond it neighbours by name share one
TABLE_MOST = 60  # rows of a table
EVENTS_SHOWN = 100
ATTEMPTS_MOST = 6  # columns
BARS = 4  # of a histogram, to each doubling
EVIDENCE_CHARS = 8_000
GLYPHS = {
    "waiting": "◷",
    "running": "▶",
    "paused": "‖",
    "halted": "!",
    "damaged": "!",
    "cancelled": "✕",
    "incomplete": "◐",
    "complete": "✓",
}
SIGNS = {"joined": "▸", "left": "◂", "gone": "✕"}
IDLE_FILLS = {
    "input": ORANGE, "room": PINK, "memory": GREEN, "cut_off": "url(#absent)", "starting": SKY,
    "no_work": drawing.SHADES[0],
}  # fmt: skip
KINDS = (("busy", "#3182bd"), ("wasted", VERMILION), *((said, IDLE_FILLS[name]) for name, said in WHY_IDLE.items()))
STYLE = """
:root { color-scheme: light dark }
body { font: 14px/1.45 system-ui, sans-serif; max-width: 920px; margin: 1.5em auto; padding: 0 1em;
  color: #1a1a1a; background: #fff }
h1 { font-size: 1.5em; margin: 0 }
h2 { font-size: 1.15em; margin: 1.8em 0 .4em; border-bottom: 1px solid #bbb }
h3 { font-size: 1em; margin: 1em 0 .2em }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .4em 0 }
th, td { padding: .15em .7em .15em 0; text-align: left; vertical-align: top }
th { font-weight: 600 }
.r { text-align: right }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(13.5em, 1fr)); gap: .6em; margin: 1em 0 }
.tile { border: 1px solid #bbb; border-radius: 4px; padding: .4em .8em }
.tile b { display: block; font-size: 1.25em }
.tile small, p.faint { color: #5a5a5a }
svg { max-width: 100%; height: auto; display: block; margin: .4em 0 }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f4f4f4; padding: .6em; max-height: 24em;
  overflow: auto }
.bad { border-left: 4px solid #d55e00; padding-left: .7em }
.wide { overflow-x: auto }
@media (prefers-color-scheme: dark) {
  body { color: #e6e6e6; background: #161616 }
  h2, .tile { border-color: #555 }
  pre { background: #222 }
  .tile small, p.faint { color: #aaa }
  .ink { fill: #e6e6e6 } text.faint { fill: #aaa } .ink-line { stroke: #e6e6e6 }
  .shade0 { fill: #1c2530 } .shade1 { fill: #173a5a } .shade2 { fill: #1d5a8c }
  .shade3 { fill: #3c87bf } .shade4 { fill: #7db8de } .shade5 { fill: #cfe6f5 }
  .line1 { stroke: #173a5a } .line2 { stroke: #1d5a8c } .line3 { stroke: #3c87bf }
  .line4 { stroke: #7db8de } .line5 { stroke: #cfe6f5 }
}
@media print { body { max-width: none; margin: 0 } pre { max-height: none } }
"""


def page(gathered: Gathered) -> str:
    """The whole file."""
    reports = gathered.reports
    title = " and ".join(one.job for one in reports)
    body = [
        tag("h1", title),
        tag("p", _made_when(reports), class_="faint"),
        *(summary(one) for one in reports),
        *([_compared(reports)] if len(reports) > 1 else []),
        tag("h2", "1 When it ran"),
        *_each(reports, when),
        tag("h2", "2 Where the time went"),
        *_each(reports, where),
        tag("h2", "3 How long a shard took"),
        how_long(reports),
        *map(_attempts, reports),
        tag("h2", "4 Memory"),
        *_each(reports, _memory),
        tag("h2", "5 Links and disks"),
        *_each(reports, _links),
        tag("h2", "6 What it came to"),
        _own(gathered),
        tag("h2", "7 Failures"),
        *map(_failures, reports),
        tag("h2", "8 How it was made"),
        *(_made(report, made) for report, made in zip(reports, gathered.made, strict=True)),
        _definitions(),
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title}: report"),
        tag("style", Markup(STYLE)),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', *body), lang='en')}\n"


def _each(reports: Sequence[JobReport], draw: Callable[[JobReport], Markup]) -> Iterator[Markup]:
    """Of several jobs each below its name."""
    for one in reports:
        yield joined(tag("h3", one.job) if len(reports) > 1 else "", draw(one))


def _made_when(reports: Sequence[JobReport]) -> str:
    return f"as of {moment(max(one.as_of for one in reports))}, by muster {VERSION}"


def table(header: Sequence[str], rows: Iterable[Sequence[Content]], right: str = "") -> Markup:
    """With the first TABLE_MOST rows, and how many there are beside."""
    kept = list(rows)
    kinds = ["r" if right[i : i + 1] == "r" else None for i in range(len(header))]

    def cells(name: str, values: Sequence[Content]) -> Markup:
        return tag("tr", *(tag(name, value, class_=kind) for value, kind in zip(values, kinds, strict=True)))

    more = [tag("p", f"… and {len(kept) - TABLE_MOST:,} more; --json has all", class_="faint")]
    body = tag("tbody", *(cells("td", row) for row in kept[:TABLE_MOST]))
    found = tag("table", tag("thead", cells("th", header)), body)
    return joined(found, *(more if len(kept) > TABLE_MOST else []))


# --- the head -------------------------------------------------------------------------------------------------


def summary(report: JobReport) -> Markup:
    response, fairness = report.response, report.fairness
    shards = f"{report.shards.committed:,} of {report.shards.shards:,} shards" if report.shards else "no shards yet"
    peak = max((one.peak or 0 for one in report.memory.machines), default=0)
    occupied, useful = fairness.occupancy, report.effect.useful
    tiles = (
        ("first result", terminal.seconds(response.first_result),
         "queued" if response.queue is None else f"queued {terminal.seconds(response.queue)}"),
        ("makespan", terminal.seconds(response.makespan), f"ran {terminal.seconds(report.running_seconds)}"),
        ("a shard, p50 / p95", f"{terminal.seconds(response.shard.p50)} / {terminal.seconds(response.shard.p95)}",
         f"p99 {terminal.seconds(response.shard.p99)}"),
        ("peak memory", terminal.size(peak or None), f"a shard {terminal.size(report.memory.max)}"),
        ("in / out", f"{terminal.size(report.bandwidth.in_bytes)} / {terminal.size(report.bandwidth.out_bytes)}",
         f"committed {terminal.size(report.bandwidth.committed_bytes)}"),
        ("fairness", "-" if fairness.jain is None else f"{fairness.jain:.2f}",
         "not told yet" if occupied is None else f"{terminal.share(occupied)} occupied"),
        ("attempts that succeeded", terminal.share(report.effect.succeeded),
         "not told yet" if useful is None else f"{terminal.share(useful)} of busy time useful"),
    )  # fmt: skip
    boxes = [
        tag("div", tag("small", name), tag("b", value), tag("small", below), class_="tile")
        for name, value, below in tiles
    ]
    state = f"{GLYPHS.get(report.state, '')} {report.state}"
    machines = counted(len(fairness.machines), "machine")
    return joined(
        tag("h3", f"{report.job} · {report.kind} · {state} · {shards} · {machines}"),
        *([tag("p", report.why, class_="bad")] if report.why else []),
        tag("div", *boxes, class_="tiles"),
        *([tag("p", "What would have helped: ", "; ".join(report.advice), ".")] if report.advice else []),
        *[tag("p", line, class_="faint") for line in report.notes],
    )


def _compared(reports: Sequence[JobReport]) -> Markup:
    header = ("", *(one.job for one in reports))
    return joined(tag("h2", "Side by side"), table(header, terminal.compared(reports), "." + "r" * len(reports)))


# --- 1 and 2: machines ----------------------------------------------------------------------------------------


def when(report: JobReport) -> Markup:
    timeline = report.timeline
    if timeline is None or not timeline.columns:
        return tag("p", f"{report.job}: nothing has run yet", class_="faint")
    seconds = timeline.columns * timeline.width
    restarts = [event.at - timeline.begin for event in report.events if event.what == "restart"]
    picture = drawing.strip(
        _strip_rows(report, timeline),
        [(tick / seconds, format_duration(tick) if tick else "0") for tick in time_ticks(seconds)],
        [at / seconds for at in restarts if 0 <= at <= seconds],
        "all lent cores ran shards",
        f"{report.job}: when its machines ran",
    )
    legend = (
        "orange below: inputs came, green: results went; dotted: paused, hatched: away; "
        "▲ failures, ▸ joined, ◂ left, ✕ lost; dashed: the coordinator started again"
    )
    return joined(picture, tag("p", legend, class_="faint"))


def _strip_rows(report: JobReport, timeline: Timeline) -> list[StripRow]:
    """A machine each, or groups of neighbours by name."""
    machines = sorted(timeline.machines, key=lambda one: one.name)
    each = -(-len(machines) // ROWS_MOST)
    groups = [machines[i : i + each] for i in range(0, len(machines), each or 1)]
    return [_strip_row(report, timeline, group) for group in groups]


def _strip_row(report: JobReport, timeline: Timeline, group: Sequence[TimelineRow]) -> StripRow:
    def sums(name: str) -> list[float]:
        return [sum(column) for column in zip(*(getattr(one, name) for one in group), strict=True)]

    lent, busy, paused = sums("lent"), sums("busy"), sums("paused")
    names = {one.name for one in group}
    name = group[0].name if len(group) == 1 else f"{group[0].name} … {group[-1].name}"
    signs = [
        (min(timeline.columns - 0.5, (event.at - timeline.begin) / timeline.width), SIGNS[event.what])
        for event in report.events
        if event.machine in names and event.what in SIGNS and event.at >= timeline.begin
    ]
    return StripRow(
        name,
        [min(1.0, busy[i] / one) if one > 0.001 else None for i, one in enumerate(lent)],
        [one > 0 for one in paused],
        [one > 0 for one in sums("in_bytes")],
        [one > 0 for one in sums("out_bytes")],
        [one > 0 for one in sums("failed")],
        signs,
    )


def _nobody(report: JobReport) -> Markup:
    return tag("p", f"{report.job}: no machine has worked on it yet", class_="faint")


def where(report: JobReport) -> Markup:
    shown, _ = terminal.shown_machines(report)
    if not shown:
        return _nobody(report)
    bars = []
    for one in shown:
        if one.idle is not None:
            busy, wasted = max(0.0, (one.busy or 0) - (one.wasted or 0)), one.wasted or 0.0
            bars.append((one.name, (busy, wasted, *(getattr(one.idle, name) for name in WHY_IDLE))))
    picture = drawing.stacked(bars, KINDS, f"{report.job}: where the core-seconds went")
    rows = [
        (
            one.name,
            "-" if one.cores is None else str(one.cores),
            terminal.share(one.share),
            *(_core_seconds(value) for value in (one.offered, one.busy, one.wasted, one.elsewhere, one.paused)),
        )
        for one in sorted(report.fairness.machines, key=lambda one: one.name)
    ]
    header = ("machine", "cores", "share", "offered", "busy", "wasted", "elsewhere", "paused")
    return joined(picture, table(header, rows, ".rrrrrrr"))


def _core_seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} s" if value < 1000 else f"{value:,.0f} s"


# --- 3: shards ------------------------------------------------------------------------------------------------


def how_long(reports: Sequence[JobReport]) -> Markup:
    shard = reports[0].response.shard
    if not any(one.response.shard.count for one in reports):
        return tag("p", "no shard is committed yet", class_="faint")
    done = [(f"{one.job}, {to_done(one)}", one.response.done) for one in reports if one.response.done]
    marks = [(name, value) for name, value in (("p50", shard.p50), ("p95", shard.p95), ("p99", shard.p99)) if value]
    picture = drawing.histogram(
        Histogram(
            "Seconds of a shard",
            "seconds of compute, on a logarithmic axis",
            [(one.job, _bars(one.response.spread)) for one in reports],
            True,
            marks if len(reports) == 1 else (),
            "seconds",
        )
    )
    slowest = [
        (f"{report.job}/{one.layer}/{one.number}", one.agent, format_duration(one.seconds))
        for report in reports
        for one in report.response.slowest
    ]
    took = [(one.job, one.response.shard) for one in reports] + done
    rows = [
        (name, f"{one.count:,}", *(terminal.seconds(value) for value in (one.mean, one.p50, one.p95, one.p99, one.max)))
        for name, one in took
    ]
    tables = [table(("job", "shards", "mean", "p50", "p95", "p99", "max"), rows, ".rrrrrr")]
    if slowest:
        tables += [tag("h3", "The slowest"), table(("shard", "machine", "took"), slowest, "..r")]
    return joined(picture, *tables)


def _attempts(report: JobReport) -> Markup:
    """Shards by attempt and machine."""
    if not report.fairness.machines:
        return Markup("")
    machines = sorted(report.fairness.machines, key=lambda one: one.name)
    seen = sorted({attempt for one in machines for attempt, _ in one.attempts})[:ATTEMPTS_MOST]
    kills = {one.name: one.kills for one in report.memory.machines}
    rows = [
        (one.name, f"{one.committed:,}", *(f"{dict(one.attempts).get(attempt, 0):,}" for attempt in seen),
         f"{one.failed:,}", f"{one.lost:,}", f"{kills[one.name]:,}")
        for one in machines
    ]  # fmt: skip
    header = ("machine", "committed", *(f"by attempt {one}" for one in seen), "failed", "lost", "ended for memory")
    return joined(tag("h3", f"{report.job}: by attempt and machine"), table(header, rows, "." + "r" * len(header)))


def _bars(spread: Sequence[tuple[float, int]]) -> list[tuple[float, float, int]]:
    """Four bars to each doubling."""
    found: dict[int, int] = {}
    for value, count in spread:
        bar = round(BARS * log2(value))
        found[bar] = found.get(bar, 0) + count
    return [(2 ** ((bar - 0.5) / BARS), 2 ** ((bar + 0.5) / BARS), count) for bar, count in sorted(found.items())]


# --- 4, 5: memory and links -----------------------------------------------------------------------------------


def _memory(report: JobReport) -> Markup:
    if not report.memory.machines:
        return _nobody(report)
    machines = sorted(report.memory.machines, key=lambda one: -(one.peak or 0))
    bars = [
        (one.name, float(one.peak or 0), float(one.budget or one.peak or 0),
         f"{terminal.size(one.peak)} of {terminal.size(one.budget)}")
        for one in machines[:ROWS_MOST]
    ]  # fmt: skip
    asked = report.memory.asked
    picture = drawing.budgets(bars, float(asked) if asked else None, f"{report.job}: memory against its budget")
    rows = [
        (one.name, terminal.size(one.peak), terminal.size(one.budget), terminal.size(one.shard_peak))
        for one in machines
    ]
    said = f"a shard: p50 {terminal.size(report.memory.p50)}, p95 {terminal.size(report.memory.p95)}, at most "
    said += f"{terminal.size(report.memory.max)}; the job file asks for {terminal.size(asked) if asked else 'nothing'}"
    header = ("machine", "at most", "budget", "largest shard")
    spread = [(report.job, _bars(report.memory.spread))]
    shards = Histogram("Memory of a shard", "bytes, on a logarithmic axis", spread, True, (), "bytes")
    return joined(picture, tag("p", said), drawing.histogram(shards), table(header, rows, ".rrr"))


def _links(report: JobReport) -> Markup:
    if not report.bandwidth.machines:
        return _nobody(report)
    rows = []
    for one in report.bandwidth.machines:
        inputs = ("in place",) if one.way == "folder" else (terminal.size(one.input.bytes),)
        rates = [
            "-" if rate is None else f"{format_size(round(rate))}/s"
            for way in (one.input, one.output)
            for rate in (way.moving, way.mean, way.peak)
        ]
        row = (one.name, *inputs, *rates[:3], terminal.size(one.output.bytes), *rates[3:], terminal.size(one.read))
        rows.append((*row, terminal.size(one.spared), terminal.size(one.disk)))
    header = (
        "machine", "in", "moving", "mean", "peak", "out", "moving", "mean", "peak", "read", "spared", "to its disk",
    )  # fmt: skip
    return table(header, rows, ".rrrrrrrrrrr")


# --- 6: the kind's own ----------------------------------------------------------------------------------------


def _own(gathered: Gathered) -> Markup:
    own = gathered.own
    rates = [
        (one.job, *(terminal.number(v) for v in (one.effect.shards_per_second, one.effect.rows_per_second)),
         "-" if not one.effect.in_bytes_per_second else f"{format_size(round(one.effect.in_bytes_per_second))}/s",
         terminal.share(one.effect.computing))
        for one in gathered.reports
    ]  # fmt: skip
    parts = [table(("job", "shards/s", "rows/s", "input", "computing"), rates, ".rrrr")]
    if own is None:
        return joined(*parts, tag("p", gathered.why_not, class_="faint"))
    if own.header:
        rows = [(one.job, *cells) for one, cells in zip(gathered.reports, own.rows, strict=True)]
        parts.append(table(("job", *own.header), rows, f".{own.right}"))
    for picture in own.pictures:
        parts.append(tag("h3", picture.title))
        if isinstance(picture, TextTable):
            parts.append(table(picture.header, picture.rows, picture.right))
        else:
            parts.append(drawing.picture(picture) or Markup(""))
    return joined(*parts)


# --- 7, 8 -----------------------------------------------------------------------------------------------------


def _failures(report: JobReport) -> Markup:
    if not report.troubles:
        return tag("p", f"{report.job}: none", class_="faint")
    groups = f"{counted(report.failures, 'attempt')} failed, in {counted(len(report.troubles), 'group')} of alike ones"
    parts = [tag("p", f"{report.job}: {groups}")]
    for one in report.troubles:
        head = f"{counted(one.count, 'attempt')}: {one.code}: {one.line}"
        where = f"such as {report.job}/{one.layer}/{one.number}: {one.message}"
        seen = f"from {moment(one.first)} to {moment(one.last)}, on {', '.join(one.agents)}"
        evidence = tag("pre", one.evidence[-EVIDENCE_CHARS:]) if one.evidence else ""
        said = tag("p", where), tag("p", seen, class_="faint")
        parts.append(tag("div", tag("h3", head), *said, evidence, class_="bad"))
    return joined(*parts)


def _made(report: JobReport, made: Made) -> Markup:
    layers = [(short(one.name, 60), one.digest, f"{one.shards:,}", f"{one.rows:,}") for one in made.layers]
    facts = [
        ("plan", made.plan or "-"),
        ("kind", f"{made.kind}, kernel {made.kernel}"),
        ("shards", f"{made.shards:,} in {counted(made.layers_total, 'layer')}"),
        ("submitted", moment(report.created)),
        ("started", moment(report.started)),
        ("ended", moment(report.ended)),
        *(("computed by", one) for one in made.fingerprints),
    ]
    more = made.layers_total - len(made.layers)
    events = [(moment(one.at), one.what, one.machine, one.said) for one in report.events[-EVENTS_SHOWN:]]
    left_out = len(report.events) - len(events) + report.events_left_out
    return joined(
        tag("h3", report.job),
        table(("", ""), facts),
        tag("h3", "Job file"),
        tag("pre", made.job_file or "it was not kept"),
        tag("h3", "Parameters, as planned"),
        tag("pre", made.params),
        tag("h3", "Layers"),
        table(("layer", "digest", "shards", "rows"), layers, "..rr"),
        *([tag("p", f"… and {more:,} more", class_="faint")] if more else []),
        tag("h3", "Events"),
        table(("when", "what", "machine", ""), events) if events else tag("p", "none", class_="faint"),
        *([tag("p", f"{left_out:,} more are left out", class_="faint")] if left_out else []),
    )


def _definitions() -> Markup:
    return joined(tag("h3", "What the measures mean"), table(("", ""), list(DEFINITIONS.items())))
