"""Answers as text for people: aligned tables and lines within 80 columns. Decides and fetches nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from muster.coordinator.api.status import AgentStatus, FailureRecord, JobStatus, LayerStatus, Tally
from muster.coordinator.api.values import DRIVER, MERGE
from muster.coordinator.display import training
from muster.coordinator.submission import eta as progress
from muster.coordinator.submission.eta import Eta, Speed, Trace
from muster.jobs.common.errors import IncompleteError
from muster.jobs.common.units import format_duration, format_size

if TYPE_CHECKING:  # planning alone needs what this imports
    from muster.coordinator.submission.forecast import Forecast, LayerForecast

NAME_WIDTH = 28  # columns a name may take in a table
LAYERS_SHOWN = 30
GAP = "  "
NO_ETA = {  # in short, and in full
    "measuring": ("measuring", "measuring"),
    "no agents": ("no agents", "no machine works on it"),
    "push": ("push stalled", "unknown: nothing finished is being pushed"),
}


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: str = "") -> str:
    """Aligned columns. `right`: an `r` at each column that is aligned to the right, any other character elsewhere."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join(_line(row, widths, right) for row in cells)


def _line(row: Sequence[str], widths: Sequence[int], right: str) -> str:
    parts = [
        cell.rjust(width) if right[i : i + 1] == "r" else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return GAP.join(parts).rstrip()


def short(name: str, width: int = NAME_WIDTH) -> str:
    """A name that fits; its end, which tells layers apart, stays."""
    return name if len(name) <= width else "…" + name[1 - width :]


def count(number: int) -> str:
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """ "1 shard", "2 shards"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def percent(tally: Tally) -> str:
    """Rounded down: 100% is only ever all of it."""
    return f"{int(progress.share(tally) * 100)}%"


def rate(speed: Speed) -> str:
    """Bytes a second, or shards a second where there are no bytes; "-" for neither."""
    if speed.in_bytes >= 1:
        return f"{format_size(round(speed.in_bytes))}/s"
    return f"{speed.shards:.1f} shards/s" if speed.shards > 0 else "-"


def moment(when: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when)) if when else "-"


def ago(when: float, now: float) -> str:
    return f"{format_duration(round(max(0.0, now - when)))} ago" if now - when >= 1 else "now"


def left(eta: Eta) -> str:
    """An ETA in a word or two."""
    if eta.likely is None or eta.low is None or eta.high is None:
        return NO_ETA[eta.bottleneck][0]
    return spread(eta.low, eta.high)


def spread(low: float, high: float) -> str:
    """ "3-4 min": one unit for both ends, the upper one's, where that says enough."""
    if high < 2:
        return "2 s at most"
    unit, name = next(((u, n) for u, n in ((86400, "d"), (3600, "h"), (60, "min")) if high >= 2 * u), (1, "s"))
    least, most = round(low / unit), max(1, round(high / unit))
    return f"{most} {name}" if least == most else f"{least}-{most} {name}"


# --- jobs -------------------------------------------------------------------------------------------------


def jobs_table(jobs: Sequence[JobStatus], now: float) -> str:
    if not jobs:
        return "no jobs; `coordinator submit job.yaml` starts one"
    rows = [
        (
            short(job.id),
            job.kind,
            job.state,
            training.rounds(job.training) if job.training else _shards(job.totals),
            training.percent(job, job.training) if job.training else percent(job.totals),
            _job_rate(job, now),
            _when(job, now),
        )
        for job in jobs
    ]
    lines = [table(("JOB", "KIND", "STATE", "SHARDS", "DONE", "RATE", "TIME"), rows, "   rrr")]
    return "\n".join(lines + [f"{job.id}: {line}" for job in jobs for line in remarks(job)])


def _shards(tally: Tally) -> str:
    return f"{tally.committed:,}/{tally.shards:,}"


def _job_rate(job: JobStatus, now: float) -> str:
    at_work = job.state == "running" and any(agent.live for agent in job.agents)
    if job.training is not None:
        return training.rate(job.training) if at_work else "-"
    return rate(progress.speed(job, now)) if at_work else "-"


def _when(job: JobStatus, now: float) -> str:
    """What is left of a running job; what an ended one took."""
    if job.state == "running" and job.training is not None:
        until = training.left(job.training)
        return until if job.training.rate <= 0 else f"{until} left"
    if job.state == "running":
        eta = progress.eta(job, now)
        return left(eta) if eta.likely is None else f"{left(eta)} left"
    if job.ended and job.started:
        return f"took {format_duration(job.ended - job.started)}"
    return "-"


def remarks(job: JobStatus) -> list[str]:
    """Lines that a person should see: why it does not run, and what holds it up."""
    return [*([job.why] if job.why else []), *job.notes, *slow_lines(job)]


def slow_lines(job: JobStatus) -> list[str]:
    """What runs suspiciously long; nothing ends it but a timeout, or who is told."""
    return [
        f"{job.id}/{one.layer}/{one.number} has been at work on {one.agent} for {format_duration(round(one.seconds))},"
        f" others take {format_duration(one.median)}; there is no `timeout`"
        for one in job.slow
    ]


def job_page(job: JobStatus, now: float) -> str:
    """All about one job."""
    totals = job.totals
    lines = [f"{job.id}: {job.kind}, {job.state}" + (f" ({job.why})" if job.why else "")]
    if job.training is None:
        lines.append(f"  shards    {_shards(totals)} committed ({percent(totals)}), {_rest(totals)}")
        lines.append(f"  layers    {job.layers_merged:,}/{job.layers_total:,} merged")
    lines.append(f"  time      submitted {moment(job.created)}{_took(job, now)}")
    if job.training is not None:
        lines += training.page_lines(job, job.training)
    elif job.state == "running":
        lines.append(f"  rate      {_job_rate(job, now)}")
        lines.append(f"  left      {eta_line(progress.eta(job, now))}")
    if job.failures or totals.quarantined:
        only = " --failed" if totals.quarantined else ""
        lines.append(f"  failures  {counted(job.failures, 'attempt')}; see `coordinator logs {job.id}{only}`")
    if job.priority != 1:
        lines.append(f"  priority  {job.priority}")
    lines += [f"  note      {note}" for note in [*job.notes, *slow_lines(job)]]
    blocks = ["\n".join(lines), "" if job.training else layers_table(job.layers), machines_table(job)]
    return "\n\n".join(block for block in blocks if block)


def _rest(tally: Tally) -> str:
    named = ("finished", "running", "pending", "quarantined")
    parts = [f"{getattr(tally, name):,} {name}" for name in named if getattr(tally, name)]
    return ", ".join(parts) or "nothing left"


def _took(job: JobStatus, now: float) -> str:
    if not job.started:
        return ""
    if job.ended:
        return f", took {format_duration(job.ended - job.started)}"
    return f", running for {format_duration(max(0.0, now - job.started))}" if job.state == "running" else ""


def eta_line(eta: Eta) -> str:
    """An ETA with its range and its bottleneck."""
    if eta.likely is None:
        return NO_ETA[eta.bottleneck][1]
    return f"{format_duration(eta.likely)} ({left(eta)}), bound by {eta.bottleneck}"


def layers_table(layers: Sequence[LayerStatus]) -> str:
    """Layers in the order of the source; of many, the unmerged ones."""
    shown = [layer for layer in layers if len(layers) <= LAYERS_SHOWN or layer.state != "merged"][:LAYERS_SHOWN]
    rows = [
        (short(layer.name), layer.state, _shards(layer.tally), percent(layer.tally), *_open_counts(layer.tally))
        for layer in shown
    ]
    if not rows:
        return ""
    text = table(("LAYER", "STATE", "SHARDS", "DONE", "RUNNING", "FAILED"), rows, "  rrrr")
    hidden = len(layers) - len(shown)
    return f"{text}\n… and {counted(hidden, 'layer')} more; --json has all" if hidden else text


def _open_counts(tally: Tally) -> tuple[str, str]:
    return count(tally.running), count(tally.quarantined)


def machines_table(job: JobStatus) -> str:
    """A training reads nothing worth telling: its rows are on each machine."""
    reads = job.training is None
    rows = [
        (
            short(agent.name),
            count(agent.slots),
            count(agent.running),
            count(agent.shards),
            *([format_size(agent.in_bytes)] if reads else []),
            format_duration(agent.seconds) if agent.seconds else "-",
        )
        for agent in job.agents
    ]
    header = ("MACHINE", "SLOTS", "RUNNING", "FINISHED", *(["READ"] if reads else []), "COMPUTE/SHARD")
    return table(header, rows, " rrrrr") if rows else ""


def progress_line(job: JobStatus, now: float) -> str:
    """One line for watchers where there is no terminal."""
    if job.training is not None:
        return training.line(job, job.training)
    totals = job.totals
    parts = [f"{job.id} {job.state}: {_shards(totals)} shards ({percent(totals)})"]
    if totals.finished:
        parts.append(f"{totals.finished:,} to push")
    if totals.quarantined:
        parts.append(f"{totals.quarantined:,} quarantined")
    if job.layers_total > 1 or totals.committed == totals.shards:
        parts.append(f"{job.layers_merged:,}/{job.layers_total:,} layers merged")
    if job.state == "running":
        parts += [_job_rate(job, now), f"left: {eta_line(progress.eta(job, now))}"]
    return ", ".join(part for part in parts if part != "-")


def bar_counts(job: JobStatus) -> tuple[int, int]:
    """How long a bar is, and how much of it is done."""
    if job.training is not None:
        return job.training.rounds, job.training.round
    return job.totals.shards, job.totals.committed


def bar_note(job: JobStatus, now: float) -> str:
    """What stands behind a bar: rate and time left, or why there are none."""
    if job.training is not None:
        return training.bar_note(job, job.training)
    if job.state != "running":
        return job.state
    if job.totals.shards and job.totals.committed == job.totals.shards:
        return f"merging {job.layers_merged:,}/{job.layers_total:,}"
    eta = progress.eta(job, now)
    until = left(eta) if eta.likely is None else f"{left(eta)} left"
    return ", ".join(part for part in (_job_rate(job, now), until) if part != "-")


def machine_lines(job: JobStatus, trace: Trace) -> list[str]:
    """Each live machine's rate on a job, and what it is stuck at."""
    slow = {one.agent: f", {one.layer}/{one.number} runs for {format_duration(round(one.seconds))}" for one in job.slow}
    return [
        f"  {agent.name}: {_machine_rate(job, trace.speed(agent.name))}, {agent.shards:,} finished"
        f"{slow.get(agent.name, '')}"
        for agent in job.agents
        if agent.live
    ]


def _machine_rate(job: JobStatus, speed: Speed) -> str:
    """What a training reads says nothing of how fast it is."""
    return rate(speed if job.training is None else replace(speed, in_bytes=0.0))


def incomplete(status: JobStatus) -> IncompleteError:
    """Why a job that is over is not complete, as an error."""
    why = f": {status.why}" if status.why else ""
    return IncompleteError(f"{status.id} is {status.state}{why}", _hint_of(status))


def _hint_of(status: JobStatus) -> str:
    if status.state == "cancelled":
        return f"`coordinator retry {status.id}` goes on with it; `coordinator result {status.id}` has what is merged"
    only = " --failed" if status.totals.quarantined else ""
    return f"`coordinator logs {status.id}{only}` has the evidence; `coordinator retry {status.id}` runs them again"


# --- machines and failures --------------------------------------------------------------------------------


def no_machines(root: Path) -> str:
    return f"no machines; `agent join {root}` adds this one"


def agents_table(agents: Sequence[AgentStatus], now: float) -> str:
    rows = [
        (
            short(agent.name, 20),
            short(agent.host, 20),
            agent.state,
            count(agent.cpus),
            count(agent.running),
            count(agent.done),
            "now" if agent.state in {"live", "draining"} else ago(agent.last_seen, now),
        )
        for agent in agents
    ]
    lines = [table(("AGENT", "HOST", "STATE", "CPUS", "RUNNING", "DONE", "LAST SEEN"), rows, "   rrr")]
    for agent in agents:
        lines += [f"{agent.name}: {agent.note}"] if agent.note else []
        lines += [f"{agent.name}: takes nothing of {job}: {why}" for job, why in agent.ineligible.items()]
    return "\n".join(lines)


def failure_page(job: str, record: FailureRecord) -> str:
    """One failure: whose, where, when, and its evidence indented."""
    state = ", quarantined" if record.quarantined else ""
    if record.code in {DRIVER, MERGE}:  # of no shard
        whose = job if record.code == DRIVER else f"{job}/{record.layer}"
        where = f"  at {moment(record.when)}"
    else:
        whose = f"{job}/{record.layer}/{record.number}{state}"
        where = f"  attempt {record.boot}.{record.attempt} on {record.agent} at {moment(record.when)}{_cost(record)}"
    head = f"{whose}: {record.code}: {record.message}"
    body = [f"  | {line}" for line in record.evidence.splitlines()]
    if not record.agent:  # of no one attempt: it was lost again and again
        return "\n".join([head, *body])
    return "\n".join([head, where, *body])


def _cost(record: FailureRecord) -> str:
    return f", {format_duration(record.seconds)}" + (f", peak {format_size(record.peak)}" if record.peak else "")


# --- forecasts and space ----------------------------------------------------------------------------------


def forecast_page(seen: Forecast) -> str:
    """What `plan` prints."""
    if seen.training is not None:
        return "\n".join([*training.planned(seen.job, seen.training), _farm_line(seen)])
    lines = [
        f"{seen.job}: {seen.kind}, {counted(len(seen.layers), 'layer')}, {counted(seen.shards, 'shard')},"
        f" {counted(seen.rows, 'row')}",
        f"  input    {format_size(seen.in_bytes)}",
        f"  output   {_size_or(seen.out_bytes, 'unknown until the first shards ran')}",
        f"  root     {_room(seen)}",
        _farm_line(seen),
        f"  time     {_forecast_time(seen)}",
    ]
    return "\n".join(lines) + "\n\n" + _forecast_layers(seen.layers)


def _farm_line(seen: Forecast) -> str:
    return f"  farm     {counted(seen.machines, 'machine')}, {counted(seen.slots, 'shard')} at once"


def _size_or(size: int | None, otherwise: str) -> str:
    return otherwise if size is None else format_size(size)


def _room(seen: Forecast) -> str:
    free = "" if seen.root_free is None else f", {format_size(seen.root_free)} free"
    if seen.root_bytes is None:
        return f"twice the output of two layers, beside the result{free}"
    short_of = seen.root_free is not None and seen.root_bytes > seen.root_free
    return f"needs {format_size(seen.root_bytes)}{free}" + (": not enough" if short_of else "")


def _forecast_time(seen: Forecast) -> str:
    if seen.seconds is None or seen.low is None or seen.high is None:
        return f"unknown{'' if seen.basis.startswith('until') else ':'} {seen.basis}"
    return f"{format_duration(seen.seconds)} ({spread(seen.low, seen.high)}), bound by {seen.bottleneck}, {seen.basis}"


def _forecast_layers(layers: Sequence[LayerForecast]) -> str:
    rows = [
        (
            short(layer.name),
            f"{layer.dtype} {'x'.join(str(length) for length in layer.shape)}",
            count(layer.shards),
            format_size(layer.in_bytes),
            _size_or(layer.out_bytes, "?"),
        )
        for layer in layers[:LAYERS_SHOWN]
    ]
    text = table(("LAYER", "ARRAY", "SHARDS", "INPUT", "OUTPUT"), rows, "  rrr")
    hidden = len(layers) - len(rows)
    return f"{text}\n… and {counted(hidden, 'layer')} more; --json has all" if hidden else text
