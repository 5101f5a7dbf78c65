"""Jobs and their layers as text for people: tables, pages, progress. Decides and fetches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from muster.coordinator.api.status import FailureRecord, JobStatus, LayerStatus, Tally
from muster.coordinator.display import training
from muster.coordinator.submission import eta as progress
from muster.coordinator.submission.eta import Eta
from muster.jobs.common.errors import IncompleteError
from muster.jobs.common.units import format_duration, format_size
from muster.jobs.contract.failure_codes import whose_fault

if TYPE_CHECKING:  # planning alone needs what this imports
    pass
from muster.coordinator.display.agents import machines_table
from muster.coordinator.display.tables import NO_ETA, count, counted, left, moment, percent, rate, short, table

LAYERS_SHOWN = 30


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


def incomplete(status: JobStatus) -> IncompleteError:
    """Why a job that is over is not complete, as an error."""
    why = f": {status.why}" if status.why else ""
    return IncompleteError(f"{status.id} is {status.state}{why}", _hint_of(status))


def _hint_of(status: JobStatus) -> str:
    if status.state == "cancelled":
        return f"`coordinator retry {status.id}` goes on with it; `coordinator result {status.id}` has what is merged"
    only = " --failed" if status.totals.quarantined else ""
    return f"`coordinator logs {status.id}{only}` has the evidence; `coordinator retry {status.id}` runs them again"


def failure_page(job: str, record: FailureRecord) -> str:
    """One failure: whose, where, when, and its evidence indented."""
    state = ", quarantined" if record.quarantined else ""
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
