"""What is known of the farm as OpenMetrics text, for those who have Prometheus. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

from muster.coordinator.api.status import AgentStatus, JobStatus
from muster.coordinator.page.seen import Seen
from muster.coordinator.submission import eta
from muster.jobs.contract.states import ENDED, JobState

MEDIA_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
ENDED_MOST = 50  # jobs that ended, the newest
JOB_STATES = get_args(JobState)
TALLIES = ("committed", "finished", "running", "pending", "quarantined")
Labels = Sequence[tuple[str, str]]
Sample = tuple[Labels, float | None]  # None: not known, and left out


def text(seen: Seen) -> str:
    """All families, then the end; of a farm whose daemon is gone only that it is."""
    lines = list(
        _family(
            "muster_up", "Whether the coordinator answers.", [((), float(seen.status is not None and not seen.gone))]
        )
    )
    if seen.status is not None and not seen.gone:
        version = [((("version", seen.status.version),), 1.0)]
        lines += _family("muster_coordinator", "The coordinator's version.", version, "info")
        ended = sorted((job for job in seen.status.jobs if job.state in ENDED), key=lambda job: job.created)
        jobs = [job for job in seen.status.jobs if job.state not in ENDED] + ended[-ENDED_MOST:]
        lines += _jobs(jobs, seen.status.now)
    if seen.agents is not None and not seen.gone:
        lines += _machines(seen.agents.agents)
    return "\n".join([*lines, "# EOF", ""])


def _family(name: str, meaning: str, samples: Sequence[Sample], kind: str = "gauge") -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    if unit := next((one for one in ("seconds", "bytes", "ratio") if name.endswith(f"_{one}")), ""):
        yield f"# UNIT {name} {unit}"
    yield f"# HELP {name} {meaning}"
    suffix = "_info" if kind == "info" else ""
    for labels, value in samples:
        if value is not None:
            inner = ",".join(f'{key}="{_escaped(said)}"' for key, said in labels)
            yield f"{name}{suffix}{{{inner}}} {value:.10g}" if inner else f"{name}{suffix} {value:.10g}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _jobs(jobs: Sequence[JobStatus], now: float) -> Iterator[str]:
    def of(job: JobStatus, *more: tuple[str, str]) -> Labels:
        return (("job", job.id), ("kind", job.kind), *more)

    states = [(of(job, ("muster_job_state", state)), float(job.state == state)) for job in jobs for state in JOB_STATES]
    yield from _family("muster_job_state", "What state a job is in.", states, "stateset")
    shards = [
        (of(job, ("state", "given_up" if name == "quarantined" else name)), float(getattr(job.totals, name)))
        for job in jobs
        for name in TALLIES
    ]
    yield from _family("muster_job_shards", "Shards by what they are now.", shards)
    failed = [(of(job), float(job.failures)) for job in jobs]
    yield from _family("muster_job_failed_attempts", "Attempts that failed and are stored.", failed)
    committed = [(of(job), float(job.totals.bytes_committed)) for job in jobs]
    yield from _family("muster_job_committed_bytes", "Output in committed bundles.", committed)
    running = [job for job in jobs if job.state == "running" and job.progress is None]
    rates = [(of(job), eta.speed(job, now).shards) for job in running]
    yield from _family("muster_job_shards_per_second", "Shards finished a second, over the last minute.", rates)
    left = [(of(job), eta.eta(job, now).likely) for job in running]
    yield from _family("muster_job_left_seconds", "Until the job is merged, if things go on as they do.", left)
    done = [(of(job, ("unit", job.progress.unit)), float(job.progress.done)) for job in jobs if job.progress]
    yield from _family("muster_job_progress", "What a driver counts in place of shards.", done)


def _machines(agents: Sequence[AgentStatus]) -> Iterator[str]:
    def each(attribute: str) -> list[Sample]:
        return [((("agent", one.name),), getattr(one, attribute)) for one in agents]

    live = [((("agent", one.name), ("state", one.state)), float(one.state == "live")) for one in agents]
    yield from _family("muster_agent_live", "Whether a machine is connected and takes work.", live)
    for name, attribute, meaning in (
        ("muster_agent_lent_cores", "cpus", "Cores that a machine lends."),
        ("muster_agent_busy_ratio", "busy", "Of the cores it lends, over the last minute."),
        ("muster_agent_used_cores", "processor", "Cores that its shards really used, over the last minute."),
        ("muster_agent_memory_bytes", "memory_now", "Memory that its shards take."),
        ("muster_agent_memory_budget_bytes", "memory_budget", "Memory that its shards may take."),
        ("muster_agent_spool_bytes", "disk_now", "Bytes in its spool."),
        ("muster_agent_in_bytes_per_second", "in_rate", "Over its link, in the last minute."),
        ("muster_agent_out_bytes_per_second", "out_rate", "Over its link, in the last minute."),
        ("muster_agent_running_shards", "running", "Shards granted to it and unfinished."),
        ("muster_agent_committed_shards", "done", "Shards committed from it, of all jobs that are there."),
        ("muster_agent_seen_timestamp_seconds", "last_seen", "When it was heard of last."),
        ("muster_agent_silent_seconds", "silent", "For how long nothing was heard of it, where that is long."),
    ):
        yield from _family(name, meaning, each(attribute))
