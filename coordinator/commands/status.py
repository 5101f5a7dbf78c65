"""`coordinator status`: all jobs, or one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from muster.coordinator.api.requests import StatusAsk
from muster.coordinator.api.status import JobStatus, Status
from muster.coordinator.commands.options import json_option, plain, root_option, say, say_json
from muster.coordinator.display import agents, jobs
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.submission import eta
from muster.jobs.common.cli import example
from muster.jobs.common.units import counted


@click.command(epilog=example("coordinator status", "coordinator status weights.1 --json"))
@click.argument("job", metavar="[JOB]", required=False)
@root_option
@json_option
def command(job: str | None, root: Path | None, as_json: bool) -> None:
    """List the jobs, or show one with its layers and machines."""
    found = roots.existing(root)
    answer = ask_daemon.ask(found, StatusAsk(ask_daemon.job_named(found, job) if job else None), Status)
    if as_json:
        say_json(as_plain(answer))
    elif job:
        say("\n\n".join(jobs.job_page(each, answer.now) for each in answer.jobs))
    else:
        say(jobs.jobs_table(answer.jobs, answer.now))
        say(farm_line(found, answer))


def farm_line(root: Root, answer: Status) -> str:
    """What holds for all jobs."""
    machines = f"{counted(answer.agents, 'machine')} at work"
    if not answer.agents:
        machines = agents.no_machines(root.path)
    return "\n".join(["", machines, *answer.notes])


def as_plain(answer: Status) -> dict[str, Any]:
    """The answer with each job's ETA."""
    made: dict[str, Any] = plain(answer)
    made["jobs"] = [_job(job, answer.now) for job in answer.jobs]
    return made


def _job(job: JobStatus, now: float) -> dict[str, Any]:
    return {**msgspec.to_builtins(job), "eta": msgspec.to_builtins(eta.eta(job, now))}
