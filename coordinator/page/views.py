"""What each view of the farm asks for, and its blocks from what was heard. Pure: no I/O, no clock but the daemon's.

Nothing lists shards, and no table has more rows than a person reads: what is left out is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from markupsafe import Markup

from muster.coordinator.api.figures import Figures
from muster.coordinator.api.requests import (
    AgentsAsk,
    ExplainAgent,
    ExplainJob,
    ExplainShard,
    FailuresAsk,
    FiguresAsk,
    MapAsk,
    StatusAsk,
)
from muster.coordinator.api.status import (
    Agents,
    AgentStatus,
    Explained,
    Failures,
    JobStatus,
    MapRow,
    ShardMap,
    Status,
)
from muster.coordinator.display import agents as display_agents
from muster.coordinator.display import jobs as display_jobs
from muster.coordinator.display.agents import compact
from muster.coordinator.display.tables import ago, count, moment, percent, short, whole
from muster.coordinator.page.blocks import Block
from muster.coordinator.page.history import MEASURES, History
from muster.coordinator.page.markup import block
from muster.coordinator.page.seen import FARM, Answer, Printed, Question, Sayings, Seen
from muster.coordinator.report import drawing, html
from muster.coordinator.report.measures import report_of
from muster.coordinator.submission import eta
from muster.jobs.common.names import is_job, is_layer, is_plain
from muster.jobs.common.units import counted, format_duration
from muster.jobs.contract.states import ENDED

Kind = Literal["farm", "jobs", "job", "machine", "shard"]
JOBS_MOST, ALL_JOBS_MOST, ROWS_MOST, FAILURES_MOST, TROUBLES_MOST = 12, 200, 50, 100, 12
HEAD_CHARS = 300
EVIDENCE_SHOWN = 10  # failures: of the others it is a step away
GONE_SECONDS = 3.0  # until it is said that nobody answers
LATE_SECONDS = 2.0  # until what is shown is called old, beside the pace
SLOW_SECONDS = 3.0  # from one word of all machines to the next, from which on it is said
FIND_CHARS = 80
NUMBER_MOST = 1 << 53
GLYPHS = {"live": "●", "draining": "◐", "gone": "✕", "left": "○", "silent": "?"}
SORTS: dict[str, Callable[[AgentStatus], Any]] = {  # of machines; the largest first, but for names
    "name": lambda one: one.name,
    "cores": lambda one: -one.cpus,
    "busy": lambda one: -(one.busy or 0.0),
    "used": lambda one: -(one.processor or 0.0),
    "memory": lambda one: -(one.memory_now or 0),
    "disk": lambda one: -(one.disk_now or 0),
    "in": lambda one: -(one.in_rate or 0.0),
    "out": lambda one: -(one.out_rate or 0.0),
    "running": lambda one: -one.running,
    "done": lambda one: -one.done,
    "seen": lambda one: one.last_seen,
}


_spark = lru_cache(4096)(drawing.spark)  # its values are new less often than the numbers beside it
drawn_once = lru_cache(8)  # by the identity of an answer, for so many tabs: counts are heard far oftener than all else


@dataclass(frozen=True)
class View:
    """What one address shows."""

    kind: Kind
    job: str = ""
    machine: str = ""
    layer: str = ""
    number: int = 0
    find: str = ""
    sort: str = ""

    def questions(self) -> list[Question]:
        """What is to be asked as long as somebody looks at it."""
        job, more = self.job, list[Question]()
        if self.kind == "job":
            more = [StatusAsk(job), FiguresAsk(job), ExplainJob(job), failures_of(job)]
            more += [MapAsk(job), Printed(job)]
        elif self.kind == "machine":
            more = [ExplainAgent(self.machine), AgentsAsk(self.machine)]
        elif self.kind == "shard":
            more = [ExplainShard(job, self.layer, self.number)]
        return [*FARM, *more]


def view_of(path: str, find: str = "", sort: str = "") -> View | None:
    """The view at an address; None where there is none."""
    find, sort = find[:FIND_CHARS], sort if sort in SORTS else ""
    head, _, rest = path.strip("/").partition("/")
    if not rest:
        return View("farm", find=find, sort=sort) if not head else View("jobs", find=find) if head == "jobs" else None
    if head == "job" and is_job(rest):
        return View("job", job=rest)
    if head == "machine" and is_plain(rest) and len(rest) <= 64:
        return View("machine", machine=rest)
    if head != "shard":
        return None
    job, _, shard = rest.partition("/")
    layer, _, number = shard.rpartition("/")
    good = is_job(job) and is_layer(layer) and number.isascii() and number.isdecimal() and len(number) <= 16
    return View("shard", job=job, layer=layer, number=int(number)) if good and int(number) <= NUMBER_MOST else None


def blocks(view: View, seen: Seen, farm: str) -> list[Block]:
    """All of a view, in the order in which it is read: what is wrong before all else."""
    known = seen.status is not None or view.kind == "job"  # of a job the file of figures knows something, too
    found = OF_KIND[view.kind](view, seen) if known else []
    waiting = [] if any(one.skeleton for one in found) else [block("waiting", gone=bool(seen.gone))]
    return [_top(seen, farm), _trouble(seen), *found, *waiting]


def is_old(seen: Seen) -> bool:
    """Whether what is shown may not be so any more."""
    return bool(seen.gone) or seen.silent >= GONE_SECONDS


# --- of all views ---------------------------------------------------------------------------------------------


def _farm_facts(agents: Agents) -> list[str]:
    live = [one for one in agents.agents if one.state in ("live", "draining")]
    cores = sum(one.cpus for one in live)
    return [
        counted(len(live), "machine"),
        f"{sum((one.busy or 0.0) * one.cpus for one in live):.0f} of {counted(cores, 'core')} busy",
        f"{compact(sum(one.in_rate or 0.0 for one in live))}/s in",
        f"{compact(sum(one.out_rate or 0.0 for one in live))}/s out",
    ]


def _top(seen: Seen, farm: str) -> Block:
    facts = _farm_facts(seen.agents) if seen.agents is not None else []
    late = seen.age > seen.pace + LATE_SECONDS or is_old(seen)
    heard = "not heard yet" if seen.heard is None else f"heard {whole(seen.age)} ago" if late else "live"
    pace = f", machines every {whole(seen.pace)}" if seen.pace >= SLOW_SECONDS else ""
    state = "gone" if is_old(seen) or seen.heard is None else "live"
    return block("top", farm=farm, facts=facts, heard=f"{heard}{pace}", state=state)


def _trouble(seen: Seen) -> Block:
    """What is wrong, as (what it is, the address to look at, a command that helps)."""
    found: list[tuple[str, str, str]] = []
    if seen.gone:
        kept = "what is below is what figures.sqlite in the root has" if seen.status is not None else seen.gone
        said = kept if seen.heard is None else "what is below is what it said last"
        found.append((f"no coordinator since {moment(seen.gone_since)}; {said}", "", "coordinator serve --detach"))
    elif seen.silent >= GONE_SECONDS:
        found.append((f"the coordinator has not answered for {whole(seen.silent)}", "", ""))
    if seen.status is not None:
        found += [(note, "", "") for note in seen.status.notes]
        found += _jobs_troubles(seen.status)
    if seen.agents is not None:
        found += _machines_troubles(seen.agents)
    return block("trouble", troubles=found[:TROUBLES_MOST], more=len(found) - TROUBLES_MOST)


def _jobs_troubles(status: Status) -> list[tuple[str, str, str]]:
    found = []
    for job in sorted(status.jobs, key=lambda one: -one.created):
        where = f"/job/{job.id}"
        if job.state in ("halted", "damaged"):
            only = " --failed" if job.totals.quarantined else ""
            found.append((f"{job.id} is {job.state}: {job.why}", where, f"coordinator logs {job.id}{only}"))
        elif job.state not in ENDED:
            found += [(f"{job.id}: {line}", where, "") for line in display_jobs.remarks(job)]
            if job.totals.quarantined:
                said = f"{job.id}: {counted(job.totals.quarantined, 'shard')} given up"
                found.append((said, where, f"coordinator logs {job.id} --failed"))
    return found


def _machines_troubles(agents: Agents) -> list[tuple[str, str, str]]:
    found = [(line, "", "") for line in display_agents.overlent_lines(agents.agents)]
    for one in agents.agents:
        if one.silent:
            said = f"{one.name} was last heard of {whole(one.silent)} ago"
            found.append((said, f"/machine/{one.name}", f"coordinator drop {one.name}"))
        elif one.state == "gone":
            found.append((f"{one.name} is gone, last heard of {ago(one.last_seen, agents.now)}",
                          f"/machine/{one.name}", ""))  # fmt: skip
    return found


# --- farm and jobs --------------------------------------------------------------------------------------------


def _farm(view: View, seen: Seen) -> list[Block]:
    assert seen.status is not None
    found = [_jobs_table(seen, seen.status, view.find, JOBS_MOST)]
    return [*found, *_machines_table(seen.answers.get(FARM[1]), seen.history, view.find, view.sort)]


def _jobs(view: View, seen: Seen) -> list[Block]:
    assert seen.status is not None
    return [_jobs_table(seen, seen.status, view.find, ALL_JOBS_MOST)]


def _jobs_table(seen: Seen, status: Status, find: str, most: int) -> Block:
    """Those that go on first, then the newest."""
    order = sorted(status.jobs, key=lambda one: (one.state in ENDED, -one.created))
    kept = [one for one in order if find.lower() in f"{one.id} {one.kind} {one.state}".lower()]
    rows = [_job_row(one, status.now, seen.is_rated(one)) for one in kept[:most]]
    more = max(0, len(kept) - most) + status.left_out
    return block("jobs", rows=rows, more=more, there=len(status.jobs), find=find)


def _job_row(job: JobStatus, now: float, is_rated: bool) -> dict[str, Any]:
    row = display_jobs.job_row(job, now)
    why = eta.eta(job, now).bottleneck if job.state == "running" and job.progress is None else ""
    end = row.time if not why or why in ("measuring", "no agents") else f"{row.time}, by {why}"
    end = "measuring" if job.state == "running" and not is_rated else end
    return {"id": job.id, "kind": job.kind, "state": f"{html.GLYPHS.get(job.state, '')} {job.state}",
            "bar": _bar(job), "percent": row.percent, "counts": row.counts, "rate": row.rate, "time": end,
            "look": _look(job)}  # fmt: skip


def _look(job: JobStatus) -> str:
    return "bad" if job.state in ("halted", "damaged", "incomplete") else "over" if job.state in ENDED else "good"


def _bar(job: JobStatus) -> Markup:
    if job.progress is not None:
        done, total = job.progress.done, job.progress.total
        return drawing.meter([(done, drawing.BLUE), (max(0, total - done), "none")], f"{done} of {total}")
    one = job.totals
    parts = [(one.committed, drawing.BLUE), (one.finished, drawing.GREEN), (one.running, drawing.SKY),
             (one.quarantined, drawing.VERMILION), (one.pending, "none")]  # fmt: skip
    said = (
        f"{one.committed:,} committed, {one.finished:,} finished, {one.running:,} running, {one.quarantined:,} given up"
    )
    return drawing.meter([(float(part), fill) for part, fill in parts], said)


@drawn_once
def _machines_table(said: Answer | None, history: History, find: str, sort: str) -> list[Block]:
    """By trouble unless something else is asked for: those that are gone or idle stand where they are seen."""
    if said is None or not isinstance(agents := said.value, Agents):
        return []
    kept = [one for one in agents.agents if find.lower() in f"{one.name} {one.host} {one.state} {one.note}".lower()]
    kept.sort(key=SORTS[sort] if sort else _worst_first)
    rows = [_machine_row(history, one, agents.now) for one in kept[:ROWS_MOST]]
    return [block("machines", rows=rows, more=len(kept) - ROWS_MOST, there=len(agents.agents), find=find, sort=sort)]


def _worst_first(one: AgentStatus) -> tuple[int, str]:
    """Few kinds of trouble, then names: rows that changed places with each number could not be read."""
    if one.silent:
        return 0, one.name
    idle = one.state == "live" and not one.running and bool(one.note or one.ineligible)
    return {"gone": 1, "draining": 3, "left": 5}.get(one.state, 2 if idle else 4), one.name


def _machine_row(history: History, one: AgentStatus, now: float) -> dict[str, Any]:
    return {
        "name": one.name,
        "state": f"{GLYPHS['silent']} silent" if one.silent else f"{GLYPHS[one.state]} {one.state}",
        "look": "bad" if one.silent or one.state == "gone" else "over" if one.state == "left" else "good",
        "cores": count(one.cpus),
        "busy": "-" if one.busy is None else f"{one.busy:.0%}",
        "numbers": _numbers(one),
        "lines": [_spark(tuple(history.line(one.name, measure))) for measure in MEASURES],
        "running": count(one.running),
        "done": count(one.done),
        "seen": ago(one.last_seen, now) if one.silent or one.state != "live" else "now",
        "why": short(_why(one), 90),
    }


def _numbers(one: AgentStatus) -> list[str]:
    """Beside each small line."""
    memory = f"{compact(one.memory_now)}/{compact(one.memory_budget or None)}" if one.memory_now is not None else "-"
    came = "in place" if one.in_place else compact(one.in_rate)
    used = "-" if one.processor is None else f"{one.processor:.1f}"
    return [used, memory, compact(one.disk_now), came, compact(one.out_rate)]


def _why(one: AgentStatus) -> str:
    """Why it runs nothing, or not all that there is."""
    return one.note or "; ".join(f"nothing of {job}: {why}" for job, why in list(one.ineligible.items())[:2])


# --- one job --------------------------------------------------------------------------------------------------


def _job(view: View, seen: Seen) -> list[Block]:
    known, found = seen.job(view.job), []
    if known is not None:
        found.append(_job_facts(*known))
    elif error := seen.error(StatusAsk(view.job)):
        found.append(block("missing", said=error))
    found += _map(seen.answers.get(MapAsk(view.job)))
    found += _measured(seen.answers.get(FiguresAsk(view.job)))
    if known is not None:
        found += [_layers(known[0]), _job_machines(known[0])]
    found.append(_lines("why", "Why it is so", seen.get(ExplainJob(view.job))))
    found += _failures(view.job, seen.answers.get(failures_of(view.job)))
    printed = seen.get(Printed(view.job))
    if isinstance(printed, Sayings) and printed.items:
        rows = [(moment(one.when), one.agent, f"{one.layer}/{one.number}", one.text) for one in printed.items[::-1]]
        found.append(block("printed", rows=rows, job=view.job))
    return found


def _job_facts(job: JobStatus, now: float) -> Block:
    facts = [tuple(line.strip().split(None, 1)) for line in display_jobs.job_lines(job, now)]
    state = f"{html.GLYPHS.get(job.state, '')} {job.state}"
    return block("job", id=job.id, kind=job.kind, state=state, look=_look(job), why=job.why, bar=_bar(job),
                 facts=[(one[0], one[1] if len(one) > 1 else "") for one in facts])  # fmt: skip


@drawn_once
def _measured(said: Answer | None) -> list[Block]:
    """As the report has it: tiles, when each machine ran, where the time went, how long shards took."""
    if said is None or not isinstance(measured := said.value, Figures) or measured.job is None:
        return []
    report = report_of(measured.job, measured.machines, None, timeline=True)
    parts = (("When it ran", html.when(report)), ("Where the time went", html.where(report)),
             ("How long a shard took", html.how_long([report])))  # fmt: skip
    return [block("measured", id=report.job, head=html.summary(report), parts=parts)]


@drawn_once
def _map(said: Answer | None) -> list[Block]:
    """From the first shard to the last: one layer with the numbers of its shards, several with shares of each."""
    if said is None or not isinstance(shards := said.value, ShardMap) or not shards.rows:
        return []
    rows = [_map_row(one) for one in shards.rows]
    alone = shards.rows[0].shards if len(rows) == 1 else 0
    ticks = [(i / 4, f"{alone * i // 4:,}" if alone else f"{i / 4:.0%}") for i in range(5)]
    return [block("map", drawn=drawing.strip(rows, ticks, (), "all shards of a cell are committed", "Shards"))]


def _map_row(row: MapRow) -> drawing.StripRow:
    there = [min(row.cell, row.shards - i * row.cell) for i in range(len(row.committed))]
    shares = [done / count for done, count in zip(row.committed, there, strict=True)]
    return drawing.StripRow(
        row.name,
        [share if share == 1 else min(share, 0.89) for share in shares],  # the last shade is for all of them
        orange=[count > 0 for count in row.running],
        green=[count > 0 for count in row.finished],
        failed=[count > 0 for count in row.given_up],
    )


def _layers(job: JobStatus) -> Block:
    """Of many, those that are not merged yet."""
    many = len(job.layers) > ROWS_MOST
    kept = [one for one in job.layers if not many or one.state != "merged"]
    rows = [(one.name, one.state, f"{one.tally.committed:,}/{one.tally.shards:,}", percent(one.tally),
             count(one.tally.running), count(one.tally.quarantined)) for one in kept[:ROWS_MOST]]  # fmt: skip
    return block("layers", rows=rows, more=len(job.layers) - len(rows))


def _job_machines(job: JobStatus) -> Block:
    order = sorted(job.agents, key=lambda one: (-one.running, -one.shards, one.name))
    rows = [(one.name, count(one.slots), count(one.running), count(one.finished), count(one.shards),
             compact(one.bytes_in), format_duration(one.seconds) if one.seconds else "-")
            for one in order[:ROWS_MOST]]  # fmt: skip
    return block("workers", rows=rows, more=len(order) - len(rows))


def failures_of(job: str) -> FailuresAsk:
    return FailuresAsk(job, limit=FAILURES_MOST, evidence_of=EVIDENCE_SHOWN)


@drawn_once
def _failures(job: str, said: Answer | None) -> list[Block]:
    if said is None or not isinstance(failures := said.value, Failures) or not failures.items:
        return []
    rows = [
        {"is_whole": i < EVIDENCE_SHOWN, "shard": f"{one.layer}/{one.number}",
         "where": f"/shard/{job}/{one.layer}/{one.number}",
         "given_up": one.quarantined, "head": short(f"{one.code}: {one.message}", HEAD_CHARS), "agent": one.agent,
         "when": moment(one.when), "evidence": one.evidence[-html.EVIDENCE_CHARS:]}
        for i, one in enumerate(failures.items)
    ]  # fmt: skip
    return [block("failures", rows=rows, total=failures.total, job=job)]


# --- one machine, one shard -----------------------------------------------------------------------------------


def _machine(view: View, seen: Seen) -> list[Block]:
    found = next((one for one in seen.agents.agents if one.name == view.machine), None) if seen.agents else None
    if found is None or seen.agents is None:
        return [block("missing", said=f"there is no machine {view.machine}")] if seen.agents else []
    row = _machine_row(seen.history, found, seen.agents.now)
    answer = seen.get(AgentsAsk(view.machine))
    told = answer.agents[0] if isinstance(answer, Agents) and answer.agents else found
    names = ("processor, cores in use", "memory, of its budget", "disk, its spool", "link, in", "link, out")
    history = [seen.history.line(found.name, measure) for measure in MEASURES]
    lines = [drawing.spark(line, 600, 60) for line in history]
    facts = [
        ("host", found.host),
        ("version", found.version),
        ("computes as", told.fingerprint),
        ("nodes", ", ".join(f"{name} {slots}" for name, slots in sorted(told.places.items())[:ROWS_MOST])),
    ]
    most = [max((one for one in line if one is not None), default=None) for line in history]
    tops = ["-" if most[0] is None else f"{most[0]:.1f}", *(compact(one) for one in most[1:])]
    made = block("machine", one=row, drawn=list(zip(names, row["numbers"], tops, lines, strict=True)),
                 facts=[(name, said) for name, said in facts if said])  # fmt: skip
    assert seen.status is not None
    jobs = [(job.id, job.state, rate) for job in seen.status.jobs for rate in job.agents
            if rate.name == found.name and job.state not in ENDED][::-1]  # fmt: skip
    rows = [(job, state, count(rate.slots), count(rate.running), count(rate.finished), count(rate.shards),
             format_duration(rate.seconds) if rate.seconds else "-")
            for job, state, rate in jobs[:ROWS_MOST]]  # fmt: skip
    explained = _lines("why", "What it does, and why", seen.get(ExplainAgent(view.machine)))
    return [made, explained, block("its_jobs", rows=rows, more=len(jobs) - len(rows))]


def _shard(view: View, seen: Seen) -> list[Block]:
    question = ExplainShard(view.job, view.layer, view.number)
    answer = seen.get(question)
    if not isinstance(answer, Explained):
        error = seen.error(question)
        return [block("missing", said=error)] if error else []
    story = [(moment(one.when), one.said, one.evidence[-html.EVIDENCE_CHARS :]) for one in answer.happenings]
    since = "" if answer.merged or not answer.since else moment(answer.since)
    return [block("shard", about=answer.about, job=view.job, lines=answer.lines, story=story, since=since)]


def _lines(name: str, head: str, answer: object) -> Block:
    return block(name, head=head, lines=answer.lines[:ROWS_MOST] if isinstance(answer, Explained) else [])


OF_KIND: dict[Kind, Callable[[View, Seen], list[Block]]] = {
    "farm": _farm,
    "jobs": _jobs,
    "job": _job,
    "machine": _machine,
    "shard": _shard,
}
