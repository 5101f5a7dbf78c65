"""`coordinator status`: all jobs, or one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from muster.coordinator.api.requests import StatusAsk
from muster.coordinator.api.status import JobStatus, Status
from muster.coordinator.commands import complete_names
from muster.coordinator.commands.chosen_jobs import state_option
from muster.coordinator.commands.options import farm_option, json_option, plain, say, say_json
from muster.coordinator.display import agents, colours
from muster.coordinator.display import jobs as display
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.submission import eta
from muster.jobs.common.cli import example
from muster.jobs.common.names import ALL_JOBS
from muster.jobs.common.units import counted


@click.command(
    epilog=example("coordinator status", "coordinator status --state running", "coordinator status weights.1 --json")
)
@click.argument("jobs", metavar="[JOB]...", nargs=-1, shell_complete=complete_names.jobs)
@state_option
@farm_option
@json_option
def command(jobs: tuple[str, ...], states: tuple[str, ...], root: Path | None, as_json: bool) -> None:
    """List the jobs, or show some with their layers and machines; `last` is the one that was submitted last.

    `coordinator watch` follows one, `coordinator explain` says why nothing of it runs.
    """
    found = roots.existing(root)
    is_list = not jobs or ALL_JOBS in jobs
    answer = ask_daemon.ask(found, StatusAsk(), Status) if is_list else _named(found, jobs)
    if states:
        answer = msgspec.structs.replace(answer, jobs=[job for job in answer.jobs if job.state in states])
    if as_json:
        say_json(as_plain(answer))
    elif states and not answer.jobs:
        say(f"no job is {' or '.join(states)}")
    elif not is_list:
        say(colours.joined("\n\n", (display.job_page(each, answer.now) for each in answer.jobs)))
    else:
        say(display.jobs_table(answer.jobs, answer.now))
        say(farm_line(found, answer))


def _named(root: Root, jobs: tuple[str, ...]) -> Status:
    """Each with its layers, in one answer."""
    ids = dict.fromkeys(ask_daemon.job_named(root, job) for job in jobs)
    answers = [ask_daemon.ask(root, StatusAsk(job), Status) for job in ids]
    return msgspec.structs.replace(answers[-1], jobs=[job for answer in answers for job in answer.jobs])


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
