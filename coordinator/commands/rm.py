"""`coordinator rm`: delete ended jobs, once somebody says so who knows which."""

from __future__ import annotations

import sys
from math import inf
from pathlib import Path

import click

from muster.coordinator.api.requests import Remove, StatusAsk
from muster.coordinator.api.status import Status
from muster.coordinator.commands.chosen_jobs import Chosen, ask_each, choose, jobs_arguments
from muster.coordinator.commands.options import farm_option, json_option
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.cli import example
from muster.jobs.common.errors import UsageError
from muster.jobs.common.names import split_job_id
from muster.jobs.common.printable import harmless
from muster.jobs.common.units import parse_duration
from muster.jobs.contract.states import ENDED

JOBS_SHOWN = 10


@click.command(
    epilog=example("coordinator rm weights.1 weights.2", "coordinator rm all", "coordinator rm --older-than 30d --yes")
)
@jobs_arguments
@click.option("--older-than", "age", metavar="AGE", help="All jobs that ended so long ago, such as 30d.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@farm_option
@json_option
def command(
    jobs: tuple[str, ...], states: tuple[str, ...], age: str | None, yes: bool, root: Path | None, as_json: bool
) -> None:
    """Delete ended jobs with their results; `all` are those that have ended.

    It asks first, unless each job is named by its full id, as weights.1 is. Copy a result first if you want to keep it:
    `coordinator result JOB --to DIR`. Jobs that are halted or damaged have not ended; they are deleted only if they are
    named, and a halted one once it is cancelled.
    """
    if age is not None and (jobs or states):
        raise UsageError("jobs, or --older-than", "coordinator rm weights.1, or coordinator rm --older-than 30d")
    found = roots.existing(root)
    chosen = _old(found, age) if age is not None else choose(found, jobs, states, ENDED, for_good=True)
    is_exact = bool(jobs) and not states and all(split_job_id(job)[1] is not None for job in jobs)
    if chosen.ids and not (yes or is_exact) and not _agreed(chosen.ids):
        click.echo("nothing is deleted", err=True)
        return
    ask_each(found, chosen, Remove, as_json)


def _old(root: Root, age: str) -> Chosen:
    """Those that ended so long ago."""
    seconds, answer = _seconds(age), ask_daemon.ask(root, StatusAsk(), Status)
    ended = [job.id for job in answer.jobs if job.state in ENDED and (job.ended or inf) <= answer.now - seconds]
    return Chosen(ended, True, f"no job ended {age} ago or before")


def _agreed(jobs: list[str]) -> bool:
    """What the person at the terminal says; a UsageError where there is none."""
    if not sys.stdin.isatty():
        wrong = "rm asks before it deletes, and there is no terminal to answer at"
        raise UsageError(wrong, f"name full ids, such as {jobs[0]}, or add --yes")
    shown = ", ".join(jobs[:JOBS_SHOWN]) + (f" and {len(jobs) - JOBS_SHOWN} more" if len(jobs) > JOBS_SHOWN else "")
    question = f"delete {shown} for good, with {'its' if len(jobs) == 1 else 'their'} results?"
    return click.confirm(harmless(question), err=True)


def _seconds(age: str) -> float:
    try:
        return parse_duration(age)
    except ValueError as error:
        raise UsageError(f"--older-than {age!r}: {error}", "coordinator rm --older-than 30d") from None
