"""Jobs and their layers as text for people: tables, pages, progress. Decides and fetches nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from muster.coordinator.api.status import SUBMIT_AGAIN, FailureRecord, JobStatus, LayerStatus, Progress, Status, Tally
from muster.coordinator.display import colours
from muster.coordinator.display.agents import machines_table
from muster.coordinator.display.tables import (
    NO_ETA,
    count,
    left,
    moment,
    percent,
    rate,
    rates,
    short,
    table,
    whole,
)
from muster.coordinator.submission import eta
from muster.coordinator.submission.eta import Eta, Speed
from muster.jobs.common.errors import DamagedError, IncompleteError, MusterError
from muster.jobs.common.units import counted, format_duration, format_size
from muster.jobs.contract.failure_codes import whose_fault

LAYERS_SHOWN = 30


# --- jobs -------------------------------------------------------------------------------------------------


def jobs_table(jobs: Sequence[JobStatus], now: float) -> str:
    if not jobs:
        return "no jobs; `coordinator submit job.yaml` starts one"
    rows = [(short(job.id), job.kind, colours.state(job.state), *job_row(job, now)) for job in jobs]
    lines = [table(("JOB", "KIND", "STATE", "SHARDS", "DONE", "RATE", "TIME"), rows, "   rrr")]
    return colours.joined("\n", lines + [f"{job.id}: {line}" for job in jobs for line in remarks(job)])


class JobRow(NamedTuple):
    """A job in a table of jobs."""

    counts: str
    percent: str
    rate: str
    time: str  # left, or taken


def job_row(job: JobStatus, now: float) -> JobRow:
    counts = _kept(job)
    return JobRow(_counts(counts), _percent(job, counts), _job_rate(job, now, rate), _when(job, now))


def _kept(job: JobStatus) -> tuple[int, int]:
    """How much there is, and how much of it is safe: committed, or counted by a driver."""
    if job.progress is not None:
        return job.progress.total, job.progress.done
    return job.totals.shards, job.totals.committed


def _counts(counts: tuple[int, int]) -> str:
    return f"{counts[1]:,}/{counts[0]:,}"


def _percent(job: JobStatus, counts: tuple[int, int]) -> str:
    """A job may be complete before all that its driver might have done."""
    return "100%" if job.state == "complete" else f"{100 * counts[1] // max(counts[0], 1)}%"


def _shards(tally: Tally) -> str:
    return f"{tally.committed:,}/{tally.shards:,}"


def _job_rate(job: JobStatus, now: float, shown: Callable[[Speed], str] = rates) -> str:
    at_work = job.state == "running" and any(agent.live for agent in job.agents)
    if job.progress is not None:
        return _rate(job.progress) if at_work else "-"
    return shown(eta.speed(job, now)) if at_work else "-"


def _when(job: JobStatus, now: float) -> str:
    """What is left of a running job; what an ended one took."""
    if job.state == "running":
        return _time_left(job, now)
    if job.ended and job.started:
        return f"took {format_duration(job.ended - job.started)}"
    return "-"


def _time_left(job: JobStatus, now: float) -> str:
    """How long it goes on, or why nobody can tell."""
    if job.progress is not None:
        return _left(job.progress) if job.progress.left is None else f"{_left(job.progress)} left"
    end = eta.eta(job, now)
    return left(end) if end.likely is None else f"{left(end)} left"


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
    why = f" ({job.why})" if job.why else ""
    lines = [colours.joined("", [f"{job.id}: {job.kind}, ", colours.state(job.state), why]), *job_lines(job, now)]
    blocks = [colours.joined("\n", lines), "" if job.progress else layers_table(job.layers), machines_table(job)]
    return colours.joined("\n\n", (block for block in blocks if block))


def job_lines(job: JobStatus, now: float) -> list[str]:
    """What there is to say of a job beside its tables, each line with its label."""
    totals, lines = job.totals, list[str]()
    if job.progress is None:
        lines.append(f"  shards    {_counts(_kept(job))} committed ({_percent(job, _kept(job))}), {_rest(totals)}")
        lines.append(f"  layers    {job.layers_merged:,}/{job.layers_total:,} merged")
    lines.append(f"  time      submitted {moment(job.created)}{_took(job, now)}")
    if job.progress is not None:
        lines += _progress_lines(job, job.progress)
    elif job.state == "running":
        lines.append(f"  rate      {_job_rate(job, now)}")
        lines.append(f"  left      {eta_line(eta.eta(job, now))}")
    if job.failures or totals.quarantined:
        only = " --failed" if totals.quarantined else ""
        lines.append(f"  failures  {counted(job.failures, 'attempt')} failed; see `coordinator logs {job.id}{only}`")
    if job.priority != 1:
        lines.append(f"  priority  {job.priority}")
    return lines + [f"  note      {note}" for note in [*job.notes, *slow_lines(job)]]


def _rest(tally: Tally) -> str:
    counts = {"finished": tally.finished, "running": tally.running, "pending": tally.pending}
    counts["given up"] = tally.quarantined
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "nothing left"


def _took(job: JobStatus, now: float) -> str:
    if not job.started:
        return ""
    if job.ended:
        return f", took {format_duration(job.ended - job.started)}"
    return f", running for {format_duration(max(0.0, now - job.started))}" if job.state == "running" else ""


def eta_line(end: Eta) -> str:
    """An ETA with its range and its bottleneck."""
    if end.likely is None:
        return NO_ETA[end.bottleneck][1]
    return f"{format_duration(end.likely)} ({left(end)}), bound by {end.bottleneck}"


def layers_table(layers: Sequence[LayerStatus]) -> str:
    """Layers in the order of the source; of many, the unmerged ones."""
    shown = [layer for layer in layers if len(layers) <= LAYERS_SHOWN or layer.state != "merged"][:LAYERS_SHOWN]
    rows = [
        (
            short(layer.name),
            colours.state(layer.state),
            _shards(layer.tally),
            percent(layer.tally),
            *_open_counts(layer.tally),
        )
        for layer in shown
    ]
    if not rows:
        return ""
    text = table(("LAYER", "STATE", "SHARDS", "DONE", "RUNNING", "GIVEN UP"), rows, "  rrrr")
    hidden = len(layers) - len(shown)
    return colours.joined("\n", [text, *([f"… and {counted(hidden, 'layer')} more; --json has all"] if hidden else [])])


def _open_counts(tally: Tally) -> tuple[str, str]:
    return count(tally.running), count(tally.quarantined)


def progress_line(answer: Status) -> str:
    """One line for watchers where there is no terminal."""
    job, now = answer.jobs[0], answer.now
    counts = bar_counts(job)
    if job.progress is not None:
        head = f"{job.id} {job.state}: {job.progress.unit} {_counts(counts)}"
        return ", ".join([head, *_in_short(job, job.progress, "left: "), *_elapsed(job, now), *holdups(answer)])
    totals = job.totals
    parts = [f"{job.id} {job.state}: {_counts(counts)} shards ({_percent(job, counts)})"]
    if totals.finished:
        parts.append(f"{totals.finished:,} to push")
    if totals.quarantined:
        parts.append(f"{totals.quarantined:,} given up")
    if job.layers_total > 1 or totals.committed == totals.shards:
        parts.append(f"{job.layers_merged:,}/{job.layers_total:,} layers merged")
    if job.state == "running":
        parts += [_job_rate(job, now), *_elapsed(job, now), f"left: {eta_line(eta.eta(job, now))}"]
    return ", ".join(part for part in [*parts, *holdups(answer)] if part != "-")


def holdups(answer: Status) -> list[str]:
    """Why nothing runs, or might not go on, as its watchers are told: the daemon's silence before all else."""
    job = answer.jobs[0]
    if answer.silent:
        return [f"the coordinator has not answered for {whole(max(1.0, answer.silent))}"]
    return [] if job.is_over else [*([job.why] if job.why else []), *job.notes]


def bar_counts(job: JobStatus) -> tuple[int, int]:
    """How long a bar is, and how much of it machines have finished, pushed or not."""
    total, kept = _kept(job)
    return total, kept if job.progress is not None else kept + job.totals.finished


def bar_note(answer: Status) -> str:
    """What stands behind a bar: rate, time passed and time left."""
    job, now = answer.jobs[0], answer.now
    state = [colours.state(job.state)] if job.state != "running" else []
    if job.progress is not None:
        return colours.joined(", ", [*state, *_in_short(job, job.progress), *_elapsed(job, now)])
    if state:
        return state[0]
    if job.totals.shards and job.totals.committed == job.totals.shards:
        return f"merging {job.layers_merged:,}/{job.layers_total:,}"
    parts = (_job_rate(job, now), *_elapsed(job, now), _time_left(job, now))
    return ", ".join(part for part in parts if part != "-")


def _elapsed(job: JobStatus, now: float) -> list[str]:
    """The time since the first grant, to whole seconds, of a job that goes on."""
    if job.started is None or job.is_over:
        return []
    return [f"{whole(max(0.0, now - job.started))} so far"]


# --- jobs whose driver counts something else than shards -----------------------------------------------------


def _rate(progress: Progress) -> str:
    return f"{progress.rate:.3g} {progress.unit}s/s" if progress.rate > 0 else "-"


def _left(progress: Progress) -> str:
    """The time left, in the driver's words where it has some."""
    if progress.left is None:
        return "measuring"
    return progress.left_text or format_duration(round(progress.left))


def _at_work(job: JobStatus) -> str:
    return counted(sum(agent.live for agent in job.agents), "machine")


def _in_short(job: JobStatus, progress: Progress, label: str = "") -> list[str]:
    """What stands behind the count; `label`: before the time left."""
    going_on = [_rate(progress), _at_work(job), f"{label}{_left(progress)}"] if job.state == "running" else []
    return [part for part in [*progress.facts, *going_on] if part != "-"]


def _progress_lines(job: JobStatus, progress: Progress) -> list[str]:
    """What a job's page says in place of shards, layers and rate."""
    took = f", {progress.took}" if progress.took else ""
    count = f"  {progress.unit + 's':<9} {_counts(_kept(job))} ({_percent(job, _kept(job))}){took}"
    lines = [count, *(f"  {line}" for line in progress.lines)]
    if job.state == "running":
        lines += [f"  rate      {_rate(progress)}, {_at_work(job)} at work", f"  left      {_left(progress)}"]
    return lines


# --- how jobs end --------------------------------------------------------------------------------------------


def incomplete(status: JobStatus) -> MusterError:
    """Why a job that is over is not complete, as an error."""
    why = f": {status.why}" if status.why else ""
    if status.state == "damaged":
        return DamagedError(f"{status.id} is damaged{why}", " ".join(status.notes) or None)
    return IncompleteError(f"{status.id} is {status.state}{why}", _hint_of(status))


def _hint_of(status: JobStatus) -> str:
    if status.state == "cancelled":
        return f"`coordinator retry {status.id}` goes on with it; `coordinator result {status.id}` has what is merged"
    if status.state == "incomplete" and not status.totals.quarantined:
        return SUBMIT_AGAIN.format(status.id)
    only = " --failed" if status.totals.quarantined else ""
    rest = f"; `coordinator result {status.id} --partial` has all else" if status.state == "incomplete" else ""
    return (
        f"`coordinator logs {status.id}{only}` has the evidence; `coordinator retry {status.id}` runs them again{rest}"
    )


def failure_page(job: str, record: FailureRecord) -> str:
    """One failure: whose, where, when, and its evidence indented."""
    state = ", given up" if record.quarantined else ""
    if whose_fault(record.code) == "job":
        whose = job if record.code == "driver" else f"{job}/{record.layer}"
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
